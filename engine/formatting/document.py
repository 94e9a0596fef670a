"""A policy file in the standard layout."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from koordpolicy.engine.cel.syntax.lexer import tokenize
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.documents import YamlNode, read
from koordpolicy.engine.documents.expression_nodes import expression_nodes
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source

from .edits import replaced
from .expressions import expression_edits
from .layout import layout_edits

_OTHER_BREAKS: Final = re.compile("[\x85\u2028\u2029]")


def format_source(source: Source) -> str:
    """Return the text of a policy file in the standard layout, which formatting again does not change.

    Comments, the order of keys, line breaks and quotes remain. The documents are equal before and after: equal values
    of equal types, and of each expression the same tokens.

    Raises:
        PolicyError: the text is not YAML, or an expression cannot be parsed.
    """
    documents = read(source)
    problems = Problems()
    other = _OTHER_BREAKS.search(source.text)
    if other is not None:
        problems.add(
            f"U+{ord(other[0]):04X} is a line break for some readers of YAML and a character for others",
            source.span(other.start()), help="write it as an escape in double quotes", code="yaml-syntax",
        )
    for document in documents:
        for node in expression_nodes(document):
            try:
                parse(node.part, escaped_identifiers=True)
            except PolicyError as error:
                problems.extend(error.problems)
    problems.raise_errors()
    text = source.text.replace("\r\n", "\n").replace("\r", "\n")
    before = Source(source.name, text)
    laid_out = after = Source(source.name, replaced(text, layout_edits(before)))
    try:
        nodes = [node for document in read(laid_out) for node in expression_nodes(document)]
        edits = [edit for node in nodes for edit in expression_edits(node)]
        after = Source(source.name, replaced(laid_out.text, edits))
        difference = _difference(documents, read(after))
    except PolicyError:  # a layout that cannot be read any more
        difference = documents[0] if documents else None
    if difference is not None:
        raise PolicyError([Problem(
            "the layout of this cannot be changed without a change of its meaning", difference.place,
            "write it in a simpler way", code="layout",
        )])
    return after.text


def _difference(before: tuple[YamlNode, ...], after: tuple[YamlNode, ...]) -> YamlNode | None:
    """Return a node of `before` that `after` does not have in its place; None if the documents are equal."""
    if len(before) != len(after):
        return before[0] if before else after[0]
    for one, other in zip(before, after, strict=True):
        expressions = {node.start for node in expression_nodes(one)}
        for old, new in _pairs(one, other):
            if not _equal(old, new, is_expression=old.start in expressions):
                return old
    return None


def _pairs(one: YamlNode, other: YamlNode) -> Iterator[tuple[YamlNode, YamlNode]]:
    """Yield the nodes in equal places, each before those below it."""
    waiting = [(one, other)]
    while waiting:
        old, new = waiting.pop()
        yield old, new
        waiting.extend(zip((*old.fields.values(), *old.items), (*new.fields.values(), *new.items), strict=False))


def _equal(old: YamlNode, new: YamlNode, *, is_expression: bool) -> bool:
    """Return whether two nodes are equal but for what is below them."""
    if isinstance(old.value, Mapping):
        return isinstance(new.value, Mapping) and [*old.value] == [*new.value]
    if isinstance(old.value, tuple):
        return isinstance(new.value, tuple) and len(old.value) == len(new.value)
    if is_expression and isinstance(new.value, str):
        return [each[::3] for each in tokenize(old.text)] == [each[::3] for each in tokenize(new.text)]
    # NaN differs from itself, and 1 equals true.
    return (type(old.value), repr(old.value)) == (type(new.value), repr(new.value))
