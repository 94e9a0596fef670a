"""DefaultEvictor (Kubernetes' descheduler), and the constraints of MigrationController on pods.

Both treat the annotation `descheduler.alpha.kubernetes.io/evict` as an explicit request. MigrationController keeps a
pod that is terminating already even then, unlike upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.framework import is_ready
from koordpolicy.engine.descheduler.pods import (
    AssignedPods,
    Destinations,
    NodeFit,
    annotations_of,
    labels_of,
    owners_of,
)
from koordpolicy.engine.descheduler.templates import EVICT, PREFER_NO_EVICTION, PodTemplate, template_of
from koordpolicy.engine.framework.descheduler import EvictionMode, EvictionResult, EvictOptions
from koordpolicy.engine.framework.handle import NOTHING, Client, EvictsWithOptions, Handle
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.selectors import matches_labels, parse_selector

from .args import check_default_evictor_args
from .protections import (
    CRITICAL,
    Look,
    NamedRule,
    claims_of,
    has_local_storage,
    is_mirror,
    is_of_daemon_set,
    is_static,
    is_terminating,
    phase_of,
    reads_of,
    rules_of,
)

__all__ = ["DefaultEvictor", "EvictorFilter", "check_default_evictor_args", "make_default_evictor", "reads_of"]

Json = Mapping[str, Any]


_NO_NODE: Final = Refusal("nodeFit", (
    "pod does not fit on any other node because of nodeSelector(s), Taint(s), or nodes marked as unschedulable"
))
_NOT_SELECTED: Final = Refusal("namespaceLabelSelector", (
    "pod namespace do not match the namespaceLabelSelector filter in the policy parameter"
))


def _refuse(rule: str, message: str) -> Refusal:
    return Refusal(rule, message)


class DefaultEvictor:
    """Kubernetes descheduler's evictor: its two filters, with valid arguments, and evictions by a client."""

    name = "DefaultEvictor"
    eviction_modes = frozenset({EvictionMode.EVICTION, EvictionMode.DELETE, EvictionMode.SOFT_EVICTION})

    def __init__(self, args: Json, client: Client = NOTHING) -> None:
        self._args = args
        self._client = client
        self._rules = tuple(rules_of(args))
        self._is_mandatory = args.get("noEvictionPolicy") == "Mandatory"
        self._node_fit = bool(args.get("nodeFit"))
        self._node_selector = parse_selector(args.get("nodeSelector") or "")
        selector = args.get("namespaceLabelSelector") or {}
        self._namespaces = selector if selector.get("matchLabels") or selector.get("matchExpressions") else None
        self._own_rules = tuple(each.rule for each in self._rules if not each.of_template)
        self._latest: Look | None = None
        self._verdicts: dict[PodTemplate, tuple[Refusal | None, bool]] = {}
        """By template, in the latest snapshot: the refusal without the rules about a pod's own, and if it is final."""
        self._others: tuple[Snapshot, Destinations] | None = None

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may never be evicted, or None; the message names all rules that keep it."""
        look = self._look(snapshot)
        refusal, is_final = self._verdict_of(pod, look)
        if self._own_rules and not is_final and any(rule(pod, look) for rule in self._own_rules):
            return _by(self._rules, pod, look)
        return refusal

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may not be evicted now: no other node takes it, or its namespace is not selected."""
        if self._node_fit and not self._destinations(snapshot).take(pod):
            return _NO_NODE
        return None if self._is_selected(pod.namespace, snapshot) else _NOT_SELECTED

    def passes_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> bool:
        """Return whether no pod of this one's template is refused; see `TemplateFilter`."""
        if now:
            has_room = not self._node_fit or self._destinations(snapshot).take_template(pod)
            return has_room and self._is_selected(pod.namespace, snapshot)
        refusal, is_final = self._verdict_of(pod, self._look(snapshot))
        return refusal is None and (is_final or not self._own_rules)

    def refuses_template(self, pod: PodInfo, snapshot: Snapshot, *, now: bool) -> Refusal | None:
        """Return the refusal of all pods of this one's template, or None; see `RefusesTemplates`."""
        if not now:
            refusal, is_final = self._verdict_of(pod, self._look(snapshot))
            return refusal if is_final or not self._own_rules else None
        if self._node_fit:
            destinations = self._destinations(snapshot)
            if destinations.refuse_template(pod):
                return _NO_NODE
            if not destinations.take_template(pod):
                return None
        return None if self._is_selected(pod.namespace, snapshot) else _NOT_SELECTED

    def _look(self, snapshot: Snapshot) -> Look:
        look = self._latest
        if look is None or look.snapshot is not snapshot:
            look = self._latest = Look(snapshot, AssignedPods(snapshot), _threshold(self._args, snapshot))
            self._verdicts.clear()
        return look

    def _destinations(self, snapshot: Snapshot) -> Destinations:
        if self._others is None or self._others[0] is not snapshot:
            rows = np.array(list(_ready_rows(snapshot, self._node_selector)), dtype=np.intp)
            self._others = snapshot, NodeFit(snapshot).destinations(rows)
        return self._others[1]

    def _is_selected(self, name: str, snapshot: Snapshot) -> bool:
        if self._namespaces is None:
            return True
        namespace = snapshot.object("Namespace", name)
        labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
        return namespace is not None and matches_labels(self._namespaces, labels)

    def _verdict_of(self, pod: PodInfo, look: Look) -> tuple[Refusal | None, bool]:
        template = template_of(pod)
        known = self._verdicts.get(template)
        if known is None:
            known = self._verdicts[template] = self._verdict(template, look)
        return known

    def _verdict(self, template: PodTemplate, look: Look) -> tuple[Refusal | None, bool]:
        annotations = annotations_of(template.pod)
        if EVICT in annotations:
            return None, True
        if self._is_mandatory and PREFER_NO_EVICTION in annotations:
            return _refuse("noEvictionPolicy", f"the pod carries the annotation `{PREFER_NO_EVICTION}`"), True
        return _by((each for each in self._rules if each.of_template), template.pod, look), False

    def evict(self, pod: PodInfo, reason: str) -> EvictionResult:
        """Evict the pod through the eviction subresource; see `evict_with_options`."""
        return self.evict_with_options(pod, EvictOptions(reason, "", self.name))

    def evict_with_options(self, pod: PodInfo, options: EvictOptions) -> EvictionResult:
        """Evict the pod at once; raises `OSError` if it stays, or nothing writes to the cluster."""
        if not isinstance(self._client, EvictsWithOptions):
            raise OSError("nothing writes to the cluster")
        return self._client.evict_with_options(pod, options)


def _by(rules: Iterable[NamedRule], pod: PodInfo, look: Look) -> Refusal | None:
    """Return the refusal by all of these rules that keep the pod, or None."""
    faults = {each.name: message for each in rules if (message := each.rule(pod, look))}
    return _refuse(next(iter(faults)), _aggregate(faults)) if faults else None


def _aggregate(faults: Mapping[str, str]) -> str:
    messages = list(faults.values())
    return messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"


def _threshold(args: Json, snapshot: Snapshot) -> int | None:
    """Return the priority from which pods are not evicted; None if the arguments set none."""
    given = args.get("priorityThreshold") or {}
    if given.get("name"):
        found = snapshot.object("PriorityClass", given["name"])
        if found is None:
            raise ValueError(f"there is no priority class `{given['name']}`, which `priorityThreshold` names")
        return int(found.get("value", 0))
    value = given.get("value")
    return None if value is None else int(value)


def _ready_rows(snapshot: Snapshot, selector: Json) -> Iterator[int]:
    for row in range(snapshot.size):
        node = snapshot.node(row)
        if is_ready(node) and matches_labels(selector, (node.get("metadata") or {}).get("labels") or {}):
            yield row


class EvictorFilter:
    """Koordinator's constraints on evictions, as MigrationController evaluates them."""

    name = "MigrationController"

    def __init__(self, args: Json) -> None:
        self._args = args
        self._fit: tuple[Snapshot, NodeFit] | None = None

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        if is_terminating(pod):
            return _refuse("terminating", "the pod is terminating already")
        if EVICT in annotations_of(pod):
            return None
        return self._by_kind(pod) or self._by_args(pod, snapshot)

    def _by_kind(self, pod: PodInfo) -> Refusal | None:
        if is_of_daemon_set(pod):
            return _refuse("daemonSet", "the pod belongs to a daemon set")
        if is_mirror(pod):
            return _refuse("mirror", "the pod is a mirror of a static pod")
        if is_static(pod):
            return _refuse("static", "the pod is static")
        return None

    def _by_args(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        args = self._args
        if not args.get("evictAllBarePods") and not owners_of(pod):
            if not args.get("evictFailedBarePods"):
                return _refuse("barePods", "the pod has no owner that would make it anew")
            if phase_of(pod) != "Failed":
                return _refuse("barePods", "the pod has no owner, and it did not fail")
        if not args.get("evictSystemCriticalPods"):
            if pod.priority >= CRITICAL:
                return _refuse("systemCritical", "the pod is system-critical")
            threshold = _threshold(args, snapshot)
            if threshold is not None and pod.priority >= threshold:
                return _refuse("priorityThreshold", f"its priority {pod.priority} is not below {threshold}")
        if not args.get("evictLocalStoragePods") and has_local_storage(pod):
            return _refuse("localStorage", "the pod has local storage")
        if args.get("ignorePvcPods") and claims_of(pod):
            return _refuse("volumeClaims", "the pod uses volume claims")
        if args.get("nodeFit") and not self._fits_elsewhere(pod, snapshot):
            return _refuse("nodeFit", "no other node takes the pod")
        if not matches_labels(args.get("labelSelector"), labels_of(pod)):
            return _refuse("labelSelector", "the label selector does not take the pod")
        return None

    def _fits_elsewhere(self, pod: PodInfo, snapshot: Snapshot) -> bool:
        if self._fit is None or self._fit[0] is not snapshot:
            self._fit = snapshot, NodeFit(snapshot)
        home, fit = snapshot.index.get(pod.node_name), self._fit[1]
        return any(row != home and fit.fits(pod, row) for row in _ready_rows(snapshot, {}))


def make_default_evictor(args: Json, handle: Handle) -> DefaultEvictor:
    """Make DefaultEvictor for one profile."""
    return DefaultEvictor(args, handle.client)
