"""The internal form of every document: frozen, defaults filled in, durations in nanoseconds.

This is what the engine compiles and the frameworks run. How people write it (v1alpha2) may change from version to
version; conversion ends here, and nothing behind it knows which version a document came in.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from koordpolicy.engine.framework.points import Code, Enforcement, FailurePolicy
from koordpolicy.engine.source import Source, Span

from .suites import TestSpec

GROUP: Final = "policy.koordinator.sh"
VERSION: Final = f"{GROUP}/v1alpha2"
INTERNAL: Final = "internal"

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return NOTHING


class Kind(enum.Enum):
    """The kinds of documents; the value is what people write."""

    SCHEDULER = "SchedulerPlugin"
    QOS = "QoSPlugin"
    DESCHEDULER = "DeschedulerPlugin"
    PARAMS = "PolicyParams"
    TEST = "PolicyTest"


@dataclass(frozen=True, eq=False)
class Expression:
    """A CEL text where it stands in its file, and the field that holds it (`spec.filter[0].expression`)."""

    source: Source
    field: str

    @property
    def text(self) -> str:
        """The text of the expression."""
        return self.source.text

    @property
    def span(self) -> Span:
        """The whole text, as a place in the file."""
        return self.source.whole()


@dataclass(frozen=True, slots=True)
class Metadata:
    """Who a document is. `description` is the annotation `policy.koordinator.sh/description`."""

    name: str
    labels: Mapping[str, str] = field(default_factory=_nothing)
    annotations: Mapping[str, str] = field(default_factory=_nothing)
    description: str = ""


class SelectorOperator(enum.Enum):
    """How a label requirement compares, as Kubernetes' selectors do."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One line of `matchExpressions`."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet it (`NotIn` holds where the label is absent, as in Kubernetes)."""
        present = self.key in labels
        if self.operator is SelectorOperator.EXISTS:
            return present
        if self.operator is SelectorOperator.DOES_NOT_EXIST:
            return not present
        if self.operator is SelectorOperator.IN:
            return present and labels[self.key] in self.values
        return not present or labels[self.key] not in self.values


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Kubernetes' label selector: all of its requirements hold; an empty one accepts everything."""

    match_labels: Mapping[str, str] = field(default_factory=_nothing)
    match_expressions: tuple[LabelRequirement, ...] = ()

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet all requirements."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.accepts(labels) for requirement in self.match_expressions
        )


@dataclass(frozen=True, slots=True)
class PodMatch:
    """Which pods a document is about: all given conditions hold; None means "any"."""

    namespaces: frozenset[str] | None = None
    namespace_selector: LabelSelector | None = None
    label_selector: LabelSelector | None = None
    qos_classes: frozenset[str] | None = None
    """Of LSE, LSR, LS, BE, SYSTEM."""
    priority_classes: frozenset[str] | None = None
    """Names of PriorityClasses, or of Koordinator's bands (`koord-prod`, ...)."""


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """Which nodes a document is about: all given conditions hold; None means "any"."""

    names: frozenset[str] | None = None
    label_selector: LabelSelector | None = None

    def accepts(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node of this name with these labels is meant."""
        return (self.names is None or name in self.names) and (
            self.label_selector is None or self.label_selector.accepts(labels)
        )


@dataclass(frozen=True, slots=True)
class Match:
    """What a document is about, decided before any expression runs."""

    pods: PodMatch | None = None
    nodes: NodeMatch | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """An item of `matchConditions`: false means that the document is not about this row."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class NamedExpression:
    """An item of `variables`."""

    name: str
    expression: Expression


class Over(enum.Enum):
    """What an aggregate runs over."""

    NODES = "nodes"
    PODS = "pods"


class AggregateFunction(enum.Enum):
    """How an aggregate sums up the values of its rows. Without rows: sum and count are 0, the others have no value."""

    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A fact of the whole that a row may read as `aggregates.<name>`.

    With `group_by` it is a map from the group's key to the group's value. `count` counts the rows where `expression`
    is true (all rows without one). `percentile` (1..100) takes the nearest rank.
    """

    name: str
    over: Over
    function: AggregateFunction
    expression: Expression | None
    group_by: Expression | None
    percentile: int | None
    span: Span


@dataclass(frozen=True, slots=True)
class ParamsReference:
    """An item of `paramsFrom`: a PolicyParams document by name."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Check:
    """A rule of preEnqueue, preFilter or filter: true means good."""

    name: str
    expression: Expression
    message: str
    message_expression: Expression | None
    reason: Code
    """`Code.UNSCHEDULABLE` or `Code.UNRESOLVABLE`."""
    span: Span


class Normalize(enum.Enum):
    """How an item's raw values become 0..100 (integers, over the nodes that passed).

    Identity: as they are. Max: `100 * v // max`, as Kubernetes' default normaliser (nothing changes where the largest
    is 0). MaxReverse: 100 minus that (100 everywhere where the largest is 0). MinMax: `100 * (v - min) // (max - min)`
    (0 everywhere where all are equal). MinMaxReverse: 100 minus that (100 everywhere where all are equal).
    """

    IDENTITY = "Identity"
    MAX = "Max"
    MAX_REVERSE = "MaxReverse"
    MIN_MAX = "MinMax"
    MIN_MAX_REVERSE = "MinMaxReverse"


@dataclass(frozen=True, slots=True)
class ScoreItem:
    """A rule of score: an int or a double (truncated); `weight` 1..100 among the items of its plugin."""

    name: str
    expression: Expression
    weight: int
    normalize: Normalize
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSpec:
    """What all plugin kinds have in common."""

    match: Match = Match()
    match_conditions: tuple[Condition, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    params: Mapping[str, Any] = field(default_factory=_nothing)
    params_schema: Mapping[str, Any] | None = None
    """JSON Schema (draft 2020-12) that the params and their overrides must hold against."""
    params_from: tuple[ParamsReference, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    failure_policy: FailurePolicy = FailurePolicy.FAIL
    enforcement: Enforcement = Enforcement.ENFORCE
    profiles: frozenset[str] | None = None
    """The profiles it is active in; None means all of its framework."""
    order: int = 0
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSpec(PluginSpec):
    """The spec of a SchedulerPlugin."""

    weight: int = 1
    """Of the plugin's score among the plugins of a profile, 1..100, where the profile names none."""
    pre_enqueue: tuple[Check, ...] = ()
    pre_filter: tuple[Check, ...] = ()
    filter: tuple[Check, ...] = ()
    score: tuple[ScoreItem, ...] = ()


class Subject(enum.Enum):
    """What thresholds and actions of a QoSPlugin are evaluated for, one by one."""

    NODE = "node"
    POD = "pod"
    CONTAINER = "container"
    QOS_CLASS = "qosClass"


class Otherwise(enum.Enum):
    """What becomes of an action's effect where `when` is false or the document goes away."""

    RECOVER = "Recover"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition with hysteresis: it holds once its expression was true without a break for `for_ns`.

    Having held, it cannot hold again before `cool_down_ns` passed since it last ceased.
    """

    name: str
    expression: Expression
    for_ns: int
    cool_down_ns: int
    message: str
    message_expression: Expression | None
    span: Span


class SortOrder(enum.Enum):
    """Which end of a sort comes first."""

    ASCENDING = "Ascending"
    DESCENDING = "Descending"


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of a sort: numbers or texts."""

    expression: Expression
    order: SortOrder


@dataclass(frozen=True, slots=True)
class Criterion:
    """What makes a pod a candidate for eviction: true means candidate; all criteria of a list must hold."""

    name: str
    expression: Expression
    message: str
    message_expression: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class SuppressCPU:
    """Bound the CPU of all best-effort pods of the node together. `target` is in milli-cores."""

    target: Expression
    policy: str
    """`CPUSet` or `CFSQuota`."""


@dataclass(frozen=True, slots=True)
class EvictionRelease:
    """How much an eviction round must free: `amount` in the resource's canonical unit (cpu: milli-cores)."""

    resource: str
    amount: Expression
    measure: str
    """What a pod counts for: `Usage` or `Requests`."""


@dataclass(frozen=True, slots=True)
class EvictAction:
    """Evict candidates in order until `release` is met (without it: the first candidate only)."""

    criteria: tuple[Criterion, ...]
    sort: tuple[SortKey, ...]
    release: EvictionRelease | None


@dataclass(frozen=True, slots=True)
class CPUBurst:
    """CPU burst of containers: static burst and quota burst, in percent of the limit."""

    policy: str
    """`CPUBurstOnly`, `CFSQuotaBurstOnly` or `Auto`."""
    cpu_burst_percent: Expression | None
    cfs_quota_burst_percent: Expression | None
    cfs_quota_burst_period_ns: int | None
    share_pool_threshold_percent: Expression | None


@dataclass(frozen=True, slots=True)
class CgroupFile:
    """One cgroup file of the subject and what is written into it (an int or a string)."""

    file: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Resctrl:
    """Last-level cache and memory bandwidth of a QoS class, in percent."""

    cat_range_start_percent: Expression | None
    cat_range_end_percent: Expression | None
    mba_percent: Expression | None


@dataclass(frozen=True, slots=True)
class BlkIO:
    """Limits of one block device: per second; a weight is 1..100."""

    device: str
    kind: str
    """`Device`, `VolumeGroup` or `PodVolume`."""
    read_iops: Expression | None
    write_iops: Expression | None
    read_bps: Expression | None
    write_bps: Expression | None
    io_weight_percent: Expression | None


Effect: TypeAlias = SuppressCPU | EvictAction | CPUBurst | CgroupFile | Resctrl | BlkIO


@dataclass(frozen=True, slots=True)
class Action:
    """What a QoSPlugin does: one effect per item. Without `when` it adjusts every round, both ways."""

    name: str
    effect: Effect
    when: Expression | None
    """Reads the thresholds as `thresholds.<name>`."""
    otherwise: Otherwise
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class QoSSpec(PluginSpec):
    """The spec of a QoSPlugin."""

    feature_gate: str = ""
    interval_ns: int = 1_000_000_000
    for_each: Subject = Subject.NODE
    window_ns: int = 10_000_000_000
    stale_after_ns: int = 60_000_000_000
    """How long last values stay where expressions fail, before everything is recovered."""
    thresholds: tuple[Threshold, ...] = ()
    actions: tuple[Action, ...] = ()


class DeschedulerType(enum.Enum):
    """At which point of the descheduler a document takes part."""

    DESCHEDULE = "Deschedule"
    BALANCE = "Balance"
    EVICTION_FILTER = "EvictionFilter"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A node is a source after `consecutive` cycles in a row; the count lapses after `timeout_ns` without one."""

    consecutive: int
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class NodeRoles:
    """Which nodes pods leave (`source`) and which may take them (`target`); None: no node is asked for."""

    source: Expression | None = None
    target: Expression | None = None
    anomaly: Anomaly | None = None


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """The most evictions per cycle; None means no limit of this document."""

    per_node: int | None = None
    per_namespace: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeschedulerSpec(PluginSpec):
    """The spec of a DeschedulerPlugin.

    The polarity of `criteria` is the same everywhere, true = may be evicted. An EvictionFilter vetoes, for every other
    plugin, the eviction of a pod that it matches and for which a criterion is not true; pods that it does not match
    are none of its business.
    """

    type: DeschedulerType
    nodes: NodeRoles = NodeRoles()
    criteria: tuple[Criterion, ...] = ()
    sort: tuple[SortKey, ...] = ()
    until: Expression | None = None
    limits: EvictionLimits = EvictionLimits()


@dataclass(frozen=True, slots=True)
class ParamsSpec:
    """The spec of a PolicyParams document: plain data, and the schema that it holds against."""

    params: Mapping[str, Any] = field(default_factory=_nothing)
    params_schema: Mapping[str, Any] | None = None


Spec: TypeAlias = SchedulerSpec | QoSSpec | DeschedulerSpec | ParamsSpec | TestSpec


@dataclass(frozen=True, eq=False)
class Document:
    """One valid document in internal form. `digest` is the same for documents that mean the same."""

    kind: Kind
    metadata: Metadata
    spec: Spec
    span: Span
    """The place of the name, which complaints about the document as a whole point at."""
    digest: str
    file: str
    source_name: str = ""
    """The mount or directory that it was loaded from; empty where files were named one by one."""
    plain: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    """The internal form as plain data, as it holds against `schemas/internal`."""
    faulty: bool = False
    """Whether problems were found in it: then the parts that are left are checked further, but nothing runs it."""

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @cached_property
    def origin(self) -> str:
        """Where a person finds it: `policies/zone.yaml:14`."""
        file, line, _ = self.span.place
        return f"{file}:{line}"


_UNITS: Final = {
    "ns": 1, "us": 1_000, "\N{MICRO SIGN}s": 1_000, "\N{GREEK SMALL LETTER MU}s": 1_000, "ms": 1_000_000,
    "s": 1_000_000_000, "m": 60_000_000_000, "h": 3_600_000_000_000,
}
_DURATION: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")


def parse_duration(text: str) -> int:
    """Return a duration in Go's syntax (`5s`, `1m30s`, `1.5h`, `0`) in nanoseconds, fractions truncated.

    Raises `ValueError` for anything else, for negative ones, and beyond int64.
    """
    if text == "0":
        return 0
    total, position = 0, 0
    while position < len(text):
        found = _DURATION.match(text, position)
        if found is None:
            break
        number, unit = found[1], _UNITS[found[2]]
        whole, _, fraction = number.partition(".")
        total += int(whole or "0") * unit + (int(fraction) * unit // 10 ** len(fraction) if fraction else 0)
        position = found.end()
    if not text or position < len(text):
        raise ValueError(f"`{text}` is not a duration such as `30s`, `5m` or `1h30m`")
    if total >= 2**63:
        raise ValueError(f"the duration `{text}` is longer than 292 years")
    return total


def format_duration(nanoseconds: int) -> str:
    """Return nanoseconds in Go's syntax, in whole units (`1h30m`, `1500ms`)."""
    if nanoseconds == 0:
        return "0s"
    parts = []
    for unit in ("h", "m", "s", "ms", "us", "ns"):
        amount, nanoseconds = divmod(nanoseconds, _UNITS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts)
