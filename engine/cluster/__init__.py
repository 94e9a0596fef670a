"""The cluster as columns, and where it comes from: files, a trace, the Kubernetes API."""
