"""The interpreter: every node, every error, every unit of cost.

A checked tree becomes closures over one `Evaluation`. They are complete rather than fast: the functions of `codegen`
compute the ordinary case and fall back to the interpreter for everything else (errors and their absorption, unusual
kinds, budgets). Only the interpreter defines errors and their places.

Values that an expression *reads* (a variable, a field, an element, an iterated key) are checked against their declared
type when they are read: API objects come from a cluster and may be malformed. Computed values are trusted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, TypeAlias

from ..check.call_cost import (
    FUNCTION_COSTS,
    LIST_COST,
    PRICED_AS_FIRST,
    PRICED_BY_OVERLOAD,
    call_cost,
    one_unit,
    size_of,
)
from ..check.checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    TypeReference,
    VariableReference,
)
from ..check.dispatch import choose
from ..check.environment import PLAIN, Overload
from ..check.folding import FOLDED
from ..syntax import ast
from ..syntax.ast import Expr
from ..values.traversal import nothing, result_size
from ..values.types import BYTES, STRING, ObjectType, Type
from ..values.values import (
    NONE,
    EvaluationError,
    Optional,
    Uint,
    find,
    index,
    is_map,
    key_of,
    key_value,
    no_overload,
    text_of,
)
from .budget import EXACTLY, Meter
from .evaluation import Evaluation, Step
from .list_types import LIST_OPERATORS, list_field, listed_walk
from .loops import MACROS, Loop
from .reading import Reader, reader

_MISSING: Final = object()
_UNSET: Final = object()
_MAP_COST: Final = 30


Decorate: TypeAlias = Callable[[Checked, Expr, Step], Step]
"""Returns a replacement of a node's step, in the expression or in one of its definitions; for tracing."""


class Interpreter:
    """Interpreter of one checked expression. Immutable once built; any number of evaluations may run at a time."""

    __slots__ = ("_slots", "_step", "checked")

    def __init__(self, checked: Checked, *, decorate: Decorate | None = None) -> None:
        self.checked = checked
        builder = _Builder(checked, decorate)
        self._step = builder.build(checked.root)
        self._slots = builder.slots

    def evaluate(
        self, bindings: Mapping[str, object], limit: float = math.inf, meter: Meter | None = None,
    ) -> tuple[object, int]:
        """Return value and cost; raise `EvaluationError` with the offset of the node that failed.

        `limit` bounds the cost. `meter` counts it, also that of an evaluation that fails.
        """
        evaluation = Evaluation(bindings, limit, self._slots, self.checked)
        try:
            value = self._step(evaluation)
        except RecursionError:
            raise EvaluationError("the expression is nested too deeply", offset=self.checked.root.position) from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
            # Only for inputs that are not plain data (a mapping class with errors of its own).
            raise EvaluationError("an input is not plain data", offset=self.checked.root.position) from None
        finally:
            if meter is not None:
                # An operation that was refused because of its cost did not run.
                cost, turns = evaluation.cost, evaluation.turns
                meter.spent += EXACTLY * int((min(limit, cost)) + (min(limit, turns)))
        return value, evaluation.cost

    def within(self, outer: Evaluation) -> object:
        """Return the value as a part of another evaluation: same inputs, same budget, same definitions."""
        evaluation = Evaluation(outer.bindings, outer.limit, self._slots, self.checked)
        evaluation.cost, evaluation.turns, evaluation.definitions = outer.cost, outer.turns, outer.definitions
        try:
            return self._step(evaluation)
        finally:
            outer.cost, outer.turns = evaluation.cost, evaluation.turns


# --- calls ----------------------------------------------------------------------------------------------------------

_SHALLOW: Final = (None, nothing)
_EQUALITY: Final = frozenset({"_==_", "_!=_"})
_PAIRED: Final = _EQUALITY | {"@in"}
_ATOMS: Final = frozenset({type(None), bool, int, float, str, bytes, Uint})
_BUILT: Final = frozenset({STRING.name, BYTES.name, "list", "map"})
"""Types of results whose size is counted: Kubernetes' units include it for few functions only."""


# --- building --------------------------------------------------------------------------------------------------------


class _Builder:
    """Compiler of the nodes of one tree to closures."""

    def __init__(self, checked: Checked, decorate: Decorate | None = None) -> None:
        self.checked = checked
        self.environment = checked.environment
        self.types = checked.types
        self.references = checked.references
        self.slots = 0
        self._scope: dict[str, tuple[int, bool]] = {}
        """Slot of each variable of an enclosing loop, and whether it is evaluated lazily."""
        self._decorate = decorate

    def build(self, node: Expr) -> Step:
        """Return the closure of a node."""
        step = self._build(node)
        return step if self._decorate is None else self._decorate(self.checked, node, step)

    def _build(self, node: Expr) -> Step:
        reference = self.references.get(node.id)
        match reference:
            case VariableReference(name=name):
                return self._variable(name, node)
            case LocalReference(name=name):
                return self._local(name)
            case DefinitionReference(name=name):
                return self._definition(name, node)
            case TypeReference(type=of):
                value = Type(of.name)
                return lambda _: value
            case _:
                pass
        match node:
            case ast.Literal():
                constant = literal_value(node)
                return lambda _: constant
            case ast.Select(test=True):
                return self._presence(node)
            case ast.Select():
                return self._select(node)
            case ast.Call():
                return self._call(node)
            case ast.ListLiteral():
                return self._list(node)
            case ast.MapLiteral():
                return self._map(node)
            case ast.Comprehension():
                return self._comprehension(node)
            case ast.Bind():
                return self._bind(node)
            case ast.OptionalMap():
                return self._optional_map(node)
            case _:
                return _failing(f"`{self._text(node)}` cannot be evaluated", node.position)

    def _text(self, node: Expr) -> str:
        return self.checked.source.text[node.start : node.end]

    def _reader(self, node: Expr) -> Reader | None:
        return reader(self.types[node.id], self.environment)

    def _object(self, node: Expr) -> ObjectType | None:
        return self.environment.types.get(self.types[node.id].name)

    # names

    def _variable(self, name: str, node: Expr) -> Step:
        read = self._reader(node)
        position = node.position

        def variable(evaluation: Evaluation) -> object:
            evaluation.cost += 1
            value = evaluation.bindings.get(name, _MISSING)
            if value is _MISSING:
                raise EvaluationError(f"no value for variable `{name}`", offset=position)
            if read is None:
                return value
            try:
                return read(value)
            except EvaluationError as error:
                raise error.at(position) from None

        return variable

    def _local(self, name: str) -> Step:
        slot, lazy = self._scope[name]
        if not lazy:

            def local(evaluation: Evaluation) -> object:
                evaluation.cost += 1
                return evaluation.locals[slot]

            return local

        def lazy_local(evaluation: Evaluation) -> object:
            evaluation.cost += 1
            held = evaluation.locals[slot]
            if isinstance(held, _Lazy | _Again):
                held = held.evaluate(evaluation)
                evaluation.locals[slot] = held
            if type(held) is EvaluationError:
                raise held
            return held

        return lazy_local

    def _definition(self, name: str, node: Expr) -> Step:
        checked = self.checked.definition(name)
        exact = interpreter_of(checked, self._decorate)
        position = node.position

        def definition(evaluation: Evaluation) -> object:
            evaluation.cost += 1
            held = evaluation.definitions.get(checked, _UNSET)
            if held is _UNSET:
                try:
                    held = exact.within(evaluation)
                except EvaluationError as error:
                    if error.final:
                        raise
                    held = error
                evaluation.definitions[checked] = held
            if isinstance(held, EvaluationError):
                # The definition's own error has a place in another text: here it is that of the name.
                raise EvaluationError(held.message, offset=position, reason=held.reason)
            return held

        return definition

    # fields

    def _select(self, node: ast.Select) -> Step:
        operand = self.build(node.operand)
        field, position, optional = node.field, node.position, node.optional
        inner = self.types[node.operand.id]
        if inner.name == "optional_type" and inner.parameters:
            inner = inner.parameters[0]
        declared = self.environment.types.get(inner.name)
        absent = declared.absent if declared is not None else None
        inner = self.types[node.id]
        if inner.name == "optional_type" and inner.parameters and (optional or self._is_optional(node.operand)):
            inner = inner.parameters[0]
        read = reader(inner, self.environment)
        lenient = self.environment.has_on_scalars

        def value_of(container: object, *, inside: bool) -> object:
            """Return the field, or `_MISSING`; `inside` says that `container` was the value of an optional."""
            if type(container) is dict or isinstance(container, Mapping):
                value = container.get(field, _MISSING)
                if value is None and declared is not None:
                    value = _MISSING
                if value is _MISSING:
                    return _MISSING if absent is None else absent
                return value if read is None else read(value)
            if type(container) is list:
                raise EvaluationError("unsupported index type 'string' in list")
            if container is None and declared is not None:
                return _MISSING
            if lenient and (optional or inside):
                return _MISSING
            raise EvaluationError(f"no such key: {field}")

        base = self._base_cost(node.operand)

        def select(evaluation: Evaluation) -> object:
            try:
                container = operand(evaluation)
            finally:
                evaluation.cost += base
            inside = container.__class__ is Optional
            if inside:
                if container is NONE:
                    return NONE
                container = container.value  # type: ignore[attr-defined]
            try:
                value = value_of(container, inside=inside)
            except EvaluationError as error:
                raise error.at(position) from None
            if optional or inside:
                if value is _MISSING:
                    return NONE
                evaluation.cost += 1
                return Optional(value)
            evaluation.cost += 1
            if value is _MISSING:
                raise EvaluationError(f"no such key: {field}", offset=position)
            return value

        return select

    def _is_optional(self, node: Expr) -> bool:
        return self.types[node.id].name == "optional_type"

    def _presence(self, node: ast.Select) -> Step:
        operand = self.build(node.operand)
        field, position = node.field, node.position
        declared = self._object(node.operand) is not None
        lenient = self.environment.has_on_scalars
        base = self._base_cost(node.operand)

        def presence(evaluation: Evaluation) -> object:
            try:
                container = operand(evaluation)
            except EvaluationError:
                evaluation.cost += base - 1  # the chain's own unit, which a test does not cost
                raise
            evaluation.cost += base
            if type(container) is Optional:
                if container is NONE:
                    return False
                container = container.value
            if type(container) is dict or isinstance(container, Mapping):
                try:
                    value = container.get(field, _MISSING)
                except EvaluationError as error:
                    raise error.at(position) from None
                return value is not _MISSING and not (declared and value is None)
            if type(container) is list:
                raise EvaluationError("unsupported index type 'string' in list", offset=position)
            if lenient or (container is None and declared):
                return False
            raise EvaluationError(f"invalid type for field selection: {text_of(container)}", offset=position)

        return presence

    def _index(self, node: ast.Call, *, optional: bool) -> Step:
        operand, key_step = (self.build(each) for each in node.args)
        position = node.position
        declared = self._object(node.args[0])
        absent = declared.absent if declared is not None else None
        inner = self.types[node.id]
        if inner.name == "optional_type" and inner.parameters and (optional or self._is_optional(node.args[0])):
            inner = inner.parameters[0]
        read = reader(inner, self.environment)
        lenient = self.environment.has_on_scalars

        def value_of(container: object, key: object) -> object:
            if declared is not None:
                value = find(container, key, _MISSING) if is_map(container) else _MISSING  # type: ignore[arg-type]
                if value is None or value is _MISSING:
                    if absent is not None:
                        return absent
                    raise EvaluationError(f"no such key: {text_of(key)}")
            else:
                value = index(container, key)
            return value if read is None else read(value)

        def softly(container: object, key: object) -> object:
            """Return the element as an optional: only an absent one is none, other errors remain errors."""
            if type(container) is list:
                if isinstance(key, bool) or not isinstance(key, int | float):
                    raise no_overload()
                if float(key).is_integer() and not 0 <= key < len(container):
                    return NONE
            elif is_map(container):
                if find(container, key, _MISSING) is _MISSING:  # type: ignore[arg-type]
                    return NONE
            elif lenient and (container is not None or declared is None):
                return NONE
            return Optional(value_of(container, key))

        # cel-go resolves a key that is read as part of the step, and does not charge its variable.
        base = self._base_cost(node.args[0]) - self._is_read(node.args[1])

        def at(evaluation: Evaluation) -> object:
            try:
                container = operand(evaluation)
                key = key_step(evaluation)
            finally:
                evaluation.cost += base
            if container is NONE:
                return NONE
            try:
                if optional or type(container) is Optional:
                    found = softly(container.value if type(container) is Optional else container, key)
                    evaluation.cost += found is not NONE
                    return found
                evaluation.cost += 1
                return value_of(container, key)
            except EvaluationError as error:
                raise error.at(position) from None

        return at

    # calls

    def _call(self, node: ast.Call) -> Step:
        match node.function:
            case "_&&_":
                return self._logic(node, decisive=False)
            case "_||_":
                return self._logic(node, decisive=True)
            case "_?_:_":
                return self._conditional(node)
            case "_[_]":
                return self._index(node, optional=False)
            case "_[?_]":
                return self._index(node, optional=True)
            case _:
                return self._function(node)

    def _logic(self, node: ast.Call, *, decisive: bool) -> Step:
        left_node, right_node = node.args
        left, right = self.build(left_node), self.build(right_node)
        position = node.position

        def operand(step: Step, evaluation: Evaluation) -> object:
            try:
                value = step(evaluation)
            except EvaluationError as error:
                if error.final:
                    raise
                return error
            return value if type(value) is bool else no_overload().at(position)

        def logic(evaluation: Evaluation) -> object:
            first = operand(left, evaluation)
            if first is decisive:
                return decisive
            second = operand(right, evaluation)
            if second is decisive:
                return decisive
            if type(first) is not bool:
                raise first  # type: ignore[misc]
            if type(second) is not bool:
                raise second  # type: ignore[misc]
            return second

        return logic

    def _conditional(self, node: ast.Call) -> Step:
        condition, then, otherwise = (self.build(each) for each in node.args)
        # cel-go does not charge the variable of a branch that only reads.
        then_less, otherwise_less = (1 if self._only_reads(each) else 0 for each in node.args[1:])
        position = node.position

        def conditional(evaluation: Evaluation) -> object:
            chosen = condition(evaluation)
            if chosen is True:
                evaluation.cost -= then_less
                return then(evaluation)
            if chosen is False:
                evaluation.cost -= otherwise_less
                return otherwise(evaluation)
            raise no_overload().at(position)

        return conditional

    def _is_read(self, node: Expr) -> bool:
        """Return whether a node is a variable, a field, or an element."""
        if isinstance(self.references.get(node.id), VariableReference | LocalReference | DefinitionReference):
            return True
        if isinstance(node, ast.Select):
            return not node.test
        return isinstance(node, ast.Call) and node.function in {"_[_]", "_[?_]"}

    def _only_reads(self, node: Expr) -> bool:
        """Return whether a node is a variable, or read of one or of a computed value."""
        while True:
            if isinstance(self.references.get(node.id), VariableReference | LocalReference | DefinitionReference):
                return True
            if isinstance(node, ast.Select) and not node.test:
                node = node.operand
            elif isinstance(node, ast.Call) and node.function in {"_[_]", "_[?_]"}:
                node = node.args[0]
            else:
                return False

    def _function(self, node: ast.Call) -> Step:
        reference = self.references.get(node.id)
        position = node.position
        if not isinstance(reference, CallReference):
            return _failing("no such overload", position)
        arguments_nodes = node.args if node.target is None or reference.qualified else (node.target, *node.args)
        lazy = _LAZY.get(reference.overloads[0].id)
        if lazy is not None:
            return lazy(self, arguments_nodes, position)
        steps = tuple(self.build(each) for each in arguments_nodes)
        overloads, objects = reference.overloads, self.environment.types
        declared = list_field(self.checked, node)
        special = None if declared is None else LIST_OPERATORS[reference.function](declared)
        priced = FUNCTION_COSTS.get(overloads[0].id) or FUNCTION_COSTS.get(reference.function)
        only = overloads[0] if len(overloads) == 1 and self._certain(arguments_nodes, overloads[0]) else None
        if len(overloads) > 1 and reference.function in PRICED_BY_OVERLOAD:
            priced = one_unit
        elif len(overloads) > 1 and reference.function in PRICED_AS_FIRST:
            priced = partial(call_cost, overloads[0])
        # cel-go joins lists lazily, and does not charge joining values of unknown types.
        joins = reference.function == "_+_" and (len(overloads) > 1 or any(each.id == "add_list" for each in overloads))
        free = self._folded(node) or (node.function == "@in" and self._folded_list(arguments_nodes[1]))
        walks = special is not None or any(each.walk not in _SHALLOW for each in overloads)
        if walks and reference.function in _PAIRED and not self._may_be_large(reference.function, arguments_nodes):
            walks = False
        compares = reference.function in _EQUALITY  # the cost of strings is counted
        builds = joins or any(each.result.name in _BUILT for each in overloads)
        unpriced = priced is one_unit

        def call(evaluation: Evaluation) -> object:
            try:
                arguments = tuple([step(evaluation) for step in steps])
            except EvaluationError:
                evaluation.cost += 1
                raise
            try:
                overload = only if only is not None else choose(overloads, arguments, objects)
                if not free:
                    evaluation.charge(call_cost(overload, arguments) if priced is None else priced(arguments))
                if walks and not (compares and arguments[0].__class__ in _ATOMS):
                    walk = overload.walk if special is None else listed_walk
                    if walk is not None:
                        evaluation.turn(walk(*arguments))
                elif unpriced:
                    evaluation.turn(sum(map(result_size, arguments)))
                value = overload.evaluate(*arguments) if special is None else special(*arguments)
                if builds:
                    evaluation.turn(size_of(value) if joins else result_size(value))
                    if overload.result_steps is not None:
                        evaluation.turn(overload.result_steps(value, *arguments))
            except EvaluationError as error:
                raise error.at(position) from None
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError):
                # A list(int) of a malformed object may contain anything.
                raise no_overload().at(position) from None
            return value

        return call

    def _may_be_large(self, function: str, nodes: tuple[Expr, ...]) -> bool:
        """Return whether comparing two values, or one with the elements of a list, may take longer than its cost."""
        if function == "@in":
            return self.types[nodes[0].id].name not in PLAIN and not self._folded_list(nodes[1])
        return all(self.types[each.id].name not in PLAIN for each in nodes)

    def _folded(self, node: Expr) -> bool:
        """Return whether Kubernetes folds a node when it builds the program: it costs nothing at run time."""
        match node:
            case ast.Literal():
                return True
            case ast.ListLiteral():
                return not node.optional and all(map(self._folded, node.elements))
            case ast.MapLiteral():
                return all(
                    not each.optional and self._folded(each.key) and self._folded(each.value) for each in node.entries
                )
            case ast.Call(target=None) if node.function in FOLDED:
                return all(map(self._folded, node.args))
            case _:
                return isinstance(self.references.get(node.id), TypeReference)

    def _folded_list(self, node: Expr) -> bool:
        """Return whether Kubernetes folds a list to a set, in which `in` finds a value at no cost."""
        return isinstance(node, ast.ListLiteral) and self._folded(node) and all(map(_is_hashed, node.elements))

    def _base_cost(self, node: Expr) -> int:
        """Return the cost of a chain of fields that does not begin at a variable."""
        chain = isinstance(node, ast.Call) and node.function in {"_[_]", "_[?_]", "_?_:_"}
        return 0 if chain or isinstance(node, ast.Select | ast.Ident) else 1

    def _certain(self, nodes: tuple[Expr, ...], overload: Overload) -> bool:
        """Return whether the arguments' static types alone prove that the overload fits."""
        for node, parameter in zip(nodes, overload.parameters, strict=True):
            if parameter.variable or parameter.name == "dyn":
                continue
            known = self.types[node.id]
            if known.name != parameter.name or known.variable:
                return False
        return True

    # literals

    def _list(self, node: ast.ListLiteral) -> Step:
        cost = 0 if self._folded(node) else LIST_COST
        steps = tuple((self.build(each), number in node.optional) for number, each in enumerate(node.elements))
        position = node.position

        def build_list(evaluation: Evaluation) -> object:
            evaluation.charge(cost)
            items = []
            for step, optional in steps:
                value = step(evaluation)
                if not optional:
                    items.append(value)
                elif type(value) is not Optional:
                    raise no_overload().at(position)
                elif value is not NONE:
                    items.append(value.value)
            return items

        return build_list

    def _map(self, node: ast.MapLiteral) -> Step:
        cost = 0 if self._folded(node) else _MAP_COST
        steps = tuple(
            (self.build(each.key), self.build(each.value), each.optional, each.key.position, each.position)
            for each in node.entries
        )

        doubles = self.environment.double_keys

        def build_map(evaluation: Evaluation) -> object:
            evaluation.charge(cost)
            entries: dict[object, object] = {}
            for key_step, value_step, optional, key_position, position in steps:
                try:
                    key = key_of(key_step(evaluation), doubles=doubles)
                except EvaluationError as error:
                    raise error.at(key_position) from None
                value = value_step(evaluation)
                if optional:
                    if type(value) is not Optional:
                        raise no_overload().at(position)
                    if value is NONE:
                        continue
                    value = value.value
                if key in entries:
                    raise EvaluationError(
                        f"insert failed: key {text_of(key_value(key))} already exists", offset=key_position,
                    )
                entries[key] = value
            return entries

        return build_map

    # loops

    def _bound(self, name: str | None, *, lazy: bool = False) -> int:
        slot = self.slots
        self.slots += 1
        if name is not None:
            self._scope[name] = (slot, lazy)
        return slot

    def _comprehension(self, node: ast.Comprehension) -> Step:
        items, first_reader, second_reader = self._range(node)
        outer = dict(self._scope)
        first = self._bound(node.variable)
        second = self._bound(node.variable2) if node.variable2 is not None else None
        predicate = None if node.predicate is None else self.build(node.predicate)
        transform = None if node.transform is None else self.build(node.transform)
        self._scope = outer
        position = node.position

        at = node.range.position

        def assign(evaluation: Evaluation, pair: tuple[object, object]) -> None:
            """Set the loop's variables; an element of another kind than declared is an error of this iteration only."""
            value, other = pair
            try:
                evaluation.locals[first] = value if first_reader is None else first_reader(value)
                if second is not None:
                    evaluation.locals[second] = other if second_reader is None else second_reader(other)
            except EvaluationError as error:
                raise error.at(at) from None

        def holds(evaluation: Evaluation) -> bool:
            assert predicate is not None
            value = predicate(evaluation)
            if type(value) is not bool:
                raise no_overload().at(position)
            return value is True

        listing = 0 if node.transform is None or self._folded(node.transform) else LIST_COST
        loop = Loop(items, assign, None if predicate is None else holds, transform, listing, first, position)
        return MACROS[node.macro](loop)

    def _range(
        self, node: ast.Comprehension,
    ) -> tuple[Callable[[Evaluation], Iterable[tuple[object, object]]], Reader | None, Reader | None]:
        """Return a function that yields the values of both loop variables, unchecked, and one that checks them."""
        source = self.build(node.range)
        position = node.range.position
        two = node.variable2 is not None
        declared = self.types[node.range.id]
        element = key = None
        if declared.name == "list" and declared.parameters:
            element = reader(declared.parameters[0], self.environment)
        elif declared.name == "map" and len(declared.parameters) == 2:
            key = reader(declared.parameters[0], self.environment)
            element = reader(declared.parameters[1], self.environment)
        readers = (element, None) if declared.name == "list" and not two else (key, element)

        def pairs(evaluation: Evaluation) -> Iterable[tuple[object, object]]:
            container = source(evaluation)
            if type(container) is list:
                items: list[object] = container
                return enumerate(items) if two else ((each, None) for each in items)
            if is_map(container):
                mapping: Mapping[object, object] = container  # type: ignore[assignment]
                if two:
                    return ((key_value(each), mapping[each]) for each in mapping)
                return ((key_value(each), None) for each in mapping)
            raise no_overload().at(position)

        return pairs, readers[0], readers[1]

    def _bind(self, node: ast.Bind) -> Step:
        init = self.build(node.init)
        outer = dict(self._scope)
        slot = self._bound(node.variable, lazy=True)
        body = self.build(node.body)
        self._scope = outer
        lazy = _Lazy(init)

        def bind(evaluation: Evaluation) -> object:
            evaluation.turn()
            evaluation.locals[slot] = lazy
            return body(evaluation)

        return bind

    def _optional_map(self, node: ast.OptionalMap) -> Step:
        target = self.build(node.target)
        outer = dict(self._scope)
        slot = self._bound(node.variable, lazy=True)
        body = self.build(node.body)
        self._scope = outer
        position, flat = node.position, node.flat

        def optional_map(evaluation: Evaluation) -> object:
            before = evaluation.cost
            held = target(evaluation)
            again = evaluation.cost - before
            evaluation.charge(1)
            if type(held) is not Optional:
                raise no_overload().at(position)
            if held is NONE:
                evaluation.charge(1)
                return NONE
            # The macro's expansion evaluates its target once more, where the variable is read.
            evaluation.locals[slot] = _Again(held.value, again + 1)
            value = body(evaluation)
            if not flat:
                evaluation.charge(1)
                return Optional(value)
            return value  # as in cel-go, which tests only the type that the checker knows

        return optional_map


class _Lazy:
    """The initial value of a bind, not evaluated yet."""

    __slots__ = ("_step",)

    def __init__(self, step: Step) -> None:
        self._step = step

    def evaluate(self, evaluation: Evaluation) -> object:
        """Return the value, or the error in its place."""
        try:
            return self._step(evaluation)
        except EvaluationError as error:
            if error.final:
                raise
            return error


class _Again:
    """A computed value, and the cost of computing it again."""

    __slots__ = ("_units", "_value")

    def __init__(self, value: object, units: int) -> None:
        self._value = value
        self._units = units

    def evaluate(self, evaluation: Evaluation) -> object:
        """Return the value; charge for it."""
        evaluation.charge(self._units)
        return self._value


def _is_hashed(node: Expr) -> bool:
    """Return whether a constant is a bool, number or string: cel-go makes sets of no others."""
    match node:
        case ast.Literal(value=value):
            return value is not None and not isinstance(value, bytes)
        case ast.Call(target=None, function="dyn", args=[inner]):
            return _is_hashed(inner)
        case _:
            return isinstance(node, ast.Call) and node.function in {"bool", "double", "int", "string", "uint"}


def _failing(message: str, position: int) -> Step:
    def fail(_: Evaluation) -> object:
        raise EvaluationError(message, offset=position)

    return fail


def _or_value(builder: _Builder, nodes: tuple[Expr, ...], _: int) -> Step:
    target, default = (builder.build(each) for each in nodes)

    def or_value(evaluation: Evaluation) -> object:
        held = target(evaluation)
        if held is NONE:
            return default(evaluation)
        return held.value if type(held) is Optional else held  # as in cel-go, where nothing else is tested

    return or_value


def _or(builder: _Builder, nodes: tuple[Expr, ...], _: int) -> Step:
    target, other = (builder.build(each) for each in nodes)

    def or_(evaluation: Evaluation) -> object:
        held = target(evaluation)
        return other(evaluation) if held is NONE else held  # as in cel-go, where nothing else is tested

    return or_


_LAZY: Final[dict[str, Callable[[_Builder, tuple[Expr, ...], int], Step]]] = {
    "optional_orValue_value": _or_value, "optional_or_optional": _or,
}
"""Functions that evaluate only the arguments that they need."""


def literal_value(node: ast.Literal) -> object:
    """Return the value of a literal."""
    if node.unsigned:
        return Uint(node.value)  # type: ignore[arg-type]
    return node.value


def is_constant(node: Expr) -> bool:
    """Return whether a node is a literal, or a list or map of literals."""
    match node:
        case ast.Literal():
            return True
        case ast.ListLiteral():
            return not node.optional and all(map(is_constant, node.elements))
        case ast.MapLiteral():
            return all(not each.optional and is_constant(each.key) and is_constant(each.value) for each in node.entries)
        case _:
            return False


def interpreter_of(checked: Checked, decorate: Decorate | None = None) -> Interpreter:
    """Return the interpreter of a checked expression; cached, as definitions are shared by many expressions.

    Built for each mention, a chain of n definitions that each mention the one before twice would take 2^n.
    """
    key = Interpreter if decorate is None else decorate
    found = checked.plans.get(key)
    if not isinstance(found, Interpreter):
        found = checked.plans[key] = Interpreter(checked, decorate=decorate)
    return found
