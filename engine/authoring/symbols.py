"""Names that a document declares: an outline, their declarations and uses, and renaming."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.cel.syntax.ast import Call, Expr, Ident, Literal, Select, children
from koordpolicy.engine.cel.syntax.lexer import RESERVED, WORDS
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.documents.expression_nodes import expression_nodes
from koordpolicy.engine.source import PolicyError, Problem, Span

from .policy_text import PolicyText, nodes_with_paths

_NAMED_LISTS: Final = frozenset((
    "variables", "aggregates", "thresholds", "matchConditions", "preEnqueue", "preFilter", "filter", "score",
    "criteria", "actions", "cases",
))
_HOLDERS: Final = frozenset(("variables", "params", "aggregates", "thresholds"))
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name in an outline: its place, and that of all that it names."""

    name: str
    kind: str
    span: Span
    whole: Span
    below: tuple[Symbol, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredName:
    """A name that expressions of a document read: `holder` is variables, params, aggregates or thresholds."""

    document: YamlNode
    holder: str
    name: str
    span: Span
    """The place at which it was found."""


def outline(text: PolicyText) -> tuple[Symbol, ...]:
    """Return the documents of a text, with their named items below them."""
    return tuple(symbol for each in text.documents if (symbol := _document(each)) is not None)


def _document(document: YamlNode) -> Symbol | None:
    kind, name, spec = document.at("kind"), document.at("metadata", "name"), document.at("spec")
    if kind is None:
        return None
    below = []
    for key, node in (spec.fields if spec is not None else {}).items():
        if key in _NAMED_LISTS:
            below += [Symbol(named.text, key, named.span, each.source.span(each.start, each.end))
                      for each in node.items if (named := each.at("name")) is not None]
        elif key == "params":
            below += [Symbol(param, key, each.place, each.source.span(each.place.start, each.end))
                      for param, each in node.fields.items()]
    shown = name or kind
    return Symbol(shown.text, kind.text, shown.span, document.source.span(document.start, document.end), tuple(below))


def name_at(text: PolicyText, offset: int) -> DeclaredName | None:
    """Return the name at an offset, in an expression or where it is declared."""
    at = text.expression_at(offset)
    if at is not None:
        for holder, name, span in _reads(at.node):
            if span.start <= at.offset <= span.end:
                return DeclaredName(at.document, holder, name, span.root())
        return None
    document = text.document_at(offset)
    if document is None:
        return None
    for holder in sorted(_HOLDERS):
        for name, span in _declared(document, holder):
            if span.start <= offset <= span.end:
                return DeclaredName(document, holder, name, span)
    return None


def _declared(document: YamlNode, holder: str) -> Iterator[tuple[str, Span]]:
    """Yield the names that a document declares in a holder, with the places of the names alone."""
    node = document.at("spec", holder)
    if node is None:
        return
    for name, each in node.fields.items():
        if each.key is not None:
            yield name, each.key
    for each in node.items:
        if (named := each.at("name")) is not None and isinstance(named.scalar, str):
            yield named.text, named.part.whole().root()


def _reads(node: YamlNode) -> Iterator[tuple[str, str, Span]]:
    """Yield the reads of an expression from the holders: holder, name, and the place of the name in the expression."""
    try:
        waiting: list[Expr] = [parse(node.part)]
    except PolicyError:
        return
    while waiting:
        part = waiting.pop()
        match part:
            case Select(operand=Ident(name=holder), field=field) if holder in _HOLDERS:
                yield holder, field, node.part.span(part.end - len(field) - part.test, part.end - part.test)
            case Call(function="_[_]", args=(Ident(name=holder), Literal(value=str() as name) as key)) if (
                holder in _HOLDERS and key.end - key.start == len(name) + 2
            ):
                yield holder, name, node.part.span(key.start + 1, key.end - 1)
        waiting.extend(children(part))


def declaration(found: DeclaredName, shared: Mapping[str, YamlNode]) -> Span | None:
    """Return the place where a name is declared: in its document, or in PolicyParams (by name) that it refers to."""
    holders = [found.document]
    references = found.document.at("spec", "paramsFrom")
    if found.holder == "params" and references is not None:
        names = [each.at("name") for each in references.items]
        holders += [shared[each.text] for each in names if each is not None and each.text in shared]
    return next((span for each in holders for name, span in _declared(each, found.holder) if name == found.name), None)


def occurrences(found: DeclaredName) -> tuple[Span, ...]:
    """Return the declaration and all uses of a name in its document, in their order."""
    spans = [span for name, span in _declared(found.document, found.holder) if name == found.name]
    for node in expression_nodes(found.document):
        spans += [span.root() for holder, name, span in _reads(node) if (holder, name) == (found.holder, found.name)]
    return tuple(sorted(spans, key=lambda each: each.start))


def renamed(found: DeclaredName, name: str, suites: Iterable[YamlNode]) -> tuple[Span, ...]:
    """Return the places at which a name is replaced: in its document, and in the PolicyTests that are about it.

    `suites` are the documents of the files with its tests.

    Raises:
        PolicyError: `name` cannot be a name, is declared already, or the old one is declared in another document.
    """
    if _NAME.match(name) is None or name in RESERVED or name in WORDS:
        raise PolicyError([Problem(f"`{name}` is not a name", help="letters, digits and `_`, not beginning with one")])
    if any(each == name for each, _ in _declared(found.document, found.holder)):
        raise PolicyError([Problem(f"there is `{found.holder}.{name}` already", help="choose another name")])
    if all(each != found.name for each, _ in _declared(found.document, found.holder)):
        raise PolicyError([Problem(f"`{found.holder}.{found.name}` is not declared in this document",
                                   help="rename it where it is declared")])
    spans = [*occurrences(found)]
    title = found.document.at("metadata", "name")
    for suite in suites:
        if suite.at("kind") is not None and suite.at("kind").text == "PolicyTest":  # type: ignore[union-attr]
            spans += _in_suite(suite, found, title.text if title is not None else "")
    return tuple(spans)


def _in_suite(suite: YamlNode, found: DeclaredName, title: str) -> Iterator[Span]:
    plugin = suite.at("spec", "plugin")
    if plugin is not None and plugin.text != title:
        return
    for path, node in nodes_with_paths(suite):
        about = suite.at(*path[:3], "plugin") if path[1:2] == ("cases",) else None
        if about is not None and about.text != title:
            continue
        if found.holder == "params" and path[-2:] == ("params", found.name) and node.key is not None:
            yield node.key
        elif path[1:2] == ("survivors",) and path[-1] == "at" and node.text == f"{found.holder}.{found.name}":
            yield node.part.span(len(found.holder) + 1, len(node.text)).root()
