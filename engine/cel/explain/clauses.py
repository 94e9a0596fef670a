"""Explanation of results: the clauses that make an expression false, their distances, and changes that make it true.

An expression is split at `&&`, `||`, `!`, `?:` and at its definitions into clauses, mostly comparisons. A comparison of
numbers has a distance from the other result, with a unit. The paths that a clause reads can be varied, one at a time,
to find the nearest value that changes its result.
"""

from __future__ import annotations

import copy
import enum
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from ..check.analysis import sub_expression
from ..check.checked_ast import Checked, DefinitionReference, Path, path_of, reads_of
from ..check.environment import Scope
from ..scalar.evaluation import LazyBindings
from ..scalar.interpreter.interpreter import Interpreter
from ..syntax.ast import Call, Expr, Literal, Select, children
from ..values.types import BOOL
from ..values.values import INT64_MAX, EvaluationError

Units: TypeAlias = Callable[[Path], str]
"""Returns the unit of the value at a path, empty if it has none."""

Bindings: TypeAlias = Mapping[str, object]

_MOST_ALTERNATIVES: Final = 16
_MOST_CLAUSES: Final = 8
_MIRRORED: Final = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_", "_==_": "_==_", "_!=_": "_!=_"}
_DENIED: Final = {"_<_": "_>=_", "_<=_": "_>_", "_>_": "_<=_", "_>=_": "_<_", "_==_": "_!=_", "_!=_": "_==_"}
_RELATIONS: Final = {
    "_<_": "below", "_<=_": "at most", "_>_": "above", "_>=_": "at least", "_==_": "", "_!=_": "other than",
}
_DEFINITIONS: Final = "variables."
_HIGHEST: Final = INT64_MAX // 1000


class Missing(enum.Enum):
    """The value of a path that a change removes."""

    ABSENT = "absent"


ABSENT: Final = Missing.ABSENT


@dataclass(frozen=True, slots=True, eq=False)
class Clause:
    """A part of an expression (or of its definition `owner`) whose result should be `expected` and is not."""

    owner: Checked
    node: Expr
    expected: bool

    @property
    def text(self) -> str:
        """The clause as it is written, on one line."""
        return text_of(self.owner, self.node)


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of a comparison from the wanted result: `value` must be in `relation` to `limit`.

    `what` is the side that varies, as it is written. `difference` is the absolute difference of `value` and `limit`,
    None if the two are no numbers. `unit` is as in `explanation.shown`.
    """

    what: str
    value: object
    relation: str
    limit: object
    bound: str = ""
    """The limit as it is written, empty if it is a literal."""
    difference: float | None = None
    unit: str = ""


def text_of(owner: Checked, node: Expr) -> str:
    """Return a part of an expression as it is written, on one line."""
    return " ".join(owner.source.text[node.start:node.end].split())


def value_of(owner: Checked, node: Expr, bindings: Bindings) -> object:
    """Return the value of a part of an expression, or its `EvaluationError`."""
    evaluators = _evaluators(owner)
    evaluator = evaluators.get(node.id)
    if evaluator is None:
        evaluator = evaluators[node.id] = Interpreter(sub_expression(owner, node))
    try:
        return evaluator.evaluate(LazyBindings(bindings), owner.environment.limits.cost)[0]
    except EvaluationError as error:
        return error


def _evaluators(owner: Checked) -> dict[int, Interpreter]:
    found = owner.plans.setdefault(_evaluators, {})
    assert isinstance(found, dict)
    return found


def alternatives(checked: Checked, bindings: Bindings, expected: bool = True) -> tuple[tuple[Clause, ...], ...]:
    """Return the alternatives to make an expression `expected`; all clauses of an alternative have to change.

    Fewest clauses first; at most sixteen alternatives with at most eight clauses each. An expression that is `expected`
    already has one alternative, without clauses.
    """
    return tuple(sorted(_unmet(checked, checked.root, expected, bindings), key=len))


def _unmet(owner: Checked, node: Expr, expected: bool, bindings: Bindings) -> list[tuple[Clause, ...]]:
    if value_of(owner, node, bindings) is expected:
        return [()]
    reference = owner.references.get(node.id)
    if isinstance(reference, DefinitionReference) and owner.types[node.id] == BOOL:
        definition = owner.definition(reference.name)
        return _unmet(definition, definition.root, expected, bindings)
    if isinstance(node, Call):
        match node.function:
            case "!_":
                return _unmet(owner, node.args[0], not expected, bindings)
            case "_&&_" | "_||_":
                ways = [_unmet(owner, each, expected, bindings) for each in node.args]
                if (node.function == "_&&_") is expected:
                    return _all_of(ways)
                return _cut(way for each in ways for way in each)
            case "_?_:_":
                condition, *branches = node.args
                holds = value_of(owner, condition, bindings)
                if not isinstance(holds, bool):
                    return [(Clause(owner, node, expected),)]
                taken, other = branches if holds else reversed(branches)
                return _cut((
                    *_unmet(owner, taken, expected, bindings),
                    *_all_of([_unmet(owner, condition, not holds, bindings), _unmet(owner, other, expected, bindings)]),
                ))
            case _:
                pass
    if isinstance(node, Literal):
        return []  # no alternative: `true` and `false` do not change
    return [(Clause(owner, node, expected),)]


def _all_of(ways: Sequence[list[tuple[Clause, ...]]]) -> list[tuple[Clause, ...]]:
    return _cut(tuple(itertools.chain(*chosen)) for chosen in itertools.product(*ways))


def _cut(ways: Iterator[tuple[Clause, ...]] | Sequence[tuple[Clause, ...]]) -> list[tuple[Clause, ...]]:
    return [way[:_MOST_CLAUSES] for way in itertools.islice(ways, _MOST_ALTERNATIVES)]


# Distance


def distance_of(clause: Clause, bindings: Bindings, units: Units = lambda _: "") -> Distance | None:
    """Return how far a comparison is from its wanted result; None for other clauses, or if a side has no value."""
    node = clause.node
    if not isinstance(node, Call) or len(node.args) != 2 or node.target is not None:
        return None
    sides = list(node.args)
    values = [value_of(clause.owner, side, bindings) for side in sides]
    if any(isinstance(value, EvaluationError) for value in values):
        return None
    if node.function == "@in":
        if not _varies(clause.owner, sides[0]):
            return None  # the presence of a key has no distance
        relation = "one of" if clause.expected else "none of"
        limit: object = sorted(values[1], key=str) if isinstance(values[1], Mapping) else values[1]
        return Distance(_side(clause.owner, sides[0]), values[0], relation, limit, _bound(clause.owner, sides[1]))
    if node.function not in _RELATIONS:
        return None
    function = node.function if clause.expected else _DENIED[node.function]
    if _varies(clause.owner, sides[1]) and not _varies(clause.owner, sides[0]):
        function, sides, values = _MIRRORED[function], sides[::-1], values[::-1]
    unit = next(filter(None, (unit_of(clause.owner, side, units) for side in sides)), "")
    difference = None
    if _is_number(values[0]) and _is_number(values[1]):
        difference = abs(values[0] - values[1])  # type: ignore[operator]
    return Distance(_side(clause.owner, sides[0]), values[0], _RELATIONS[function], values[1],
                    _bound(clause.owner, sides[1]), difference, unit)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _varies(owner: Checked, node: Expr) -> bool:
    return owner.scopes.get(node.id, owner.scope) is not Scope.CONSTANT


def _side(owner: Checked, node: Expr) -> str:
    return text_of(owner, node).removeprefix(_DEFINITIONS)


def _bound(owner: Checked, node: Expr) -> str:
    return "" if not owner.references.keys() & _ids(node) else _side(owner, node)


def _ids(node: Expr) -> set[int]:
    found, rest = set(), [node]
    while rest:
        each = rest.pop()
        found.add(each.id)
        rest.extend(children(each))
    return found


def unit_of(owner: Checked, node: Expr, units: Units) -> str:
    """Return the unit of a part of an expression, if it follows from the paths that it reads; else an empty string."""
    found = _dimension(owner, node, units)
    if found is None:
        return ""
    name, factor = found
    if name == _RATIO:
        return "%" if factor == 100 else ""
    if factor == 1:
        return name
    return "cores" if name == "milli-cores" and factor is not None and abs(factor * 1000 - 1) < 1e-9 else ""


_RATIO: Final = "ratio"
_Dimension: TypeAlias = "tuple[str, float] | None"
"""A unit and the factor of amounts in it; with an empty unit a plain number, which is the factor."""


def _dimension(owner: Checked, node: Expr, units: Units) -> _Dimension:
    reference = owner.references.get(node.id)
    if isinstance(reference, DefinitionReference):
        definition = owner.definition(reference.name)
        return _dimension(definition, definition.root, units)
    if isinstance(node, Literal):
        value = node.value
        return ("", float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
    path = path_of(owner, node)
    if path is not None:
        unit = units(path)
        if unit:
            return unit, 1
        # A constant scales the other operand, by any factor that the author chose: 65 of 100.
        return ("", 100) if owner.environment.variables[path[0]].scope is Scope.CONSTANT else None
    if not isinstance(node, Call):
        return None
    arguments = node.args
    match node.function:
        case "_*_" | "_/_":
            left, right = (_dimension(owner, each, units) for each in arguments)
            return None if left is None or right is None else _combined(node.function, left, right)
        case "_+_" | "_-_" | "greatest" | "least" | "math.greatest" | "math.least":
            return _first_known(owner, arguments, units)
        case "_?_:_":
            return _first_known(owner, arguments[1:], units)
        case "-_" | "double" | "int":
            return _dimension(owner, arguments[0], units)
        case "percent":
            return _RATIO, 100
        case _:
            return None


def _first_known(owner: Checked, nodes: Sequence[Expr], units: Units) -> _Dimension:
    found = [each for node in nodes if (each := _dimension(owner, node, units)) is not None]
    return next((each for each in found if each[0]), found[0] if found else None)


def _combined(function: str, left: tuple[str, float], right: tuple[str, float]) -> _Dimension:
    if function == "_*_":
        if left[0] and right[0]:
            return None
        return left[0] or right[0], left[1] * right[1]
    if right[1] == 0:
        return None
    if not right[0]:
        return left[0], left[1] / right[1]
    return (_RATIO, left[1] / right[1]) if left[0] == right[0] else None


# Changes


@dataclass(frozen=True, slots=True)
class ClauseChange:
    """A change of the value at a path (`ABSENT`: removed) that makes a clause `expected`; `before` is the old value."""

    path: Path
    before: object
    after: object


def changes_of(clause: Clause, bindings: Bindings, may_vary: Callable[[Path], bool]) -> Iterator[ClauseChange]:
    """Yield the nearest changes of single paths that make a clause `expected`, if any are found.

    Numbers are searched upwards and downwards from the present one; strings and booleans are those of the comparison;
    keys are added and removed. Each change has been evaluated.
    """
    seen: set[tuple[Path, object]] = set()
    for path in sorted(reads_of(clause.owner, clause.node)):
        if not may_vary(path):
            continue
        before = _value_at(bindings, path)
        for after in _candidates(clause, bindings, path, before):
            key = path, repr(after)
            if key not in seen and _turns(clause, bindings, path, after):
                seen.add(key)
                yield ClauseChange(path, before, after)
    yield from (each for each in _keys(clause, bindings, may_vary) if (each.path, repr(each.after)) not in seen)


def changed(bindings: Bindings, path: Path, value: object) -> Bindings:
    """Return bindings that differ in the value at one path; all other values are shared."""
    return _Changed(bindings, path, value)


class _Changed(Mapping[str, object]):
    __slots__ = ("_bindings", "_path", "_value")

    def __init__(self, bindings: Bindings, path: Path, value: object) -> None:
        self._bindings, self._path, self._value = bindings, path, value

    def __getitem__(self, name: str) -> object:
        if name != self._path[0]:
            return self._bindings[name]
        return _with(self._bindings[name], self._path[1:], self._value) if len(self._path) > 1 else self._value

    def __iter__(self) -> Iterator[str]:
        return iter(self._bindings)

    def __len__(self) -> int:
        return len(self._bindings)


def _with(holder: object, keys: Sequence[str], value: object) -> object:
    # A copy keeps its class: resource lists have a value for absent resources.
    twin: Any = copy.copy(holder) if isinstance(holder, dict) else {}
    key, rest = keys[0], keys[1:]
    if rest:
        twin[key] = _with(holder.get(key) if isinstance(holder, Mapping) and key in holder else None, rest, value)
    elif value is ABSENT:
        twin.pop(key, None)
    else:
        twin[key] = value
    return twin


def _value_at(bindings: Bindings, path: Path) -> object:
    try:
        value: Any = bindings[path[0]]
        for key in path[1:]:
            value = value[key]
    except (LookupError, TypeError, EvaluationError):
        return ABSENT
    return value


def _turns(clause: Clause, bindings: Bindings, path: Path, value: object) -> bool:
    return value_of(clause.owner, clause.node, changed(bindings, path, value)) is clause.expected


def _candidates(clause: Clause, bindings: Bindings, path: Path, before: object) -> Iterator[object]:
    if isinstance(before, bool):
        yield not before
        return
    if isinstance(before, int):
        for step in (-1, 1):
            found = nearest(lambda value: _turns(clause, bindings, path, value), before, step)
            if found is not None:
                yield found
        return
    if before is ABSENT or isinstance(before, str):
        node = clause.node
        if isinstance(node, Call) and len(node.args) == 2 and node.function in ("_==_", "_!=_", "@in"):
            for side in node.args:
                value = value_of(clause.owner, side, bindings)
                yield from (each for each in (value if isinstance(value, list | tuple) else (value,))
                            if isinstance(each, str | bool))
        if isinstance(before, str):
            yield ABSENT


def nearest(holds: Callable[[int], bool], start: int, step: int) -> int | None:
    """Return the value nearest to `start`, above (`step` 1) or below it (-1, at least 0), for which a predicate holds.

    The predicate is assumed to hold for all values beyond one for which it does; None if no such value is found.
    """
    missing, reach = 0, 1
    most = start if step < 0 else _HIGHEST
    while True:
        reach = min(reach, most)
        if reach <= missing:
            return None
        if holds(start + step * reach):
            break
        missing, reach = reach, reach * 2
    while reach - missing > 1:
        middle = (missing + reach) // 2
        if holds(start + step * middle):
            reach = middle
        else:
            missing = middle
    return start + step * reach


def _keys(clause: Clause, bindings: Bindings, may_vary: Callable[[Path], bool]) -> Iterator[ClauseChange]:
    """Yield the changes of keys that a clause tests: `'zone' in node.metadata.labels`, `has(pod.spec.x)`."""
    node, owner = clause.node, clause.owner
    if isinstance(node, Select) and node.test:
        path = path_of(owner, node)
    elif isinstance(node, Call) and node.function == "@in":
        holder, key = path_of(owner, node.args[1]), value_of(owner, node.args[0], bindings)
        path = (*holder, key) if holder is not None and isinstance(key, str) else None
    else:
        return
    if path is None or not may_vary(path):
        return
    after: object = "true" if clause.expected else ABSENT
    if _turns(clause, bindings, path, after):
        yield ClauseChange(path, _value_at(bindings, path), after)
