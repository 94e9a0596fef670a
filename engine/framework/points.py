"""Extension points of the three frameworks, and the results that plugins return there.

Two tables, `POINTS` and `SLOTS`, define for every point its framework, its rows, the variables that an expression sees
(type, unit, scope), the type that it must have, and the effect of an error. Compiler, frameworks, schemas and the
generated reference page read them; nothing about a point is defined anywhere else.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from koordpolicy.engine.cel import library
from koordpolicy.engine.cel.check.environment import Environment, Function, Scope, Variable
from koordpolicy.engine.cel.values.types import (
    BOOL,
    DOUBLE,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    ObjectType,
    Type,
    list_of,
    map_of,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.kubernetes import library as kubernetes_library
from koordpolicy.engine.kubernetes import types as kubernetes_types
from koordpolicy.engine.kubernetes.sizes import ASSUMED_SIZES
from koordpolicy.engine.records import fast_init

from .typed_values import Typed

if TYPE_CHECKING:
    # Imported late: commands that only check documents do not pay for it.
    import numpy as np
    from numpy.typing import NDArray

    from koordpolicy.engine.cel.check.checked_ast import Path
    from koordpolicy.engine.cluster.snapshot import Snapshot


class Framework(enum.Enum):
    """The three plugin systems, named as their configuration files name them."""

    SCHEDULER = "scheduler"
    QOS = "qos"
    DESCHEDULER = "descheduler"


class Point(enum.Enum):
    """An extension point; the value is its key in documents, metrics and verdicts."""

    __hash__ = object.__hash__  # a member is equal to itself only, and `Enum` hashes its name in Python code

    PRE_ENQUEUE = "preEnqueue"
    QUEUE_SORT = "queueSort"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    POST_FILTER = "postFilter"
    PRE_SCORE = "preScore"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"
    STRATEGY = "strategy"
    EXTENSION = "extension"
    GREY_CONTROL = "greyControl"
    DESCHEDULE = "deschedule"
    BALANCE = "balance"
    EVICTION_FILTER = "evictionFilter"


class Code(enum.Enum):
    """The code of a refusal, as in kube-scheduler's framework."""

    UNSCHEDULABLE = "Unschedulable"
    UNRESOLVABLE = "UnschedulableAndUnresolvable"
    ERROR = "PolicyError"


class FailurePolicy(enum.Enum):
    """The effect of an *error* of an expression; a false result is never an error."""

    FAIL = "Fail"
    IGNORE = "Ignore"


class Enforcement(enum.Enum):
    """The enforcement of results: they count, or are reported on the object, or only in status and metrics."""

    ENFORCE = "Enforce"
    WARN = "Warn"
    AUDIT = "Audit"


class Proof(enum.Enum):
    """The effect of the proof of an eviction: one that does not help is not made, or made with a warning, or made.

    With each of them the report has the proof, where the profiles of the pod's scheduler are known.
    """

    ENFORCE = "Enforce"
    WARN = "Warn"
    OFF = "Off"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of one row: the rule of the plugin, its message and, if it failed, its error."""

    rule: str
    message: str
    code: Code = Code.UNSCHEDULABLE
    error: EvaluationError | None = None
    values: tuple[tuple[str, object], ...] = ()
    """Sub-expressions of the rule and their values, for explanations."""
    brief: str = field(default="", compare=False)
    """The message in fixed words, if `message` names this pod or node; else empty."""


Errors: TypeAlias = Mapping[str, Mapping[int, EvaluationError]]
"""Errors by rule (an empty string for the plugin as a whole) and row, whatever the failure policy."""


class IgnoredErrors:
    """The key of the cycle state for a list, to which a preFilter adds the (rule, error) pairs that are ignored."""


def _unexplained(_: int) -> Refusal:
    return Refusal("", "refused, and the plugin does not say why")


@fast_init
@dataclass(frozen=True, slots=True)
class Answer:
    """A filter's result: which rows passed, and why the others did not (computed on demand).

    `passed` has one bool for each requested row, or one for each row of the snapshot (see `spread`); `explain(row)` is
    called for refused rows only.
    """

    passed: NDArray[np.bool_]
    explain: Callable[[int], Refusal] = _unexplained
    errors: Errors = field(default_factory=dict)
    reasons: Callable[[NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Groups refused rows by reason in one pass, for counts; a row may have several reasons. Without it each row is
    explained, and its message is its reason."""
    codes: Callable[[NDArray[np.intp]], Mapping[Code, NDArray[np.intp]]] | None = None
    """Splits refused rows by code in one pass; without it each row is explained."""
    rules: Callable[[NDArray[np.intp]], frozenset[str]] | None = None
    """Returns the names of the rules that refused any of the rows; None if the plugin has no rules."""
    brief: Callable[[NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Like `reasons`, in fixed words: nothing is computed per row. None if that is true of `reasons` too."""

    def spread(self, rows: NDArray[np.intp], size: int) -> Answer:
        """Return this result for `rows` with one bool for each row of a snapshot of that size."""
        if len(self.passed) == size:
            return self
        import numpy as np  # noqa: PLC0415 - not needed to check documents

        passed = np.ones(size, np.bool_)
        passed[rows] = self.passed
        return replace(self, passed=passed)


@dataclass(frozen=True, slots=True)
class Scores:
    """A score plugin's result: int64, 0..100 after normalisation, for each requested row.

    There may be one for each row of the snapshot instead (see `spread`): then the values of other rows are undefined.
    In verdicts the integers may be shorter.
    """

    values: NDArray[np.signedinteger[Any]]
    errors: Errors = field(default_factory=dict)
    items: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    """Each item's normalised values, where a plugin has several, for the score break-down."""
    raw: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Each item's values before normalisation (under an empty string those of a plugin without items)."""

    def spread(self, rows: NDArray[np.intp], size: int) -> Scores:
        """Return these scores of `rows` with one for each row of a snapshot of that size, including the break-down."""
        if all(len(each) == size for each in (self.values, *self.items.values(), *self.raw.values())):
            return self

        import numpy as np  # noqa: PLC0415 - as above

        def spread(values: NDArray[Any]) -> NDArray[Any]:
            if len(values) == size:
                return values
            found = np.zeros(size, values.dtype)
            found[rows] = values
            return found

        items, raw = ({name: spread(each) for name, each in of.items()} for of in (self.items, self.raw))
        return replace(self, values=spread(self.values), items=items, raw=raw)


class CacheKey(NamedTuple):
    """The dependencies of a plugin's result about a node; results are cached under it.

    `key` is all that the plugin reads of the pod, `paths` all that it reads of the node, as the variables of filters
    (`("allocatable", "cpu")`). A changed value at one of these paths invalidates the node's result. A changed value of
    `epoch` invalidates all results: for dependencies other than the pod and the node, such as an expiry time.
    """

    key: Hashable
    paths: frozenset[Path]
    epoch: Callable[[Snapshot], Hashable] | None = None
    vectorized: Callable[[Snapshot, NDArray[np.intp]], NDArray[Any] | None] | None = None
    """Computes the plugin's result for rows (of no overlay) and every pod with this key, without reasons: one bool or
    int64 for each row, in a new array. Returns None if the plugin itself must be called."""
    stable_for_shape: bool = False
    """True if all pods of one shape (`PodInfo.shape`) always have this key: then it is computed once per shape."""
    reasons: Callable[[Snapshot, NDArray[np.intp]], Mapping[str, NDArray[np.intp]]] | None = None
    """Returns `Answer.reasons` of refused rows, for filters with `vectorized` whose `Answer` has no `brief`."""
    stable_until: frozenset[Path] | None = None
    """All pods of one shape have this key until a node changes at one of these paths; for keys that depend on nodes."""
    refusal: Refusal | None = None
    """The refusal of each row that the filter refuses without an error, but for its values; None if rows may differ."""
    score: int | None = None
    """The score of every node (0..100): the scorer is not called then. None if nodes may differ."""


HIGHEST_SCORE: Final = 100


def are_scores(values: NDArray[np.int64]) -> bool:
    """Return whether all values (at least one) are within 0..100."""
    return bool(values.view("u8").max() <= HIGHEST_SCORE)  # negative values are very large as unsigned ones


# Types of variables: resource lists and derived facts.

_CPU = "milli-cores"
_BYTES = "bytes"
_NATIVE: Final = {"cpu": _CPU, "memory": _BYTES, "pods": "pods", "ephemeral-storage": _BYTES}
_AMOUNTS: Final = {name: Field(INT, f"In {unit}.", unit=unit) for name, unit in _NATIVE.items()}
_DEVICES: Final = "devices"
_GPU: Final = "thousandths of a device"

RESOURCE_LIST: Final = ObjectType(
    "ResourceList", _AMOUNTS, index=INT, absent=0,
    doc="Amounts by resource: cpu in milli-cores, all else in base units. A resource that is absent reads 0.",
)
MEASURED_LIST: Final = ObjectType(
    "MeasuredList", _AMOUNTS, index=INT,
    doc="Measured amounts by resource: cpu in milli-cores, all else in base units. Reading an amount without a metric"
    " is the error `NoMetric`.",
)
_STATISTICS: Final = {
    "avg": "The average over it.", "p50": "The median over it.", "p90": "The 90th percentile over it.",
    "p95": "The 95th percentile over it.", "p99": "The 99th percentile over it.",
}
USAGE_OVER: Final = ObjectType(
    "UsageOver", {name: Field(MEASURED_LIST.type, text) for name, text in _STATISTICS.items()},
    doc="Measured amounts over one duration, per statistic.",
)
USAGE_DURATIONS: Final = ObjectType(
    "UsageDurations", {}, index=USAGE_OVER.type,
    doc="Statistics by the duration that they are over, as the node's NodeMetric reports them, such as `5m` and `1h`. A"
    " duration that is not reported is the error `NoMetric`.",
)
USAGE: Final = ObjectType(
    "Usage",
    {
        **_AMOUNTS,
        "over": Field(USAGE_DURATIONS.type, "Statistics of a NodeMetric by duration: `usage.over['5m'].p95.cpu`."),
        **{name: Field(MEASURED_LIST.type, text) for name, text in {
            "avg": "The average over the longest duration that was aggregated.",
            **{name: text for name, text in _STATISTICS.items() if name != "avg"},
        }.items()},
    },
    index=INT,
    doc="Measured amounts by resource, and per statistic (`usage.p90.cpu`). Without a metric, or with an expired one,"
    " reading it is the error `NoMetric`.",
)
_GPU_FIELDS: Final = {
    "gpuFree": Field(INT, "Free GPU of all devices together, in thousandths of one device.", unit=_GPU),
    "gpuTotal": Field(INT, "GPU of all devices together, in thousandths of one device.", unit=_GPU),
    "gpuFreeDevices": Field(INT, "Number of devices with no allocation.", unit=_DEVICES),
    "gpuDevices": Field(INT, "Number of devices.", unit=_DEVICES),
}
NODE_INFO: Final = ObjectType(
    "NodeInfo",
    {
        "name": Field(STRING, "The node's name."),
        "pods": Field(INT, "Number of pods on the node.", unit="pods"),
        "images": Field(map_of(STRING, INT), "Sizes in bytes of the images on the node, by name.", unit=_BYTES),
        "zone": Field(STRING, "The zone, or an empty string."),
        "region": Field(STRING, "The region, or an empty string."),
        "measured": Field(BOOL, "True if the node has a metric that is not expired."),
        "unschedulable": Field(BOOL, "True if the node is cordoned."),
        **_GPU_FIELDS,
        "gpuModel": Field(STRING, "Model of the devices, or an empty string."),
    },
    doc="Facts derived from a node and its pods.",
)
POD_INFO: Final = ObjectType(
    "PodInfo",
    {
        "name": Field(STRING, "The pod's name."),
        "namespace": Field(STRING, "The pod's namespace."),
        "qosClass": Field(STRING, "Koordinator's QoS class: LSE, LSR, LS, BE, SYSTEM, or an empty string."),
        "kubernetesQoS": Field(STRING, "Kubernetes' QoS class: Guaranteed, Burstable or BestEffort."),
        "priority": Field(INT, "`spec.priority`; 0 if it is not set."),
        "priorityBand": Field(STRING, "koord-prod, koord-mid, koord-batch, koord-free, or an empty string."),
        "requests": Field(RESOURCE_LIST.type, "The pod's effective requests."),
        "limits": Field(RESOURCE_LIST.type, "The pod's effective limits."),
        "gpuCount": Field(INT, "Number of requested GPUs; 0 for none.", unit=_DEVICES),
        "gpuShare": Field(INT, "Share requested of each GPU, in thousandths of one device; 0 for none.", unit=_GPU),
        "gpuRequest": Field(INT, "Share requested of all GPUs together, in thousandths of one device.", unit=_GPU),
        "gpuModels": Field(list_of(STRING), "Accepted models; empty for any."),
    },
    doc="Facts derived from a pod.",
)
PLACEMENT: Final = ObjectType(
    "Placement",
    {
        "anyNode": Field(BOOL, "True if a node, maybe its own, takes the pod: labels, taints, anti-affinity, room."),
        "otherNode": Field(BOOL, "True if another node takes the pod."),
        "preferredWeight": Field(INT, "Sum of the weights of its preferred node affinity that its node matches."),
        "greatestPreferredWeight": Field(INT, "The greatest such sum of a node, may it take the pod or not."),
    },
    doc="The places that a pod has at this time, on the nodes that the descheduler looks at.",
)
DEVICE: Final = ObjectType(
    "Device",
    {
        "type": Field(STRING, "The kind of device: gpu."),
        "minor": Field(INT, "The device's number on its node."),
        "total": Field(INT, "1000 for a healthy device, 0 for an unhealthy one.", unit=_GPU),
        "free": Field(INT, "The free share of the device, in thousandths.", unit=_GPU),
        "model": Field(STRING, "The device's model, or an empty string."),
    },
    doc="One device of a node.",
)
BEST_EFFORT_CPU: Final = ObjectType(
    "BestEffortCPU",
    {
        "usage": Field(INT, "Usage of its pods.", unit=_CPU),
        "request": Field(INT, "The batch CPU that its pods request.", unit=_CPU),
        "realLimit": Field(INT, "The limit of its CPU set and quota.", unit=_CPU),
    },
    doc="CPU of the best-effort tier, averages over the window; a value that was not measured is an error.",
)
TYPES: Final = (
    RESOURCE_LIST, MEASURED_LIST, USAGE, USAGE_DURATIONS, USAGE_OVER, NODE_INFO, POD_INFO, PLACEMENT, DEVICE,
    BEST_EFFORT_CPU,
)
"""The object types of the variables that are not API objects."""


@dataclass(frozen=True, slots=True)
class VisibleVariable:
    """A variable that expressions of a slot see. `unit` is empty if the type implies it."""

    name: str
    type: Type
    scope: Scope
    doc: str
    unit: str = ""

    @property
    def variable(self) -> Variable:
        """The variable as an environment declares it."""
        return Variable(self.name, self.type, self.scope, f"{self.doc} ({self.unit})" if self.unit else self.doc)


_AMOUNT_UNIT: Final = "cpu: milli-cores, all else: base units"
_GROUP_UNIT: Final = "cpu: milli-cores, throttled: percent of CFS periods, all else: base units"
_ROW, _DECISION, _CONSTANT = Scope.ROW, Scope.DECISION, Scope.CONSTANT


def _seen(scope: Scope, *rows: tuple[str, Type, str] | tuple[str, Type, str, str]) -> tuple[VisibleVariable, ...]:
    return tuple(VisibleVariable(name, type_, scope, doc, *unit) for name, type_, doc, *unit in rows)


def _pod(scope: Scope) -> tuple[VisibleVariable, ...]:
    return _seen(
        scope,
        ("pod", Type("kubernetes.Pod"), "The pod, as the API server serves it."),
        ("podInfo", POD_INFO.type, "Facts derived from the pod."),
        ("requests", RESOURCE_LIST.type, "The pod's effective requests.", _AMOUNT_UNIT),
        ("limits", RESOURCE_LIST.type, "The pod's effective limits.", _AMOUNT_UNIT),
    )


def _node(scope: Scope) -> tuple[VisibleVariable, ...]:
    return _seen(
        scope,
        ("node", Type("kubernetes.Node"), "The node, as the API server serves it."),
        ("nodeInfo", NODE_INFO.type, "Facts derived from the node and its pods."),
        ("allocatable", RESOURCE_LIST.type, "The node's allocatable resources.", _AMOUNT_UNIT),
        ("requested", RESOURCE_LIST.type, "The sum of the effective requests of the node's pods.", _AMOUNT_UNIT),
        ("usage", USAGE.type, "The node's measured usage; an error without a current metric.", _AMOUNT_UNIT),
        ("metricAge", INT, "Age of the node's metric; an error if it never had one.", "seconds"),
    )


_NODE_OF_CLUSTER: Final = (
    *_node(_ROW),
    *_seen(
        _ROW,
        ("estimated", MEASURED_LIST.type, (
            "The measured usage and what pods that it does not show yet are expected to use; an error where nothing was"
            " measured."
        ), _AMOUNT_UNIT),
        ("devices", list_of(DEVICE.type), "The node's devices."),
        ("nodeMetric", Type("koordinator.NodeMetric"), "The node's NodeMetric; an error if there is none."),
    ),
)
_NOW: Final = _seen(_DECISION, ("now", TIMESTAMP, "The time of the decision; constant within it."))
_MEASURED_POD: Final = _seen(
    _ROW, ("podUsage", MEASURED_LIST.type, "The pod's measured usage; an error if there is none.", _GROUP_UNIT),
)
_POD_USAGE: Final = _seen(
    _ROW, ("podUsage", MEASURED_LIST.type, "The pod's measured usage; an error if there is none.", _AMOUNT_UNIT),
)
_PLACEMENT: Final = _seen(_ROW, ("placement", PLACEMENT.type, "The places that the pod has at this time."))
_EXISTING: Final = _seen(
    _ROW,
    ("existingPod", Type("kubernetes.Pod"), "A pod that is on a node, as the API server serves it."),
    ("existingPodInfo", POD_INFO.type, "Facts derived from that pod."),
)
_QOS_NODE: Final = (
    *_node(_ROW),
    *_seen(
        _ROW,
        ("nodeSLO", Type("koordinator.NodeSLO"), "The node's NodeSLO; an error if there is none."),
        ("bestEffortUsage", MEASURED_LIST.type, "Usage of the pods of the QoS class BE together.", _AMOUNT_UNIT),
        ("bestEffortCPU", BEST_EFFORT_CPU.type, "CPU of the best-effort tier."),
        ("nonBestEffortUsage", MEASURED_LIST.type, (
            "Usage of all that is not of the QoS class BE: other pods, host applications, and the system."
        ), _AMOUNT_UNIT),
        ("systemUsage", MEASURED_LIST.type, "Usage of the node's processes outside of pods.", _AMOUNT_UNIT),
    ),
)
_SUBJECTS: Final[Mapping[str, tuple[VisibleVariable, ...]]] = MappingProxyType({
    "node": _QOS_NODE,
    "pod": (*_pod(_ROW), *_MEASURED_POD, *_QOS_NODE),
    "container": (
        *_pod(_ROW), *_MEASURED_POD, *_QOS_NODE,
        *_seen(
            _ROW,
            ("container", Type("kubernetes.Container"), "The container, as the pod declares it."),
            ("containerUsage", MEASURED_LIST.type, "The container's measured usage.", _GROUP_UNIT),
        ),
    ),
    "qosClass": (
        *_QOS_NODE,
        *_seen(
            _ROW,
            ("qosClass", STRING, "The QoS class: LSE, LSR, LS, BE or SYSTEM."),
            ("classUsage", MEASURED_LIST.type, "Usage of the pods of the class together.", _AMOUNT_UNIT),
            ("classRequests", RESOURCE_LIST.type, "Requests of the pods of the class together.", _AMOUNT_UNIT),
        ),
    ),
})


class Slot(enum.Enum):
    """A place of expressions in documents; the value is its name in messages."""

    PRE_ENQUEUE = "preEnqueue"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    SCORE = "score"
    SCHEDULER_NODES = "aggregates over nodes"
    SCHEDULER_PODS = "aggregates over pods"
    THRESHOLD = "thresholds"
    WHEN = "when"
    TARGET = "suppressCPU.target"
    RELEASE = "evict.release"
    SETTING = "values of cpuBurst, cgroup, resctrl, blkio and sysctl"
    QOS_CRITERIA = "evict.criteria"
    QOS_SORT = "evict.sort"
    QOS_PODS = "aggregates over the node's pods"
    SOURCE = "nodes.source"
    DESTINATION = "nodes.target"
    FIT = "nodes.fit"
    ROOM = "nodes.room.ofTarget"
    TAKEN = "nodes.room.ofPod"
    SOURCE_SORT = "nodes.sort"
    UNTIL = "until"
    CRITERIA = "criteria"
    SORT = "sort"
    EVICTION_MODE = "eviction.mode"
    EVICTION_GRACE_PERIOD = "eviction.gracePeriodSeconds"
    DESCHEDULER_NODES = "aggregates over the descheduler's nodes"
    DESCHEDULER_PODS = "aggregates over the descheduler's pods"


NUMBER: Final = (INT, DOUBLE)
KEY: Final = (STRING, INT, BOOL)
ORDERED: Final = (INT, DOUBLE, STRING, BOOL)
AMOUNTS: Final = (map_of(STRING, INT), map_of(STRING, DOUBLE), RESOURCE_LIST.type, MEASURED_LIST.type)


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """The specification of a slot: the variables of its expressions, their result types, and the effect of errors."""

    framework: Framework
    rows: str
    """The meaning of a row; empty if there is one result per decision."""
    sees: tuple[VisibleVariable, ...]
    """The variables, without `params`, `aggregates`, `variables` and those of a QoSPlugin's subject."""
    results: tuple[Type, ...]
    on_fail: str
    on_ignore: str
    by_subject: bool = False
    """True if it also sees the variables of the QoSPlugin's `forEach`."""


_POD_ONLY: Final = (*_pod(_DECISION), *_NOW)
_POD_AND_NODE: Final = (*_POD_ONLY, *_NODE_OF_CLUSTER)
_PODS_OF_NODE: Final = (*_pod(_ROW), *_POD_USAGE, *_PLACEMENT, *_NODE_OF_CLUSTER, *_NOW)
_LEFT_OUT: Final = "the check is skipped"
_WAITS: Final = "the pod waits, reason `PolicyError`"
_NOTHING_DONE: Final = "nothing is done; last values stay for at most `staleAfter`, then everything is recovered"
_STAYS: Final = "the pod stays"
_UNCHOSEN: Final = "the document chooses nothing"
_NO_VALUE: Final = "expressions that read it fail"
_S, _Q, _D = Framework.SCHEDULER, Framework.QOS, Framework.DESCHEDULER

SLOTS: Final[Mapping[Slot, SlotSpec]] = MappingProxyType({
    Slot.PRE_ENQUEUE: SlotSpec(_S, "", _POD_ONLY, (BOOL,), _WAITS, _LEFT_OUT),
    Slot.PRE_FILTER: SlotSpec(_S, "", _POD_ONLY, (BOOL,), _WAITS, _LEFT_OUT),
    Slot.FILTER: SlotSpec(
        _S, "node", _POD_AND_NODE, (BOOL,), "the node is refused, reason `PolicyError`", _LEFT_OUT,
    ),
    Slot.SCORE: SlotSpec(
        _S, "node", _POD_AND_NODE, NUMBER, "the item gives that node 0",
        "the item is skipped for all nodes of this decision",
    ),
    Slot.SCHEDULER_NODES: SlotSpec(_S, "node", _POD_AND_NODE, NUMBER, _NO_VALUE, _NO_VALUE),
    Slot.SCHEDULER_PODS: SlotSpec(
        _S, "pod on a node", (*_POD_ONLY, *_EXISTING, *_NODE_OF_CLUSTER), NUMBER, _NO_VALUE, _NO_VALUE,
    ),
    Slot.THRESHOLD: SlotSpec(_Q, "subject", _NOW, (BOOL,), _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.WHEN: SlotSpec(_Q, "subject", _NOW, (BOOL,), _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.TARGET: SlotSpec(_Q, "subject", _NOW, NUMBER, _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.RELEASE: SlotSpec(_Q, "subject", _NOW, NUMBER, _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.SETTING: SlotSpec(_Q, "subject", _NOW, NUMBER, _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.QOS_CRITERIA: SlotSpec(_Q, "pod of the node", (*_NOW, *_SUBJECTS["pod"]), (BOOL,), _STAYS, _STAYS),
    Slot.QOS_SORT: SlotSpec(_Q, "pod of the node", (*_NOW, *_SUBJECTS["pod"]), ORDERED, _STAYS, _STAYS),
    Slot.QOS_PODS: SlotSpec(_Q, "pod of the node", (*_NOW, *_SUBJECTS["pod"]), NUMBER, _NO_VALUE, _NO_VALUE),
    Slot.SOURCE: SlotSpec(
        _D, "node", (*_NODE_OF_CLUSTER, *_NOW), (BOOL,), "the node is not a source", "the node is not a source",
    ),
    Slot.DESTINATION: SlotSpec(
        _D, "node", (*_NODE_OF_CLUSTER, *_NOW), (BOOL,), "the node is not a target", "the node is not a target",
    ),
    Slot.FIT: SlotSpec(
        _D, "pod and target", _PODS_OF_NODE, (BOOL,), "the target does not take the pod",
        "the target does not take the pod",
    ),
    Slot.ROOM: SlotSpec(
        _D, "node", (*_NODE_OF_CLUSTER, *_NOW), AMOUNTS, "the node is not a target", "the node is not a target",
    ),
    Slot.TAKEN: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, AMOUNTS, _STAYS, _STAYS),
    Slot.SOURCE_SORT: SlotSpec(
        _D, "node", (*_NODE_OF_CLUSTER, *_NOW), ORDERED, "the node is not a source", "the node is not a source",
    ),
    Slot.UNTIL: SlotSpec(
        _D, "node", (*_NODE_OF_CLUSTER, *_NOW), (BOOL,), "no more pods of the node are evicted",
        "no more pods of the node are evicted",
    ),
    Slot.CRITERIA: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, (BOOL,), _STAYS, _STAYS),
    Slot.SORT: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, ORDERED, _STAYS, _STAYS),
    Slot.EVICTION_MODE: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, (STRING,), _STAYS, _UNCHOSEN),
    Slot.EVICTION_GRACE_PERIOD: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, (INT,), _STAYS, _UNCHOSEN),
    Slot.DESCHEDULER_NODES: SlotSpec(_D, "node", (*_NODE_OF_CLUSTER, *_NOW), NUMBER, _NO_VALUE, _NO_VALUE),
    Slot.DESCHEDULER_PODS: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, NUMBER, _NO_VALUE, _NO_VALUE),
})
"""The specifications of all slots."""


@dataclass(frozen=True, slots=True)
class PointSpec:
    """The specification of an extension point: its framework, and the slots of its rules.

    `available` is false for points that documents cannot implement yet.
    """

    framework: Framework
    doc: str
    slots: tuple[Slot, ...] = ()
    available: bool = True


POINTS: Final[Mapping[Point, PointSpec]] = MappingProxyType({
    Point.PRE_ENQUEUE: PointSpec(_S, "Checks whether the pod may enter the queue; called once per pod.",
                                 (Slot.PRE_ENQUEUE,)),
    Point.QUEUE_SORT: PointSpec(_S, "Orders the pods of the queue.", available=False),
    Point.PRE_FILTER: PointSpec(_S, "Checks whether the pod can be placed at all; called once per pod, before filters.",
                                (Slot.PRE_FILTER,)),
    Point.FILTER: PointSpec(_S, "Checks whether the pod may run on a node.", (Slot.FILTER,)),
    Point.POST_FILTER: PointSpec(_S, "Preempts pods if no node is feasible.", available=False),
    Point.PRE_SCORE: PointSpec(_S, "Prepares the scores; called once per pod, with the feasible nodes.",
                               available=False),
    Point.SCORE: PointSpec(_S, "Rates a feasible node for the pod, 0 to 100.", (Slot.SCORE,)),
    Point.RESERVE: PointSpec(_S, "Reserves the pod's resources on its node, or releases them.", available=False),
    Point.PERMIT: PointSpec(_S, "Holds the pod until others are ready.", available=False),
    Point.PRE_BIND: PointSpec(_S, "Prepares the node for the pod.", available=False),
    Point.BIND: PointSpec(_S, "Binds the pod to its node.", available=False),
    Point.POST_BIND: PointSpec(_S, "Called after the pod was bound.", available=False),
    Point.STRATEGY: PointSpec(
        _Q, "Adjusts values on the node; called once per interval.",
        (Slot.THRESHOLD, Slot.WHEN, Slot.TARGET, Slot.RELEASE, Slot.SETTING, Slot.QOS_CRITERIA, Slot.QOS_SORT),
    ),
    Point.EXTENSION: PointSpec(_Q, "Runs beside the strategies, with flags and a feature gate of its own.",
                               available=False),
    Point.GREY_CONTROL: PointSpec(_Q, "Gives policies to pods that declare none.", available=False),
    Point.DESCHEDULE: PointSpec(_D, "Evicts single pods that violate a policy.", (Slot.CRITERIA, Slot.SORT)),
    Point.BALANCE: PointSpec(
        _D, "Evicts pods to balance nodes.",
        (Slot.SOURCE, Slot.DESTINATION, Slot.FIT, Slot.ROOM, Slot.TAKEN, Slot.SOURCE_SORT, Slot.CRITERIA, Slot.SORT,
         Slot.UNTIL),
    ),
    Point.EVICTION_FILTER: PointSpec(_D, "Checks whether a pod may be evicted by any plugin.",
                                     (Slot.CRITERIA, Slot.EVICTION_MODE, Slot.EVICTION_GRACE_PERIOD)),
})
"""The specifications of all extension points."""


def seen(slot: Slot, *, subject: str = "node") -> tuple[VisibleVariable, ...]:
    """Return the variables of a slot, including those of a QoSPlugin's subject (`forEach`)."""
    spec = SLOTS[slot]
    return (*spec.sees, *_SUBJECTS[subject]) if spec.by_subject else spec.sees


def unit_of(path: tuple[str, ...]) -> str:
    """Return the unit of the value at a path below a variable: `milli-cores`, `bytes`, `seconds`, or an empty string.

    Batch and mid resources have the unit of their native resource.
    """
    if path[:1] in (("podInfo",), ("existingPodInfo",)) and path[1:2] in (("requests",), ("limits",)):
        path = path[1:]
    unit = _UNITS.get(path[0], "")
    if unit not in {_AMOUNT_UNIT, _GROUP_UNIT}:
        return unit
    return unit_of_resource(path[-1]) if len(path) > 1 else ""


def unit_of_resource(name: str) -> str:
    """Return the unit of a resource in `requests` and `usage`; an empty string for most."""
    return _NATIVE_UNITS.get(name) or next(
        (unit for native, unit in _NATIVE_UNITS.items() if name.endswith(f"-{native}")), "",
    )


def unit_of_field(holder: ObjectType | None, name: str) -> str:
    """Return the unit of a field: the declared one, else by the naming conventions of the Kubernetes API."""
    declared = holder.fields.get(name) if holder is not None else None
    if declared is not None and declared.unit:
        return declared.unit
    if holder is not None and holder.name in _LISTS:
        return unit_of_resource(name)
    return _unit_by_convention(name)


@functools.lru_cache(maxsize=4096)
def _unit_by_convention(name: str) -> str:
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "")


_UNITS: Final[Mapping[str, str]] = {
    each.name: each.unit
    for sees in (*(spec.sees for spec in SLOTS.values()), *_SUBJECTS.values())
    for each in sees if each.unit
}
_LISTS: Final = frozenset(each.name for each in (RESOURCE_LIST, MEASURED_LIST, USAGE))
_ENDINGS: Final[Mapping[str, str]] = {
    "Milliseconds": "milliseconds", "Seconds": "seconds", "Percent": "percent", "sizeBytes": _BYTES,
}
_NATIVE_UNITS: Final = {name: unit for name, unit in _NATIVE.items() if name != "pods"}


@functools.cache
def functions(extensions: tuple[Function, ...] = ()) -> Mapping[str, Function]:
    """Return all functions that expressions may call, by name.

    Those are the functions of Kubernetes' base environment, `math`, `base64`, `cel.bind`, Koordinator's own, and
    `extensions`, those of Python plugins, whose names must be new.
    """
    return library.table(
        kubernetes_library.FUNCTIONS.values(), library.MATH, library.ENCODERS, library.BINDINGS,
        kubernetes_library.KOORDINATOR, extensions,
    )


@functools.lru_cache(maxsize=64)
def _environment(slot: Slot, subject: str, extensions: tuple[Function, ...]) -> Environment:
    types = {**kubernetes_types.load(), **{each.name: each for each in TYPES}}
    variables = {each.name: each.variable for each in seen(slot, subject=subject)}
    return Environment(variables=variables, types=types, functions=functions(extensions), sizes=ASSUMED_SIZES)


def environment(
    slot: Slot,
    *,
    subject: str = "node",
    params: Typed | None = None,
    aggregates: Mapping[str, Type] | None = None,
    thresholds: Iterable[str] = (),
    extensions: tuple[Function, ...] = (),
) -> Environment:
    """Return the environment of a slot's expressions; `extensions` are functions of Python plugins.

    `params` is the result of `typed` for a document's params, `aggregates` maps names to types, `thresholds` are names.
    The caller adds definitions (`variables.x`), one after the other.
    """
    names = tuple(thresholds)
    # Cached: many documents have the same environment, and an environment caches results of its own.
    key = (slot, subject, params and params.signature, tuple((aggregates or {}).items()), names, extensions)
    found = _ENVIRONMENTS.get(key)
    if found is None:
        found = _ENVIRONMENTS[key] = _extended(_environment(slot, subject, extensions), params, aggregates, names)
        if len(_ENVIRONMENTS) > _MOST_ENVIRONMENTS:
            del _ENVIRONMENTS[next(iter(_ENVIRONMENTS))]
    return found


_MOST_ENVIRONMENTS: Final = 256
_ENVIRONMENTS: Final[dict[Hashable, Environment]] = {}


def _extended(
    found: Environment, params: Typed | None, aggregates: Mapping[str, Type] | None, names: tuple[str, ...],
) -> Environment:
    if params is not None:
        found = found.with_types(*params.types).with_variables(
            Variable("params", params.type, _CONSTANT, "The plugin's parameters."),
        )
    if aggregates:
        declared = ObjectType("Aggregates", {name: Field(type_) for name, type_ in aggregates.items()})
        found = found.with_types(declared).with_variables(
            Variable("aggregates", declared.type, _DECISION, "Values over all nodes or pods."),
        )
    if names:
        declared = ObjectType("Thresholds", {name: Field(BOOL) for name in names})
        found = found.with_types(declared).with_variables(
            Variable("thresholds", declared.type, _ROW, "The thresholds, true where one is exceeded."),
        )
    return found
