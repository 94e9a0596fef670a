"""Static cost of expressions: an upper bound from the tree and one table of assumed sizes, before evaluation.

Units and charges are those of evaluation: Kubernetes' (`staging/src/k8s.io/apiserver/pkg/cel/library/cost.go`), on top
of cel-go's (`checker/cost.go`). The bound holds for every evaluation whose inputs are no larger than assumed; a larger
input is stopped at run time by `Limits.cost`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeAlias

from koordpolicy.engine.source import PolicyError, Problem

from ..syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    Macro,
    MapLiteral,
    MessageLiteral,
    OptionalMap,
    Select,
)
from ..values.types import DYN, Type
from .checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    Path,
    TypeReference,
    VariableReference,
)
from .environment import Overload

Sizes: TypeAlias = "Mapping[Path | str, int]"
"""Largest sizes by path (`("pod", "spec", "containers")`), by an object type and its field (`("kubernetes.PodSpec",
"containers")`) or by type name, looked up in this order; `*` stands for any element or entry."""

ASSUMED_SIZES: Final[Sizes] = MappingProxyType({"string": 256, "bytes": 1024, "list": 100, "map": 100, "dyn": 256})
"""Characters, bytes, elements, entries, and the size assumed of a value of unknown type."""

_MACRO_COSTS: Final = {
    Macro.ALL: 3, Macro.EXISTS: 4, Macro.EXISTS_ONE: 2, Macro.MAP: 12, Macro.FILTER: 13, Macro.TRANSFORM_LIST: 12,
    Macro.TRANSFORM_MAP: 2, Macro.TRANSFORM_MAP_ENTRY: 2, Macro.SORT_BY: 20,
}  # fmt: skip
_COMPARISONS: Final = frozenset(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"))
_PAIRED: Final = 2.1
"""Cost of comparing two elements while sorting."""
_LIST_COST: Final = 10
_MAP_COST: Final = 30
_PER_CHARACTER: Final = 0.1


@dataclass(frozen=True, slots=True)
class Estimate:
    """The lowest and the highest cost of an evaluation that does not fail, in Kubernetes' units."""

    low: int
    high: int


def estimate(checked: Checked, sizes: Sizes | None = None) -> Estimate:
    """Return the estimate of an expression. `sizes` override the environment's, and those `ASSUMED_SIZES`."""
    return _Estimator(checked, _merged(checked, sizes)).whole().estimate


def check_cost(checked: Checked, sizes: Sizes | None = None) -> Estimate:
    """Return the estimate of an expression; raise `PolicyError` (code `cel-cost`) if it is above the limit."""
    whole = _Estimator(checked, _merged(checked, sizes)).whole()
    limit = checked.environment.limits.estimated_cost
    if whole.estimate.high <= limit:
        return whole.estimate
    node = whole.node or checked.root
    span = checked.source.span(node.position, node.position + 1)
    message = f"may cost {_amount(whole.estimate.high)}, more than the limit of {_amount(limit)}"
    if whole.loops:
        first, *inner = whole.loops
        message += f": `{first[0]}` may run {first[1]} times"
        message += "".join(f", inside it `{name}` {times} times" for name, times in inner)
        help_ = "look only at what is needed (`filter` first), or compute the inner part once under `variables`"
    else:
        help_ = "compute parts of it once under `variables`"
    raise PolicyError([Problem(message, span, help_, code="cel-cost")])


def _amount(units: int) -> str:
    return f"{units:,}" if units < 10**15 else f"{units:.1e}"


_MERGED: Final[dict[int, tuple[object, Sizes]]] = {}
"""The table of an environment's sizes by their identity, with those sizes: few are in use, by many expressions."""
_MOST_MERGED: Final = 64


def _merged(checked: Checked, sizes: Sizes | None) -> Sizes:
    declared = checked.environment.sizes
    known = _MERGED.get(id(declared))
    if known is None:
        if len(_MERGED) >= _MOST_MERGED:
            _MERGED.clear()
        table: dict[Path | str, int] = {**ASSUMED_SIZES}
        table.update(declared.items())
        known = _MERGED[id(declared)] = (declared, table)
    return {**known[1], **sizes} if sizes else known[1]


# Not frozen: making these objects takes most of the time here.
@dataclass(slots=True)
class _Shape:
    """The assumed size of a value and of its elements; `path` leads to it from a variable."""

    low: int
    high: int
    type: Type
    path: Path | None = None
    key: _Shape | None = None
    element: _Shape | None = None


@dataclass(slots=True)
class _Part:
    """The cost of a node, the size of its value, and the loops that cause most of the cost (outermost first)."""

    low: int
    high: int
    shape: _Shape
    loops: tuple[tuple[str, int], ...] = ()
    node: Expr | None = None
    loop_cost: int = 0

    @property
    def estimate(self) -> Estimate:
        return Estimate(self.low, self.high)


@dataclass(slots=True)
class _CachedCost:
    """The cost of one expression under some sizes, and the definitions that it reads."""

    sizes: Sizes
    part: _Part
    definitions: dict[str, _Part]


class _Estimator:
    def __init__(self, checked: Checked, sizes: Sizes, definitions: dict[str, _Part] | None = None) -> None:
        self.checked = checked
        self.sizes = sizes
        self.locals: list[tuple[str, _Shape]] = []
        # A definition is evaluated once, however often it is read.
        self.definitions = {} if definitions is None else definitions

    def whole(self) -> _Part:
        """Return the cost of the expression with all definitions that it reads."""
        part = self.own_cost()
        if not self.definitions:
            return part
        return replace(part, high=part.high + sum(each.high for each in self.definitions.values()))

    def own_cost(self) -> _Part:
        """Return the cost of the expression without its definitions, which other expressions may share."""
        cached = self.checked.plans.get(_Estimator)
        if not isinstance(cached, _CachedCost) or cached.sizes is not self.sizes:
            inner = _Estimator(self.checked, self.sizes)
            cached = _CachedCost(self.sizes, inner.visit(self.checked.root), inner.definitions)
            self.checked.plans[_Estimator] = cached
        self.definitions.update(cached.definitions)
        return cached.part

    # -- sizes ---------------------------------------------------------------------------------------------------

    def shape(self, type_: Type, path: Path | None = None) -> _Shape:
        """Return the assumed size of a value of a type at a path."""
        if type_.name == "optional_type" and type_.parameters:
            return self.shape(type_.parameters[0], path)
        known = self.sizes.get(path) if path is not None else None
        high = self.sizes.get(type_.name, 1) if known is None else known
        if type_.name in self.checked.environment.types and known is None:
            high = self.sizes["map"]
        return _Shape(0 if high > 1 else 1, high, type_, path)

    def element(self, shape: _Shape) -> _Shape:
        """Return the assumed size of an element or entry."""
        if shape.element is not None:
            return shape.element
        type_ = shape.type.parameters[-1] if shape.type.name in ("list", "map") and shape.type.parameters else DYN
        return self.shape(type_, None if shape.path is None else (*shape.path, "*"))

    def key(self, shape: _Shape) -> _Shape:
        if shape.key is not None:
            return shape.key
        return self.shape(shape.type.parameters[0] if shape.type.name == "map" and shape.type.parameters else DYN)

    def field(self, shape: _Shape, name: str, type_: Type) -> _Shape:
        """Return the assumed size of a field, or of an entry under a known key."""
        path = None if shape.path is None else (*shape.path, name)
        if path is not None and path in self.sizes:
            return self.shape(type_, path)
        own = (shape.type.name, name)
        if own in self.sizes and shape.type.name in self.checked.environment.types:
            return self.declared(own, type_, path)
        if shape.element is not None:
            return shape.element
        if shape.type.name == "map" and shape.path is not None and (*shape.path, "*") in self.sizes:
            return self.shape(type_, (*shape.path, "*"))
        return self.shape(type_, path)

    def declared(self, own: Path, type_: Type, path: Path | None) -> _Shape:
        """Return the assumed size of a field by its object type."""
        size, each = self.sizes[own], self.sizes.get((*own, "*"))
        found = replace(self.shape(type_, path), low=0 if size > 1 else 1, high=size)
        inner = self.element(found)
        return found if each is None else replace(found, element=replace(inner, low=0, high=each))

    def joined(self, shapes: Sequence[_Shape], type_: Type) -> _Shape:
        """Return the size that holds for each of several values."""
        if not shapes:
            return self.shape(type_)
        if len(shapes) == 1:
            return shapes[0]
        elements = [each.element for each in shapes if each.element is not None]
        element = self.joined(elements, DYN) if len(elements) == len(shapes) else None
        return _Shape(min(each.low for each in shapes), max(each.high for each in shapes), type_, None, None, element)

    # -- nodes ---------------------------------------------------------------------------------------------------

    def type_of(self, node: Expr) -> Type:
        return self.checked.types[node.id]

    def visit(self, node: Expr) -> _Part:
        if isinstance(node, Literal):
            value = node.value
            size = len(value) if isinstance(value, (str, bytes)) else 1
            return _Part(0, 0, _Shape(size, size, self.type_of(node)))
        reference = self.checked.references.get(node.id)
        if reference is None and isinstance(node, Select):
            return self.visit_select(node)
        if isinstance(reference, CallReference) and isinstance(node, Call):
            return self.visit_call(node, reference)
        match reference:
            case VariableReference(name=name):
                return _Part(1, 1, self.shape(self.type_of(node), (name,)))
            case LocalReference(name=name):
                return _Part(1, 1, next(shape for known, shape in reversed(self.locals) if known == name))
            case DefinitionReference(name=name):
                return _Part(1, 1, self.definition(name).shape)
            case TypeReference():
                return _Part(0, 1, self.shape(self.type_of(node)))
            case _:
                pass
        match node:
            case Select():
                return self.visit_select(node)
            case Call():
                return self.visit_call(node, reference if isinstance(reference, CallReference) else None)
            case ListLiteral(elements=elements, optional=optional):
                parts = list(map(self.visit, elements))
                shape = self.joined([each.shape for each in parts], DYN)
                size = len(elements)
                return self.sum(
                    parts, 0, _LIST_COST,
                    _Shape(size - len(optional), size, self.type_of(node), None, None, shape if parts else None),
                )  # fmt: skip
            case MapLiteral(entries=entries):
                keys = [self.visit(each.key) for each in entries]
                values = [self.visit(each.value) for each in entries]
                held = _Shape(
                    sum(not each.optional for each in entries), len(entries), self.type_of(node), None,
                    self.joined([each.shape for each in keys], DYN), self.joined([each.shape for each in values], DYN),
                )  # fmt: skip
                return self.sum([*keys, *values], 0, _MAP_COST, held)
            case Comprehension():
                return self.visit_comprehension(node)
            case Bind():
                init = self.visit(node.init)
                self.locals.append((node.variable, init.shape))
                body = self.visit(node.body)
                self.locals.pop()
                return self.sum([replace(init, low=0), body], 1, 1, body.shape)
            case OptionalMap():
                target = self.visit(node.target)
                self.locals.append((node.variable, target.shape))
                body = self.visit(node.body)
                self.locals.pop()
                return self.sum([target, replace(body, low=0)], 1, 1, body.shape)
            case Ident() | MessageLiteral():
                return _Part(0, 1, self.shape(DYN))

    def sum(self, parts: Sequence[_Part], low: int, high: int, shape: _Shape) -> _Part:
        """Return the cost of parts that are all evaluated, and of the operation on them."""
        if not parts:
            return _Part(low, high, shape)
        worst = parts[0]
        for each in parts:
            low += each.low
            high += each.high
            if each.loop_cost > worst.loop_cost:
                worst = each
        return _Part(low, high, shape, worst.loops, worst.node, worst.loop_cost)

    def definition(self, name: str) -> _Part:
        known = self.definitions.get(name)
        if known is None:
            checked = self.checked.definition(name)
            known = self.definitions[name] = _Estimator(checked, self.sizes, self.definitions).own_cost()
        return known

    def visit_select(self, node: Select) -> _Part:
        operand = self.visit(node.operand)
        if node.test:
            return self.sum([operand], 0, 1, _Shape(1, 1, self.type_of(node)))
        return self.sum([operand], 1, 1, self.field(operand.shape, node.field, self.type_of(node)))

    def visit_call(self, node: Call, reference: CallReference | None) -> _Part:
        arguments = node.args if node.target is None or (reference and reference.qualified) else (
            node.target, *node.args,
        )  # fmt: skip
        parts = list(map(self.visit, arguments))  # no frame of a comprehension between two levels
        type_ = self.type_of(node)
        function = node.function
        if function in ("_&&_", "_||_"):
            parts[1].low = 0  # it may not be evaluated
            return self.sum(parts, 0, 0, self.shape(type_))
        if function == "_?_:_":
            condition, first, second = parts
            larger = max(first, second, key=lambda each: each.high)
            shape = self.joined([first.shape, second.shape], type_)
            return self.sum([condition, replace(larger, low=min(first.low, second.low))], 0, 0, shape)
        if function in ("_[_]", "_[?_]"):
            key = node.args[1]
            if isinstance(key, Select | Ident | Call):
                parts[1].low = max(0, parts[1].low - 1)  # a key that is read may cost one step less
            if isinstance(key, Literal) and isinstance(key.value, str):
                return self.sum(parts, 1, 1, self.field(parts[0].shape, key.value, type_))
            return self.sum(parts, 1, 1, self.element(parts[0].shape))
        shapes = [each.shape for each in parts]
        if function in _COMPARISONS:
            left, right = shapes
            low = 1 if left.low and right.low else 0
            high = math.ceil(min(left.high, right.high) * _PER_CHARACTER)
            return self.sum(parts, low, max(high, 1), self.shape(type_))
        if reference is None:
            return self.sum(parts, 0, 1, self.shape(type_))
        costs = [_call_cost(each, shapes) for each in reference.overloads if len(each.parameters) == len(shapes)]
        low = min((each[0] for each in costs), default=0)
        high = max((each[1] for each in costs), default=1)
        if function == "_+_" and type_.name == "list":
            # Kubernetes charges nothing for it, because cel-go joins lists lazily; here they are copied.
            high += _LIST_COST * sum(each.high for each in shapes)
        if function == "join":
            high = max(high, math.ceil(2 * _PER_CHARACTER * self.joined_length(shapes)))
        return self.sum(parts, low if function != "@in" else 0, high, self.result(node, shapes, type_))

    def result(self, node: Call, shapes: Sequence[_Shape], type_: Type) -> _Shape:
        """Return the assumed size of the result of a function."""
        assumed = self.shape(type_)
        if not shapes or assumed.high <= 1:
            return assumed
        if node.function == "_+_":
            element = self.joined([self.element(each) for each in shapes], DYN) if type_.name == "list" else None
            return _Shape(
                sum(each.low for each in shapes), sum(each.high for each in shapes), type_, None, None, element,
            )
        largest = max(each.high for each in shapes)
        if node.function == "join":
            return replace(assumed, high=max(assumed.high, self.joined_length(shapes)))
        if node.function == "range" and node.args and isinstance(node.args[0], Literal):
            count = node.args[0].value
            largest = count if isinstance(count, int) else largest
        return assumed if largest <= assumed.high else replace(assumed, high=largest)

    def joined_length(self, shapes: Sequence[_Shape]) -> int:
        """Return the assumed length of the joined strings of a list."""
        between = shapes[1].high if len(shapes) > 1 else 0
        return shapes[0].high * (self.element(shapes[0]).high + between)

    def visit_comprehension(self, node: Comprehension) -> _Part:
        over = self.visit(node.range)
        shape = over.shape
        element = self.element(shape)
        is_map = shape.type.name == "map"
        if node.variable2 is None:
            # A value of unknown type may be a list or a map.
            self.locals.append((node.variable, self.key(shape) if is_map else element))
        else:
            index = _Shape(1, 1, DYN)
            self.locals += [(node.variable, self.key(shape) if is_map or shape.type == DYN else index)]
            self.locals += [(node.variable2, element)]
        bodies = list(map(self.visit, (each for each in (node.predicate, node.transform) if each is not None)))
        del self.locals[-1 if node.variable2 is None else -2 :]
        times = shape.high
        if shape.type == DYN and (shape.path is None or shape.path not in self.sizes):
            times = max(self.sizes["list"], self.sizes["map"])
        each_high = _MACRO_COSTS[node.macro] + sum(body.high for body in bodies)
        each_low = 1 + (bodies[0].low if bodies else 0)
        # all and exists may stop at the first element.
        least = min(shape.low, 1) if node.macro in (Macro.ALL, Macro.EXISTS) else shape.low
        high = over.high + 2 + times * each_high
        if node.macro is Macro.SORT_BY:
            high += _LIST_COST + 2 + math.ceil(_PAIRED * times * times)
        worst = max(bodies, key=_loop_cost, default=None)
        loops: tuple[tuple[str, int], ...] = ((node.macro.value, times),)
        if worst is not None:
            loops += worst.loops
        held = self.held(node, shape, bodies)
        own: Expr | None = node
        loop_cost = times * each_high
        if over.loop_cost > loop_cost:
            loops, own, loop_cost = over.loops, over.node, over.loop_cost
        return _Part(over.low + 1 + least * each_low, high, held, loops, own, loop_cost)

    def held(self, node: Comprehension, shape: _Shape, bodies: Sequence[_Part]) -> _Shape:
        """Return the assumed size of a comprehension's result."""
        type_ = self.type_of(node)
        match node.macro:
            case Macro.ALL | Macro.EXISTS | Macro.EXISTS_ONE:
                return self.shape(type_)
            case Macro.FILTER | Macro.SORT_BY:
                element = self.key(shape) if shape.type.name == "map" else self.element(shape)
                return _Shape(0, shape.high, type_, None, None, element)
            case Macro.TRANSFORM_MAP_ENTRY:
                inner = bodies[-1].shape
                return _Shape(0, shape.high * max(1, inner.high), type_, None, inner.key, inner.element)
            case _:
                low = shape.low if node.predicate is None else 0
                key = self.key(shape) if shape.type.name == "map" else None
                return _Shape(low, shape.high, type_, None, key, bodies[-1].shape)


def _loop_cost(part: _Part) -> int:
    return part.loop_cost


def _call_cost(overload: Overload, shapes: Sequence[_Shape]) -> tuple[int, int]:
    """Return the lowest and the highest cost of a call without its arguments."""
    cost = overload.cost
    # A cost that is measured at run time has an upper bound only.
    least = 0 if overload.measure is not None else cost.base
    if not cost.per_size and not cost.product:
        return least, cost.base
    ends = []
    for sizes in ([each.low for each in shapes], [each.high for each in shapes]):
        terms = [math.ceil(sizes[position] * factor) for position, factor in cost.per_size]
        ends.append(cost.base + (math.prod(terms) if cost.product else sum(terms)))
    return min(least, ends[0]) if overload.measure is not None else ends[0], ends[1]
