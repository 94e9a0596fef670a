"""Functions about pods and nodes: bands, QoS classes, tolerations, selectors, resource lists.

The functions take objects as the API server serves them. They never change one, and read only the paths declared in
`Overload.reads`, so that results stay cached while other parts of a pod or node change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from koordpolicy.engine.cel.check.environment import Cost, Function, Overload, Reads
from koordpolicy.engine.cel.values.traversal import deep_size, elements
from koordpolicy.engine.cel.values.types import BOOL, INT, STRING, Type, list_of, map_of
from koordpolicy.engine.cel.values.values import INT64_MAX, INT64_MIN, EvaluationError

from ..quantity import Quantity
from ..selectors import NO_EXECUTE, NO_SCHEDULE, matches_labels, matches_node
from ..selectors import tolerates as covers
from ..vocabulary import PRIORITY_BANDS, PRIORITY_CLASS_LABEL, QOS_CLASS_LABEL, priority_band, qos_class
from .gpus import GPUS

Json = Mapping[str, Any]
_Value = TypeVar("_Value")

_POD: Final = Type("kubernetes.Pod")
_NODE: Final = Type("kubernetes.Node")
_TAINT: Final = Type("kubernetes.Taint")
_TOLERATION: Final = Type("kubernetes.Toleration")
_SELECTOR: Final = Type("kubernetes.LabelSelector")
_RESOURCES: Final = Type("ResourceList")
_LABELS: Final = map_of(STRING, STRING)

_ASSUMED_TOLERATIONS: Final = 100
_ASSUMED_TAINTS: Final = 50
_ASSUMED_REQUIREMENTS: Final = 100
_SAFE: Final = 2**54
_PER_PAIR: Final = 3
"""The cost of comparing a toleration with a taint, or a label with a requirement."""


def _read_object(read: Callable[[], _Value]) -> _Value:
    """Return the result of `read`; raise its `ValueError` as an `EvaluationError`."""
    try:
        return read()
    except ValueError as error:
        raise EvaluationError(str(error)) from None


# --- bands and classes -----------------------------------------------------------------------------------------------


def _band_of_pod(pod: Json | None) -> str:
    return _read_object(lambda: priority_band(pod or {}))


def _band_of_name(name: str) -> str:
    return name if name in PRIORITY_BANDS else ""


def _band_of_priority(priority: int) -> str:
    return next((band for band, (low, high) in PRIORITY_BANDS.items() if low <= priority <= high), "")


def _qos_class(pod: Json | None) -> str:
    return _read_object(lambda: qos_class(pod or {}))


def _containers(pod: Json | None) -> int:
    """Return the steps of computing a QoS class: cpu and memory of each container, and what the pod's own name."""
    spec = (pod or {}).get("spec") or {}
    own = spec.get("resources") or {}
    named = len(own.get("requests") or ()) + len(own.get("limits") or ())
    return named + _PER_CONTAINER * (len(spec.get("containers") or ()) + len(spec.get("initContainers") or ()))


_PER_CONTAINER: Final = 20
_QOS_READS: Final[Reads] = ((("metadata", "labels", QOS_CLASS_LABEL), ("status", "qosClass"), ("spec",)),)
_BAND_READS: Final[Reads] = (
    (
        ("metadata", "labels", QOS_CLASS_LABEL), ("metadata", "labels", PRIORITY_CLASS_LABEL), ("status", "qosClass"),
        ("spec",),
    ),
)
_PER_POD: Final = Cost(20)
"""Labels, and in the worst case the resources of the containers."""


# --- taints ----------------------------------------------------------------------------------------------------------


def _tolerations(pod: Json | None) -> list[Json]:
    return ((pod or {}).get("spec") or {}).get("tolerations") or []


def _taints(node: Json | None) -> list[Json]:
    return ((node or {}).get("spec") or {}).get("taints") or []


def _tolerates(tolerations: Iterable[Json], taint: Json | None) -> bool:
    return any(covers(each, taint or {}) for each in tolerations)


def _pod_tolerates(pod: Json | None, taint: Json | None) -> bool:
    return _tolerates(_tolerations(pod), taint)


def _pod_tolerates_node(pod: Json | None, node: Json | None) -> bool:
    tolerations = _tolerations(pod)
    hard = (each for each in _taints(node) if each.get("effect") in _HARD)
    return all(_tolerates(tolerations, each) for each in hard)


_HARD: Final = frozenset({NO_SCHEDULE, NO_EXECUTE})
_TOLERATIONS: Final = (("spec", "tolerations"),)
_TAINTS: Final = (("spec", "taints"),)


# --- selectors -------------------------------------------------------------------------------------------------------


def _matches_selector(labels: Mapping[str, str], selector: Json | None) -> bool:
    return _read_object(lambda: matches_labels(selector, labels, absent=False))


def _requirements(_: object, selector: Json | None) -> int:
    found = selector or {}
    return 1 + _PER_PAIR * (len(found.get("matchLabels") or ()) + len(found.get("matchExpressions") or ()))


def _matches_node(pod: Json | None, node: Json | None) -> bool:
    return _read_object(lambda: matches_node(pod or {}, node or {}))


def _terms(pod: Json | None, _: object) -> int:
    spec = (pod or {}).get("spec") or {}
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    expressions = sum(
        len(term.get("matchExpressions") or ()) + len(term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
    )
    return 1 + _PER_PAIR * (len(spec.get("nodeSelector") or ()) + expressions)


def _selection(pod: Json | None, _: object) -> int:
    spec = (pod or {}).get("spec") or {}
    return deep_size(spec.get("nodeSelector")) + deep_size((spec.get("affinity") or {}).get("nodeAffinity"))


def _owned_by(pod: Json | None, kind: str) -> bool:
    owners = ((pod or {}).get("metadata") or {}).get("ownerReferences") or ()
    return any(owner.get("kind") == kind for owner in owners)


def _owners(pod: Json | None, _: object) -> int:
    return len(((pod or {}).get("metadata") or {}).get("ownerReferences") or ())


# --- amounts ---------------------------------------------------------------------------------------------------------


def _percent(part: int, whole: int) -> int:
    if whole == 0:
        raise EvaluationError("division by zero: a percentage of nothing")
    doubled = abs(200 * part)
    rounded = (doubled + abs(whole)) // (2 * abs(whole))
    result = rounded if (part >= 0) == (whole > 0) else -rounded
    if not INT64_MIN <= result <= INT64_MAX:
        raise EvaluationError("integer overflow")
    return result


def _percents(part: Any, whole: Any) -> tuple[Any, Any]:
    # Numbers beyond these bounds, and negative ones, are left to the scalar function.
    sound = (part >= 0) & (part < _SAFE) & (whole > 0) & (whole < _SAFE)
    return (200 * part + whole) // (2 * whole), sound


def _resource_list(amounts: Mapping[str, object]) -> dict[str, int]:
    return {name: _amount(name, quantity) for name, quantity in amounts.items()}


def _amount(name: str, quantity: object) -> int:
    if type(quantity) is int or type(quantity) is float:
        quantity = str(quantity)
    if type(quantity) is not str:
        raise EvaluationError(f"the amount of `{name[:64]}` is not a quantity")
    try:
        parsed = Quantity.parse(quantity)
    except ValueError as error:
        raise EvaluationError(f"the amount of `{name[:64]}`: {error}") from None
    amount = parsed.milli if name == "cpu" else parsed.value
    if not INT64_MIN <= amount <= INT64_MAX:
        raise EvaluationError(f"the amount of `{name[:64]}` does not fit into 64 bits")
    return amount


_BEST_EFFORT: Final = "dyn({'metadata': {'labels': {'koordinator.sh/qosClass': 'BE'}}})"
_INFRA: Final = "{'key': 'node-role', 'value': 'infra', 'effect': 'NoSchedule'}"
_EXISTS: Final = "{'key': 'node-role', 'operator': 'Exists'}"

KOORDINATOR: Final = (
    Function(
        "priorityBand",
        (
            Overload(
                "priority_band_pod", (_POD,), STRING, _band_of_pod, cost=_PER_POD, reads=_BAND_READS, walk=_containers,
            ),
            Overload("priority_band_string", (STRING,), STRING, _band_of_name),
            Overload("priority_band_int", (INT,), STRING, _band_of_priority),
        ),
        "The priority band: koord-prod, koord-mid, koord-batch or koord-free. Of a pod: by its label, else by"
        " `spec.priority`, else koord-batch for BE pods and koord-prod for all others. Of a priority: the band that"
        " contains it. Of a name: the name itself. An empty string if there is no such band.",
        "priorityBand(9500) == 'koord-prod' && priorityBand('web') == ''",
    ),
    Function(
        "qosClass",
        (Overload("qos_class_pod", (_POD,), STRING, _qos_class, cost=_PER_POD, reads=_QOS_READS, walk=_containers),),
        "A pod's QoS class: LSE, LSR, LS, BE or SYSTEM. By its label, else Guaranteed is LSR, Burstable LS and"
        " BestEffort BE.",
        f"qosClass({_BEST_EFFORT}) == 'BE'",
    ),
    Function(
        "tolerates",
        (
            Overload(
                "tolerates_pod_taint", (_POD, _TAINT), BOOL, _pod_tolerates,
                cost=Cost(1 + _PER_PAIR * _ASSUMED_TOLERATIONS), reads=(_TOLERATIONS, None),
                measure=lambda pod, _: 1 + _PER_PAIR * len(_tolerations(pod)),
                walk=lambda pod, _: len(_tolerations(pod)),
            ),
            Overload(
                "tolerates_list_taint", (list_of(_TOLERATION), _TAINT), BOOL, _tolerates, walk=elements,
                cost=Cost(1, ((0, float(_PER_PAIR)),)),
            ),
        ),
        "True if a pod, or one of a list of tolerations, tolerates a taint.",
        f"tolerates(dyn([{_EXISTS}]), dyn({_INFRA})) && !tolerates(dyn([]), dyn({_INFRA}))",
    ),
    Function(
        "toleratesNode",
        (
            Overload(
                "tolerates_node", (_POD, _NODE), BOOL, _pod_tolerates_node,
                cost=Cost(1 + _PER_PAIR * _ASSUMED_TOLERATIONS * _ASSUMED_TAINTS), reads=(_TOLERATIONS, _TAINTS),
                measure=lambda pod, node: 1 + _PER_PAIR * len(_tolerations(pod)) * len(_taints(node)),
                walk=lambda pod, node: len(_tolerations(pod)) * len(_taints(node)),
            ),
        ),
        "True if a pod tolerates all taints of a node that repel pods: those of the effects NoSchedule and"
        " NoExecute.",
        f"!toleratesNode(dyn({{}}), dyn({{'spec': {{'taints': [{_INFRA}]}}}}))",
    ),
    Function(
        "matchesSelector",
        (
            Overload(
                "matches_selector", (_LABELS, _SELECTOR), BOOL, _matches_selector,
                cost=Cost(1 + _PER_PAIR * _ASSUMED_REQUIREMENTS), measure=_requirements,
                walk=lambda _, selector: deep_size(selector),
            ),
        ),
        "True if labels match a LabelSelector, with `matchLabels` and `matchExpressions`. An empty one matches all"
        " labels, null none.",
        "matchesSelector({'app': 'web'}, dyn({'matchExpressions': [{'key': 'app', 'operator': 'Exists'}]}))",
    ),
    Function(
        "matchesNodeAffinity",
        (
            Overload(
                "matches_node_affinity", (_POD, _NODE), BOOL, _matches_node,
                cost=Cost(1 + _PER_PAIR * _ASSUMED_REQUIREMENTS), measure=_terms, walk=_selection,
                reads=(
                    (("spec", "nodeSelector"), ("spec", "affinity", "nodeAffinity")),
                    (("metadata", "labels"), ("metadata", "name")),
                ),
            ),
        ),
        "True if a node matches a pod's `nodeSelector` and its required node affinity.",
        "matchesNodeAffinity(dyn({'spec': {'nodeSelector': {'gpu': 'yes'}}}),"
        " dyn({'metadata': {'labels': {'gpu': 'yes'}}}))",
    ),
    Function(
        "ownedBy",
        (
            Overload(
                "owned_by", (_POD, STRING), BOOL, _owned_by, cost=Cost(10), walk=_owners,
                reads=((("metadata", "ownerReferences"),), None),
            ),
        ),
        "True if an owner of a pod is of this kind.",
        "ownedBy(dyn({'metadata': {'ownerReferences': [{'kind': 'DaemonSet'}]}}), 'DaemonSet')",
    ),
    Function(
        "percent", (Overload("percent_int", (INT, INT), INT, _percent, by_column=_percents),),
        "A part in percent of a whole, rounded to the nearest whole number, halves away from zero (as Koordinator"
        " rounds usages). An error if the whole is 0.",
        "percent(2, 3) == 67 && percent(1, 200) == 1",
    ),
    Function(
        "resourceList",
        (
            Overload(
                "resource_list", (map_of(STRING, STRING),), _RESOURCES, _resource_list, cost=Cost(1, ((0, 2.0),)),
            ),
        ),
        "Quantities by resource as integers, rounded up: cpu in milli-cores, all else in base units. In the list a"
        " resource that is absent reads 0.",
        "resourceList({'cpu': '1500m', 'memory': '1Gi'}).cpu == 1500",
    ),
    *GPUS,
)
"""The functions of this project."""
