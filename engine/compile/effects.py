"""Compilation of the effects of QoSPlugins' actions, one function per kind in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.documents import EvictAction, QoSSpec, SortKey, Subject, SuppressCPU
from koordpolicy.engine.framework.points import Slot

from .expressions import Expressions
from .programs import EffectProgram, EvictProgram, SortProgram, SuppressCPUProgram


def compile_effect(effect: object, spec: QoSSpec, expressions: Expressions) -> EffectProgram | None:
    """Return the compiled effect of an action; None if it is invalid, or of a kind that is not available yet."""
    compile_ = _COMPILERS.get(type(effect))
    return None if compile_ is None else compile_(effect, spec, expressions)


def compile_sort(expressions: Expressions, keys: Iterable[SortKey], slot: Slot) -> tuple[SortProgram, ...]:
    """Return the compiled sort keys, without invalid ones."""
    found = [(key, expressions.program(key.expression, slot)) for key in keys]
    return tuple(SortProgram(program, key.order) for key, program in found if program is not None)


def _suppress_cpu(effect: SuppressCPU, spec: QoSSpec, expressions: Expressions) -> SuppressCPUProgram | None:
    target = expressions.program(effect.target, Slot.TARGET)
    if spec.for_each is not Subject.NODE:
        expressions.problems.add(
            "`suppressCPU` bounds a whole node", effect.target.span,
            help="write `forEach: node`", code="invalid-value",
        )
    return None if target is None else SuppressCPUProgram(target, effect.policy)


def _evict(effect: EvictAction, spec: QoSSpec, expressions: Expressions) -> EvictProgram:  # noqa: ARG001 - as all
    release = effect.release
    amount = expressions.program(release.amount, Slot.RELEASE) if release is not None else None
    return EvictProgram(
        expressions.rules(effect.criteria, Slot.QOS_CRITERIA), compile_sort(expressions, effect.sort, Slot.QOS_SORT),
        release, amount, effect.cool_down_ns, expressions.optional(effect.past_budget, Slot.WHEN),
    )


_COMPILERS: Final[Mapping[type[Any], Callable[[Any, QoSSpec, Expressions], EffectProgram | None]]] = {
    SuppressCPU: _suppress_cpu,
    EvictAction: _evict,
}


def settings_of(effect: EffectProgram) -> Mapping[str, Program]:
    """Return the expressions of an effect that yield values to set, by the names of their fields in documents."""
    found = {} if isinstance(effect, EvictProgram) else {
        each.name: getattr(effect, each.name) for each in fields(effect)
    }
    return {_camel(name): value for name, value in found.items() if isinstance(value, Program)}


_UPPER: Final = {"iops": "IOPS", "bps": "BPS"}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(_UPPER.get(each, each.capitalize()) for each in others)
