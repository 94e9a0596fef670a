"""Checks of calls: the overloads that accept the arguments, and the operators that have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..syntax.ast import Call, Literal
from ..values.types import BOOL, DYN, ERROR, INT, STRING, Type, optional_of
from . import overload_errors
from .checked_ast import CallReference
from .constant_calls import check_constant_call
from .environment import Function, Overload
from .node_checker import NodeChecker
from .overload_errors import ELSEWHERE, FailedCall
from .signatures import SYMBOLS

_MIXED: Final = frozenset(("format",))
"""Functions whose arguments may be literals of mixed types, even where the environment requires one type."""


@dataclass(frozen=True, slots=True)
class _Resolved:
    """The resolved call of a function with arguments of certain types."""

    function: Function
    """Referenced, so that no other function gets its `id`."""
    reference: CallReference
    result: Type


_RESOLVED: Final[dict[tuple[object, ...], _Resolved]] = {}
_MOST_RESOLVED: Final = 10_000


def call(checker: NodeChecker, node: Call) -> Type:
    """Check a call of an operator or a function."""
    function = node.function
    operator = _OPERATORS.get(function)
    target = node.target
    mixed = function in _MIXED
    checker.mixed += mixed
    types = []
    for each in node.args:
        types.append(checker.check(each))  # noqa: PERF401 - a comprehension would be one more frame per level
    checker.mixed -= mixed
    if operator is not None:
        return ERROR if ERROR in types else operator(checker, node, [checker.substitute(each) for each in types])
    if target is None:
        name = "." + function if node.rooted else function
        for each_name in checker.candidates(name):
            found = checker.environment.functions.get(each_name)
            if found is not None:
                return _resolve(checker, node, found, types, qualified=False)
        return _no_function(checker, node, function)
    prefix = checker.qualified(target)
    if prefix is not None:
        for each_name in checker.candidates(f"{prefix}.{function}"):
            found = checker.environment.functions.get(each_name)
            if found is not None:
                return _resolve(checker, node, found, types, qualified=True)
        root = prefix.lstrip(".").partition(".")[0]
        unknown = checker.local(root) is None and root not in checker.environment.variables
        name = f"{prefix}.{function}"
        foreign = function not in checker.environment.functions or name in ELSEWHERE
        if unknown and foreign and _is_name_space(checker, prefix):
            return _no_function(checker, node, name)
    receiver = checker.check(target)
    found = checker.environment.functions.get(function)
    if found is None:
        return ERROR if receiver == ERROR else _no_function(checker, node, function)
    return _resolve(checker, node, found, [receiver, *types], qualified=False)


def _is_name_space(checker: NodeChecker, prefix: str) -> bool:
    return any(name.startswith(f"{prefix}.") for name in checker.environment.functions)


def _no_function(checker: NodeChecker, node: Call, name: str) -> Type:
    message, help_ = overload_errors.no_function(
        node, name, checker.environment.functions, checker.environment.variables,
    )  # fmt: skip
    return checker.complain(message, node, help=help_, code="cel-name")


def _resolve(checker: NodeChecker, node: Call, function: Function, types: list[Type], *, qualified: bool) -> Type:
    """Return the result type of a call of a known function, and record the overloads that may run."""
    if ERROR in types:
        return ERROR
    member = node.target is not None and not qualified
    # The resolution depends only on the types if these have no variables: the same calls occur again and again.
    closed = not any(map(_is_open, types))
    key = (id(function), qualified, member, *types)
    if closed:
        known = _RESOLVED.get(key)
        if known is not None:
            checker.references[node.id] = known.reference
            check_constant_call(checker, node, known.reference, member=member)
            return known.result
    matching: list[Overload] = []
    result: Type | None = None
    for overload in function.overloads:
        if overload.member != member or len(overload.parameters) != len(types):
            continue
        if overload.dynamic and DYN not in types:
            continue
        accepted: Sequence[Type] = overload.parameters
        found = overload.result
        if found.variable or found.parameters or any(each.variable or each.parameters for each in accepted):
            accepted, found = checker.instantiate(overload)
        if checker.all_assignable(types, accepted):
            matching.append(overload)
            found = checker.substitute(found)
            if result is None:
                result = found
            elif result not in (DYN, found):
                result = DYN
    if result is None:
        return _no_overload(checker, node, function, types)
    if DYN in types and _is_open(result):
        # The value of an unknown optional may be of any type: a later call must not choose one.
        result = checker.ground(result)
        checker.open_calls.add(node.id)
    reference = checker.references[node.id] = CallReference(function.name, tuple(matching), qualified)
    if closed and not _is_open(result) and node.id not in checker.open_calls:
        if len(_RESOLVED) >= _MOST_RESOLVED:
            _RESOLVED.clear()
        _RESOLVED[key] = _Resolved(function, reference, result)
    check_constant_call(checker, node, reference, member=member)
    return result


def _no_overload(checker: NodeChecker, node: Call, function: Function, types: Sequence[Type]) -> Type:
    """Report that no overload accepts these types."""
    if checker.lenient:
        checker.references[node.id] = CallReference(function.name, function.overloads, len(types) == len(node.args))
        return DYN
    failed = FailedCall(node, function, [checker.substitute(each) for each in types])
    message, help_ = overload_errors.no_overload(failed)
    return checker.complain(message, node, end=node.position + max(1, len(failed.symbol)), help=help_)


def _logical(checker: NodeChecker, node: Call, types: Sequence[Type]) -> Type:
    wrong = next((each for each in types if not checker.assignable(each, BOOL)), None)
    if wrong is None:
        return BOOL
    symbol = SYMBOLS[node.function]
    return checker.complain(
        f"`{symbol}` does not take `{checker.shown(types[0])}` and `{checker.shown(types[1])}`", node,
        end=node.position + len(symbol), help="both sides must be bool",
    )  # fmt: skip


def _conditional(checker: NodeChecker, node: Call, types: Sequence[Type]) -> Type:
    condition, first, second = types
    if not checker.assignable(condition, BOOL):
        return checker.complain(f"the condition of `?:` must be bool, not `{checker.shown(condition)}`", node)
    result = checker.fresh()
    if checker.all_assignable((first, second), (result, result)):
        return checker.substitute(result)
    return checker.complain(
        f"the branches of `?:` must have one type, not `{checker.shown(first)}` and `{checker.shown(second)}`", node,
        help="convert one of them, or put `dyn()` around both",
    )  # fmt: skip


def _index(checker: NodeChecker, node: Call, types: Sequence[Type]) -> Type:
    """Check `_[_]` and `_[?_]`: of lists, maps, objects that allow it, and optionals of them."""
    type_, key = types
    optional = node.function == "_[?_]"
    inner = type_
    if type_.name == "optional_type" and not type_.variable:
        inner = checker.substitute(type_.parameters[0])
        optional = True
    result: Type | None = None
    function = checker.environment.functions.get("_[_]")
    declared = checker.environment.types.get(inner.name)
    if inner == DYN or inner.variable:
        result = DYN
        if function is not None and not optional:
            checker.references[node.id] = CallReference("_[_]", function.overloads)
    elif declared is not None:
        if declared.index is not None and checker.assignable(key, STRING):
            literal = node.args[1]
            known = declared.fields.get(literal.value) if isinstance(literal, Literal) else None  # type: ignore[arg-type]
            result = declared.index if known is None else known.type
    elif inner.name == "list":
        result = inner.parameters[0] if checker.assignable(key, INT) else None
    elif inner.name == "map":
        result = inner.parameters[1] if checker.assignable(key, inner.parameters[0]) else None
    if result is None:
        hint = ""
        if declared is not None and declared.index is None:
            hint = "its fields are read with a dot"
        elif inner.name == "list":
            hint = "an index is an int"
        elif inner.name == "map":
            hint = f"its keys are `{checker.shown(inner.parameters[0])}`"
        return checker.complain(
            f"`{checker.shown(type_)}` cannot be indexed with `{checker.shown(key)}`", node, help=hint,
        )
    if function is not None and not optional and inner.name in ("list", "map"):
        chosen = tuple(each for each in function.overloads if each.parameters[0].name == inner.name)
        checker.references[node.id] = CallReference("_[_]", chosen)
    result = checker.substitute(result)
    return optional_of(result) if optional and result.name != "optional_type" else result


def _is_open(type_: Type) -> bool:
    """Return whether a type has variables."""
    return type_.variable or (bool(type_.parameters) and any(map(_is_open, type_.parameters)))


_OPERATORS: Final[dict[str, Callable[[NodeChecker, Call, Sequence[Type]], Type]]] = {
    "_&&_": _logical, "_||_": _logical, "_?_:_": _conditional, "_[_]": _index, "_[?_]": _index,
}
"""Operators that no overload describes."""
