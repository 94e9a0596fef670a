"""The requests that servers make to an API server, as the permissions that they need: the shipped roles are made of it.

A test runs the scheduler with these roles only (tests/e2e/test_permissions.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordpolicy.engine.client.permissions import REVIEWS, Permission, lease, rules
from koordpolicy.engine.client.resources import BY_KIND, RESOURCES
from koordpolicy.engine.framework.registry import Plugin

__all__ = ["BINDING", "EXTENDER", "REVIEWS", "SCHEDULER", "Permission", "lease", "of_plugins", "rules"]

_READS: Final = tuple(
    Permission(each.group, each.plural, ("list", "watch"), "the state of the cluster") for each in RESOURCES)
_KOORDINATOR: Final = "scheduling.koordinator.sh"
_SIGS: Final = "scheduling.sigs.k8s.io"

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


def of_plugins(plugins: Iterable[Plugin]) -> tuple[Permission, ...]:
    """Return the permissions that plugins require by what they declare, and that `SCHEDULER` does not have."""
    granted = {(each.group, each.resource, verb) for each in SCHEDULER for verb in each.verbs}
    found: dict[tuple[str, str, str], Permission] = {}
    for plugin in plugins:
        for own in filter(None, (read.resource for read in plugin.reads)):
            if (own.group, own.plural, "list") not in granted:
                found.setdefault((own.group, own.plural, "list"), Permission(
                    own.group, own.plural, ("list", "watch"), f"the plugin {plugin.name}"))
        for write in plugin.patches:
            resource = BY_KIND.get(write.kind)
            for path in sorted(write.fields) if resource is not None else ():
                assert resource is not None
                name = f"{resource.plural}/status" if path[0] == "status" else resource.plural
                right = resource.group, name, "patch"
                if right not in granted:
                    found.setdefault(right, Permission(resource.group, name, ("patch",), f"the plugin {plugin.name}"))
    return tuple(found.values())
