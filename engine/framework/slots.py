"""The tables of extension points, and of the places where documents have expressions.

Two tables, `POINTS` and `SLOTS`, define for every point its framework, its rows, the variables that an expression sees
(type, unit, scope), the type that it must have, and the effect of an error. Compiler, frameworks, schemas and the
generated reference page read them; nothing about a point is defined anywhere else.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

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
from koordpolicy.engine.kubernetes import library as kubernetes_library
from koordpolicy.engine.kubernetes import types as kubernetes_types
from koordpolicy.engine.kubernetes.sizes import ASSUMED_SIZES

from .points import Framework, Point
from .typed_values import Typed
from .variable_types import (
    BEST_EFFORT_CPU,
    DEVICE,
    MEASURED_LIST,
    NODE_INFO,
    PLACEMENT,
    POD_INFO,
    RESOURCE_LIST,
    TYPES,
    USAGE,
    unit_of_resource,
)


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
        ("nonZeroRequested", RESOURCE_LIST.type, (
            "`requested` as Kubernetes' scores count it: a container that names no cpu or memory counts 100 milli-cores"
            " or 200 MiB."
        ), _AMOUNT_UNIT),
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
_AGGREGATED: Final = (*NUMBER, *AMOUNTS)


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


_PENDING_POD: Final = (
    *_pod(_DECISION),
    *_seen(_DECISION, ("nonZeroRequests", RESOURCE_LIST.type, (
        "The pod's requests as Kubernetes' scores count them: a container that names no cpu or memory counts 100"
        " milli-cores or 200 MiB, and pod-level requests do not count."
    ), _AMOUNT_UNIT)),
)
PENDING_POD_VARIABLES: Final = frozenset(each.name for each in _PENDING_POD)
"""The names of the variables about the pod that a decision is about."""
_POD_ONLY: Final = (*_PENDING_POD, *_NOW)
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
    Slot.SCHEDULER_NODES: SlotSpec(_S, "node", _POD_AND_NODE, _AGGREGATED, _NO_VALUE, _NO_VALUE),
    Slot.SCHEDULER_PODS: SlotSpec(
        _S, "pod on a node", (*_POD_ONLY, *_EXISTING, *_NODE_OF_CLUSTER), _AGGREGATED, _NO_VALUE, _NO_VALUE,
    ),
    Slot.THRESHOLD: SlotSpec(_Q, "subject", _NOW, (BOOL,), _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.WHEN: SlotSpec(_Q, "subject", _NOW, (BOOL,), _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.TARGET: SlotSpec(_Q, "subject", _NOW, NUMBER, _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.RELEASE: SlotSpec(_Q, "subject", _NOW, NUMBER, _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.SETTING: SlotSpec(_Q, "subject", _NOW, NUMBER, _NOTHING_DONE, _NOTHING_DONE, by_subject=True),
    Slot.QOS_CRITERIA: SlotSpec(_Q, "pod of the node", (*_NOW, *_SUBJECTS["pod"]), (BOOL,), _STAYS, _STAYS),
    Slot.QOS_SORT: SlotSpec(_Q, "pod of the node", (*_NOW, *_SUBJECTS["pod"]), ORDERED, _STAYS, _STAYS),
    Slot.QOS_PODS: SlotSpec(_Q, "pod of the node", (*_NOW, *_SUBJECTS["pod"]), _AGGREGATED, _NO_VALUE, _NO_VALUE),
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
    Slot.DESCHEDULER_NODES: SlotSpec(_D, "node", (*_NODE_OF_CLUSTER, *_NOW), _AGGREGATED, _NO_VALUE, _NO_VALUE),
    Slot.DESCHEDULER_PODS: SlotSpec(_D, "pod on a node", _PODS_OF_NODE, _AGGREGATED, _NO_VALUE, _NO_VALUE),
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


_UNITS: Final[Mapping[str, str]] = {
    each.name: each.unit
    for sees in (*(spec.sees for spec in SLOTS.values()), *_SUBJECTS.values())
    for each in sees if each.unit
}


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
