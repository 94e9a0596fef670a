"""NodeNUMAResource's PreBind: the annotations that record an allocation and the bind policy that was applied."""

from __future__ import annotations

from typing import Any

from koordpolicy.engine.kubernetes.vocabulary import RESOURCE_SPEC_ANNOTATION, RESOURCE_STATUS_ANNOTATION

from ..allocation.annotations import annotations_of, json_object, write_annotation
from .cache import CpuGrant
from .numa_request import DEFAULT_BIND_POLICY


def record_allocation(item: dict[str, Any], grant: CpuGrant) -> None:
    """Write an allocation into the annotations of a pod or Reservation, and the bind policy where it names none."""
    annotations = annotations_of(item)
    if grant.binding:
        policy, must = grant.bind_policy
        try:
            spec = dict(json_object(annotations, RESOURCE_SPEC_ANNOTATION))
        except ValueError:
            spec = {}
        before = dict(spec)
        if must and spec.get("requiredCPUBindPolicy", "") in ("", DEFAULT_BIND_POLICY):
            spec["requiredCPUBindPolicy"] = policy
        if spec.get("preferredCPUBindPolicy") == DEFAULT_BIND_POLICY:
            spec["preferredCPUBindPolicy"] = policy
        if not spec.get("requiredCPUBindPolicy") and not spec.get("preferredCPUBindPolicy") and policy:
            spec["preferredCPUBindPolicy"] = policy
        if spec != before:
            write_annotation(item, RESOURCE_SPEC_ANNOTATION, spec)
    write_annotation(item, RESOURCE_STATUS_ANNOTATION, grant.held.status())
