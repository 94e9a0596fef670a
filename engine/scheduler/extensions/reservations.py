"""Reservations: resources held on a node for future pods, and the reserve pods that hold them.

A Reservation is scheduled as a *reserve pod*, which is queued and occupies its node like any other pod. `ReservePods`
keeps these pods in sync with the objects; `ReservationInfo` is the form in which plugins receive a placed reservation.
(Koordinator's pkg/util/reservation, frameworkext.ReservationInfo.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, mapping_at, resource_list
from koordpolicy.engine.kubernetes.objects import parse_fault
from koordpolicy.engine.kubernetes.quantity import Quantity, QuantityFormat
from koordpolicy.engine.kubernetes.selectors import check_selector, matches_labels
from koordpolicy.engine.kubernetes.vocabulary import (
    NODE_RESERVATION_ANNOTATION,
    RESERVATION_ALLOCATED_ANNOTATION,
    SUB_PRIORITY_LABEL,
)

_DOMAIN: Final = "scheduling.koordinator.sh/"
RESERVE_POD: Final = _DOMAIN + "reserve-pod"
RESERVATION_NAME: Final = _DOMAIN + "reservation-name"
RESERVATION_NODE: Final = _DOMAIN + "reservation-node"
PRE_ALLOCATION: Final = _DOMAIN + "is-pre-allocation"
ORDER: Final = _DOMAIN + "reservation-order"
RESTRICTED_OPTIONS: Final = _DOMAIN + "reservation-restricted-options"
OPERATING_MODE: Final = _DOMAIN + "operating-mode"
OWNERS: Final = _DOMAIN + "reservation-owners"
CURRENT_OWNER: Final = _DOMAIN + "reservation-current-owner"

AVAILABLE: Final = "Available"
ENDED: Final = frozenset({"Succeeded", "Failed"})
ALIGNED: Final = "Aligned"
RESTRICTED: Final = "Restricted"

_UNPREEMPTABLE: Final = 2**31 - 1
_FAKE_CONTAINER: Final = "__internal_fake_container__"
_NO_CONTAINER: Final = {"name": _FAKE_CONTAINER}
_NONE: Final[Mapping[str, PodInfo]] = MappingProxyType({})

Json = Mapping[str, Any]


def problem_of(item: Json | None) -> str:
    """Return why a Reservation is unusable; empty if it is usable."""
    if item is None:
        return "the reservation is nil"
    spec = item.get("spec") or {}
    if spec.get("template") is None:
        return "the reservation misses the template spec"
    if not spec.get("owners"):
        return "the reservation misses the owner spec"
    if spec.get("ttl") is None and not spec.get("expires"):
        return "the reservation misses the expiration spec"
    return ""


def is_reserve_pod(pod: PodInfo) -> bool:
    """Return whether the pod is a reserve pod."""
    return _annotations(pod.object).get(RESERVE_POD) == "true"


def reservation_of(pod: PodInfo) -> str:
    """Return the name of the Reservation of a reserve pod."""
    return str(_annotations(pod.object).get(RESERVATION_NAME) or "")


def reserve_pod(item: Json) -> PodInfo:
    """Return the reserve pod of a Reservation: named by its uid, never preempted unless it has a priority.

    Raises:
        ValueError: its template is not a pod; the message begins with the field's path.
    """
    metadata, spec, status = mapping_at(item, "metadata"), item.get("spec") or {}, item.get("status") or {}
    template = spec.get("template") or {}
    of_template = template.get("metadata") or {}
    pod_spec = dict(template.get("spec") or {})
    labels = {**(of_template.get("labels") or {}), **(metadata.get("labels") or {})}
    annotations = {
        **(of_template.get("annotations") or {}), **(metadata.get("annotations") or {}),
        RESERVE_POD: "true", RESERVATION_NAME: metadata["name"],
    }
    if spec.get("preAllocation"):
        annotations[PRE_ALLOCATION] = "true"
    given = pod_spec.pop("nodeName", None)
    if given:
        annotations[RESERVATION_NODE] = given
    if status.get("nodeName"):
        pod_spec["nodeName"] = status["nodeName"]
    if pod_spec.get("priority") is None:
        pod_spec["priority"] = _priority(labels)
    pod_spec.setdefault("schedulerName", "default-scheduler")
    pod_spec["containers"] = list(pod_spec.get("containers") or (_NO_CONTAINER,))
    if status.get("phase") == AVAILABLE and status.get("allocatable"):
        pod_spec = _resized(pod_spec, status)
    uid = metadata.get("uid") or metadata["name"]
    phase = {"phase": status["phase"]} if status.get("phase") in ENDED else {}
    return PodInfo.of({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": uid, "namespace": of_template.get("namespace") or "default", "uid": uid, "labels": labels,
            "annotations": annotations,
            **({"creationTimestamp": metadata["creationTimestamp"]} if metadata.get("creationTimestamp") else {}),
        },
        "spec": pod_spec, "status": phase,
    })


def reserve_pod_of(item: Json) -> PodInfo | None:
    """Return the reserve pod of a Reservation, or None if its template is not a pod."""
    try:
        return reserve_pod(item)
    except ValueError:
        return None


def _priority(labels: Json) -> int:
    try:
        return int(labels[SUB_PRIORITY_LABEL])
    except (KeyError, ValueError):
        return _UNPREEMPTABLE


def _resized(pod_spec: dict[str, Any], status: Json) -> dict[str, Any]:
    """Return a template's spec with the allocated amounts as its requests, where they differ."""
    requests = PodInfo.of({"metadata": {"name": "template"}, "spec": pod_spec}).requests
    given = resource_list(status, "allocatable", "status")
    if given == requests:
        return pod_spec
    spec = {key: value for key, value in pod_spec.items() if key not in ("overhead", "resources")}
    for containers in ("containers", "initContainers"):
        if spec.get(containers):
            spec[containers] = [{key: value for key, value in each.items() if key != "resources"}
                                for each in spec[containers]]
    amounts = written({**requests, **given})
    spec["containers"] = [*spec["containers"],
                          {"name": _FAKE_CONTAINER, "resources": {"requests": amounts, "limits": amounts}}]
    return spec


def written(amounts: Mapping[str, int]) -> dict[str, str]:
    """Return canonical amounts as Kubernetes quantities."""
    return {
        name: str(Quantity(amount, -3) if name == "cpu" else Quantity(
            amount, 0, QuantityFormat.BINARY if "memory" in name or "storage" in name else QuantityFormat.DECIMAL))
        for name, amount in amounts.items()
    }


# Owners


def matches_owners(pod: PodInfo, owners: Any) -> bool:
    """Return whether a pod matches a Reservation's owners: any entry, and all parts of that entry.

    Raises:
        ValueError: a selector cannot be read.
    """
    return any(_is_owner(pod, owner) for owner in owners or ())


def _is_owner(pod: PodInfo, owner: Json) -> bool:
    metadata = pod.object["metadata"]
    required = owner.get("object")
    if required is not None and not _agrees(required, {
        "uid": pod.uid, "name": pod.name, "namespace": pod.namespace,
        "apiVersion": pod.object.get("apiVersion") or "v1",
    }):
        return False
    controller = owner.get("controller")
    if controller is not None:
        if (controller.get("namespace") or pod.namespace) != pod.namespace:
            return False
        fields = ("uid", "name", "kind", "apiVersion", "controller")
        if not any(
            _agrees(controller, {name: reference.get(name) for name in fields})
            for reference in metadata.get("ownerReferences") or ()
        ):
            return False
    return matches_labels(owner.get("labelSelector"), metadata.get("labels") or {})


def _agrees(required: Json, found: Json) -> bool:
    """Return whether a non-empty requirement is met."""
    return all(required.get(name) in (None, "") or required[name] == value for name, value in found.items())


def _owners_problem(owners: Any) -> str:
    if not isinstance(owners, list) or not all(isinstance(owner, Mapping) for owner in owners):
        return "`spec.owners` must be a list of objects"
    try:
        for owner in owners:
            check_selector(owner.get("labelSelector"))
    except (ValueError, TypeError, AttributeError) as error:
        return f"`spec.owners`: {error}"
    return ""


# Placed reservations


@dataclass(frozen=True, slots=True, eq=False)
class ReservationInfo:
    """A placed reservation, or a pod that acts as one; amounts in canonical units.

    Everything is derived from the object once; only `consumers` changes afterwards.
    """

    uid: str
    name: str
    node: str
    pod: PodInfo
    """The reserve pod, or the pod that acts as the reservation."""
    object: Json
    allocatable: ResourceList
    resource_names: tuple[str, ...]
    """The names of the reserved resources, sorted."""
    reserved: ResourceList = field(default_factory=ResourceList)
    """The part that no pod may use."""
    owners: tuple[Json, ...] = ()
    parse_error: str = ""
    allocate_once: bool = True
    policy: str = ""
    """`Aligned`, `Restricted`, or empty for the default one."""
    order: int = 0
    """Lower is used first; 0 means no order."""
    is_available: bool = False
    is_taken: bool = False
    """True if it is allocated to a pod that is not among the consumers."""
    unschedulable: bool = False
    taints: tuple[Json, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    consumers: Mapping[str, PodInfo] = field(default_factory=lambda: _NONE)
    """The pods that use the reservation, by key; replaced when they change."""

    @property
    def is_matchable(self) -> bool:
        """True if further pods may use it."""
        return self.is_available and not self.parse_error and not self.is_taken and not (
            self.allocate_once and self.consumers
        )

    def allocated(self, row: NodeRow | None = None) -> ResourceList:
        """Return the requests of its consumers; with a node's row, only of those on that node."""
        total = ResourceList()
        for pod in self.consumers_on(row):
            for name in self.resource_names:
                if name in pod.requests:
                    total[name] += pod.requests[name]
        return total

    def consumers_on(self, row: NodeRow | None = None) -> tuple[PodInfo, ...]:
        """Return its consumers; with a node's row, only those on that node."""
        if not self.consumers:
            return ()
        return tuple(pod for key, pod in self.consumers.items() if row is None or key in row.pods)

    def left(self, row: NodeRow | None = None) -> ResourceList:
        """Return the unused amounts, at least 0."""
        allocated = self.allocated(row)
        return ResourceList({
            name: max(0, amount - allocated[name] - self.reserved[name]) for name, amount in self.allocatable.items()
        })

    def remaining(self, row: NodeRow | None = None) -> PodInfo:
        """Return the reserve pod with the unused amounts as its only requests."""
        allocated = self.allocated(row)
        left = {name: max(0, amount - allocated[name]) for name, amount in self.pod.requests.items()}
        container = {"name": _FAKE_CONTAINER, "resources": {"requests": written(left)}}
        spec = {key: value for key, value in self.pod.object["spec"].items()
                if key not in ("initContainers", "overhead", "resources")}
        ports = [port for each in spec["containers"] for port in each.get("ports") or ()]
        spec["containers"] = [{**container, "ports": ports} if ports else container]
        return PodInfo.of({**self.pod.object, "spec": spec}).on(self.pod.node_name)

    @staticmethod
    def of(item: Json, consumers: Mapping[str, PodInfo] = _NONE) -> ReservationInfo:
        """Read a Reservation.

        Raises:
            ValueError: an amount or the template cannot be read; the message begins with the field's path.
        """
        metadata, spec, status = mapping_at(item, "metadata"), item.get("spec") or {}, item.get("status") or {}
        pod = reserve_pod(item)
        available = status.get("phase") == AVAILABLE
        allocatable = pod.requests
        if available and status.get("allocatable"):
            allocatable = resource_list(status, "allocatable", "status")
        annotations = _annotations(item)
        owners = spec.get("owners") or []
        problem = _owners_problem(owners)
        reserved = ResourceList()
        try:
            reserved = resource_list(_json(annotations, NODE_RESERVATION_ANNOTATION), "resources", "resources")
            restricted = _json(annotations, RESTRICTED_OPTIONS).get("resources") or ()
        except ValueError as error:
            problem, restricted = problem or str(error), ()
        policy = spec.get("allocatePolicy") or ""
        names = tuple(sorted(allocatable))
        if policy == RESTRICTED:
            names = tuple(name for name in names if name in restricted) or names
        once = spec.get("allocateOnce")
        return ReservationInfo(
            uid=pod.uid, name=metadata["name"], node=status.get("nodeName") or "", pod=pod, object=item,
            allocatable=allocatable, resource_names=names, reserved=reserved,
            owners=() if problem else tuple(owners), parse_error=problem,
            allocate_once=True if once is None else bool(once), policy="" if policy == "Default" else policy,
            order=_order(metadata), is_available=available and bool(status.get("nodeName")),
            unschedulable=bool(spec.get("unschedulable")), taints=tuple(spec.get("taints") or ()),
            labels=metadata.get("labels") or {}, consumers=consumers,
        )

    @staticmethod
    def of_operating_pod(pod: PodInfo, consumers: Mapping[str, PodInfo] = _NONE) -> ReservationInfo:
        """Read a pod that acts as a reservation: used once, aligned, by the owners that its annotation names."""
        problem, owners = "", []
        try:
            owners = json.loads(_annotations(pod.object).get(OWNERS) or "[]")
            problem = _owners_problem(owners)
        except ValueError as error:
            problem = f"annotation `{OWNERS}` is not JSON: {parse_fault(error)}"
        return ReservationInfo(
            uid=pod.uid or pod.key, name=pod.name, node=pod.node_name, pod=pod, object=pod.object,
            allocatable=pod.requests, resource_names=tuple(sorted(pod.requests)),
            owners=() if problem else tuple(owners), parse_error=problem, allocate_once=True, policy=ALIGNED,
            order=_order(pod.object["metadata"]), is_available=bool(pod.node_name),
            is_taken=bool(_annotations(pod.object).get(CURRENT_OWNER)),
            labels=pod.object["metadata"].get("labels") or {}, consumers=consumers,
        )


def is_operating_pod(pod: PodInfo) -> bool:
    """Return whether a pod acts as a reservation."""
    return (pod.object["metadata"].get("labels") or {}).get(OPERATING_MODE) == "Reservation"


def allocated_uid(item: Json) -> str:
    """Return the uid of the reservation that a pod object records; empty for none."""
    try:
        uid = _json(_annotations(item), RESERVATION_ALLOCATED_ANNOTATION).get("uid")
    except ValueError:
        return ""
    return uid if isinstance(uid, str) else ""


def _order(metadata: Json) -> int:
    try:
        return int((metadata.get("labels") or {}).get(ORDER) or 0)
    except ValueError:
        return 0


def _annotations(item: Json) -> Json:
    found: Json = (item.get("metadata") or {}).get("annotations") or {}
    return found


def _json(annotations: Json, name: str) -> Json:
    text = annotations.get(name)
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"annotation `{name}` is not JSON: {parse_fault(error)}") from None
    if not isinstance(found, Mapping):
        raise ValueError(f"annotation `{name}` must hold an object")  # noqa: TRY004 - one kind of complaint
    return found


# Reservations as pods of the queue and of nodes


class ReservePods:
    """Keeps reserve pods in sync with their Reservations and consumers.

    A Reservation without a node has a pending pod if its scheduler is one of `ours`; an available one has a pod on the
    node; an ended or malformed one has none. The pod on the node requests the unused rest of the reservation, since the
    consumers are on the node themselves. `upsert` and `delete` change the cluster; updates that follow from changed
    pods are applied through these too.
    """

    def __init__(
        self, upsert: Callable[[Json], None], delete: Callable[[str], None],
        ours: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._upsert = upsert
        self._delete = delete
        self._ours = ours
        self._infos: dict[str, ReservationInfo] = {}
        self._pods: dict[str, PodInfo] = {}
        self._names: dict[str, str] = {}
        self._consumers: dict[str, dict[str, PodInfo]] = {}

    def on_event(self, event: Event) -> None:
        """Apply a change of a Reservation or a pod."""
        if event.kind == "Reservation":
            self._changed(event.key, event.new)
        elif event.kind == "Pod":
            before = "" if event.old_pod is None or not event.old_pod.node_name else allocated_uid(event.old_pod.object)
            after = "" if event.new_pod is None or not event.new_pod.node_name else allocated_uid(event.new_pod.object)
            if before and before != after:
                self._consumers.get(before, {}).pop(event.key, None)
                self._fit(before)
            if after and event.new_pod is not None:
                self._consumers.setdefault(after, {})[event.key] = event.new_pod
                self._fit(after)

    def _changed(self, name: str, item: Json | None) -> None:
        info = None if item is None else self._required(item)
        old = self._pods.get(name)
        if old is not None and (info is None or _is_another(old, info.pod)):
            # A pod with another uid or node replaces the old one, whose state must be dropped.
            del self._pods[name], self._infos[name]
            self._names.pop(old.uid, None)
            self._delete(old.key)
        if info is not None:
            self._infos[name] = info
            self._names[info.uid] = name
            self._fit(info.uid)

    def _required(self, item: Json) -> ReservationInfo | None:
        status = item.get("status") or {}
        if status.get("phase") in ENDED:
            return None
        try:
            info = ReservationInfo.of(item)
        except ValueError:
            return None  # an unreadable reservation reserves nothing
        if status.get("nodeName"):
            return info if status.get("phase") == AVAILABLE else None
        scheduler = str((info.pod.object.get("spec") or {}).get("schedulerName", ""))
        return info if not problem_of(item) and self._ours(scheduler) else None

    def _fit(self, uid: str) -> None:
        """Set the requests of a reserve pod to the unused rest of its reservation."""
        name = self._names.get(uid)
        if name is None:
            if not self._consumers.get(uid):
                self._consumers.pop(uid, None)
            return
        info, consumers = self._infos[name], self._consumers.get(uid, {})
        pod = replace(info, consumers=consumers).remaining() if consumers and info.pod.node_name else info.pod
        known = self._pods.get(name)
        if known is None or known.object != pod.object:
            self._pods[name] = pod
            self._upsert(pod.object)


def _is_another(old: PodInfo, new: PodInfo) -> bool:
    return old.key != new.key or (old.node_name != new.node_name and bool(old.node_name))


def follow(cluster: Cluster, ours: Callable[[str], bool] = lambda _: True) -> None:
    """Maintain the reserve pods of a cluster's Reservations in the cluster itself, from now on.

    `ours` returns whether a scheduler's Reservations are scheduled here.
    """
    pods = ReservePods(cluster.upsert, lambda key: cluster.delete("Pod", key), ours)
    cluster.listen(pods.on_event)
    for kind in ("Pod", "Reservation"):
        for key, item in list(cluster.objects(kind).items()):
            pods.on_event(Event(kind, key, None, item, None, cluster.pod(key) if kind == "Pod" else None))
