"""Fields of a validated mapping, with the defaults of its schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from koordpolicy.engine.source import Problems, Span

from .nodes import YamlNode, to_plain
from .specs import (
    Expression,
    parse_duration,
)
from .validation import Schema

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DocumentFields:
    """A validated mapping; missing fields have the schema's defaults."""

    node: YamlNode
    schema: Schema
    path: str
    problems: Problems

    def value(self, name: str) -> Any:
        """Return a field or its default as plain data; None if it has neither."""
        node = self.node.fields.get(name)
        return self.schema["properties"][name].get("default") if node is None else to_plain(node)

    def whole(self, name: str) -> Any:
        """Return a whole number, which may be written `5.0`, or its default; None if it has neither."""
        value = self.value(name)
        return None if value is None else int(value)

    def share(self, name: str) -> int | str | None:
        """Return a whole number or a percentage; None without the field."""
        value = self.value(name)
        return value if value is None or isinstance(value, str) else int(value)

    def text(self, name: str) -> str:
        """Return a text or its default; empty if it has neither."""
        return str(self.value(name) or "")

    def path_of(self, name: str) -> str:
        """Return the path of a field from the top of the document."""
        return f"{self.path}.{name}"

    def duration(self, name: str) -> int:
        """Return a duration or its default in nanoseconds; 0 if it has neither."""
        text = self.value(name)
        try:
            return parse_duration(text) if text is not None else 0
        except ValueError as error:
            self.problem(str(error), self.node.fields[name].span)
            return 0

    def expression(self, name: str) -> Expression | None:
        """Return an expression; None without the field."""
        node = self.node.fields.get(name)
        return None if node is None else Expression(node.part, self.path_of(name))

    def required(self, name: str) -> Expression:
        """Return an expression that the schema requires."""
        return Expression(self.node.fields[name].part, self.path_of(name))

    def sub(self, name: str) -> DocumentFields | None:
        """Return the fields of a mapping; None without the field."""
        node = self.node.fields.get(name)
        if node is None:
            return None
        return DocumentFields(node, self.schema["properties"][name], self.path_of(name), self.problems)

    def items(self, name: str) -> tuple[DocumentFields, ...]:
        """Return the fields of each item of a list."""
        node = self.node.fields.get(name)
        if node is None:
            return ()
        rule = self.schema["properties"][name]["items"]
        return tuple(
            DocumentFields(each, rule, f"{self.path_of(name)}[{number}]", self.problems)
            for number, each in enumerate(node.items)
        )

    def each(self, name: str, make: Callable[[DocumentFields], T]) -> tuple[T, ...]:
        """Make the items of a list; names must be unique."""
        found = self.items(name)
        seen: dict[str, Span] = {}
        for item in found:
            named = item.node.fields.get("name")
            if named is None:
                continue
            if named.text not in seen:
                seen[named.text] = named.span
                continue
            line = seen[named.text].place[1]
            self.problem(
                f"`{self.path_of(name)}` has two items named `{named.text}`, the first in line {line}", named.span,
                "rename one", code="duplicate-name",
            )
        return tuple(make(item) for item in found)

    def texts(self, name: str) -> frozenset[str] | None:
        """Return a list of texts or its default as a set; None if it has neither."""
        value = self.value(name)
        return None if value is None else frozenset(value)

    def problem(self, message: str, span: Span, hint: str = "", code: str = "invalid-value") -> None:
        """Report a problem."""
        self.problems.add(message, span, help=hint, code=code)

    def place(self, name: str) -> Span:
        """Return the place of a field's key, or of the mapping if the field is missing."""
        node = self.node.fields.get(name)
        return node.place if node is not None else self.node.place
