"""The requests that the manager makes to an API server, as the permissions that they need."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.client.permissions import REVIEWS, Permission

from .objects import CONFIG_MAPS, FOLLOWED

_SLO: Final = "slo.koordinator.sh"

MANAGER: Final = (
    *(Permission(each.resource.group, each.resource.plural, ("list", "watch"), "the state of the cluster")
      for each in FOLLOWED if each.resource is not CONFIG_MAPS),
    Permission(_SLO, "nodeslos", ("create", "patch", "delete"), "the strategies of each node"),
    Permission(_SLO, "nodemetrics", ("create", "patch", "delete"), "what each node reports"),
    Permission("", "nodes", ("patch",), "the annotation with the resources before others' allocations"),
    Permission("", "nodes/status", ("patch",), "batch and mid resources"),
    Permission("topology.node.k8s.io", "noderesourcetopologies", ("patch",), "batch resources of NUMA zones"),
    *REVIEWS,
)
"""Of the manager, cluster-wide."""

MANAGER_NAMESPACE: Final = (
    Permission("", "configmaps", ("list", "watch"), "slo-controller-config"),
    Permission("events.k8s.io", "events", ("create", "patch"), "faults of slo-controller-config"),
    Permission("", "events", ("patch",), "the note of an event series"),
)
"""Of the manager, in its namespace."""

_CERTIFICATES: Final = "the certificates of the webhooks"
_NAME: Final = "koord-policy-manager"

MANAGER_CERTIFICATES: Final = tuple(
    Permission("admissionregistration.k8s.io", plural, ("get", "patch"), "their authority", _NAME)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"))
"""Of a manager that makes certificates itself, cluster-wide."""


def certificate_secret(name: str) -> tuple[Permission, ...]:
    """Return the permissions for the Secret of such a manager, in its namespace."""
    return (Permission("", "secrets", ("create",), _CERTIFICATES),
            Permission("", "secrets", ("get", "patch"), _CERTIFICATES, name))
