"""Calls with constant arguments, which are tried before an expression runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..syntax.ast import Call, Expr, ListLiteral, Literal, children
from ..values.types import DYN
from ..values.values import EvaluationError, Uint
from .checked_ast import CallReference
from .dispatch import choose
from .environment import InvalidLiteralError, Overload, UnknownArgument
from .folding import FOLDED, Folding
from .node_checker import NodeChecker
from .patterns import charge
from .signatures import SYMBOLS

_OF_NO_NULL: Final = FOLDED - {"type", "dyn"}
_NOT_IN_RE2: Final = {
    **dict.fromkeys((f"error parsing regexp: invalid perl operator: {each}" for each in ("(?=", "(?!", "(?<")),
                    "RE2 has no look-ahead or look-behind: test a second pattern"),
    "error parsing regexp: invalid escape sequence: \\1": "RE2 has no references to groups",
    "error parsing regexp: bad repetition operator": "RE2 has no possessive repetition, and needs none",
}
"""Help by the beginning of RE2's message, for what patterns of other languages have."""
_TRIED: Final = frozenset((str, int, float, bool, bytes, Uint))


def check_constant_call(checker: NodeChecker, node: Call, reference: CallReference, *, member: bool) -> None:
    """Report a call of a function that fails with the literals that it is given."""
    name, overloads = reference.function, reference.overloads
    if (len(overloads) == 1 and name not in SYMBOLS) or name in FOLDED:
        _try(checker, node, overloads, node.args if not member else (node.target, *node.args))


def _known(checker: NodeChecker, node: Expr) -> object:
    """Return the value of a literal, a list of literals or a converted literal; else an `UnknownArgument`."""
    if isinstance(node, Literal):
        return Uint(node.value) if node.unsigned and isinstance(node.value, int) else node.value
    if isinstance(node, ListLiteral) and not node.optional:
        # The type of an element of type dyn is unknown.
        return [
            UnknownArgument(DYN) if checker.types[each.id] == DYN else _known(checker, each) for each in node.elements
        ]
    unknown = UnknownArgument(checker.substitute(checker.types[node.id]))
    reference = checker.references.get(node.id)
    if not isinstance(reference, CallReference) or reference.function not in FOLDED:
        return unknown
    values = tuple([_known(checker, each) for each in children(node)])
    if not all(each.__class__ in _TRIED for each in values):
        return unknown
    try:
        return _folded(checker, choose(reference.overloads, values), values)
    except EvaluationError:
        return unknown  # reported at that element


def _try(checker: NodeChecker, node: Call, overloads: Sequence[Overload], arguments: Sequence[Expr | None]) -> None:
    """Report a call with literals that always fails, before the first evaluation.

    Functions only, as in Kubernetes: an operator (`1/0`) may be in a branch that is never taken.
    """
    nodes = [each for each in arguments if each is not None]
    values = [_known(checker, each) for each in nodes]
    overload = overloads[0]
    if overload.validate is not None:
        try:
            overload.validate(tuple(values))
        except InvalidLiteralError as fault:
            at: Expr = node
            for step in fault.path:
                at = (nodes if at is node else children(at))[step]
            help_ = next((hint for reason, hint in _NOT_IN_RE2.items() if reason in fault.message), "")
            checker.complain(fault.message, at, end=max(at.end, at.position + 1), help=help_)
        else:
            if overload.states is not None and isinstance(values[1], str):
                span = checker.source.span(nodes[1].start, nodes[1].end)
                charge(values[1], overload.states(values[1]), span)
        return
    if not overload.pure or overload.result.name in ("list", "map"):
        return
    if values == [None] and node.function in _OF_NO_NULL:
        checker.complain(f"`{node.function}` does not take null", nodes[0])
        return
    if all(each.__class__ in _TRIED and not (isinstance(each, str) and len(each) > 256) for each in values):
        dynamic = any(checker.types[each.id] == DYN for each in nodes)
        if dynamic and node.function not in FOLDED:
            return
        try:
            if dynamic:
                overload = choose(overloads, tuple(values))
            _folded(checker, overload, tuple(values))
        except EvaluationError as error:
            if error.final:
                return  # the budget for constants is spent
            at = node.args[0] if len(node.args) == 1 else node
            checker.complain(error.message, at, end=max(at.end, at.position + 1))


def _folded(checker: NodeChecker, overload: Overload, values: tuple[object, ...]) -> object:
    """Return the value of a call with constants, within the budget for all of them."""
    if checker.folding is None:
        checker.folding = Folding()
    return checker.folding.evaluate(overload, values)
