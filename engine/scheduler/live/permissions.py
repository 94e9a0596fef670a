"""The requests that servers make to an API server, as the permissions that they need: the shipped roles are made of it.

A test runs the scheduler with these roles only (tests/e2e/test_permissions.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.client.resources import RESOURCES


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission for requests: verbs on a resource (`pods`) or a subresource (`pods/status`), and the reason."""

    group: str
    """Empty for the core group."""
    resource: str
    verbs: tuple[str, ...]
    reason: str
    name: str = ""
    """The only object that it is for; empty for all."""


_READS: Final = tuple(
    Permission(each.group, each.plural, ("list", "watch"), "the state of the cluster") for each in RESOURCES)
_KOORDINATOR: Final = "scheduling.koordinator.sh"
_SIGS: Final = "scheduling.sigs.k8s.io"

REVIEWS: Final = (
    Permission("authentication.k8s.io", "tokenreviews", ("create",), "who reads metrics and configuration"),
    Permission("authorization.k8s.io", "subjectaccessreviews", ("create",), "whether that user may"),
)
"""For servers that authenticate readers."""

SCHEDULER: Final = (
    *_READS,
    Permission("", "pods/binding", ("create",), "to bind pods"),
    Permission("", "pods", ("get",), "to find out whether a pod was bound after all"),
    Permission("", "pods", ("patch",), "annotations that plugins write before a pod is bound"),
    Permission("", "pods", ("delete",), "to preempt pods"),
    Permission("", "pods/eviction", ("create",), "quotas that take back what was borrowed"),
    Permission("", "pods/status", ("patch",), "PodScheduled, DisruptionTarget, nominatedNodeName"),
    Permission("", "nodes", ("patch",), "the lock of a node while its devices are handed out (DeviceShare)"),
    Permission("", "persistentvolumes", ("patch",), "the claim of a volume"),
    Permission("", "persistentvolumeclaims", ("patch",), "the selected node of a claim"),
    Permission("events.k8s.io", "events", ("create", "patch"), "events"),
    Permission("", "events", ("patch",), "the note of an event series"),
    Permission(_KOORDINATOR, "reservations", ("patch", "delete"), "Reservations, and those that have expired"),
    Permission(_KOORDINATOR, "reservations/status", ("patch",), "the state of Reservations"),
    Permission(_SIGS, "podgroups", ("patch",), "the state of gangs"),
    Permission(_SIGS, "podgroups/status", ("patch",), "the same, where there is that subresource"),
    Permission(_SIGS, "elasticquotas", ("patch",), "the state of quotas"),
    Permission(_SIGS, "elasticquotas/status", ("patch",), "the same, where there is that subresource"),
    *REVIEWS,
)
"""Of the scheduler of a live cluster, cluster-wide."""

EXTENDER: Final = (*_READS, *REVIEWS)
"""Of the extender, cluster-wide."""

BINDING: Final = (Permission("", "pods/binding", ("create",), "`--bind-pods`"),)
"""Of an extender that binds, too."""


def lease(name: str) -> tuple[Permission, ...]:
    """Return the permissions for a Lease, in its namespace."""
    group = "coordination.k8s.io"
    return (Permission(group, "leases", ("create",), "leader election"),
            Permission(group, "leases", ("get", "update"), "leader election", name))


def rules(permissions: Iterable[Permission]) -> list[dict[str, Any]]:
    """Return permissions as the rules of a role; resources of a group with the same verbs share one."""
    by_resource: dict[tuple[str, str, str], list[str]] = {}
    for each in permissions:
        verbs = by_resource.setdefault((each.group, each.resource, each.name), [])
        verbs += [verb for verb in each.verbs if verb not in verbs]
    together: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for (group, resource, name), found in by_resource.items():
        together.setdefault((group, tuple(found), name), []).append(resource)
    return [
        {"apiGroups": [group], "resources": resources, **({"resourceNames": [name]} if name else {}),
         "verbs": list(verbs)} for (group, verbs, name), resources in together.items()]
