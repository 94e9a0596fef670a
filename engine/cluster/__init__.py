"""The cluster as columns, and its sources: files, a trace, the Kubernetes API."""
