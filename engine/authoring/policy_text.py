"""A text that is being edited: its documents as far as they can be read, and what is at an offset."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

from koordpolicy.engine.documents import YamlNode, read
from koordpolicy.engine.documents.expression_nodes import expression_nodes
from koordpolicy.engine.documents.validation import has_schema, schema
from koordpolicy.engine.source import Problems, Source

YamlPath: TypeAlias = tuple[str | int, ...]
_ALTERNATIVES: Final = ("allOf", "anyOf", "oneOf")


@dataclass(frozen=True, slots=True)
class ExpressionAt:
    """An expression of a document, with the path of its field and an offset within its text."""

    document: YamlNode
    node: YamlNode
    path: YamlPath
    offset: int


@dataclass(frozen=True)
class PolicyText:
    """The text of a policy file."""

    source: Source

    @cached_property
    def documents(self) -> tuple[YamlNode, ...]:
        """The documents that can be read, whatever is wrong with the others."""
        return read(self.source, Problems())

    def document_at(self, offset: int) -> YamlNode | None:
        """Return the last document that begins before an offset."""
        return next((each for each in reversed(self.documents) if each.start <= offset), None)

    def expression_at(self, offset: int) -> ExpressionAt | None:
        """Return the expression that is around an offset, or ends there."""
        document = self.document_at(offset)
        if document is None:
            return None
        for node in expression_nodes(document):
            if node.start <= offset <= node.end:
                path = next(path for path, each in nodes_with_paths(document) if each is node)
                within = bisect.bisect_left(node.part.offsets, offset, 0, len(node.part.text))
                return ExpressionAt(document, node, path, within)
        return None

    def key_at(self, offset: int) -> tuple[YamlNode, YamlPath] | None:
        """Return the document and the path of the key that is at an offset."""
        document = self.document_at(offset)
        if document is None:
            return None
        for path, node in nodes_with_paths(document):
            if node.key is not None and node.key.start <= offset <= node.key.end:
                return document, path
        return None


def nodes_with_paths(document: YamlNode) -> Iterator[tuple[YamlPath, YamlNode]]:
    """Yield all nodes of a document, each before those below it, with their paths."""
    waiting: list[tuple[YamlPath, YamlNode]] = [((), document)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        below: list[tuple[YamlPath, YamlNode]] = [((*path, key), each) for key, each in node.fields.items()]
        below += [((*path, number), each) for number, each in enumerate(node.items)]
        waiting.extend(reversed(below))


def schemas_at(document: YamlNode, path: YamlPath) -> list[Mapping[str, Any]]:
    """Return the schemas of the field at a path: those of all alternatives; none for an unknown kind or field.

    The arguments of a plugin in a component configuration have the schema of the plugin.
    """
    kind = document.at("kind")
    if kind is None or not has_schema(kind.text):
        return []
    found: list[Mapping[str, Any]] = [schema(kind.text)]
    for place, step in enumerate(path):
        name = document.at(*path[:place], "name")
        if step == "args" and name is not None and has_schema(f"{name.text}Args"):
            found = [schema(f"{name.text}Args")]
        else:
            found = [below for each in found for whole in _whole(each) if (below := _below(whole, step)) is not None]
    return [whole for each in found for whole in _whole(each)]


def _whole(declared: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield declared
    for keyword in _ALTERNATIVES:
        for each in declared.get(keyword, ()):
            yield from _whole(each)


def _below(declared: Mapping[str, Any], step: str | int) -> Mapping[str, Any] | None:
    if isinstance(step, int):
        found = declared.get("items")
    else:
        found = declared.get("properties", {}).get(step, declared.get("additionalProperties"))
    return found if isinstance(found, Mapping) else None
