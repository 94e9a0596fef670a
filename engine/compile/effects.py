"""Compilation of the effects of QoSPlugins' actions, one function per kind in one table."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.syntax.ast import Literal
from koordpolicy.engine.cel.values.types import INT, STRING
from koordpolicy.engine.documents import (
    BlkIO,
    CgroupFile,
    CPUBurstAction,
    EvictAction,
    Expression,
    QoSSpec,
    Resctrl,
    SortKey,
    Subject,
    SuppressCPU,
    Sysctl,
)
from koordpolicy.engine.framework.slots import Slot
from koordpolicy.engine.kubernetes.kernel_settings import KERNEL_SETTINGS
from koordpolicy.engine.source import Span, did_you_mean

from .expressions import Expressions
from .programs import (
    BlkIOProgram,
    CgroupProgram,
    CPUBurstProgram,
    EffectProgram,
    EvictProgram,
    ResctrlProgram,
    SortProgram,
    SuppressCPUProgram,
    SysctlProgram,
)

PERCENTAGES: Final[Mapping[str, tuple[int, float]]] = {
    "cpuBurstPercent": (1, 10_000), "cfsQuotaBurstPercent": (100, float("inf")), "sharePoolThresholdPercent": (0, 100),
}
"""The ranges of the percentages of a CPU burst."""


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
    return None if target is None else SuppressCPUProgram(target, effect.policy, effect.dead_band_percent)


def _evict(effect: EvictAction, spec: QoSSpec, expressions: Expressions) -> EvictProgram:  # noqa: ARG001 - as all
    release = effect.release
    amount = expressions.program(release.amount, Slot.RELEASE) if release is not None else None
    return EvictProgram(
        expressions.rules(effect.criteria, Slot.QOS_CRITERIA), compile_sort(expressions, effect.sort, Slot.QOS_SORT),
        release, amount, effect.cool_down_ns, expressions.optional(effect.past_budget, Slot.WHEN),
    )


def _resctrl(effect: Resctrl, spec: QoSSpec, expressions: Expressions) -> ResctrlProgram | None:
    if spec.for_each is not Subject.QOS_CLASS:
        _refuse(expressions, "`resctrl` belongs to a QoS class", effect.span, "write `forEach: qosClass`")
    values = [effect.cat_range_start_percent, effect.cat_range_end_percent, effect.mba_percent]
    programs = _settings(values, expressions, effect.span, "resctrl", "mbaPercent")
    return None if programs is None else ResctrlProgram(*programs)


def _blkio(effect: BlkIO, spec: QoSSpec, expressions: Expressions) -> BlkIOProgram | None:
    if spec.for_each is Subject.QOS_CLASS:
        _refuse(expressions, "a QoS class has no control group of its own", effect.span,
                "write `forEach: node` for all best-effort pods, or `forEach: pod` or `container`")
    if effect.kind == "PodVolume" and spec.for_each is Subject.NODE:
        _refuse(expressions, "a node has no volumes of pods", effect.span, "write `forEach: pod` or `container`")
    values = [effect.read_iops, effect.write_iops, effect.read_bps, effect.write_bps, effect.io_weight_percent]
    programs = _settings(values, expressions, effect.span, "blkio", "readIOPS")
    return None if programs is None else BlkIOProgram(effect.device, effect.kind, *programs)


def _settings(
    values: Iterable[Expression | None], expressions: Expressions, span: Span, kind: str, example: str,
) -> list[Program | None] | None:
    """Return the compiled values; None if one is invalid, or none is given."""
    given = [(value, expressions.optional(value, Slot.SETTING)) for value in values]
    if all(value is None for value, _ in given):
        _refuse(expressions, f"`{kind}` sets nothing", span, f"give it a value such as `{example}`", "missing-field")
        return None
    if any(value is not None and program is None for value, program in given):
        return None
    return [program for _, program in given]


def _sysctl(effect: Sysctl, spec: QoSSpec, expressions: Expressions) -> SysctlProgram | None:
    if spec.for_each is not Subject.NODE:
        _refuse(expressions, "`sysctl` changes a whole node", effect.span, "write `forEach: node`")
    setting = KERNEL_SETTINGS.get(effect.name)
    if setting is None:
        _refuse(expressions, f"there is no setting `{effect.name}`, or it may not be changed", effect.span,
                did_you_mean(effect.name, KERNEL_SETTINGS) or f"there are {', '.join(sorted(KERNEL_SETTINGS))}")
    program = expressions.program(effect.value, Slot.SETTING)
    if setting is not None and program is not None:
        with contextlib.suppress(ValueError):
            value = int(effect.value.text)
            if not setting.accepts(value):
                _refuse(expressions, f"{value} is out of range for `{effect.name}`", effect.value.span,
                        f"it takes {setting.lowest} to {setting.largest}")
    return None if program is None or setting is None else SysctlProgram(effect.name, program)


def _refuse(expressions: Expressions, message: str, span: Span, advice: str, code: str = "invalid-value") -> None:
    expressions.problems.add(message, span, help=advice, code=code)


_POLICIES: Final = {"CPUBurstOnly": "cpuBurstOnly", "CFSQuotaBurstOnly": "cfsQuotaBurstOnly", "Auto": "auto"}


def _cpu_burst(effect: CPUBurstAction, spec: QoSSpec, expressions: Expressions) -> CPUBurstProgram:
    if spec.for_each is Subject.CONTAINER:
        _refuse(expressions, "`cpuBurst` sets a whole pod: its burst is the sum of its containers'", effect.span,
                "write `forEach: pod`")
    return CPUBurstProgram(
        _POLICIES[effect.policy], _percentage("cpuBurstPercent", effect.cpu_burst_percent, expressions),
        _percentage("cfsQuotaBurstPercent", effect.cfs_quota_burst_percent, expressions),
        effect.cfs_quota_burst_period_ns,
        _percentage("sharePoolThresholdPercent", effect.share_pool_threshold_percent, expressions),
    )


def _percentage(name: str, expression: Expression | None, expressions: Expressions) -> Program | None:
    """Return the program of a percentage; a constant one must be in its range."""
    program = expressions.optional(expression, Slot.SETTING)
    root = None if program is None else program.checked.root
    if expression is not None and isinstance(root, Literal) and isinstance(root.value, int | float):
        least, most = PERCENTAGES[name]
        if not least <= root.value <= most:
            _refuse(expressions, f"`{name}` is {root.value}, and must be from {least} to {most}", expression.span, "")
    return program


def _cgroup(effect: CgroupFile, spec: QoSSpec, expressions: Expressions) -> CgroupProgram | None:  # noqa: ARG001 - one signature for the table
    value = expressions.program(effect.value, Slot.SETTING, (INT, STRING))
    return None if value is None else CgroupProgram(effect.file, value)


_COMPILERS: Final[Mapping[type[Any], Callable[[Any, QoSSpec, Expressions], EffectProgram | None]]] = {
    SuppressCPU: _suppress_cpu,
    EvictAction: _evict,
    CPUBurstAction: _cpu_burst,
    CgroupFile: _cgroup,
    Resctrl: _resctrl,
    BlkIO: _blkio,
    Sysctl: _sysctl,
}


def settings_of(effect: EffectProgram) -> Mapping[str, Program]:
    """Return the expressions of an effect that yield values to set, by the names of their fields in documents."""
    found: dict[str, object] = {} if isinstance(effect, EvictProgram) else {
        each.name: getattr(effect, each.name) for each in fields(effect)
    }
    return {_camel(name): value for name, value in found.items() if isinstance(value, Program)}


_UPPER: Final = {"iops": "IOPS", "bps": "BPS"}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(_UPPER.get(each, each.capitalize()) for each in others)
