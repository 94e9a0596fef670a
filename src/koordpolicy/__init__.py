"""Policy as config for Kubernetes scheduling: YAML documents with CEL expressions, run beside Python plugins."""

__version__ = "0.1.0"
