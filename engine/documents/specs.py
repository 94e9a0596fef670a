"""The internal form of every document: immutable, with defaults, durations in nanoseconds.

The engine compiles this form and the frameworks run it. The versioned form (v1alpha2) is converted to it; nothing
after the conversion depends on a document's version.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.check.patterns import SizedPattern
from koordpolicy.engine.framework.points import Code, Enforcement, FailurePolicy, Proof
from koordpolicy.engine.source import Source, Span

from .suites import TestSpec

GROUP: Final = "policy.koordinator.sh"
VERSION: Final = f"{GROUP}/v1alpha2"
INTERNAL: Final = "internal"

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def _nothing() -> Mapping[str, Any]:
    return NOTHING


class Kind(enum.Enum):
    """The kinds of documents; the value is the `kind` in YAML."""

    SCHEDULER = "SchedulerPlugin"
    QOS = "QoSPlugin"
    DESCHEDULER = "DeschedulerPlugin"
    PARAMS = "PolicyParams"
    TEST = "PolicyTest"


@dataclass(frozen=True, eq=False)
class Expression:
    """A CEL text with its place in the file, and the path of its field (`spec.filter[0].expression`)."""

    source: Source
    field: str

    @property
    def text(self) -> str:
        """The text of the expression."""
        return self.source.text

    @property
    def span(self) -> Span:
        """The place of the whole text in the file."""
        return self.source.whole()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a document. `description` is the annotation `policy.koordinator.sh/description`."""

    name: str
    labels: Mapping[str, str] = field(default_factory=_nothing)
    annotations: Mapping[str, str] = field(default_factory=_nothing)
    description: str = ""


class SelectorOperator(enum.Enum):
    """The operator of a label requirement, as in Kubernetes' selectors."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """An item of `matchExpressions`."""

    key: str
    operator: SelectorOperator
    values: frozenset[str] = frozenset()

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet it (`NotIn` is true if the label is absent, as in Kubernetes)."""
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
    """A Kubernetes label selector: all of its requirements must hold; an empty one accepts everything."""

    match_labels: Mapping[str, str] = field(default_factory=_nothing)
    match_expressions: tuple[LabelRequirement, ...] = ()

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels meet all requirements."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.accepts(labels) for requirement in self.match_expressions
        )


@dataclass(frozen=True, slots=True)
class PodMatch:
    """The pods that a document matches: all given conditions must hold; None means "any"."""

    namespaces: frozenset[str] | None = None
    namespace_selector: LabelSelector | None = None
    label_selector: LabelSelector | None = None
    qos_classes: frozenset[str] | None = None
    """QoS classes: LSE, LSR, LS, BE, SYSTEM."""
    priority_classes: frozenset[str] | None = None
    """Names of PriorityClasses, or of Koordinator's bands (`koord-prod`, ...)."""


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """The nodes that a document matches: all given conditions must hold; None means "any"."""

    names: frozenset[str] | None = None
    label_selector: LabelSelector | None = None

    def accepts(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node with this name and these labels matches."""
        return (self.names is None or name in self.names) and (
            self.label_selector is None or self.label_selector.accepts(labels)
        )


@dataclass(frozen=True, slots=True)
class Match:
    """The pods and nodes that a document matches, decided before any expression runs."""

    pods: PodMatch | None = None
    nodes: NodeMatch | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """An item of `matchConditions`: false means that the document does not match this row."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class NamedExpression:
    """An item of `variables`."""

    name: str
    expression: Expression


class Over(enum.Enum):
    """The rows of an aggregate."""

    NODES = "nodes"
    PODS = "pods"


class AggregateFunction(enum.Enum):
    """The function of an aggregate. Without rows, sum and count are 0, and the others have no value."""

    AVG = "avg"
    MIN = "min"
    MAX = "max"
    SUM = "sum"
    COUNT = "count"
    PERCENTILE = "percentile"


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A value over many rows that each row may read as `aggregates.<name>`.

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
    """A rule of preEnqueue, preFilter or filter: true means passed."""

    name: str
    expression: Expression
    message: str
    message_expression: Expression | None
    reason: Code
    """`Code.UNSCHEDULABLE` or `Code.UNRESOLVABLE`."""
    span: Span


class Normalize(enum.Enum):
    """The normalisation of an item's raw values to 0..100 (integers, over the feasible nodes).

    Identity: unchanged. Max: `100 * v // max`, as Kubernetes' default normaliser (unchanged if the largest is 0).
    MaxReverse: 100 minus that (all 100 if the largest is 0). MinMax: `100 * (v - min) // (max - min)` (all 0 if all
    are equal). MinMaxReverse: 100 minus that (all 100 if all are equal).
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
    """The fields that all kinds of plugins have."""

    match: Match = Match()
    match_conditions: tuple[Condition, ...] = ()
    variables: tuple[NamedExpression, ...] = ()
    params: Mapping[str, Any] = field(default_factory=_nothing)
    params_schema: Mapping[str, Any] | None = None
    """The JSON Schema (draft 2020-12) of the params and their overrides."""
    params_from: tuple[ParamsReference, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    failure_policy: FailurePolicy = FailurePolicy.FAIL
    enforcement: Enforcement = Enforcement.ENFORCE
    profiles: frozenset[str] | None = None
    """The profiles in which it is enabled; None means all of its framework."""
    order: int = 0
    replaces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSpec(PluginSpec):
    """The spec of a SchedulerPlugin."""

    weight: int = 1
    """The weight of the plugin's score in profiles that name none, 1..100."""
    pre_enqueue: tuple[Check, ...] = ()
    pre_filter: tuple[Check, ...] = ()
    filter: tuple[Check, ...] = ()
    score: tuple[ScoreItem, ...] = ()


class Subject(enum.Enum):
    """The subjects for which thresholds and actions of a QoSPlugin are evaluated, one by one."""

    NODE = "node"
    POD = "pod"
    CONTAINER = "container"
    QOS_CLASS = "qosClass"


class Otherwise(enum.Enum):
    """The treatment of an action's effect once `when` is false or the document is removed."""

    RECOVER = "Recover"
    HOLD = "Hold"


@dataclass(frozen=True, slots=True)
class Threshold:
    """A condition with hysteresis: it holds once its expression has been true without interruption for `for_ns`.

    It then holds for `hold_for_ns` at least. It cannot hold again until `cool_down_ns` after it last ceased to hold.
    """

    name: str
    expression: Expression
    for_ns: int
    hold_for_ns: int
    cool_down_ns: int
    message: str
    message_expression: Expression | None
    span: Span


class SortOrder(enum.Enum):
    """The order of a sort."""

    ASCENDING = "Ascending"
    DESCENDING = "Descending"


@dataclass(frozen=True, slots=True)
class SortKey:
    """One key of a sort: numbers or strings."""

    expression: Expression
    order: SortOrder


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion for eviction: true means that the pod is a candidate; all criteria of a list must hold."""

    name: str
    expression: Expression
    message: str
    message_expression: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class SuppressCPU:
    """Limits the CPU of all best-effort pods of the node together. `target` is in milli-cores."""

    target: Expression
    policy: str
    """`CPUSet` or `CFSQuota`."""
    dead_band_percent: int | None = None
    """Percent of the node's CPU by which target and present limit may differ; None: 1 by quota, 0 by CPU set."""


@dataclass(frozen=True, slots=True)
class EvictionRelease:
    """The amount that an eviction round must free, in the resource's canonical unit (cpu: milli-cores)."""

    resource: str
    amount: Expression
    measure: str
    """The amount counted for an evicted pod: `Usage` or `Requests`."""


@dataclass(frozen=True, slots=True)
class EvictAction:
    """Evicts candidates in order until `release` is met (without it: the first candidate only).

    After an eviction there is none for `cool_down_ns`.
    """

    criteria: tuple[Criterion, ...]
    sort: tuple[SortKey, ...]
    release: EvictionRelease | None
    cool_down_ns: int = 0
    past_budget: Expression | None = None
    """While true, a pod whose eviction a PodDisruptionBudget refuses is deleted."""


@dataclass(frozen=True, slots=True)
class CPUBurstAction:
    """CPU burst of containers: static burst and quota burst, in percent of the limit."""

    policy: str
    """`CPUBurstOnly`, `CFSQuotaBurstOnly` or `Auto`."""
    cpu_burst_percent: Expression | None
    cfs_quota_burst_percent: Expression | None
    cfs_quota_burst_period_ns: int | None
    share_pool_threshold_percent: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class CgroupFile:
    """One cgroup file of the subject and its new content (an int or a string)."""

    file: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Resctrl:
    """Last-level cache and memory bandwidth of a QoS class, in percent."""

    cat_range_start_percent: Expression | None
    cat_range_end_percent: Expression | None
    mba_percent: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class BlkIO:
    """Limits of one block device: per second, 0 for none; a weight is 1..100."""

    device: str
    kind: str
    """`Device`, `VolumeGroup` or `PodVolume`."""
    read_iops: Expression | None
    write_iops: Expression | None
    read_bps: Expression | None
    write_bps: Expression | None
    io_weight_percent: Expression | None
    span: Span


@dataclass(frozen=True, slots=True)
class Sysctl:
    """A setting of the kernel and its new value (an int)."""

    name: str
    value: Expression
    span: Span
    """The place of the name."""


Effect: TypeAlias = SuppressCPU | EvictAction | CPUBurstAction | CgroupFile | Resctrl | BlkIO | Sysctl


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a QoSPlugin, with one effect. Without `when` it adjusts every round, up and down."""

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
    """The time for which the last values stay while expressions fail, before they are recovered."""
    thresholds: tuple[Threshold, ...] = ()
    actions: tuple[Action, ...] = ()


class DeschedulerType(enum.Enum):
    """The extension point of a DeschedulerPlugin."""

    DESCHEDULE = "Deschedule"
    BALANCE = "Balance"
    EVICTION_FILTER = "EvictionFilter"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A node is a source after `consecutive` cycles in a row; the count lapses after `timeout_ns` without one."""

    consecutive: int
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class RoomExpressions:
    """Amounts that all targets together may still take: maps of what a target adds, and of what a pod takes."""

    of_target: Expression
    of_pod: Expression


@dataclass(frozen=True, slots=True)
class NodeRoles:
    """The nodes that pods leave (`source`) and those that may take them (`target`); None means no condition.

    `fit` says whether a target takes a pod (None: labels, taints and requests), `sort` is the order of the sources.
    """

    source: Expression | None = None
    target: Expression | None = None
    anomaly: Anomaly | None = None
    fit: Expression | None = None
    room: RoomExpressions | None = None
    sort: tuple[SortKey, ...] = ()


class SortScope(enum.Enum):
    """The pods that a DeschedulerPlugin sorts together."""

    NODE = "Node"
    CLUSTER = "Cluster"


@dataclass(frozen=True, slots=True)
class EvictionLimits:
    """The limits of evictions per cycle; None means no limit of this document.

    `per_workload` and `per_owner` may be percentages, such as `20%`.
    """

    per_node: int | None = None
    per_namespace: int | None = None
    per_workload: int | str | None = None
    per_owner: int | str | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class EvictionExpressions:
    """The mode and the grace period with which the pods of an EvictionFilter leave."""

    mode: Expression | None = None
    grace_period_seconds: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeschedulerSpec(PluginSpec):
    """The spec of a DeschedulerPlugin.

    A true `criteria` always means that the pod may be evicted. An EvictionFilter vetoes, for every other plugin, the
    eviction of a pod that it matches and for which a criterion is not true; it does not affect pods that do not match.
    """

    type: DeschedulerType
    nodes: NodeRoles = NodeRoles()
    criteria: tuple[Criterion, ...] = ()
    sort: tuple[SortKey, ...] = ()
    sort_scope: SortScope = SortScope.NODE
    until: Expression | None = None
    limits: EvictionLimits = EvictionLimits()
    proof: Proof = Proof.OFF
    """The effect of the proof of its evictions; Enforce by default for Balance, else Off."""
    eviction: EvictionExpressions = EvictionExpressions()


@dataclass(frozen=True, slots=True)
class ParamsSpec:
    """The spec of a PolicyParams document: plain data and its schema."""

    params: Mapping[str, Any] = field(default_factory=_nothing)
    params_schema: Mapping[str, Any] | None = None


Spec: TypeAlias = SchedulerSpec | QoSSpec | DeschedulerSpec | ParamsSpec | TestSpec


@dataclass(frozen=True, eq=False)
class Document:
    """One valid document in internal form. `digest` is equal for equivalent documents."""

    kind: Kind
    metadata: Metadata
    spec: Spec
    span: Span
    """The place of the name; problems of the document as a whole point at it."""
    digest: str
    file: str
    source_name: str = ""
    """The mount or directory that it was loaded from; empty if the file itself was named."""
    plain: Mapping[str, Any] = field(default_factory=_nothing, repr=False)
    """The internal form as plain data, valid against `schemas/internal`."""
    faulty: bool = False
    """True if it has problems: then its valid parts are checked further, but it is never run."""
    patterns: tuple[SizedPattern, ...] = field(default=(), repr=False)
    """The patterns of its `paramsSchema`, which count towards the bound of a set."""

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.metadata.name

    @cached_property
    def origin(self) -> str:
        """The place of the document: `policies/zone.yaml:14`."""
        file, line, _ = self.span.place
        return f"{file}:{line}" if self.span.field is None else file


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
