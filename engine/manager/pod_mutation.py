"""The mutation of pods on their creation: ClusterColocationProfiles, resource names of bands, and their annotation."""

from __future__ import annotations

import copy
import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.selectors import check_selector, matches_labels
from koordpolicy.engine.kubernetes.vocabulary import (
    BATCH,
    BATCH_CPU,
    BATCH_MEMORY,
    EXTENDED_RESOURCE_SPEC_ANNOTATION,
    MID,
    QOS_CLASS_LABEL,
    SUB_PRIORITY_LABEL,
    priority_band,
    resource_name,
)

from .admission import AdmissionRefusal
from .strategic_merge import strategic_merge

_LOG: Final = logging.getLogger(__name__)

SKIP_RESOURCES: Final = "config.koordinator.sh/skip-update-resources"
"""A label or annotation of a profile: the resources of the pods that it matches keep their names."""
_TRANSLATED: Final = ("cpu", "memory")


def mutated_pod(
    pod: Mapping[str, Any], profiles: Iterable[Mapping[str, Any]], namespace_labels: Mapping[str, str],
    priority_class: Callable[[str], Mapping[str, Any] | None], *, chance: Callable[[], int] | None = None,
) -> dict[str, Any]:
    """Return the pod as profiles want it; the given one stays as it is.

    `priority_class` returns the PriorityClass of a name; `chance` numbers from 0 to 99.

    Raises:
        AdmissionRefusal: a profile names a PriorityClass that there is not.
        ValueError: an amount of the pod cannot be read.
    """
    found: dict[str, Any] = copy.deepcopy(dict(pod))
    matching = sorted((each for each in profiles if _matches(each, found, namespace_labels)), key=_name)
    draw = chance or (lambda: random.randrange(100))  # noqa: S311 - a canary's share
    for profile in matching:
        if draw() < _percent(profile):
            found = _with_profile(found, profile.get("spec") or {}, priority_class)
    if matching and not any(_skips_resources(each) for each in matching):
        _translate(found)
    _annotate(found)
    return found


def _name(profile: Mapping[str, Any]) -> str:
    return str((profile.get("metadata") or {}).get("name") or "")


def _matches(profile: Mapping[str, Any], pod: Mapping[str, Any], namespace_labels: Mapping[str, str]) -> bool:
    """Return whether a profile selects a pod; one whose selectors cannot be read does, as in Koordinator."""
    spec = profile.get("spec") or {}
    labels = (pod.get("metadata") or {}).get("labels") or {}
    try:
        for selector, held in ((spec.get("namespaceSelector"), namespace_labels), (spec.get("selector"), labels)):
            check_selector(selector)
            if not matches_labels(selector, held):
                return False
    except (ValueError, TypeError, AttributeError) as error:
        _LOG.warning("a selector of the ClusterColocationProfile %s is invalid, so it selects all pods: %s",
                     _name(profile), error)
    return True


def _percent(profile: Mapping[str, Any]) -> float:
    value = (profile.get("spec") or {}).get("probability")
    if value is None:
        return 100.0
    try:
        return float(str(value).strip().removesuffix("%"))
    except ValueError:
        _LOG.warning("the probability of the ClusterColocationProfile %s is no percentage: it applies always",
                     _name(profile))
        return 100.0


def _skips_resources(profile: Mapping[str, Any]) -> bool:
    metadata = profile.get("metadata") or {}
    return any(SKIP_RESOURCES in (metadata.get(field) or {}) for field in ("labels", "annotations"))


def _with_profile(
    pod: dict[str, Any], spec: Mapping[str, Any], priority_class: Callable[[str], Mapping[str, Any] | None],
) -> dict[str, Any]:
    metadata, pod_spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    labels = dict(metadata.get("labels") or {})
    annotations = dict(metadata.get("annotations") or {})
    labels.update(spec.get("labels") or {})
    annotations.update(spec.get("annotations") or {})
    for held, mapping in ((labels, "labelKeysMapping"), (annotations, "annotationKeysMapping")):
        for old, new in (spec.get(mapping) or {}).items():
            held[new] = held.get(old, "")
    for key, suffix in (spec.get("labelSuffixes") or {}).items():
        if key in labels:
            labels[key] += suffix
    if spec.get("schedulerName"):
        pod_spec["schedulerName"] = spec["schedulerName"]
    if spec.get("qosClass"):
        labels[QOS_CLASS_LABEL] = spec["qosClass"]
    name = spec.get("priorityClassName")
    if name:
        found = priority_class(name)
        if found is None:
            raise AdmissionRefusal(f"there is no PriorityClass `{name}`, which a ClusterColocationProfile names", 500)
        pod_spec["priorityClassName"], pod_spec["priority"] = name, found.get("value", 0)
        if found.get("preemptionPolicy"):
            pod_spec["preemptionPolicy"] = found["preemptionPolicy"]
    if spec.get("koordinatorPriority") is not None:
        labels[SUB_PRIORITY_LABEL] = str(spec["koordinatorPriority"])
    for field, held in (("labels", labels), ("annotations", annotations)):
        if held or field in metadata:
            metadata[field] = held
    patch = spec.get("patch")
    if not isinstance(patch, Mapping):
        return pod
    merged: dict[str, Any] = strategic_merge(pod, patch)
    return merged


def _translate(pod: dict[str, Any]) -> None:
    """Rename cpu and memory of a mid or batch pod; what has a limit and no request requests the limit."""
    band = priority_band(pod)
    if band not in (BATCH, MID):
        return
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = dict(container.get("resources") or {})
        for field in ("requests", "limits"):
            if resources.get(field):
                resources[field] = _renamed(resources[field], band)
        for name in map(lambda each: resource_name(each, band), _TRANSLATED):  # noqa: C417 - names of the band
            limit = (resources.get("limits") or {}).get(name)
            if limit is not None and name not in (resources.get("requests") or {}):
                resources["requests"] = {**(resources.get("requests") or {}), name: limit}
        if resources:
            container["resources"] = resources
    if spec.get("overhead"):
        spec["overhead"] = _renamed(spec["overhead"], band)


def _renamed(amounts: Mapping[str, Any], band: str) -> dict[str, Any]:
    found = {name: amount for name, amount in amounts.items() if name not in _TRANSLATED}
    for name in _TRANSLATED:
        if name in amounts:
            amount = amounts[name]
            found[resource_name(name, band)] = str(Quantity.parse(str(amount)).milli) if name == "cpu" else amount
    return found


def _annotate(pod: dict[str, Any]) -> None:
    """Write the batch resources of the containers into an annotation, which runtime hooks read."""
    containers: dict[str, Any] = {}
    for container in (pod.get("spec") or {}).get("containers") or ():
        resources = container.get("resources") or {}
        held = {field: amounts for field in ("requests", "limits") if (amounts := {
            name: str((resources.get(field) or {})[name]) for name in (BATCH_CPU, BATCH_MEMORY)
            if name in (resources.get(field) or {})})}
        if held:
            containers[str(container.get("name"))] = held
    if containers:
        metadata = pod.setdefault("metadata", {})
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}),
            EXTENDED_RESOURCE_SPEC_ANNOTATION: json.dumps({"containers": containers}, separators=(",", ":"))}
