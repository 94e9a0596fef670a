"""Type checker: resolves every name of a tree, types every node, reports every error.

The checker is gradual: a node of type `dyn` is checked at run time, any other against its declaration. A faulty node
has the type ERROR, and nodes above it report nothing more: each error is reported once, all of them together. Types
are unified as in cel-go (`checker/types.go`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from koordpolicy.engine.source import PolicyError, Problem, Source

from ..syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    OptionalMap,
    Select,
)
from ..values.deadline import Deadline
from ..values.types import BOOL, DOUBLE, DYN, ERROR, INT, STRING, UINT, Type
from .calls import call
from .checked_ast import Checked, reads_below
from .environment import Environment
from .literals import check_agreement, list_literal, literal, map_literal, message
from .macros import bind, comprehension, optional_map
from .names import ident, selection
from .node_checker import NodeChecker
from .signatures import show
from .survey import Survey

_NUMBERS: Final = frozenset((INT, UINT, DOUBLE))


def check(
    source: Source,
    root: Expr,
    environment: Environment,
    *,
    expected: Type | tuple[Type, ...] | None = None,
    lenient: bool = False,
) -> Checked:
    """Return the checked tree of an expression; raise `PolicyError` with all its errors.

    Codes: `cel-type` for types that do not fit, `cel-name` for undeclared names, `cel-syntax` for trees that cannot be
    checked at all, `cel-deadline` where the thread's `Deadline` has passed. `expected`: the types that the whole
    expression may have, default any. A `dyn` result matches only DYN itself, which allows a result that is only known
    at run time (and, as the only expected type, any result). `lenient`: wrong types are errors at run time, as without
    a checker; undeclared names are still reported.
    """
    deadline = Deadline.current()
    if deadline is not None and deadline.passed:
        deadline.stop(source)
        raise PolicyError([Problem("was not checked before its deadline", source.whole(), code="cel-deadline")])
    checker = _Checker(source, environment, lenient)
    try:
        type_ = checker.check(root)
        _check_result(checker, root, type_, expected)
    except RecursionError:
        checker.complain("nested too deeply", root, help="split it up into variables", code="cel-syntax")
    if checker.problems or check_agreement(checker):
        raise PolicyError(checker.problems)
    references = checker.references
    ground = checker.ground
    types = {
        number: ground(each) if each.variable or each.parameters else each for number, each in checker.types.items()
    }
    survey = Survey(references, environment)
    scope = survey.visit(root)
    reads = reads_below(root, references, environment)
    return Checked(source, root, environment, types, references, reads, scope, survey.scopes, survey.mentioned)


class _Checker(NodeChecker):
    """Checker that checks each kind of node by the module for it."""

    def check(self, node: Expr) -> Type:
        type_ = self.types[node.id] = _CHECKS[node.__class__](self, node)
        return type_


def _check_result(
    checker: NodeChecker, root: Expr, type_: Type, expected: Type | tuple[Type, ...] | None,
) -> None:
    """Report the type of the whole expression if it is none of the expected ones."""
    type_ = checker.substitute(type_)
    if expected is None or type_ == ERROR:
        return
    allowed = expected if isinstance(expected, tuple) else (expected,)
    if allowed == (DYN,):
        return
    if type_ == DYN or type_.variable:
        if DYN in allowed:
            return
    elif any(each != DYN and checker.assignable(type_, each) for each in allowed):
        return
    names = " or ".join(show(each) for each in allowed if each != DYN)
    help_ = ""
    if type_ == DYN and BOOL in allowed:
        help_ = "its type is only known at run time: write `== true`"
    elif type_ == DYN:
        convert = next((each.name for each in allowed if each.name in ("int", "double", "string")), "")
        help_ = f"its type is only known at run time: write `{convert}(...)`" if convert else ""
    elif type_ in _NUMBERS and any(each.name == "map" for each in allowed):
        help_ = "write a map with a name for the number, such as `{'cpu': ...}`"
    elif BOOL in allowed and type_ in (INT, UINT, DOUBLE, STRING):
        help_ = "compare it with something"
    elif type_ == BOOL and not _NUMBERS.isdisjoint(allowed):
        help_ = "`condition ? 1 : 0` makes a number of it"
    elif type_ == DOUBLE and INT in allowed:
        help_ = "write `int(...)`, which truncates"
    span = checker.source.span(root.start, max(root.end, root.start + 1))
    checker.problems.append(Problem(f"must be {names}, not {checker.shown(type_)}", span, help_, code="cel-type"))


_CHECKS: Final[dict[type, Callable[[NodeChecker, Any], Type]]] = {
    Literal: literal,
    Ident: ident,
    Select: selection,
    Call: call,
    ListLiteral: list_literal,
    MapLiteral: map_literal,
    MessageLiteral: message,
    Comprehension: comprehension,
    Bind: bind,
    OptionalMap: optional_map,
}
