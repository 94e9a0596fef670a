"""Topology spread constraints: those of pods, the defaults for pods without any, and their selectors."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.pod_affinity import HOSTNAME, merge_label_keys
from koordpolicy.engine.kubernetes.selectors import Json, check_selector, matches_labels

from ...allocation.strict_args import integer, listed, nested, read_args, text, texts

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
SCHEDULE_ANYWAY: Final = "ScheduleAnyway"
HONOR: Final = "Honor"
IGNORE: Final = "Ignore"
SYSTEM_CONSTRAINTS: Final[Sequence[Json]] = (
    {"topologyKey": HOSTNAME, "whenUnsatisfiable": SCHEDULE_ANYWAY, "maxSkew": 3},
    {"topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": SCHEDULE_ANYWAY, "maxSkew": 5},
)
"""Kubernetes' default constraints for pods without their own."""

_LIST: Final = "List"
_SYSTEM: Final = "System"
_KINDS: Final = ("Service", "ReplicationController", "ReplicaSet", "StatefulSet")
_MOST_KNOWN: Final = 4_096
_OWNERS: Final = {"ReplicationController": "v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint, with its defaults; `selector` None matches no pod."""

    max_skew: int
    topology_key: str
    selector: Json | None
    min_domains: int = 1
    honors_affinity: bool = True
    honors_taints: bool = False
    text: str = field(default="", compare=False)
    """The identity of the selector."""

    def counts(self, labels: Mapping[str, str]) -> bool:
        """Return whether pods with those labels are counted: a selector that matches all counts none (as in
        kube-scheduler).
        """
        return not _takes_everything(self.selector) and matches_labels(self.selector, labels, absent=False)

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether the selector matches a pod with those labels."""
        return matches_labels(self.selector, labels, absent=False)


def _takes_everything(selector: Json | None) -> bool:
    return selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions")


def constraints_of(given: Sequence[Json], labels: Mapping[str, str], action: str) -> tuple[Constraint, ...]:
    """Return the constraints with that `whenUnsatisfiable`, of a pod with those labels.

    Raises:
        ValueError: a constraint is malformed.
    """
    try:
        return tuple(_constraint(each, labels) for each in given if each["whenUnsatisfiable"] == action)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("`spec.topologySpreadConstraints` is malformed") from None


def _constraint(given: Json, labels: Mapping[str, str]) -> Constraint:
    selector = merge_label_keys(given.get("labelSelector"), given.get("matchLabelKeys") or (), "In", labels)
    check_selector(selector)
    return Constraint(
        int(given["maxSkew"]), str(given["topologyKey"]), selector, int(given.get("minDomains") or 1),
        (given.get("nodeAffinityPolicy") or HONOR) == HONOR, (given.get("nodeTaintsPolicy") or IGNORE) == HONOR,
        repr(selector),
    )


# Arguments


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises `ValueError` with the fault and the field's path."""
    constraint = nested({
        "maxSkew": integer, "topologyKey": text, "whenUnsatisfiable": text, "labelSelector": _no_selector,
        "minDomains": integer, "nodeAffinityPolicy": text, "nodeTaintsPolicy": text, "matchLabelKeys": texts,
    })
    given = read_args(args, "PodTopologySpreadArgs", {
        "defaultConstraints": listed(constraint), "defaultingType": text,
    })
    kind = given.get("defaultingType") or _SYSTEM
    constraints = given.get("defaultConstraints") or []
    if kind not in (_SYSTEM, _LIST):
        raise ValueError(f"`defaultingType` is `{kind}`: choose one of {_SYSTEM}, {_LIST}")
    if kind == _SYSTEM and constraints:
        raise ValueError(f"`defaultConstraints` must be left out where `defaultingType` is {_SYSTEM}: write {_LIST}")
    if faults := list(_faults(constraints)):
        raise ValueError("; ".join(faults))
    return {"defaultingType": kind, "defaultConstraints": constraints}


def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the valid v1 arguments without effect, with the reasons."""
    constraints = args.get("defaultConstraints") or ()
    return {f"defaultConstraints[{index}].matchLabelKeys":
            "as in kube-scheduler, the selector of a default constraint is that of the pod's services and owner"
            for index in range(len(constraints))}


def _faults(constraints: Sequence[Json]) -> Iterator[str]:
    seen: set[tuple[str, str]] = set()
    for index, each in enumerate(constraints):
        path = f"defaultConstraints[{index}]"
        if each.get("maxSkew", 0) <= 0:
            yield f"`{path}.maxSkew` is {each.get('maxSkew', 0)}: not in valid range (0, inf)"
        if not each.get("topologyKey"):
            yield f"`{path}.topologyKey` is missing"
        action = each.get("whenUnsatisfiable", "")
        if action not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY):
            yield f"`{path}.whenUnsatisfiable` is `{action}`: choose one of {DO_NOT_SCHEDULE}, {SCHEDULE_ANYWAY}"
        for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            if each.get(name, HONOR) not in (HONOR, IGNORE):
                yield f"`{path}.{name}` is `{each[name]}`: choose one of {HONOR}, {IGNORE}"
        if each.get("minDomains", 1) <= 0:
            yield f"`{path}.minDomains` is {each['minDomains']}: not in valid range (0, inf)"
        elif "minDomains" in each and action != DO_NOT_SCHEDULE:
            yield f"`{path}.minDomains` must be left out where `whenUnsatisfiable` is not {DO_NOT_SCHEDULE}"
        pair = each.get("topologyKey", ""), action
        if pair in seen:
            yield f"`{path}`: `{pair[0]}` with {pair[1]} is there already"
        seen.add(pair)


def _no_selector(_value: Any, path: str) -> Any:
    raise ValueError(f"`{path}`: a default constraint must not have a selector, which is deduced for each pod")


# The selectors of pods without constraints of their own


class DefaultSelectors:
    """The selectors of a pod's services and of its owning controller."""

    def __init__(self) -> None:
        self._services: dict[str, list[Mapping[str, str]]] = {}
        self._known: dict[Hashable, tuple[Json | None, str]] = {}
        self._versions: Hashable = None

    def of(self, pod: PodInfo, snapshot: Snapshot) -> tuple[Json | None, str]:
        """Return the combined selector and its identity; None if the pod has neither services nor an owner."""
        versions = (snapshot.cluster, *(snapshot.version_of(kind) for kind in _KINDS))
        if versions != self._versions or len(self._known) >= _MOST_KNOWN:
            self._versions = versions
            self._known.clear()
            self._services = _services_by_namespace(snapshot)
        metadata = pod.object["metadata"]
        owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
        labels: Mapping[str, str] = metadata.get("labels") or {}
        whose = owner and (owner.get("kind"), owner.get("apiVersion"), owner.get("name"))
        key = (pod.namespace, tuple(labels.items()), whose)
        found = self._known.get(key)
        if found is None:
            selector = self._selector(pod.namespace, labels, owner, snapshot)
            found = self._known[key] = (selector, repr(selector))
        return found

    def _selector(
        self, namespace: str, labels: Mapping[str, str], owner: Json | None, snapshot: Snapshot,
    ) -> Json | None:
        match_labels: dict[str, str] = {}
        for selector in self._services.get(namespace, ()):
            if all(labels.get(key) == value for key, value in selector.items()):
                match_labels.update(selector)
        expressions: list[Json] = []
        if owner is not None and _OWNERS.get(owner.get("kind", "")) == owner.get("apiVersion"):
            item = snapshot.object(owner["kind"], f"{namespace}/{owner.get('name')}")
            owned: Mapping[str, Any] = (item.get("spec") or {}).get("selector") or {} if item is not None else {}
            if owner["kind"] == "ReplicationController":
                match_labels.update(owned)
            else:
                # All requirements must match, even if a service's selector contradicts them.
                expressions = [*({"key": key, "operator": "In", "values": [value]}
                                 for key, value in (owned.get("matchLabels") or {}).items()),
                               *(owned.get("matchExpressions") or ())]
        return {"matchLabels": match_labels, "matchExpressions": expressions} if match_labels or expressions else None


def _services_by_namespace(snapshot: Snapshot) -> dict[str, list[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = {}
    for item in snapshot.objects("Service").values():
        selector = (item.get("spec") or {}).get("selector")
        if selector:
            found.setdefault(item["metadata"].get("namespace") or "default", []).append(selector)
    return found
