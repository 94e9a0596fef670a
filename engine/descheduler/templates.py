"""Pod templates: what the pods that one controller made alike have in common, so that it is examined once for all.

A cluster has many pods and few templates. A fact that depends on the template alone (a verdict of a filter, a place in
the order of eviction, the nodes that take a pod) is found for the template and looked up for its pods.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeVar

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.vocabulary import EVICTION_COST_ANNOTATION

PREFER_NO_EVICTION: Final = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
"""The annotation of pods that should go last, or never."""
EVICT: Final = "descheduler.alpha.kubernetes.io/evict"
"""The annotation by which a pod, or somebody for it, requests to be evicted."""
DELETION_COST_ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
MIRROR: Final = "kubernetes.io/config.mirror"
CONFIG_SOURCE: Final = "kubernetes.io/config.source"

_ANNOTATIONS: Final = frozenset({
    PREFER_NO_EVICTION, EVICT, DELETION_COST_ANNOTATION, MIRROR, CONFIG_SOURCE, EVICTION_COST_ANNOTATION,
})
_VOLUMES: Final = frozenset({"hostPath", "emptyDir", "persistentVolumeClaim"})
_MOST_OWNERS: Final = 65_536
_MOST_OF_OWNER: Final = 4
_NUMBERS: Final = itertools.count()
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class PodTemplate:
    """The common part of pods that agree in everything that descheduling reads, except for the following.

    These are a pod's own: name, UID, times, node, status beside its phase, annotations beside those of this module, and
    volumes beside host paths, empty directories and claims. Pods that terminate have another template than those that
    do not. Two templates may have the same content.
    """

    number: int
    """Unique in this process."""
    pod: PodInfo
    """A pod of the template, to be read in place of any of them."""
    parts: tuple[Any, ...]
    facts: dict[Callable[[PodInfo], Any], Any] = field(default_factory=dict)
    """The results of `fact_of`."""


def fact_of(pod: PodInfo, of: Callable[[PodInfo], T]) -> T:
    """Return `of` the pod, found once for all pods of its template: it must read nothing that is the pod's own."""
    template: PodTemplate = getattr(pod, "_template", None) or template_of(pod)
    facts = template.facts
    if of not in facts:
        facts[of] = of(template.pod)
    found: T = facts[of]
    return found


def template_of(pod: PodInfo) -> PodTemplate:
    """Return the pod's template, always the same one."""
    known: PodTemplate | None = getattr(pod, "_template", None)
    if known is not None:
        return known
    parts = _parts_of(pod)
    owners = pod.object["metadata"].get("ownerReferences")
    alike = _templates_of(owners[0].get("uid") or "" if owners else "")
    found = None
    for each in alike:
        if each.parts == parts:
            found = each
            break
    else:
        found = PodTemplate(next(_NUMBERS), pod, parts)
        # Pods of some owners have labels or an affinity of their own, so that the list would become long.
        alike.insert(0, found)
        del alike[_MOST_OF_OWNER:]
    object.__setattr__(pod, "_template", found)
    return found


@lru_cache(maxsize=_MOST_OWNERS)
def _templates_of(owner_uid: str) -> list[PodTemplate]:  # noqa: ARG001 - the key of the cache
    """Return the list of an owner's latest templates, which the caller extends."""
    return []


def _parts_of(pod: PodInfo) -> tuple[Any, ...]:
    item = pod.object
    metadata, spec = item["metadata"], item["spec"]
    get = spec.get
    annotations: Mapping[str, str] | None = metadata.get("annotations")
    if annotations:
        annotations = None if _ANNOTATIONS.isdisjoint(annotations) else {
            key: value for key, value in annotations.items() if key in _ANNOTATIONS}
    volumes = get("volumes")
    if volumes:
        volumes = [each for each in volumes if not _VOLUMES.isdisjoint(each)]
    status = item.get("status")
    return (
        metadata.get("deletionTimestamp") is None, status.get("phase") if status else None,
        pod.namespace, metadata.get("ownerReferences"), metadata.get("labels"), annotations or None, pod.requests,
        pod.priority, pod.priority_band, pod.qos_class, pod.kubernetes_qos, get("priority"), get("tolerations"),
        get("nodeSelector"), get("affinity"), get("topologySpreadConstraints"), get("resourceClaims"),
        [each.get("image") for each in spec["containers"]], volumes or None,
    )
