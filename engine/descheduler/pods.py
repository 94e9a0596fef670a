"""The pods of a snapshot for descheduling plugins: by node and phase, with owners, in the order of eviction."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.cluster.state import ClusterState
from koordpolicy.engine.kubernetes.selectors import matches_labels, matches_node, untolerated
from koordpolicy.engine.kubernetes.vocabulary import EVICTION_COST_ANNOTATION

from .admission import NodeAdmission
from .pod_columns import PodColumns
from .templates import DELETION_COST_ANNOTATION, PREFER_NO_EVICTION, PodTemplate, fact_of, template_of

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})

_INT32: Final = re.compile(r"0|-?[1-9][0-9]*")
_BANDS: Final = {"koord-free": 1, "koord-batch": 2, "koord-mid": 3, "koord-prod": 4}
_KUBERNETES_QOS: Final = {"BestEffort": 1, "Burstable": 2, "Guaranteed": 3}
_QOS: Final = {"BE": 1, "LS": 2, "LSR": 3, "LSE": 4, "SYSTEM": 4}


def annotations_of(pod: PodInfo) -> Mapping[str, str]:
    """Return a pod's annotations."""
    return pod.object["metadata"].get("annotations") or {}


def labels_of(pod: PodInfo) -> Mapping[str, str]:
    """Return a pod's labels."""
    return pod.object["metadata"].get("labels") or {}


def owners_of(pod: PodInfo) -> list[Mapping[str, Any]]:
    """Return a pod's owner references."""
    return list(pod.object["metadata"].get("ownerReferences") or ())


def budgets_of(pod: Mapping[str, Any], cluster: ClusterState) -> tuple[str, ...] | None:
    """Return the names of the PodDisruptionBudgets that select a pod; None if the cluster does not know budgets."""
    if cluster.lacks("PodDisruptionBudget"):
        return None
    metadata = pod["metadata"]
    namespace, labels = metadata.get("namespace") or "default", metadata.get("labels") or {}
    return tuple(
        str(budget["metadata"]["name"]) for budget in cluster.objects("PodDisruptionBudget").values()
        if (budget["metadata"].get("namespace") or "default") == namespace
        and matches_labels((budget.get("spec") or {}).get("selector"), labels, absent=False))


class AssignedPods:
    """All pods by node, finished ones too (a snapshot's rows hold active ones only). Valid as long as its snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @cached_property
    def _finished(self) -> Mapping[str, tuple[PodInfo, ...]]:
        found: dict[str, list[PodInfo]] = {}
        for pod in self._snapshot.cluster.finished_pods.values():
            found.setdefault(pod.node_name, []).append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    @cached_property
    def _replicas(self) -> Mapping[str, int]:
        columns = PodColumns.of(self._snapshot.base)
        counts: Counter[str] = Counter()
        for template, number in zip(columns.templates, columns.counts.tolist(), strict=True):
            for owner in owners_of(template.pod):
                counts[owner.get("uid", "")] += number
        for pod in self._snapshot.cluster.pods_without_row():
            counts.update(owner.get("uid", "") for owner in owners_of(pod))
        return counts

    def active(self, row: int) -> tuple[PodInfo, ...]:
        """Return the pods of a node that neither succeeded nor failed."""
        return self._snapshot.pods(row)

    def all(self, row: int) -> tuple[PodInfo, ...]:
        """Return the pods of a node in any phase."""
        return (*self._snapshot.pods(row), *self.finished(row))

    def finished(self, row: int) -> tuple[PodInfo, ...]:
        """Return the pods of a node that succeeded or failed."""
        return self._finished.get(self._snapshot.names[row], ())

    def replicas(self, owner_uid: str) -> int:
        """Return the number of pods, of any phase, with that owner."""
        return self._replicas.get(owner_uid, 0)


def eviction_order(extra: Callable[[PodInfo], Any] = lambda _: 0) -> Callable[[PodInfo], Any]:
    """Return the sort key of pods for eviction, first to go first (Koordinator's PodSorter).

    By priority band, priority, Kubernetes' QoS class, QoS class, deletion cost, eviction cost, `extra`, and then the
    newest first.
    """

    def key(pod: PodInfo) -> tuple[Any, ...]:
        return (
            _BANDS.get(pod.priority_band, 5), pod.priority, _KUBERNETES_QOS.get(pod.kubernetes_qos, 0),
            _QOS.get(pod.qos_class, 5), _cost(pod, DELETION_COST_ANNOTATION), _cost(pod, EVICTION_COST_ANNOTATION),
            extra(pod), -created(pod),
        )

    return key


def priority_order(pod: PodInfo) -> tuple[bool, int, int, bool]:
    """Return the sort key of Kubernetes' descheduler, first to go first.

    Pods without a priority, then by priority, Kubernetes' QoS class, and those that prefer no eviction last.
    """
    return fact_of(pod, _priority_order)


def _priority_order(pod: PodInfo) -> tuple[bool, int, int, bool]:
    priority = pod.object["spec"].get("priority")
    return (
        priority is not None, priority or 0, _KUBERNETES_QOS.get(pod.kubernetes_qos, 0),
        PREFER_NO_EVICTION in annotations_of(pod),
    )


def created(pod: PodInfo) -> int:
    """Return the pod's creation time, ns since the epoch; 0 if it has none."""
    text = pod.object["metadata"].get("creationTimestamp")
    return moment(text) if text else 0


def moment(text: str) -> int:
    """Return an RFC 3339 time in ns since the epoch; raise `ValueError` for any other text."""
    try:
        return Timestamp.parse(text).ns
    except EvaluationError as error:
        raise ValueError(error.message) from None


def _cost(pod: PodInfo, annotation: str) -> int:
    text = annotations_of(pod).get(annotation, "0")
    cost = int(text) if _INT32.fullmatch(text) and len(text) < 12 else 0
    return cost if -(2**31) <= cost < 2**31 else 0


def placement_of(pod: PodInfo) -> tuple[Any, Any, Any]:
    """Return the restrictions of a pod's nodes: tolerations, node selector, required node affinity."""
    spec = pod.object["spec"]
    affinity = spec.get("affinity")
    required = None
    if affinity:
        required = (affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    return spec.get("tolerations") or None, spec.get("nodeSelector") or None, required


def placement_key(pod: PodInfo) -> str:
    """Return a key that is equal for pods with the same `placement_of`; empty if nothing restricts them."""
    return fact_of(pod, _placement_key)


def _placement_key(pod: PodInfo) -> str:
    placement = placement_of(pod)
    return repr(placement) if placement != _ANYWHERE else ""


_ANYWHERE: Final = (None, None, None)


class PlacementGroups:
    """The nodes that pods may be on, by their labels and taints alone; found once for pods with equal constraints."""

    def __init__(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        self._snapshot = snapshot
        self._rows = np.array(rows, dtype=np.intp)
        self._known: dict[str, NDArray[np.intp]] = {}

    def rows(self, pod: PodInfo) -> NDArray[np.intp]:
        """Return the rows whose labels the pod selects and whose taints it tolerates; cordoned ones too."""
        key = placement_key(pod)
        found = self._known.get(key)
        if found is None:
            admission, snapshot = NodeAdmission.of(self._snapshot), self._snapshot
            admitted = admission.tolerated(pod, snapshot) & admission.selected(pod, snapshot)
            found = self._known[key] = self._rows[admitted[self._rows]]
        return found

    def feasible(self, pods: Iterable[PodInfo]) -> int:
        """Return the number of rows that at least one of the pods may be on; pods with a single row do not count."""
        distinct = {template_of(pod): pod for pod in pods}
        by_placement = {placement_key(pod): pod for pod in distinct.values()}
        several = [rows for pod in by_placement.values() if len(rows := self.rows(pod)) > 1]
        return len(several[0] if len(several) == 1 else np.unique(np.concatenate(several))) if several else 0


_MOST_KNOWN: Final = 1_024
_MOST_ADMITTED: Final = 64
_BLOCK: Final = 64


class NodeFit:
    """Checks whether a pod fits on a node (Koordinator's nodefit, and Kubernetes descheduler's, which is stricter).

    Free resources are the allocatable ones less the requests of the node's active pods.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._requested: dict[int, ResourceList] = {}
        self._room: dict[tuple[tuple[str, int], ...], NDArray[np.bool_]] = {}
        self._admitted: dict[str, NDArray[np.bool_]] = {}
        self._last_fitting: dict[PodTemplate, tuple[NDArray[np.intp] | None, NDArray[np.intp]]] = {}
        """By template, the rows of the last call with those of them that fit."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the nodes."""
        return self._snapshot.names

    def fits(self, pod: PodInfo, row: int, *, reserved: Mapping[str, int] = NOTHING) -> bool:
        """Return whether the node takes the pod: selectors, taints, every requested resource, not cordoned.

        `reserved` is subtracted from the free resources.
        """
        return self.admits(pod, row) and self._has_room(pod, row, reserved)

    def fitting(self, pod: PodInfo) -> NDArray[np.bool_]:
        """Return the result of `fits` for each row, without reserved resources."""
        snapshot, found = self._snapshot, self.admitted(pod).copy()
        for name, amount in pod.requests.items():
            found &= amount <= snapshot.allocatable(name) - snapshot.requested(name)
        return found

    def fits_strictly(self, pod: PodInfo, row: int) -> bool:
        """Return whether the node takes the pod, including the number of pods and the pod's own anti-affinity.

        On the pod's current node, resources are not checked.
        """
        if not self.admits(pod, row) or self._repels(pod, row, pod.name):
            return False
        if self._snapshot.names[row] == pod.node_name:
            return True
        room = self._allocatable(row)["pods"] - len(self._snapshot.pods(row))
        return room > 0 and self._has_room(pod, row)

    def destinations(self, rows: NDArray[np.intp]) -> Destinations:
        """Return these rows as possible destinations of pods."""
        return Destinations(self, rows)

    def strict_rows(self, pod: PodInfo, rows: NDArray[np.intp], *, of_any_name: bool = False) -> Iterator[int]:
        """Yield the rows whose nodes take the pod, by the rules of `fits_strictly` for a node that it is not on.

        With `of_any_name` they take all pods of its template: its anti-affinity means no pod there, also not one of its
        own name.
        """
        fitting = self._fitting(pod, rows)
        for start in range(0, len(fitting), _BLOCK):
            for row in fitting[start : start + _BLOCK].tolist():
                if not self._repels(pod, row, "" if of_any_name else pod.name):
                    yield row

    def _fitting(self, pod: PodInfo, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rows that admit the pod and have room for it."""
        template = template_of(pod)
        of, fitting = self._last_fitting.get(template, (None, rows))
        if of is not rows:
            fitting = rows[(self._has_free(pod) & self.admitted(pod))[rows]]
            if len(self._last_fitting) >= _MOST_ADMITTED:
                self._last_fitting.clear()
            self._last_fitting[template] = rows, fitting
        return fitting

    def admitted(self, pod: PodInfo) -> NDArray[np.bool_]:
        """Return the result of `admits` for each row. Read-only."""
        key = placement_key(pod)
        found = self._admitted.get(key)
        if found is None:
            snapshot, admission = self._snapshot, NodeAdmission.of(self._snapshot)
            found = admission.open(snapshot) & admission.selected(pod, snapshot) & admission.tolerated(pod, snapshot)
            if len(self._admitted) >= _MOST_ADMITTED:
                self._admitted.clear()
            self._admitted[key] = found
        return found

    def _has_free(self, pod: PodInfo) -> NDArray[np.bool_]:
        """Return for each row whether there is room for one more pod with such requests."""
        key = tuple(pod.requests.items())
        found = self._room.get(key)
        if found is None:
            snapshot = self._snapshot
            found = snapshot.allocatable("pods") > snapshot.pod_count
            for name, amount in key:
                found &= amount <= snapshot.allocatable(name) - snapshot.requested(name)
            if len(self._room) >= _MOST_KNOWN:
                self._room.clear()
            self._room[key] = found
        return found

    def admits(self, pod: PodInfo, row: int) -> bool:
        """Return whether the node is not cordoned, and the pod selects its labels and tolerates its taints."""
        node = self._snapshot.node(row)
        cordoned = bool((node.get("spec") or {}).get("unschedulable"))
        return not cordoned and matches_node(pod.object, node) and untolerated(pod.object, node) is None

    def _has_room(self, pod: PodInfo, row: int, reserved: Mapping[str, int] = NOTHING) -> bool:
        allocatable, requested = self._allocatable(row), self._requests(row)
        return all(
            amount <= allocatable[name] - requested[name] - reserved.get(name, 0)
            for name, amount in pod.requests.items()
        )

    def _allocatable(self, row: int) -> ResourceList:
        return self._snapshot.row(row).allocatable

    def _requests(self, row: int) -> ResourceList:
        found = self._requested.get(row)
        if found is None:
            found = ResourceList()
            for pod in self._snapshot.pods(row):
                for name, amount in pod.requests.items():
                    found[name] += amount
            self._requested[row] = found
        return found

    def _repels(self, pod: PodInfo, row: int, name: str) -> bool:
        """Return whether the node has a pod, of another name than this one, that the pod avoids."""
        affinity = ((pod.object.get("spec") or {}).get("affinity") or {}).get("podAntiAffinity")
        if not affinity:
            return False
        labels = (self._snapshot.node(row).get("metadata") or {}).get("labels") or {}
        for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
            if term.get("topologyKey") not in labels:
                continue
            namespaces = term.get("namespaces") or [pod.namespace]
            if any(
                other.name != name and other.namespace in namespaces
                and matches_labels(term.get("labelSelector"), labels_of(other), absent=False)
                for other in self._snapshot.pods(row)
            ):
                return True
        return False


class Destinations:
    """Nodes that pods may move to; a result for one pod is used for all pods of its template, where possible."""

    def __init__(self, fit: NodeFit, rows: NDArray[np.intp]) -> None:
        self._fit = fit
        self._rows = rows
        self._known: dict[PodTemplate, tuple[str, ...] | None] = {}

    def take(self, pod: PodInfo) -> bool:
        """Return whether one of the nodes other than the pod's own takes it (see `NodeFit.fits_strictly`)."""
        found = self._first_two(pod)
        if found is None:
            return any(name != pod.node_name for name in self._names(pod))
        return found != () and (found[-1] != pod.node_name or len(found) > 1)

    def take_template(self, pod: PodInfo) -> bool:
        """Return True if they take every pod of this one's template; False if that depends on the pod."""
        found = self._first_two(pod)
        return found is not None and len(found) > 1

    def refuse_template(self, pod: PodInfo) -> bool:
        """Return True if they take no pod of this one's template; False if that depends on the pod."""
        return self._first_two(pod) == ()

    def _first_two(self, pod: PodInfo) -> tuple[str, ...] | None:
        """Return two nodes that take the pod, or all if there are fewer; None if that depends on the pod's name."""
        template = template_of(pod)
        if template in self._known:
            return self._known[template]
        # Two are enough: at most one is the pod's own node.
        of_any_name = tuple(itertools.islice(self._names(pod, of_any_name=True), 2))
        avoids = ((pod.object["spec"].get("affinity") or {}).get("podAntiAffinity")) is not None
        found = self._known[template] = None if avoids and len(of_any_name) < 2 else of_any_name
        return found

    def _names(self, pod: PodInfo, *, of_any_name: bool = False) -> Iterator[str]:
        names = self._fit.names
        return (names[row] for row in self._fit.strict_rows(pod, self._rows, of_any_name=of_any_name))
