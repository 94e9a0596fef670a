"""HTTP servers of long-running commands: listeners, health checks, metrics, and who may read them."""
