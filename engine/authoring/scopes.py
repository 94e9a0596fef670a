"""The names that an expression of a document may use, also while the document has faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.environment import Environment, Function, Variable
from koordpolicy.engine.cel.syntax.lexer import Token, tokenize
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import DOUBLE, DYN, INT, STRING, Type, map_of
from koordpolicy.engine.documents import Kind, YamlNode
from koordpolicy.engine.documents.nodes import to_plain
from koordpolicy.engine.framework.slots import AMOUNTS, Slot, environment
from koordpolicy.engine.framework.typed_values import typed
from koordpolicy.engine.source import PolicyError, Source

from .policy_text import YamlPath

_SLOTS: Final[Mapping[str, Mapping[str, Slot]]] = {
    Kind.SCHEDULER.value: {
        "preEnqueue": Slot.PRE_ENQUEUE, "preFilter": Slot.PRE_FILTER, "filter": Slot.FILTER, "score": Slot.SCORE,
        "": Slot.FILTER,
    },
    Kind.QOS.value: {"thresholds": Slot.THRESHOLD, "": Slot.THRESHOLD},
    Kind.DESCHEDULER.value: {
        "source": Slot.SOURCE, "target": Slot.DESTINATION, "fit": Slot.FIT, "ofTarget": Slot.ROOM, "ofPod": Slot.TAKEN,
        "until": Slot.UNTIL, "criteria": Slot.CRITERIA,
        "sort": Slot.SORT, "mode": Slot.EVICTION_MODE, "gracePeriodSeconds": Slot.EVICTION_GRACE_PERIOD,
        "": Slot.CRITERIA,
    },
}
"""The slot of the expressions below a field of the spec, by kind; "" for all others."""
_ACTIONS: Final = {
    "when": Slot.WHEN, "criteria": Slot.QOS_CRITERIA, "sort": Slot.QOS_SORT, "release": Slot.RELEASE,
    "target": Slot.TARGET,
}
_AGGREGATES: Final = {
    (Kind.SCHEDULER.value, "nodes"): Slot.SCHEDULER_NODES, (Kind.SCHEDULER.value, "pods"): Slot.SCHEDULER_PODS,
    (Kind.DESCHEDULER.value, "nodes"): Slot.DESCHEDULER_NODES, (Kind.DESCHEDULER.value, "pods"): Slot.DESCHEDULER_PODS,
}
_LOOPS: Final = frozenset((
    "all", "exists", "exists_one", "existsOne", "map", "filter", "sortBy", "transformList", "transformMap",
    "transformMapEntry", "optMap", "optFlatMap",
))
"""Macros whose first argument is the name of a variable."""
_INDEXED: Final = frozenset((")", "]", "}", "ident", "escaped", "string", "bytes"))
"""Tokens before a `[` that begins an index, and no list."""
_MOST_NESTED: Final = 16


def slot_of(document: YamlNode, path: YamlPath) -> Slot:
    """Return the slot of the expression at a path."""
    kind = document.at("kind")
    name = kind.text if kind is not None else ""
    steps = [each for each in path if isinstance(each, str)]
    if steps[1:2] == ["aggregates"]:
        over = document.at(*path[:3], "over")
        return _AGGREGATES.get((name, over.text if over is not None else "nodes"), Slot.QOS_PODS)
    if steps[1:2] == ["actions"]:
        return next((_ACTIONS[each] for each in steps if each in _ACTIONS), Slot.SETTING)
    if name == Kind.DESCHEDULER.value and steps[1:3] == ["nodes", "sort"]:
        return Slot.SOURCE_SORT
    table = _SLOTS.get(name, _SLOTS[Kind.SCHEDULER.value])
    return next((table[each] for each in steps if each in table), table[""])


def scope_of(
    document: YamlNode, path: YamlPath, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...] = (),
) -> Environment:
    """Return the environment of the expression at a path; what has a fault itself is of unknown type in it.

    `shared` are PolicyParams documents by name, `extensions` the functions of Python plugins.
    """
    return _scope(document, path, shared, extensions, _aggregates(document, path, shared, extensions))


def _scope(
    document: YamlNode, path: YamlPath, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...],
    aggregates: Mapping[str, Type],
) -> Environment:
    slot = slot_of(document, path)
    subject = document.at("spec", "forEach")
    thresholds = [each.text for each in _names(document, "thresholds")] if slot is Slot.WHEN else []
    seen = environment(
        slot, subject=subject.text if subject is not None and subject.text in _SUBJECTS else "node",
        params=typed(*params_of(document, shared)), thresholds=thresholds, extensions=extensions,
        aggregates=aggregates,
    )
    before = path[2] if path[1:2] == ("variables",) and len(path) > 2 else None
    for number, (name, text) in enumerate(_variables(document)):
        if number == before:
            break
        checked = checked_in(seen, text)
        seen = seen.with_variables(Variable(f"variables.{name}", DYN)) if checked is None else (
            seen.with_definition(name, checked))
    return seen


_SUBJECTS: Final = frozenset(("node", "pod", "container", "qosClass"))


def checked_in(seen: Environment, text: Source | str) -> Checked | None:
    """Return a checked expression, None if it has a fault."""
    source = Source("", text) if isinstance(text, str) else text
    try:
        return check(source, parse(source), seen)
    except PolicyError:
        return None


def _names(document: YamlNode, field: str) -> Iterator[YamlNode]:
    items = document.at("spec", field)
    for each in items.items if items is not None else ():
        if (name := each.at("name")) is not None and isinstance(name.scalar, str):
            yield name


def _variables(document: YamlNode) -> Iterator[tuple[str, Source]]:
    items = document.at("spec", "variables")
    for each in items.items if items is not None else ():
        name, expression = each.at("name"), each.at("expression")
        text = expression.part if expression is not None and isinstance(expression.scalar, str) else Source("", "")
        yield name.text if name is not None else "", text


def params_of(document: YamlNode, shared: Mapping[str, YamlNode]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of a document's params, and a schema with the properties of all that it refers to."""
    values: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    references = document.at("spec", "paramsFrom")
    names = [each.at("name") for each in references.items] if references is not None else []
    holders = [shared[each.text] for each in names if each is not None and each.text in shared]
    for holder in (*holders, document):
        params, declared = holder.at("spec", "params"), holder.at("spec", "paramsSchema", "properties")
        values |= {key: to_plain(each) for key, each in params.fields.items()} if params is not None else {}
        properties |= {key: to_plain(each) for key, each in declared.fields.items()} if declared is not None else {}
    return values, {"properties": properties}


def _aggregates(
    document: YamlNode, path: YamlPath, shared: Mapping[str, YamlNode], extensions: tuple[Function, ...],
) -> dict[str, Type]:
    """Return the aggregates that the expression at a path may read; those in another aggregate are of unknown type."""
    items = document.at("spec", "aggregates")
    places = {
        name.text: (number, item) for number, item in enumerate(items.items if items is not None else ())
        if (name := item.at("name")) is not None and isinstance(name.scalar, str)
    }
    if path[1:2] == ("aggregates",):
        return {name: DYN for name, (number, _) in places.items() if path[2:3] != (number,)}
    found: dict[str, Type] = {}
    scopes: dict[Slot, Environment] = {}
    for each, (number, item) in places.items():
        below: YamlPath = ("spec", "aggregates", number, "expression")
        slot, expression, function = slot_of(document, below), item.at("expression"), item.at("function")
        if slot not in scopes:
            scopes[slot] = _scope(document, below, shared, extensions, dict.fromkeys(places, DYN))
        text = expression.part if expression is not None and isinstance(expression.scalar, str) else None
        checked = None if text is None else checked_in(scopes[slot], text)
        result = DYN if checked is None else checked.type
        type_ = {"count": INT, "avg": DOUBLE}.get(function.text if function is not None else "", DYN)
        found[each] = map_of(STRING, type_) if item.at("groupBy") is not None or result in AMOUNTS else type_
    return found


def operand_before(tokens: Sequence[Token], end: int) -> int | None:
    """Return the index of the first token of the operand that ends before token `end`; None if there is none."""
    place = end - 1
    while place >= 0:
        kind = tokens[place].kind
        if kind in (")", "]", "}"):
            opening = _opening(tokens, place)
            if opening is None:
                return None
            place = opening - 1
            if kind == "]":
                if place < 0 or tokens[place].kind not in _INDEXED:
                    return opening  # a list
                continue
            if kind == "}" or place < 0 or tokens[place].kind != "ident":
                return opening
        elif kind not in ("ident", "escaped", "string", "bytes", "int", "uint", "double", "true", "false", "null"):
            return None
        dot = place - 1
        if dot >= 0 and tokens[dot].kind == "?":
            dot -= 1
        if dot < 0 or tokens[dot].kind != ".":
            return place
        place = dot - 1
    return None


def _opening(tokens: Sequence[Token], closing: int) -> int | None:
    depth = 0
    for place in range(closing, -1, -1):
        kind = tokens[place].kind
        depth += (kind in (")", "]", "}")) - (kind in ("(", "[", "{"))
        if depth == 0:
            return place
    return None


def with_locals(seen: Environment, text: str) -> Environment:
    """Return an environment with the variables of the macros that are open at the end of a text."""
    tokens = [each for each in tokenize(text) if each.kind not in ("end", "fault")]
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind in ("(", "[", "{"):
            opened.append(place)
        elif token.kind in (")", "]", "}") and opened:
            opened.pop()
    for place in opened[:_MOST_NESTED]:
        seen = seen.with_variables(*_locals(seen, tokens, place, text))
    return seen


def _locals(seen: Environment, tokens: Sequence[Token], opening: int, text: str) -> Iterable[Variable]:
    if [each.text for each in tokens[max(opening - 3, 0):opening]] == ["cel", ".", "bind"]:
        return _bound(seen, tokens, opening, text)
    return _of_elements(seen, tokens, opening, text)


def _bound(seen: Environment, tokens: Sequence[Token], opening: int, text: str) -> Iterator[Variable]:
    """Yield the variable of a `cel.bind` whose value is complete."""
    depth, commas = 0, []
    for place in range(opening + 1, len(tokens)):
        kind = tokens[place].kind
        depth += (kind in ("(", "[", "{")) - (kind in (")", "]", "}"))
        if kind == "," and depth == 0:
            commas.append(place)
    if len(commas) > 1 and commas[0] == opening + 2:
        checked = checked_in(seen, text[tokens[commas[0]].end:tokens[commas[1]].start])
        yield Variable(tokens[opening + 1].text, DYN if checked is None else checked.type)


def _of_elements(seen: Environment, tokens: Sequence[Token], opening: int, text: str) -> Iterator[Variable]:
    if opening < 3 or tokens[opening - 1].text not in _LOOPS or tokens[opening - 2].kind != ".":
        return
    start = operand_before(tokens, opening - 2)
    if start is None:
        return
    checked = checked_in(seen, text[tokens[start].start:tokens[opening - 3].end])
    parameters = checked.type.parameters if checked is not None else ()
    names = []
    for place in range(opening + 1, len(tokens) - 1, 2):
        if tokens[place].kind != "ident" or tokens[place + 1].kind != ",":
            break
        names.append(tokens[place].text)
    types: tuple[Type, ...] = parameters[:1] or (DYN,)
    if len(names) > 1:
        types = parameters if len(parameters) == 2 else (INT, *types)
    for name, type_ in zip(names[:2], (*types, DYN), strict=False):
        yield Variable(name, type_)
