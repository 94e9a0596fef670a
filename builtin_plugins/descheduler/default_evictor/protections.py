"""The rules of DefaultEvictor: each returns why it keeps a pod, in the words of Kubernetes' descheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.pods import AssignedPods, budgets_of, moment
from koordpolicy.engine.descheduler.templates import CONFIG_SOURCE, MIRROR
from koordpolicy.engine.documents import format_duration, parse_duration
from koordpolicy.engine.kubernetes.selectors import matches_labels

Json = Mapping[str, Any]

CRITICAL: Final = 2_000_000_000
PROTECTED_BY_DEFAULT: Final = ("PodsWithLocalStorage", "SystemCriticalPods", "FailedBarePods", "DaemonSetPods")
PROTECTED_ON_REQUEST: Final = ("PodsWithPVC", "PodsWithoutPDB", "PodsWithResourceClaims")
UNPROTECTING: Final = {
    "PodsWithLocalStorage": "evictLocalStoragePods", "SystemCriticalPods": "evictSystemCriticalPods",
    "FailedBarePods": "evictFailedBarePods", "DaemonSetPods": "evictDaemonSetPods",
}
"""The deprecated arguments that turn a protection off."""
PROTECTING: Final = {"PodsWithPVC": "ignorePvcPods", "PodsWithoutPDB": "ignorePodsWithoutPDB"}
"""The deprecated arguments that turn a protection on."""


@dataclass(frozen=True, slots=True)
class Look:
    """The data of one snapshot that rules read."""

    snapshot: Snapshot
    pods: AssignedPods
    threshold: int | None
    """The priority from which pods stay; None if the arguments set none."""


Rule: TypeAlias = Callable[[PodInfo, Look], str]
"""Returns why the pod stays; empty if it may go."""


def effective_protections(args: Json) -> frozenset[str]:
    """Return the active protections: by the lists where either is given, else by the deprecated flags."""
    lists = args.get("podProtections") or {}
    disabled, extra = lists.get("defaultDisabled") or (), lists.get("extraEnabled") or ()
    if disabled or extra:
        return frozenset(PROTECTED_BY_DEFAULT) - frozenset(disabled) | frozenset(extra)
    protections = {name for name, flag in UNPROTECTING.items() if not args.get(flag)}
    return frozenset(protections | {name for name, flag in PROTECTING.items() if args.get(flag)})


class NamedRule(NamedTuple):
    """A rule with its name."""

    name: str
    rule: Rule
    of_template: bool = True
    """True if the result is the same for all pods of a template; False if it depends on a pod's times."""


def rules_of(args: Json) -> Iterator[NamedRule]:
    """Yield the rules of valid arguments, in the order of Kubernetes' descheduler."""
    active = effective_protections(args)
    yield NamedRule("mirror", _mirror)
    yield NamedRule("static", _static)
    yield NamedRule("terminating", _terminating)
    if "SystemCriticalPods" in active:
        yield NamedRule("SystemCriticalPods", _critical)
        if args.get("priorityThreshold"):
            yield NamedRule("priorityThreshold", _above_threshold)
    yield NamedRule("FailedBarePods", _bare if "FailedBarePods" in active else _bare_and_not_failed)
    if "PodsWithLocalStorage" in active:
        yield NamedRule("PodsWithLocalStorage", _local_storage)
    if "DaemonSetPods" in active:
        yield NamedRule("DaemonSetPods", _daemon_set)
    if "PodsWithPVC" in active:
        config = ((args.get("podProtections") or {}).get("config") or {}).get("PodsWithPVC") or {}
        classes = frozenset(each.get("name", "") for each in config.get("protectedStorageClasses") or ())
        yield NamedRule("PodsWithPVC", _of_storage_class(classes) if classes else _claimed)
    if "PodsWithoutPDB" in active:
        yield NamedRule("PodsWithoutPDB", _without_budget)
    if "PodsWithResourceClaims" in active:
        yield NamedRule("PodsWithResourceClaims", _resource_claims)
    selector = args.get("labelSelector") or {}
    if selector.get("matchLabels") or selector.get("matchExpressions"):
        yield NamedRule("labelSelector", _unselected(selector))
    least = args.get("minReplicas") or 0
    if least > 1:
        yield NamedRule("minReplicas", _few_replicas(least))
    if args.get("minPodAge") is not None:
        yield NamedRule("minPodAge", _young(parse_duration(args["minPodAge"])), of_template=False)


def reads_of(args: Json) -> tuple[Read, ...]:
    """Return the kinds besides nodes and pods that filters with these arguments read."""
    protections = args.get("podProtections") or {}
    classes = ((protections.get("config") or {}).get("PodsWithPVC") or {}).get("protectedStorageClasses")
    selector = args.get("namespaceLabelSelector") or {}
    active = effective_protections(args)
    kinds = {
        "PriorityClass": (args.get("priorityThreshold") or {}).get("name"),
        "Namespace": selector.get("matchLabels") or selector.get("matchExpressions"),
        "PodDisruptionBudget": "PodsWithoutPDB" in active,
        "PersistentVolumeClaim": classes and "PodsWithPVC" in active,
    }
    return tuple(Read(kind) for kind, is_read in kinds.items() if is_read)


def is_mirror(pod: PodInfo) -> bool:
    """Return whether the pod is the mirror of a static pod."""
    return MIRROR in (pod.object["metadata"].get("annotations") or ())


def is_static(pod: PodInfo) -> bool:
    """Return whether the kubelet has the pod from elsewhere than the API server."""
    annotations = pod.object["metadata"].get("annotations")
    return bool(annotations) and annotations.get(CONFIG_SOURCE, "api") != "api"


def is_terminating(pod: PodInfo) -> bool:
    """Return whether the pod is being deleted."""
    return pod.object["metadata"].get("deletionTimestamp") is not None


def is_of_daemon_set(pod: PodInfo) -> bool:
    """Return whether an owner of the pod is a daemon set."""
    return any(each.get("kind") == "DaemonSet" for each in pod.object["metadata"].get("ownerReferences") or ())


def has_local_storage(pod: PodInfo) -> bool:
    """Return whether the pod has a hostPath or an emptyDir volume."""
    return any(
        each.get("hostPath") is not None or each.get("emptyDir") is not None
        for each in pod.object["spec"].get("volumes") or ()
    )


def claims_of(pod: PodInfo) -> list[str]:
    """Return the names of the volume claims of the pod."""
    volumes = pod.object["spec"].get("volumes") or ()
    claims = (each.get("persistentVolumeClaim") for each in volumes)
    return [str(each.get("claimName", "")) for each in claims if each is not None]


def phase_of(pod: PodInfo) -> str:
    """Return the pod's phase; empty if it has none."""
    return str((pod.object.get("status") or {}).get("phase") or "")


def _mirror(pod: PodInfo, _: Look) -> str:
    return "pod is a mirror pod" if is_mirror(pod) else ""


def _static(pod: PodInfo, _: Look) -> str:
    return "pod is a static pod" if is_static(pod) else ""


def _terminating(pod: PodInfo, _: Look) -> str:
    return "pod is terminating" if is_terminating(pod) else ""


def _critical(pod: PodInfo, _: Look) -> str:
    return "pod has system critical priority and is protected against eviction" if pod.priority >= CRITICAL else ""


def _above_threshold(pod: PodInfo, look: Look) -> str:
    priority = pod.object["spec"].get("priority")
    if look.threshold is None or priority is None or priority < look.threshold:
        return ""
    return "pod has higher priority than specified priority class threshold"


def _bare(pod: PodInfo, _: Look) -> str:
    return "" if pod.object["metadata"].get("ownerReferences") else "pod does not have any ownerRefs"


def _bare_and_not_failed(pod: PodInfo, look: Look) -> str:
    message = _bare(pod, look)
    return f"{message} and is not in failed phase" if message and phase_of(pod) != "Failed" else ""


def _local_storage(pod: PodInfo, _: Look) -> str:
    return "pod has local storage and is protected against eviction" if has_local_storage(pod) else ""


def _daemon_set(pod: PodInfo, _: Look) -> str:
    return "daemonset pods are protected against eviction" if is_of_daemon_set(pod) else ""


def _claimed(pod: PodInfo, _: Look) -> str:
    return "pod with PVC is protected against eviction" if claims_of(pod) else ""


def _of_storage_class(protected: frozenset[str]) -> Rule:
    def rule(pod: PodInfo, look: Look) -> str:
        used: list[str] = []
        for name in claims_of(pod):
            claim = look.snapshot.object("PersistentVolumeClaim", f"{pod.namespace}/{name}")
            if claim is None:
                return (
                    f'failed to get persistent volume claim "{pod.namespace}"/"{name}": persistentvolumeclaim "{name}" '
                    "not found"
                )
            storage = (claim.get("spec") or {}).get("storageClassName")
            if not storage:
                return f'failed to resolve storage class for pod "{pod.namespace}"/"{name}"'
            used.append(storage)
        found = next((storage for storage in used if storage in protected), None)
        return "" if found is None else f'pod using protected storage class "{found}"'

    return rule


def _without_budget(pod: PodInfo, look: Look) -> str:
    if budgets_of(pod.object, look.snapshot.cluster):
        return ""
    return "pod does not have a PodDisruptionBudget and is protected against eviction"


def _resource_claims(pod: PodInfo, _: Look) -> str:
    if not pod.object["spec"].get("resourceClaims"):
        return ""
    return "pod has ResourceClaims and descheduler is configured to protect ResourceClaims pods"


def _unselected(selector: Json) -> Rule:
    def rule(pod: PodInfo, _: Look) -> str:
        if matches_labels(selector, pod.object["metadata"].get("labels") or {}):
            return ""
        return "pod labels do not match the labelSelector filter in the policy parameter"

    return rule


def _few_replicas(least: int) -> Rule:
    def rule(pod: PodInfo, look: Look) -> str:
        owners = pod.object["metadata"].get("ownerReferences") or []
        if len(owners) != 1:
            return ""
        count = look.pods.replicas(str(owners[0].get("uid", "")))
        return f"owner has {count} replicas which is less than minReplicas of {least}" if count < least else ""

    return rule


def _young(least: int) -> Rule:
    text = f"pod age is not older than MinPodAge: {format_duration(least)}"

    def rule(pod: PodInfo, look: Look) -> str:
        started = (pod.object.get("status") or {}).get("startTime")
        return text if not started or look.snapshot.now - moment(started) < least else ""

    return rule
