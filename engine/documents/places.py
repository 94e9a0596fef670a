"""Places of a document's fields in its file. The text is read again, because only problem reports need them."""

from __future__ import annotations

import functools

from koordpolicy.engine.source import Problems, Source, Span

from .nodes import YamlNode, read
from .specs import Document


def node_of(document: Document) -> YamlNode | None:
    """Return the YAML node of a document; None if its text no longer has it."""
    for node in _nodes(document.span.source):
        name = node.at("metadata", "name")
        if name is not None and name.start == document.span.start:
            return node
    return None


def place_of(document: Document, *path: str | int) -> Span:
    """Return the place of a field (`"spec", "params", "percent"`), or of its nearest ancestor in the text.

    Names may be those of the internal form (`for_ns`, `match_conditions`). If the document has no part of the path, it
    is the place of its name.
    """
    node = node_of(document)
    if node is None:
        return document.span
    found: YamlNode | None = None
    for step in path:
        below = _below(node, step)
        if below is None:
            continue  # a level that only the internal form has, such as the effect of an action
        node = found = below
        if isinstance(step, str) and step == "spec":
            found = None
    return found.place if found is not None else document.span


def _below(node: YamlNode, step: str | int) -> YamlNode | None:
    found = node.at(step)
    if found is not None or not isinstance(step, str):
        return found
    first, *rest = step.removesuffix("_ns").split("_")
    name = first + "".join(each.capitalize() for each in rest)
    return node.at(name) or next((below for each in node.fields.values() if (below := each.at(name)) is not None), None)


@functools.lru_cache(maxsize=8)
def _nodes(source: Source) -> tuple[YamlNode, ...]:
    return read(source, Problems())
