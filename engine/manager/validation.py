"""The validation of pods and ElasticQuotas: combinations that the node agent and the scheduler could not honour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.explanation import listed
from koordpolicy.engine.kubernetes.metadata import labels_of
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH,
    BATCH_CPU,
    BATCH_MEMORY,
    BE,
    FREE,
    LSE,
    LSR,
    MID,
    PRIORITY_CLASS_LABEL,
    PROD,
    QOS_CLASS_LABEL,
    QUOTA_NAME_LABEL,
    SUB_PRIORITY_LABEL,
    raw_priority_band,
    raw_qos_class,
)

from .admission import AdmissionRefusal

_FORBIDDEN: Final[Mapping[str, tuple[str, ...]]] = {BE: ("", PROD), LSR: ("", MID, BATCH, FREE)}
_PROTECTED_QUOTAS: Final = (
    "koordinator-system-quota", "koordinator-root-quota", "koordinator-default-quota")
_PARENT_LABEL: Final = "quota.scheduling.koordinator.sh/parent"
_IS_PARENT_LABEL: Final = "quota.scheduling.koordinator.sh/is-parent"
_ENDED: Final = ("Succeeded", "Failed")
_NAMED: Final = 2
"""The pods or quotas that a refusal names."""


def check_pod(pod: Mapping[str, Any], old: Mapping[str, Any], quota: Callable[[str], Mapping[str, Any] | None]) -> None:
    """Raise `AdmissionRefusal` for a pod that is not admitted; `old` is empty on its creation.

    `quota` returns the ElasticQuota of a name, or None.
    """
    if old:
        _check_unchanged(pod, old)
    qos, band = raw_qos_class(pod), raw_priority_band(pod)
    if qos != BE and any(_requests(pod, name) for name in (BATCH_CPU, BATCH_MEMORY)):
        raise AdmissionRefusal("must specify koordinator QoS BE with koordinator colocation resources")
    if band in _FORBIDDEN.get(qos, ()):
        raise AdmissionRefusal(f"{QOS_CLASS_LABEL}={qos} and priorityClass={band} cannot be used in combination")
    if qos in (LSE, LSR):
        _check_cores(pod, qos)
    if not old:
        _check_quota(pod, quota)


def _check_unchanged(pod: Mapping[str, Any], old: Mapping[str, Any]) -> None:
    for field, before, now in (
        (f"labels[{QOS_CLASS_LABEL}]", raw_qos_class(old), raw_qos_class(pod)),
        (f"labels[{PRIORITY_CLASS_LABEL}]", raw_priority_band(old), raw_priority_band(pod)),
        (f"labels[{SUB_PRIORITY_LABEL}]", *(labels_of(each).get(SUB_PRIORITY_LABEL) for each in (old, pod))),
    ):
        if before != now:
            raise AdmissionRefusal(
                f"metadata.{field}: Invalid value: {now or ''!r}: field is immutable (it was {before or ''!r})")


def _check_cores(pod: Mapping[str, Any], qos: str) -> None:
    spec = pod.get("spec") or {}
    total = 0
    for container in spec.get("containers") or ():
        total += Quantity.parse(str(((container.get("resources") or {}).get("requests") or {}).get("cpu", "0"))).milli
    if total == 0:
        raise AdmissionRefusal(f"{qos} Pod must declare the requested CPUs")
    if total % 1000:
        raise AdmissionRefusal(f"the requested CPUs of {qos} Pod must be integer")


def _check_quota(pod: Mapping[str, Any], quota: Callable[[str], Mapping[str, Any] | None]) -> None:
    name = labels_of(pod).get(QUOTA_NAME_LABEL)
    found = quota(name) if name else None
    if found is not None and labels_of(found).get(_IS_PARENT_LABEL) == "true":
        raise AdmissionRefusal(f"quota {name} is a parent quota group, pods cannot be in it")


def _requests(pod: Mapping[str, Any], name: str) -> bool:
    spec = pod.get("spec") or {}
    return any(name in ((container.get("resources") or {}).get(field) or {})
               for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
               for field in ("requests", "limits"))


def check_quota(item: Mapping[str, Any]) -> None:
    """Raise `AdmissionRefusal` for an ElasticQuota whose amounts contradict each other.

    Raises:
        ValueError: a quantity cannot be read.
    """
    spec = item.get("spec") or {}
    amounts = {field: {name: Quantity.parse(str(amount)) for name, amount in (spec.get(field) or {}).items()}
               for field in ("min", "max")}
    name = (item.get("metadata") or {}).get("name")
    for field, held in amounts.items():
        for resource, amount in held.items():
            if amount.sign < 0:
                raise AdmissionRefusal(f"{name} quota.Spec.{field}'s value < 0, in dimensions :[{resource}]")
    for resource, amount in amounts["min"].items():
        if resource not in amounts["max"] or amounts["max"][resource] < amount:
            raise AdmissionRefusal(f"{name} min > max, in dimensions :[{resource}]")


def check_quota_deletion(
    name: str, quotas: Sequence[Mapping[str, Any]], pods: Sequence[PodInfo],
) -> None:
    """Raise `AdmissionRefusal` if a quota may not be deleted: it is a built-in one, or has children or pods."""
    if name in _PROTECTED_QUOTAS:
        raise AdmissionRefusal(f"invalid quota {name}: it cannot be deleted")
    children = sorted(str((each.get("metadata") or {}).get("name")) for each in quotas
                      if labels_of(each).get(_PARENT_LABEL) == name)
    if children:
        raise AdmissionRefusal(
            f"delete quota failed, quota {name} has {len(children)} child quotas: {listed(children, _NAMED)}")
    running = [pod.name for pod in pods if (pod.object.get("status") or {}).get("phase") not in _ENDED]
    if running:
        raise AdmissionRefusal(
            f"delete quota failed, quota {name} has {len(running)} child pods: {listed(running, _NAMED)}")
