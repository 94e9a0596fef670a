"""The subjects of collection: pods, containers and host applications, with the directories of their control groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar

from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.kubernetes.vocabulary import BATCH_CPU, BE

from ..host.control_groups import TIER_OF_QOS, ControlGroups, container_ids

_LOG: Final = logging.getLogger(__name__)
_ENDED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class MeasuredGroup:
    """A pod, container or host application whose control group is measured.

    `identity` tells it from others of its name: the UID of a pod, the id of a container with its runtime
    (`containerd://ID`). `directory` is relative to the root of each hierarchy. The NodeSLO gives host applications
    a QoS and a priority class.
    """

    what: str
    name: str
    identity: str
    directory: str
    qos_class: str = ""
    priority_class: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredGroups:
    """All subjects of a node. `batch_cpu` is the sum of the requests of best-effort pods, in milli-cores."""

    pods: tuple[MeasuredGroup, ...] = ()
    containers: tuple[MeasuredGroup, ...] = ()
    applications: tuple[MeasuredGroup, ...] = ()
    batch_cpu: int = 0

    def with_pods(self, groups: ControlGroups, pods: Iterable[PodInfo]) -> MeasuredGroups:
        """Return subjects with these pods, of which those that have ended are left out."""
        of_pods, of_containers, batch_cpu = [], [], 0
        for pod in pods:
            if pod.qos_class == BE:
                batch_cpu += _batch_cpu(pod)
            if (pod.object.get("status") or {}).get("phase") in _ENDED or not pod.uid:
                continue
            tier = TIER_OF_QOS[pod.kubernetes_qos]
            of_pods.append(MeasuredGroup("pod", pod.key, pod.uid, groups.pod(tier, pod.uid)))
            for name, each in container_ids(pod.object).items():
                directory = groups.container(tier, pod.uid, each)
                of_containers.append(
                    MeasuredGroup("container", f"{pod.key}/{name}", f"{each.runtime}://{each.id}", directory))
        return replace(self, pods=tuple(of_pods), containers=tuple(of_containers), batch_cpu=batch_cpu)

    def with_applications(self, groups: ControlGroups, declared: Iterable[Mapping[str, Any]]) -> MeasuredGroups:
        """Return subjects with the host applications that a NodeSLO declares; malformed ones are logged."""
        found = []
        for each in declared:
            try:
                directory = groups.application(each)
                found.append(MeasuredGroup(
                    "application", str(each["name"]), directory, directory,
                    str(each.get("qos") or ""), str(each.get("priority") or "")))
            except (ValueError, AttributeError) as error:
                _LOG.warning("a host application is not measured: %s", error)
        return replace(self, applications=tuple(found))

    def stale(self, now: MeasuredGroups) -> Iterable[MeasuredGroup]:
        """Return the subjects that are not among those of now, or have become others of the same name."""
        current = {(each.what, each.name): each.identity for each in now.all()}
        return (each for each in self.all() if current.get((each.what, each.name)) != each.identity)

    def all(self) -> tuple[MeasuredGroup, ...]:
        """Return all subjects."""
        return (*self.pods, *self.containers, *self.applications)


def _batch_cpu(pod: PodInfo) -> int:
    """Return the sum of what a pod's containers and sidecars request of batch CPU, in milli-cores."""
    spec = pod.object.get("spec") or {}
    sidecars = (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    total = 0
    for container in (*(spec.get("containers") or ()), *sidecars):
        requested = ((container.get("resources") or {}).get("requests") or {}).get(BATCH_CPU)
        if requested is not None:
            total += max(canonical_amount(BATCH_CPU, requested, BATCH_CPU), 0)
    return total


P = TypeVar("P")


class Probes(Generic[P]):
    """A collector's own state of each subject: made once, kept while the subject is the same."""

    def __init__(self, make: Callable[[MeasuredGroup], P]) -> None:
        self._make = make
        self._subjects: tuple[MeasuredGroup, ...] | None = None
        self._probes: dict[MeasuredGroup, P] = {}
        self._list: list[P] = []

    def of(self, subjects: tuple[MeasuredGroup, ...]) -> list[P]:
        """Return the probes of these subjects, in their order."""
        if subjects is not self._subjects:
            known = self._probes
            self._probes = {each: known[each] if each in known else self._make(each) for each in subjects}
            self._list = list(self._probes.values())
            self._subjects = subjects
        return self._list


Subjects: TypeAlias = tuple[MeasuredGroup, ...]
T = TypeVar("T")
R = TypeVar("R", bound="Rows")


class Rows:
    """A collector's own state of all subjects of a kind, in lists with a place for each of them."""

    __slots__ = ("_places", "names", "subjects")

    def __init__(self, subjects: Subjects, before: Rows | None) -> None:
        """State of subjects that are also in `before` is carried over."""
        self.subjects = subjects
        self.names = tuple(each.name for each in subjects)
        places = {} if before is None else {each: place for place, each in enumerate(before.subjects)}
        self._places: list[int | None] = [places.get(each) for each in subjects]

    def carried_over(self, before: list[T] | None, new: T) -> list[T]:
        """Return a list of the state before for the subjects of now, with `new` for those that are new."""
        if before is None:
            return [new] * len(self.subjects)
        return [new if place is None else before[place] for place in self._places]


class RowsOf(Generic[R]):
    """Rebuilds the rows when the subjects change."""

    def __init__(self, make: Callable[[Subjects, R | None], R]) -> None:
        self._make = make
        self._rows: R | None = None

    def of(self, subjects: Subjects) -> R:
        """Return the rows of these subjects."""
        if self._rows is None or self._rows.subjects is not subjects:
            self._rows = self._make(subjects, self._rows)
        return self._rows
