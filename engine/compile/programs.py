"""Compiled documents: immutable records of programs and their specs.

`Plugin.make(args, handle)` returns one, with its params bound; the framework runs it: `scheduler.documents`,
`agent.qos_manager.documents` and `descheduler.documents`.

Every program reads `params` (and `aggregates` and `thresholds`, if declared) from the frame that it is evaluated over:
a framework puts `compiled.params` and the values of the aggregates among the frame's values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.documents import (
    AggregateFunction,
    DeschedulerSpec,
    Document,
    EvictionRelease,
    Expression,
    Otherwise,
    Over,
    QoSSpec,
    SchedulerSpec,
    ScoreItem,
    SortOrder,
)
from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.framework.slots import AMOUNTS
from koordpolicy.engine.source import Span

if TYPE_CHECKING:
    from koordpolicy.engine.cel.scalar.program import Program


@dataclass(frozen=True, slots=True)
class Rule:
    """A named expression that yields a bool, and its message if it is false (criteria: true)."""

    name: str
    program: Program
    expression: Expression
    span: Span
    message: str = ""
    message_program: Program | None = None
    """Yields the message; if it fails or is empty, `message` is used."""
    code: Code = Code.UNSCHEDULABLE


@dataclass(frozen=True, slots=True)
class AggregateProgram:
    """A compiled aggregate; see `documents.Aggregate`."""

    name: str
    over: Over
    function: AggregateFunction
    program: Program | None
    group_by: Program | None
    percentile: int | None
    span: Span

    @property
    def is_map(self) -> bool:
        """True if the expression yields a map of numbers: the aggregate has a value for each key of it."""
        return self.program is not None and self.program.type in AMOUNTS

    @property
    def is_keyed(self) -> bool:
        """True if the aggregate is a map."""
        return self.group_by is not None or self.is_map


@dataclass(frozen=True, slots=True)
class ScoreProgram:
    """A compiled score item."""

    item: ScoreItem
    program: Program


@dataclass(frozen=True, slots=True)
class CompiledScheduler:
    """A compiled SchedulerPlugin."""

    document: Document
    spec: SchedulerSpec
    params: Mapping[str, Any]
    conditions: tuple[Rule, ...]
    aggregates: tuple[AggregateProgram, ...]
    pre_enqueue: tuple[Rule, ...]
    pre_filter: tuple[Rule, ...]
    filter: tuple[Rule, ...]
    score: tuple[ScoreProgram, ...]


@dataclass(frozen=True, slots=True)
class ThresholdProgram:
    """A threshold of a QoSPlugin; times in nanoseconds. `key` names its timer: equal while its text is the same."""

    rule: Rule
    for_ns: int
    hold_for_ns: int
    cool_down_ns: int
    key: str


@dataclass(frozen=True, slots=True)
class SortProgram:
    """One compiled sort key."""

    program: Program
    order: SortOrder


@dataclass(frozen=True, slots=True)
class SuppressCPUProgram:
    """`target` yields milli-cores (int or double); `policy` is `CPUSet` or `CFSQuota`.

    `dead_band_percent` is in percent of the node's CPU; None means the policy's default.
    """

    target: Program
    policy: str
    dead_band_percent: int | None = None


@dataclass(frozen=True, slots=True)
class EvictProgram:
    """The eviction of a QoSPlugin: candidates, order, and the amount to free. Its rows are the pods of the node."""

    criteria: tuple[Rule, ...]
    sort: tuple[SortProgram, ...]
    release: EvictionRelease | None
    amount: Program | None
    """Yields the amount to free (int or double), per subject."""
    cool_down_ns: int = 0
    past_budget: Program | None = None
    """Yields true while evictions may pass a PodDisruptionBudget, per subject."""


@dataclass(frozen=True, slots=True)
class ResctrlProgram:
    """Cache range and memory bandwidth of a QoS class, in percent (int or double); the row is the class."""

    cat_range_start_percent: Program | None
    cat_range_end_percent: Program | None
    mba_percent: Program | None


@dataclass(frozen=True, slots=True)
class BlkIOProgram:
    """Limits of one block device (int or double); see `documents.BlkIO`."""

    device: str
    kind: str
    read_iops: Program | None
    write_iops: Program | None
    read_bps: Program | None
    write_bps: Program | None
    io_weight_percent: Program | None


@dataclass(frozen=True, slots=True)
class SysctlProgram:
    """A setting of the kernel, and its value (int or double)."""

    name: str
    value: Program


@dataclass(frozen=True, slots=True)
class CPUBurstProgram:
    """CPU burst of the containers of a subject's pods; the percentages are ints or doubles, of limits.

    `policy` is that of koordlet (`auto`); None is a setting without a value. The period is in nanoseconds.
    """

    policy: str
    cpu_burst_percent: Program | None
    cfs_quota_burst_percent: Program | None
    cfs_quota_burst_period_ns: int | None
    share_pool_threshold_percent: Program | None


@dataclass(frozen=True, slots=True)
class CgroupProgram:
    """One control group file of a subject, named as in control groups v2; `value` yields an int or a string."""

    file: str
    value: Program


EffectProgram: TypeAlias = (
    SuppressCPUProgram | EvictProgram | CPUBurstProgram | CgroupProgram | ResctrlProgram | BlkIOProgram | SysctlProgram
)


@dataclass(frozen=True, slots=True)
class ActionProgram:
    """A compiled action of a QoSPlugin."""

    name: str
    effect: EffectProgram
    when: Program | None
    otherwise: Otherwise
    span: Span
    key: str
    """The key of its recorded effects: equal while its text is the same."""


@dataclass(frozen=True, slots=True)
class CompiledQoS:
    """A compiled QoSPlugin. All programs but those of `evict` have one row per subject (`spec.for_each`)."""

    document: Document
    spec: QoSSpec
    params: Mapping[str, Any]
    match_conditions: tuple[Rule, ...]
    aggregates: tuple[AggregateProgram, ...]
    thresholds: tuple[ThresholdProgram, ...]
    actions: tuple[ActionProgram, ...]
    reads: tuple[Read, ...] = ()
    """The kinds of objects that it depends on, other than nodes and pods."""

    @property
    def name(self) -> str:
        """The document's name."""
        return self.document.name


@dataclass(frozen=True, slots=True)
class RoomPrograms:
    """The room that targets share: maps of what a target adds, and of what a pod takes."""

    of_target: Program
    of_pod: Program


@dataclass(frozen=True, slots=True)
class CompiledDescheduler:
    """A compiled DeschedulerPlugin.

    `source`, `target`, `until`, `source_sort` and what a target adds to `room` have one row per node, `fit` one per pod
    and target; all others one per pod.
    """

    document: Document
    spec: DeschedulerSpec
    params: Mapping[str, Any]
    match_conditions: tuple[Rule, ...]
    aggregates: tuple[AggregateProgram, ...]
    source: Program | None
    target: Program | None
    anomaly_key: str
    """The key of each node's anomaly detector: equal while the text of `source` is the same."""
    criteria: tuple[Rule, ...]
    sort: tuple[SortProgram, ...]
    until: Program | None
    fit: Program | None = None
    room: RoomPrograms | None = None
    source_sort: tuple[SortProgram, ...] = ()
    eviction_mode: Program | None = None
    eviction_grace_period: Program | None = None

    @property
    def name(self) -> str:
        """The document's name."""
        return self.document.name


Compiled: TypeAlias = CompiledScheduler | CompiledQoS | CompiledDescheduler
"""A compiled document of any kind."""


_TEXTS = frozenset(("document", "spec"))


def with_programs(holder: Any, change: Callable[[Program], Program]) -> Any:
    """Return a record of programs (or a tuple of them, or a program) with each program replaced by `change`."""
    from koordpolicy.engine.cel.scalar.program import (  # noqa: PLC0415 - who only reads documents does not wait for it
        Program,
    )

    if isinstance(holder, Program):
        return change(holder)
    if isinstance(holder, tuple):
        return tuple(with_programs(each, change) for each in holder)
    if is_dataclass(holder) and type(holder).__module__ == __name__:
        return replace(holder, **{  # type: ignore[type-var]
            each.name: with_programs(getattr(holder, each.name), change) for each in fields(holder)
            if each.name not in _TEXTS
        })
    return holder
