"""The states of a node: its objects on the API server, the pods of its kubelet, and what the agent reports of it."""
