"""Completion: the fields, values, variables and functions that may stand at an offset."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cel.check.environment import Environment, Function, Overload
from koordpolicy.engine.cel.syntax.lexer import tokenize
from koordpolicy.engine.cel.values.types import DYN, Type, optional_of
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.documents.validation import schema
from koordpolicy.engine.source import Source

from .policy_text import PolicyText, YamlPath, nodes_with_paths, schemas_at
from .scopes import checked_in, operand_before, params_of, scope_of, with_locals

_CURSOR: Final = "cursorPlaceholder"
_OPTIONAL: Final = optional_of(DYN).name
_WORD: Final = re.compile(r"[A-Za-z0-9_]*\Z")
_BRACKETS: Final[Mapping[str, str]] = {"{": "}", "[": "]", "(": ")"}
_QUOTES: Final = "'\""
_KINDS: Final = ("SchedulerPlugin", "QoSPlugin", "DeschedulerPlugin", "PolicyParams", "PolicyTest")
MACROS: Final[Mapping[str, tuple[str, str]]] = {
    "all": ("x.all(e, condition)", "True if the condition holds for all elements, or keys of a map."),
    "exists": ("x.exists(e, condition)", "True if the condition holds for an element, or a key of a map."),
    "exists_one": ("x.exists_one(e, condition)", "True if the condition holds for exactly one element."),
    "filter": ("x.filter(e, condition)", "The elements for which the condition holds."),
    "map": ("x.map(e, value)", "A value for each element, or key of a map."),
    "sortBy": ("x.sortBy(e, key)", "The elements sorted by a key, the smallest first."),
    "transformList": ("x.transformList(i, e, value)", "A value for each index and element, or key and value."),
    "transformMap": ("x.transformMap(k, v, value)", "A map with a new value for each key, or index."),
    "transformMapEntry": ("x.transformMapEntry(k, v, {key: value})", "A map with a new entry for each key, or index."),
}
"""Macros of lists and maps, as they are called and with a sentence."""
OPTIONAL_MACROS: Final[Mapping[str, tuple[str, str]]] = {
    "optMap": ("x.optMap(v, value)", "The value with `v` for what is in the optional; none if it is empty."),
    "optFlatMap": ("x.optFlatMap(v, optional)", "As optMap, with a value that is an optional itself."),
}
"""Macros of optionals."""
GLOBAL_MACROS: Final[Mapping[str, tuple[str, str]]] = {
    "has": ("has(e.field)", "True if the field is set."),
    "cel.bind": ("cel.bind(name, value, expression)", "Gives a value a name within an expression."),
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """A word that may stand at the cursor. `kind` is field, value, variable, function or keyword."""

    label: str
    kind: str
    detail: str = ""
    doc: str = ""


def proposals(
    text: PolicyText, offset: int, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...] = (),
) -> tuple[Proposal, ...]:
    """Return the words that may stand at an offset instead of the one that ends there, sorted by label.

    `shared` are PolicyParams documents by name.
    """
    whole = text.source.text
    word = _WORD.search(whole[max(0, offset - 100):offset])
    beginning = word[0] if word is not None else ""
    found = {each.label: each for each in _found(whole, offset, shared, extensions)
             if each.label.lower().startswith(beginning.lower())}
    return tuple(found[label] for label in sorted(found))


def _found(
    whole: str, offset: int, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...],
) -> Iterator[Proposal]:
    # The word at the cursor is made recognizable, first as a key and then as a value: an unfinished line may not be
    # readable otherwise. If the brackets of flow style are not closed yet, they are closed there.
    before, after = whole[:offset], whole[offset:]
    rest_of_line, _, lines_after = after.partition("\n")
    closing = "" if rest_of_line.strip() else _closing(before.rpartition("\n")[2])
    rests = (after, f"{closing}\n{lines_after}") if closing else (after,)
    for rest in rests:
        as_key = PolicyText(Source("", f"{before}{_CURSOR}: {rest}"))
        for document in as_key.documents:
            for path, node in nodes_with_paths(document):
                if node.key is not None and path[-1:] and str(path[-1]).endswith(_CURSOR):
                    yield from _fields(document, path[:-1])
                    return
    for rest in rests:
        found = tuple(_at_value(PolicyText(Source("", f"{before}{_CURSOR}{rest}")), offset, shared, extensions))
        if found:
            yield from found
            return


def _closing(line: str) -> str:
    """Return the quote and the brackets that close what a line leaves open; empty if that is nothing."""
    opened: list[str] = []
    quote = ""
    for character in line:
        if quote:
            quote = "" if character == quote else quote
        elif character in _BRACKETS:
            opened.append(_BRACKETS[character])
        elif opened and character == opened[-1]:
            opened.pop()
        elif character in _QUOTES:
            quote = character
    return quote + "".join(reversed(opened)) if opened else ""


def _at_value(
    as_value: PolicyText, offset: int, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...],
) -> Iterator[Proposal]:
    at = as_value.expression_at(offset)
    if at is not None and at.node.text.endswith(_CURSOR) and at.node.part.offsets[-2] == offset + len(_CURSOR) - 1:
        at_end = len(at.node.text) - len(_CURSOR)
        yield from _names(at.document, at.path, at.node.text[:at_end], shared, extensions)
    elif at is not None:
        yield from _names(at.document, at.path, at.node.text[:at.offset], shared, extensions)
    else:
        for document in as_value.documents:
            for path, node in nodes_with_paths(document):
                if isinstance(node.scalar, str) and node.text.endswith(_CURSOR):
                    yield from _values(document, path)
                    return


def _fields(document: YamlNode, path: tuple[str | int, ...]) -> Iterator[Proposal]:
    holder = document.at(*path)
    given = holder.fields if holder is not None else {}
    for declared in schemas_at(document, path):
        for name, each in declared.get("properties", {}).items():
            if name not in given:
                yield Proposal(name, "field", type_text(each), each.get("description", ""))
    if not path and "kind" not in given:
        yield from (Proposal(each, "field") for each in ("apiVersion", "kind") if each not in given)


def _values(document: YamlNode, path: tuple[str | int, ...]) -> Iterator[Proposal]:
    if path == ("kind",):
        yield from (Proposal(each, "value", "", schema(each).get("description", "")) for each in _KINDS)
    elif path == ("apiVersion",):
        yield Proposal("policy.koordinator.sh/v1alpha2", "value")
    for declared in schemas_at(document, path):
        values = declared.get("enum", [declared["const"]] if "const" in declared else [])
        if declared.get("type") == "boolean":
            values = [True, False]
        for each in values:
            label = {True: "true", False: "false"}[each] if isinstance(each, bool) else str(each)
            yield Proposal(label, "value", "", declared.get("description", ""))


def type_text(declared: Mapping[str, Any]) -> str:
    """Return the type of a field's schema, with its default."""
    kind = declared.get("type", "")
    shown = " or ".join(kind) if isinstance(kind, list) else str(kind)
    if declared.get("x-language") == "cel":
        shown = "expression"
    return f"{shown}, default {declared['default']}" if "default" in declared else shown


def _names(
    document: YamlNode, path: YamlPath, before: str, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...],
) -> Iterator[Proposal]:
    """Yield the words that may follow the text of an expression."""
    word = _WORD.search(before)
    before = before[:word.start()] if word is not None else before
    seen = with_locals(scope_of(document, path, shared, extensions), before)
    tokens = [each for each in tokenize(before) if each.kind != "end"]
    if tokens and tokens[-1].kind == "fault":
        return  # within a string
    optional = [each.kind for each in tokens[-2:]] == [".", "?"]
    if optional:
        tokens.pop()
    if not tokens or tokens[-1].kind != ".":
        yield from _globals(seen)
        return
    start = operand_before(tokens, len(tokens) - 1)
    if start is None:
        return
    operand = before[tokens[start].start:tokens[-2].end]
    yield from _keys(operand, document, shared)
    if optional:
        yield from _optional_fields(seen, operand)
    else:
        yield from _members(seen, operand)


def _keys(operand: str, document: YamlNode, shared: Mapping[str, YamlNode]) -> Iterator[Proposal]:
    """Yield the keys of a mapping in the params, which has no fields if its values are of one type."""
    first, *names = operand.split(".")
    value: Any = params_of(document, shared)[0] if first == "params" and names else None
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    for key in value if isinstance(value, Mapping) else ():
        if str(key).isidentifier():
            yield Proposal(str(key), "field")


def _optional_fields(seen: Environment, operand: str) -> Iterator[Proposal]:
    """Yield the fields that may follow `.?`: of the operand, or of what is in it if it is an optional."""
    checked = checked_in(seen, operand)
    type_ = DYN if checked is None else checked.type
    if type_.name == _OPTIONAL and type_.parameters:
        (type_,) = type_.parameters
    yield from _fields_of(seen, type_)


def _fields_of(seen: Environment, type_: Type) -> Iterator[Proposal]:
    declared = seen.types.get(type_.name)
    for name, field in declared.fields.items() if declared is not None else ():
        yield Proposal(name, "field", str(field.type), field.doc)


def _globals(seen: Environment) -> Iterator[Proposal]:
    for name, variable in seen.variables.items():
        if "." not in name:
            yield Proposal(name, "variable", str(variable.type), variable.doc)
    if seen.definitions or any(name.startswith("variables.") for name in seen.variables):
        yield Proposal("variables", "variable", "", "The variables of this document.")
    for name, function in seen.functions.items():
        called = [each for each in function.overloads if not each.member and not each.dynamic]
        if called and name.replace(".", "").isidentifier():
            yield Proposal(name, "function", signature(name, called[0]), function.doc)
    yield from (Proposal(name, "keyword", *texts) for name, texts in GLOBAL_MACROS.items())
    yield from (Proposal(each, "keyword") for each in ("true", "false", "null"))


def _members(seen: Environment, operand: str) -> Iterator[Proposal]:
    if operand == "variables":
        for name in seen.variables:
            if name.startswith("variables."):
                yield Proposal(name.partition(".")[2], "variable", "dyn")
        for name, definition in seen.definitions.items():
            yield Proposal(name, "variable", str(definition.type))
        return
    for name, function in seen.functions.items():
        if name.startswith(f"{operand}.") and function.overloads:
            yield Proposal(name.removeprefix(f"{operand}."), "function", signature(name, function.overloads[0]),
                           function.doc)
    for name, texts in GLOBAL_MACROS.items():
        if name.startswith(f"{operand}."):
            yield Proposal(name.removeprefix(f"{operand}."), "keyword", *texts)
    checked = checked_in(seen, operand)
    if checked is None:
        return
    type_ = checked.type
    yield from _fields_of(seen, type_)
    for name, function in seen.functions.items():
        fitting = [each for each in function.overloads if each.member and _fits(each.parameters[0], type_)]
        if fitting and name.isidentifier():
            yield Proposal(name, "function", signature(name, fitting[0]), function.doc)
    if type_.name in ("list", "map", "dyn"):
        yield from (Proposal(name, "keyword", *texts) for name, texts in MACROS.items())
    if type_.name in (_OPTIONAL, "dyn"):
        yield from (Proposal(name, "keyword", *texts) for name, texts in OPTIONAL_MACROS.items())


def _fits(parameter: Type, argument: Type) -> bool:
    if parameter.variable or DYN in (parameter, argument):
        return True
    return parameter.name == argument.name and all(map(_fits, parameter.parameters, argument.parameters))


def signature(name: str, overload: Overload) -> str:
    """Return how an overload is called, with its types."""
    parameters = [str(each) for each in overload.parameters]
    if overload.member:
        return f"{parameters[0]}.{name}({', '.join(parameters[1:])}) -> {overload.result}"
    return f"{name}({', '.join(parameters)}) -> {overload.result}"
