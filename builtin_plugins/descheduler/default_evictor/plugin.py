"""Eviction filters: DefaultEvictor (Kubernetes' descheduler) and MigrationController's filter.

Rules are evaluated in the order in which they are listed; the first refusal is the result. Both treat the annotation
`descheduler.alpha.kubernetes.io/evict` as an explicit request. Unlike upstream, a pod that is terminating
already is never evictable, whatever its annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.pods import AssignedPods, NodeFit, annotations_of, labels_of, moment, owners_of
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.selectors import matches_labels

_EVICT: Final = "descheduler.alpha.kubernetes.io/evict"
_PREFER_NO_EVICTION: Final = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
_MIRROR: Final = "kubernetes.io/config.mirror"
_CONFIG_SOURCE: Final = "kubernetes.io/config.source"
_CRITICAL: Final = 2_000_000_000

PROTECTED_BY_DEFAULT: Final = ("PodsWithLocalStorage", "SystemCriticalPods", "FailedBarePods", "DaemonSetPods")
PROTECTED_ON_REQUEST: Final = ("PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims")
_UNPROTECTING: Final = {
    "PodsWithLocalStorage": "evictLocalStoragePods", "SystemCriticalPods": "evictSystemCriticalPods",
    "FailedBarePods": "evictFailedBarePods", "DaemonSetPods": "evictDaemonSetPods",
}
_PROTECTING: Final = {"PodsWithPVC": "ignorePvcPods", "PodsWithoutPDB": "ignorePodsWithoutPDB"}

Json = Mapping[str, Any]


def _refuse(rule: str, message: str) -> Refusal:
    return Refusal(rule, message)


def _is_static(pod: PodInfo) -> bool:
    return annotations_of(pod).get(_CONFIG_SOURCE, "api") != "api"


def _volumes(pod: PodInfo) -> list[Json]:
    return list((pod.object.get("spec") or {}).get("volumes") or ())


def _has_local_storage(pod: PodInfo) -> bool:
    return any(each.get("hostPath") is not None or each.get("emptyDir") is not None for each in _volumes(pod))


def _claims(pod: PodInfo) -> list[str]:
    claims = (each.get("persistentVolumeClaim") for each in _volumes(pod))
    return [str(each.get("claimName", "")) for each in claims if each is not None]


def _is_of_daemon_set(pod: PodInfo) -> bool:
    return any(each.get("kind") == "DaemonSet" for each in owners_of(pod))


def _phase(pod: PodInfo) -> str:
    return str((pod.object.get("status") or {}).get("phase", ""))


def _is_terminating(pod: PodInfo) -> bool:
    return pod.object["metadata"].get("deletionTimestamp") is not None


def effective_protections(args: Json) -> frozenset[str]:
    """Return the active protections: by the lists where either is given, else by the deprecated flags."""
    lists = args.get("podProtections") or {}
    disabled, extra = lists.get("defaultDisabled") or (), lists.get("extraEnabled") or ()
    if disabled or extra:
        return frozenset(PROTECTED_BY_DEFAULT) - frozenset(disabled) | frozenset(extra)
    kept = {name for name, flag in _UNPROTECTING.items() if not args.get(flag)}
    return frozenset(kept | {name for name, flag in _PROTECTING.items() if args.get(flag)})


def check_default_evictor(args: Json) -> Iterator[str]:
    """Yield the faults of DefaultEvictor's arguments, in the words of its validation."""
    threshold = args.get("priorityThreshold") or {}
    if threshold.get("value") is not None and threshold.get("name"):
        yield "priority threshold misconfigured, only one of priorityThreshold fields can be set"
    if (threshold.get("value") or 0) > _CRITICAL:
        yield f"priority threshold can't be greater than {_CRITICAL}"
    if args.get("noEvictionPolicy", "") not in ("", "Preferred", "Mandatory"):
        yield 'noEvictionPolicy accepts only ["Preferred" "Mandatory"] values'
    lists = args.get("podProtections") or {}
    disabled, extra = list(lists.get("defaultDisabled") or ()), list(lists.get("extraEnabled") or ())
    flags = (*_UNPROTECTING.values(), *_PROTECTING.values())
    if (disabled or extra) and any(args.get(flag) for flag in flags):
        yield "cannot use Deprecated fields alongside PodProtections.ExtraEnabled or PodProtections.DefaultDisabled"
    for field, given, known in (("DefaultDisabled", disabled, PROTECTED_BY_DEFAULT),
                                ("ExtraEnabled", extra, PROTECTED_ON_REQUEST)):
        for name in given:
            if name not in known:
                valid = " ".join(known)
                yield f'invalid pod protection policy in {field}: "{name}". Valid options are: [{valid}]'
        if len(set(given)) != len(given):
            yield f"PodProtections.{field} contains duplicate entries"
    storage = ((lists.get("config") or {}).get("PodsWithPVC") or {}).get("protectedStorageClasses") or ()
    if any(not each.get("name") for each in storage):
        yield "PodProtections.Config.PodsWithPVC has a storage class without a name"
    age = args.get("minPodAge")
    if age is not None:
        try:
            parse_duration(age)
        except ValueError as error:
            yield f"minPodAge: {error}"


@dataclass(frozen=True, slots=True)
class _Look:
    """The data that the rules share for one snapshot."""

    snapshot: Snapshot
    pods: AssignedPods
    fit: NodeFit


class _Looking:
    """Caches the derived data of the latest snapshot."""

    def __init__(self) -> None:
        self._latest: _Look | None = None

    def at(self, snapshot: Snapshot) -> _Look:
        if self._latest is None or self._latest.snapshot is not snapshot:
            self._latest = _Look(snapshot, AssignedPods(snapshot), NodeFit(snapshot))
        return self._latest


class DefaultEvictor:
    """Kubernetes descheduler's evictor: its two filters. Arguments are v1alpha2, as its users write them."""

    name = "DefaultEvictor"

    def __init__(self, args: Json) -> None:
        self._args = args
        self._protections = effective_protections(args)
        self._age = parse_duration(args["minPodAge"]) if args.get("minPodAge") else None
        self._looking = _Looking()

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        annotations = annotations_of(pod)
        if _is_terminating(pod):
            return _refuse("terminating", "the pod is terminating already")
        if _EVICT in annotations:
            return None
        if self._args.get("noEvictionPolicy") == "Mandatory" and _PREFER_NO_EVICTION in annotations:
            return _refuse("noEvictionPolicy", f"the pod carries the annotation `{_PREFER_NO_EVICTION}`")
        return self._by_kind(pod) or self._by_protection(pod, snapshot) or self._by_args(pod, snapshot)

    def pre_eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may not be evicted now: no other node takes it, or its namespace is not selected."""
        fit, others = self._looking.at(snapshot).fit, _other_ready_nodes(pod, snapshot, self._args)
        if self._args.get("nodeFit") and not any(fit.fits_strictly(pod, row) for row in others):
            return _refuse("nodeFit", "no other node takes the pod")
        selector = self._args.get("namespaceLabelSelector") or {}
        if selector.get("matchLabels") or selector.get("matchExpressions"):
            namespace = snapshot.object("Namespace", pod.namespace)
            labels = ((namespace or {}).get("metadata") or {}).get("labels") or {}
            if namespace is None or not matches_labels(selector, labels):
                return _refuse("namespaceLabelSelector", f"namespace `{pod.namespace}` is not selected")
        return None

    def _by_kind(self, pod: PodInfo) -> Refusal | None:
        if _MIRROR in annotations_of(pod):
            return _refuse("mirror", "the pod is a mirror of a static pod")
        if _is_static(pod):
            return _refuse("static", "the pod is static")
        return None

    def _by_protection(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        rules: Mapping[str, Callable[[PodInfo, Snapshot], str]] = {
            "SystemCriticalPods": self._critical, "PodsWithLocalStorage": _local_storage,
            "DaemonSetPods": _daemon_set, "PodsWithPVC": self._claimed, "PodsWithoutPDB": _without_budget,
            "PodsWithResourceClaims": _resource_claims,
        }
        for name, rule in rules.items():
            if name in self._protections and (message := rule(pod, snapshot)):
                return _refuse(name, message)
        if not owners_of(pod):
            if "FailedBarePods" in self._protections:
                return _refuse("FailedBarePods", "the pod has no owner that would make it anew")
            if _phase(pod) != "Failed":
                return _refuse("FailedBarePods", "the pod has no owner, and it did not fail")
        return None

    def _critical(self, pod: PodInfo, snapshot: Snapshot) -> str:
        if pod.priority >= _CRITICAL:
            return "the pod is system-critical"
        threshold = _threshold(self._args, snapshot)
        if threshold is not None and (pod.object["spec"].get("priority") is not None) and pod.priority >= threshold:
            return f"its priority {pod.priority} is not below {threshold}"
        return ""

    def _claimed(self, pod: PodInfo, snapshot: Snapshot) -> str:
        config = ((self._args.get("podProtections") or {}).get("config") or {}).get("PodsWithPVC") or {}
        protected = {each.get("name") for each in config.get("protectedStorageClasses") or ()}
        for name in _claims(pod):
            if not protected:
                return f"the pod uses the volume claim `{name}`"
            claim = snapshot.object("PersistentVolumeClaim", f"{pod.namespace}/{name}")
            storage = ((claim or {}).get("spec") or {}).get("storageClassName")
            if not storage:
                return f"the storage class of the volume claim `{name}` is not known"
            if storage in protected:
                return f"the volume claim `{name}` is of the protected storage class `{storage}`"
        return ""

    def _by_args(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        selector = self._args.get("labelSelector") or {}
        if (selector.get("matchLabels") or selector.get("matchExpressions")) and not matches_labels(
            selector, labels_of(pod),
        ):
            return _refuse("labelSelector", "the label selector does not take the pod")
        least, owners = self._args.get("minReplicas") or 0, owners_of(pod)
        if least > 1 and len(owners) == 1:
            count = self._looking.at(snapshot).pods.replicas(str(owners[0].get("uid", "")))
            if count < least:
                return _refuse("minReplicas", f"its owner has {count} pods, fewer than {least}")
        if self._age is not None:
            started = (pod.object.get("status") or {}).get("startTime")
            if not started or snapshot.now - moment(started) < self._age:
                return _refuse("minPodAge", f"the pod is younger than {self._args['minPodAge']}")
        return None


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


def _local_storage(pod: PodInfo, _: Snapshot) -> str:
    return "the pod has local storage" if _has_local_storage(pod) else ""


def _daemon_set(pod: PodInfo, _: Snapshot) -> str:
    return "the pod belongs to a daemon set" if _is_of_daemon_set(pod) else ""


def _resource_claims(pod: PodInfo, _: Snapshot) -> str:
    return "the pod has resource claims" if (pod.object.get("spec") or {}).get("resourceClaims") else ""


def _without_budget(pod: PodInfo, snapshot: Snapshot) -> str:
    for budget in snapshot.objects("PodDisruptionBudget").values():
        if (budget["metadata"].get("namespace") or "default") == pod.namespace and matches_labels(
            (budget.get("spec") or {}).get("selector"), labels_of(pod), absent=False,
        ):
            return ""
    return "no disruption budget selects the pod"


def _other_ready_nodes(pod: PodInfo, snapshot: Snapshot, args: Json) -> Iterator[int]:
    selectors = _simple_selector(str(args.get("nodeSelector") or ""))
    for row, name in enumerate(snapshot.names):
        node = snapshot.node(row)
        labels = (node.get("metadata") or {}).get("labels") or {}
        if name != pod.node_name and is_ready(node) and all(matches(labels) for matches in selectors):
            yield row


def is_ready(node: Json) -> bool:
    """Return whether no condition reports the node as not ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


def _simple_selector(text: str) -> list[Callable[[Mapping[str, str]], bool]]:
    """Parse a selector written as `a=b,c!=d,e,!f`."""

    def one(part: str) -> Callable[[Mapping[str, str]], bool]:
        if "!=" in part:
            key, _, value = part.partition("!=")
            return lambda labels: labels.get(key.strip()) != value.strip()
        if "=" in part:
            key, _, value = part.partition("=")
            return lambda labels: labels.get(key.strip()) == value.lstrip("=").strip()
        if part.startswith("!"):
            return lambda labels: part[1:].strip() not in labels
        return lambda labels: part in labels

    return [one(part.strip()) for part in text.split(",") if part.strip()]


class EvictorFilter:
    """Koordinator's constraints on evictions, as MigrationController evaluates them."""

    name = "MigrationController"

    def __init__(self, args: Json) -> None:
        self._args = args
        self._looking = _Looking()

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        if _is_terminating(pod):
            return _refuse("terminating", "the pod is terminating already")
        if _EVICT in annotations_of(pod):
            return None
        return self._by_kind(pod) or self._by_args(pod, snapshot)

    def _by_kind(self, pod: PodInfo) -> Refusal | None:
        if _is_of_daemon_set(pod):
            return _refuse("daemonSet", "the pod belongs to a daemon set")
        if _MIRROR in annotations_of(pod):
            return _refuse("mirror", "the pod is a mirror of a static pod")
        if _is_static(pod):
            return _refuse("static", "the pod is static")
        return None

    def _by_args(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        args = self._args
        if not args.get("evictAllBarePods") and not owners_of(pod):
            if not args.get("evictFailedBarePods"):
                return _refuse("barePods", "the pod has no owner that would make it anew")
            if _phase(pod) != "Failed":
                return _refuse("barePods", "the pod has no owner, and it did not fail")
        if not args.get("evictSystemCriticalPods"):
            if pod.priority >= _CRITICAL:
                return _refuse("systemCritical", "the pod is system-critical")
            threshold = _threshold(args, snapshot)
            if threshold is not None and pod.priority >= threshold:
                return _refuse("priorityThreshold", f"its priority {pod.priority} is not below {threshold}")
        if not args.get("evictLocalStoragePods") and _has_local_storage(pod):
            return _refuse("localStorage", "the pod has local storage")
        if args.get("ignorePvcPods") and _claims(pod):
            return _refuse("volumeClaims", "the pod uses volume claims")
        if args.get("nodeFit") and not any(
            self._looking.at(snapshot).fit.fits(pod, row) for row in _other_ready_nodes(pod, snapshot, {})
        ):
            return _refuse("nodeFit", "no other node takes the pod")
        if not matches_labels(args.get("labelSelector"), labels_of(pod)):
            return _refuse("labelSelector", "the label selector does not take the pod")
        return None


class MigrationController(EvictorFilter):
    """Koordinator's evictor, the base of its filter on pods; it does not check whether another node fits the pod.

    Its migration jobs, their limits and their arbitration are not available yet: it takes part in dry runs.
    """

    def __init__(self, args: Json) -> None:
        super().__init__({**args, "nodeFit": False})
        namespaces = args.get("namespaces") or {}
        self._included = frozenset(namespaces.get("include") or ())
        self._excluded = frozenset(namespaces.get("exclude") or ())

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod may never be evicted, or None."""
        if (self._included and pod.namespace not in self._included) or pod.namespace in self._excluded:
            return _refuse("namespaces", f"namespace `{pod.namespace}` is not evictable")
        return super().eviction_filter(pod, snapshot)


def make_default_evictor(args: Json, handle: object) -> DefaultEvictor:  # noqa: ARG001 - factories take a handle
    """Make DefaultEvictor for one profile."""
    return DefaultEvictor(args)


def check_default_evictor_args(args: Json) -> Json:
    """Return DefaultEvictor's arguments; raise `ValueError` with all faults."""
    faults = list(check_default_evictor(args))
    if faults:
        raise ValueError("; ".join(faults))
    return args


def make_migration_controller(args: Json, handle: object) -> MigrationController:  # noqa: ARG001 - see above
    """Make MigrationController's filter for one profile."""
    return MigrationController(args)
