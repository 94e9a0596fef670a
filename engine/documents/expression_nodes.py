"""Finds the expressions of a YAML document by its schema, also if the document is otherwise invalid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from .nodes import YamlNode
from .specs import VERSION, Kind
from .validation import schema

MARK: Final = "x-language"
"""The keyword of the schemas that marks the text of an expression, with the value `cel`."""
_KINDS: Final = frozenset(kind.value for kind in Kind)
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf")


def expression_nodes(document: YamlNode) -> Iterator[YamlNode]:
    """Yield the nodes of a document that its kind's schema declares to be expressions, each once.

    Nothing for a document of another version or kind.
    """
    version, kind = document.at("apiVersion"), document.at("kind")
    if version is None or kind is None or version.scalar != VERSION or kind.scalar not in _KINDS:
        return
    seen: set[tuple[int, int]] = set()
    for node in _below(document, schema(kind.text)):
        if (node.start, node.end) not in seen:  # aliases, and alternatives of a schema, lead to a node more than once
            seen.add((node.start, node.end))
            yield node


def _below(node: YamlNode, declared: Mapping[str, Any]) -> Iterator[YamlNode]:
    if declared.get(MARK) == "cel" and isinstance(node.scalar, str):
        yield node
    for keyword in _ALTERNATIVES:
        for each in declared.get(keyword, ()):
            yield from _below(node, each)
    for keyword in ("then", "else"):
        if isinstance(declared.get(keyword), Mapping):
            yield from _below(node, declared[keyword])
    known = declared.get("properties", {})
    others = declared.get("additionalProperties")
    for key, each in node.fields.items():
        below = known.get(key, others)
        if isinstance(below, Mapping):
            yield from _below(each, below)
    items = declared.get("items")
    if isinstance(items, Mapping):
        for each in node.items:
            yield from _below(each, items)
