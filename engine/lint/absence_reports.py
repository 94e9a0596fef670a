"""Findings of unguarded reads: the effect of the error at their point, and the text that reads safely."""

from __future__ import annotations

import functools
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.cel.syntax.ast import Call, Expr, Literal, Select, children
from koordpolicy.engine.compile import CompiledQoS, CompiledScheduler
from koordpolicy.engine.documents import AggregateFunction, Over
from koordpolicy.engine.framework.points import FailurePolicy
from koordpolicy.engine.framework.slots import SLOTS, Slot

from .edits import rewriting
from .subject import LintSubject, Placed, TextEdit, Violation, span_of
from .unguarded_reads import UnguardedRead, called_of, holder_of, is_field, is_measured, may_be_absent

_SLOTS_OF_SCHEDULER: Final = {
    "preEnqueue": Slot.PRE_ENQUEUE, "preFilter": Slot.PRE_FILTER, "filter": Slot.FILTER, "score": Slot.SCORE,
}
_SLOTS_OF_QOS: Final = {
    "condition": Slot.THRESHOLD, "threshold": Slot.THRESHOLD, "when": Slot.WHEN, "target": Slot.TARGET,
    "amount": Slot.RELEASE, "criterion": Slot.QOS_CRITERIA, "sort": Slot.QOS_SORT, "setting": Slot.SETTING,
}
_SLOTS_OF_DESCHEDULER: Final = {
    "condition": Slot.CRITERIA, "source": Slot.SOURCE, "destination": Slot.DESTINATION, "until": Slot.UNTIL,
    "fit": Slot.FIT, "room": Slot.ROOM, "taken": Slot.TAKEN, "source sort": Slot.SOURCE_SORT,
    "criterion": Slot.CRITERIA, "sort": Slot.SORT, "eviction mode": Slot.EVICTION_MODE,
    "grace period": Slot.EVICTION_GRACE_PERIOD,
}


def absence_of(subject: LintSubject, placed: Placed, access: UnguardedRead) -> Violation:
    """Return the finding of a read, with a fix if a default preserves its meaning."""
    text = access.checked.source.text[access.node.start : access.node.end]
    if access.of is not None:
        return _element(subject, placed, access, access.of)
    if isinstance(access.node, Call) and access.node.target is not None and access.node.function == "value":
        return _value(subject, placed, access, access.node.target)
    default = _default(subject, access)
    what = "field" if is_field(access) else "key"
    empty = {"list": "[]", "map": "{}"}.get(access.checked.types[access.node.id].name, "...")
    safe = _safe(access, default or empty)
    return Violation(
        f"`{_line(text)}` is an error where the {what} is absent: {_outcome(subject, placed)}",
        span_of(access.checked, access.node),
        f"write `{safe}`, or test that it is there",
        fix=functools.partial(_fix, access, default) if default else None,
    )


_LACKS: Final = {"optional.none": "always", "optional.ofNonZeroValue": "where the value is empty or zero"}


def _value(subject: LintSubject, placed: Placed, access: UnguardedRead, optional: Expr) -> Violation:
    """Return the finding of the read of an optional's value."""
    source, node = access.checked.source.text, access.node
    is_key = isinstance(optional, Call)
    where = _LACKS.get(called_of(access.checked, optional), f"where the {'key' if is_key else 'field'} is absent")
    return Violation(
        f"`{_line(source[node.start : node.end])}` is an error {where}: {_outcome(subject, placed)}",
        span_of(access.checked, node),
        f"write `{_line(source[optional.start : optional.end])}.orValue(...)`, or test `hasValue()`",
    )


def _element(subject: LintSubject, placed: Placed, access: UnguardedRead, held: Expr) -> Violation:
    """Return the finding of the read of an element that a list may not have."""
    source, node, needed = access.checked.source.text, access.node, access.needed
    text, whole = source[node.start : node.end], _line(source[held.start : held.end])
    assert isinstance(node, Call)
    lacks = "the list is empty" if needed == 1 else f"the list has fewer than {needed} elements"
    test = f"size({whole}) > {needed - 1}" if len(whole) <= _SHORT else f"that its size is above {needed - 1}"
    if node.function == "_[_]":
        index = source[node.args[1].start : node.args[1].end]
        advice = f"write `{whole}[?{_line(index)}].orValue(...)`, or test `{test}`" if len(whole) <= _SHORT \
            else f"write `[?{_line(index)}].orValue(...)` after the list, or test {test}"
    elif node.function == "value" and node.target is not None:
        advice = f"write `{_line(source[node.target.start : node.target.end])}.orValue(...)`"
    else:
        advice = f"test `{test}`" if len(whole) <= _SHORT else f"test {test}"
    return Violation(
        f"`{_line(text)}` is an error where {lacks}: {_outcome(subject, placed)}",
        span_of(access.checked, node),
        advice,
    )


_SHORT: Final = 60
"""The longest list whose text is repeated in a help."""


def _line(text: str) -> str:
    return " ".join(text.split())


def _outcome(subject: LintSubject, placed: Placed) -> str:
    """Return the effect of an error at an expression's point."""
    spec = SLOTS[_slot(subject, placed)]
    return spec.on_ignore if subject.spec.failure_policy is FailurePolicy.IGNORE else spec.on_fail


def _slot(subject: LintSubject, placed: Placed) -> Slot:
    compiled = subject.compiled
    over = next((each.over for each in compiled.aggregates if each.name == placed.name), Over.NODES) \
        if compiled is not None else Over.NODES
    if isinstance(compiled, CompiledScheduler):
        if placed.role in ("aggregate", "group"):
            return Slot.SCHEDULER_NODES if over is Over.NODES else Slot.SCHEDULER_PODS
        if placed.role == "condition":
            return Slot.FILTER if compiled.filter else Slot.SCORE if compiled.score else Slot.PRE_FILTER
        return _SLOTS_OF_SCHEDULER[placed.role]
    if isinstance(compiled, CompiledQoS):
        return _SLOTS_OF_QOS.get(placed.role, Slot.QOS_PODS)
    return _SLOTS_OF_DESCHEDULER.get(
        placed.role, Slot.DESCHEDULER_NODES if over is Over.NODES else Slot.DESCHEDULER_PODS,
    )


_ZEROS: Final = frozenset((AggregateFunction.SUM, AggregateFunction.COUNT))
_TEXTUAL: Final = frozenset(("startsWith", "endsWith", "contains"))


def _default(subject: LintSubject, access: UnguardedRead) -> str:
    """Return a default for an absent value that preserves the meaning; an empty string if none is certain."""
    node, kind = access.node, access.checked.types[access.node.id].name
    holder = holder_of(node)
    if access.key.startswith("aggregates["):
        for each in subject.compiled.aggregates if subject.compiled is not None else ():
            if access.holder == f"aggregates[{each.name!r}]" and each.function in _ZEROS and not is_measured(each):
                return {"int": "0", "double": "0.0"}.get(kind, "")
        return ""
    if kind != "string" or not isinstance(holder, Select | Call):
        return ""
    parent = access.parent
    if not isinstance(parent, Call):
        return ""
    if parent.function in ("_==_", "_!=_"):
        other = parent.args[1] if parent.args[0] is node else parent.args[0]
        clear = isinstance(other, Literal) and other.value not in ("", None)
    elif parent.function == "@in" and parent.args[0] is node:
        clear = all(isinstance(each, Literal) and each.value != "" for each in children(parent.args[1])) \
            and bool(children(parent.args[1]))
    else:
        clear = parent.function in _TEXTUAL and parent.target is node and isinstance(parent.args[0], Literal) \
            and parent.args[0].value != ""
    return "''" if clear else ""


def _safe(access: UnguardedRead, default: str) -> str:
    """Return the text that reads the same key, with `default` if it is absent."""
    checked, node = access.checked, access.node
    text, holder = checked.source.text, holder_of(node)
    if isinstance(node, Select):
        key = f".?{node.field}"
    else:
        assert isinstance(node, Call)
        key = f"[?{text[node.args[1].start : node.args[1].end]}]"
    return _line(f"{_optional(checked, holder)}{key}.orValue({default})")


def _optional(checked: Checked, node: Expr) -> str:
    """Return the text of a part, with `.?` for the fields that may be absent."""
    text = checked.source.text[node.start : node.end]
    if not isinstance(node, Select) or node.optional or checked.references.get(node.id) is not None:
        return text
    held = _optional(checked, node.operand)
    absent = may_be_absent(checked.types[node.operand.id], node.field, maps=True)
    if not absent and held == checked.source.text[node.operand.start : node.operand.end]:
        return text
    return f"{held}{'.?' if absent else '.'}{node.field}"


def _fix(access: UnguardedRead, default: str) -> TextEdit | None:
    """Return the edit of a read, with quotes that the YAML scalar around it allows."""
    span = span_of(access.checked, access.node)
    start = access.checked.source.span(0).root().start
    quoted = span.root().source.text[start - 1 : start] if start else ""
    if default == "''" and quoted == "'":
        default = '""'
    return rewriting(span, _safe(access, default), quoted)
