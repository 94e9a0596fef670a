"""Checks of macros."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.source import Problem

from ..syntax.ast import Bind, Comprehension, Macro, OptionalMap
from ..values.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    ERROR,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
)
from .node_checker import NodeChecker

_ORDERED: Final = (BOOL, INT, UINT, DOUBLE, STRING, BYTES, TIMESTAMP, DURATION)


def comprehension(checker: NodeChecker, node: Comprehension) -> Type:
    """Check a macro that runs over a list or a map."""
    over = checker.substitute(checker.check(node.range))
    checker.loops += 1
    if checker.loops > checker.environment.limits.comprehensions:
        checker.complain(
            f"comprehensions nest more than {checker.environment.limits.comprehensions} deep", node,
            help="each level multiplies the cost: split it up into variables", code="cel-cost",
        )  # fmt: skip
    pair = _elements(checker, node, over)
    first, second = pair or (ERROR, ERROR)
    if node.variable2 is None:
        element = second if over.name == "list" else first
        checker.locals.append((node.variable, element))
    else:
        element = second
        checker.locals += [(node.variable, first), (node.variable2, second)]
    failed = pair is None
    if node.predicate is not None:
        predicate = checker.substitute(checker.check(node.predicate))
        failed = failed or predicate == ERROR
        if predicate != ERROR and not checker.assignable(predicate, BOOL):
            failed = True
            checker.complain(
                f"the condition of `{node.macro.value}` must be bool, not `{checker.shown(predicate)}`",
                node.predicate, end=max(node.predicate.end, node.predicate.position + 1),
            )  # fmt: skip
    transform = DYN
    if node.transform is not None:
        transform = checker.substitute(checker.check(node.transform))
        failed = failed or transform == ERROR
    del checker.locals[-1 if node.variable2 is None else -2 :]
    checker.loops -= 1
    return ERROR if failed else _result(checker, node, first, element, transform)


def _elements(checker: NodeChecker, node: Comprehension, type_: Type) -> tuple[Type, Type] | None:
    """Return the types of the two variables (index or key, element or value), None after an error."""
    if type_ == ERROR:
        return None
    if type_ == DYN or type_.variable:
        return DYN, DYN
    if type_.name == "list" and (node.macro is not Macro.SORT_BY or node.variable2 is None):
        return INT, type_.parameters[0]
    if type_.name == "map" and node.macro is not Macro.SORT_BY:
        return type_.parameters[0], type_.parameters[1]
    accepted = "a list" if node.macro is Macro.SORT_BY else "a list or a map"
    checker.complain(
        f"`{node.macro.value}` runs over {accepted}, not `{checker.shown(type_)}`", node.range,
        end=max(node.range.end, node.range.position + 1),
    )  # fmt: skip
    return None


def _result(checker: NodeChecker, node: Comprehension, key: Type, element: Type, transform: Type) -> Type:
    """Return the type of a comprehension without errors."""
    match node.macro:
        case Macro.ALL | Macro.EXISTS | Macro.EXISTS_ONE:
            return BOOL
        case Macro.FILTER:
            return list_of(element)
        case Macro.MAP | Macro.TRANSFORM_LIST:
            return list_of(transform)
        case Macro.TRANSFORM_MAP:
            return map_of(key, transform)
    assert node.transform is not None
    end = max(node.transform.end, node.transform.position + 1)
    if node.macro is Macro.TRANSFORM_MAP_ENTRY:
        if transform == DYN or transform.variable:
            return map_of(DYN, DYN)
        if transform.name == "map":
            return transform
        return checker.complain(
            f"`transformMapEntry` makes a map with one entry, not `{checker.shown(transform)}`", node.transform,
            end=end, help="write `{key: value}`",
        )  # fmt: skip
    if transform in (DYN, *_ORDERED) or transform.variable:
        return list_of(element)
    return checker.complain(
        f"`sortBy` cannot order by `{checker.shown(transform)}`", node.transform, end=end,
        help="order by a number, a string, a bool, a timestamp or a duration",
    )  # fmt: skip


def bind(checker: NodeChecker, node: Bind) -> Type:
    """Check `cel.bind`."""
    if "cel.bind" not in checker.environment.functions:
        span = checker.source.span(node.start, node.start + len("cel"))
        checker.problems.append(Problem(
            "`cel.bind` is not available here", span, "write the value out where it is read", code="cel-name",
        ))
        return ERROR
    checker.locals.append((node.variable, checker.substitute(checker.check(node.init))))
    type_ = checker.check(node.body)
    checker.locals.pop()
    return type_


def optional_map(checker: NodeChecker, node: OptionalMap) -> Type:
    """Check `optMap` and `optFlatMap`."""
    target = checker.substitute(checker.check(node.target))
    inner = target
    name = "optFlatMap" if node.flat else "optMap"
    if target.name == "optional_type" and not target.variable:
        inner = target.parameters[0]
    elif target in (DYN, NULL) or target.variable:
        inner = DYN
    elif target != ERROR:
        inner = checker.complain(
            f"`{name}` works on an optional, not on `{checker.shown(target)}`", node,
            help="`x.?y` or `optional.of(x)` give one",
        )  # fmt: skip
    checker.locals.append((node.variable, inner))
    body = checker.substitute(checker.check(node.body))
    checker.locals.pop()
    if ERROR in (inner, body):
        return ERROR
    if not node.flat:
        return optional_of(body)
    if body.name == "optional_type" and not body.variable:
        return body
    if body == DYN or body.variable:
        return optional_of(DYN)
    return checker.complain(
        f"`optFlatMap` makes an optional, not `{checker.shown(body)}`", node.body,
        end=max(node.body.end, node.body.position + 1), help="use `optMap`, or `x.?y` for an optional field",
    )  # fmt: skip
