"""The layout of policy files: YAML and the expressions in it, without a change of meaning."""

from .document import format_source as format_source
