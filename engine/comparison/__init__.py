"""What a set of policies does to a cluster, what another set would change, and which rules do nothing there."""
