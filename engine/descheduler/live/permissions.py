"""The requests of a live descheduler, as the permissions that they need: the shipped role has all of them.

A test runs the descheduler with that role only (tests/e2e/test_descheduler.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from koordpolicy.engine.client.permissions import REVIEWS, Permission, lease
from koordpolicy.engine.client.resources import BY_KIND, MEASUREMENTS

from ..profile import DeschedulerProfile
from .activation import OWN_READS

_KOORDINATOR: Final = "scheduling.koordinator.sh"
_EVICT: Final = Permission("", "pods/eviction", ("create",), "to evict pods")
EVENTS: Final = (
    Permission("events.k8s.io", "events", ("create", "patch"), "events about evictions"),
    Permission("", "events", ("patch",), "the note of an event series"),
)
MIGRATIONS: Final = (
    Permission(_KOORDINATOR, "podmigrationjobs", ("get", "create", "update", "delete"), "migration jobs"),
    Permission(_KOORDINATOR, "podmigrationjobs/status", ("update",), "how far they are"),
    Permission(_KOORDINATOR, "reservations", ("get", "create", "patch", "delete"), "the new places of pods"),
    Permission("", "pods", ("get",), "pods as they are right before a reservation is made, or an answer was lost"),
)
"""Of migration jobs, besides their evictions."""
OF_PLUGINS: Final[Mapping[str, tuple[Permission, ...]]] = {
    "DefaultEvictor": (_EVICT,),
    "MigrationController": (*MIGRATIONS, _EVICT, Permission("", "pods", ("patch", "delete"), "other eviction modes")),
    "CustomPriority": (Permission("", "nodes", ("patch",), "to cordon nodes (autoCordon)"),),
    "ScaleDownBinPack": (Permission("", "pods", ("patch",), "deletion costs"),),
}
"""The writes of plugins, by name."""
_READ: Final = (
    "Node", "Pod", "Namespace", "PriorityClass", "PodDisruptionBudget", "PersistentVolumeClaim", "NodeMetric",
    "ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "CloneSet", "PodMigrationJob", "Reservation",
)
"""The kinds that the built-in plugins, the migration controller and policy documents read."""
OF_PROOFS: Final = (
    "Service", "PersistentVolume", "StorageClass", "CSINode", "CSIDriver", "CSIStorageCapacity",
)
"""Further kinds that kube-scheduler's default plugins read, by which evictions are proved."""

DESCHEDULER: Final = (
    *(Permission(BY_KIND[kind].group, BY_KIND[kind].plural, ("list", "watch"), "the state of the cluster")
      for kind in _READ),
    *(Permission(BY_KIND[kind].group, BY_KIND[kind].plural, ("list", "watch"), "proofs of evictions")
      for kind in OF_PROOFS),
    *(Permission(each.group, each.plural, each.reading, "measured utilization") for each in MEASUREMENTS),
    _EVICT,
    Permission("", "pods", ("patch", "delete"), "deletion costs; the modes SoftEviction and Delete"),
    Permission("", "nodes", ("patch",), "to cordon nodes (CustomPriority with autoCordon)"),
    *MIGRATIONS,
    *EVENTS,
    *REVIEWS,
)
"""Of the descheduler, cluster-wide, whatever its configuration is."""


MEMORY: Final = "koord-descheduler-memory"
"""The ConfigMap of the shipped deployment in which useless evictions are remembered."""
MOST_SHARDS: Final = 8
"""The most shards; the shipped role has their Leases. Each replica has the whole cluster in memory."""


def shard_names(lease_name: str, shards: int) -> tuple[str, ...]:
    """Return the names of the Leases of shards, by the name of the leader's Lease."""
    return tuple(f"{lease_name}-shard-{number}" for number in range(shards))


def of_leases(lease_name: str, shards: int) -> tuple[Permission, ...]:
    """Return the permissions in the namespace of the Lease: those for it, for the shards and for their ledger."""
    if not shards:
        return lease(lease_name)
    return (*(each for name in (lease_name, *shard_names(lease_name, shards)) for each in lease(name)),
            Permission("", "configmaps", ("create",), "the ledger of the replicas"),
            Permission("", "configmaps", ("get", "patch"), "the ledger of the replicas", lease_name))


def of_memory(name: str) -> tuple[Permission, ...]:
    """Return the permissions in the namespace of the ConfigMap in which useless evictions are remembered."""
    return (Permission("", "configmaps", ("create",), "the memory of useless evictions"),
            Permission("", "configmaps", ("get", "patch"), "the memory of useless evictions", name))


def needed(profiles: Iterable[DeschedulerProfile], *, dry_run: bool) -> tuple[Permission, ...]:
    """Return the cluster-wide permissions that these profiles need."""
    plugins = {plugin.name: plugin for profile in profiles for plugin in profile.plugins}
    found = [Permission("", plural, ("list", "watch"), "decisions") for plural in ("nodes", "pods")]
    reads = [(read, f"the plugin {name}") for name, plugin in plugins.items() for read in plugin.reads]
    for read, reader in (*reads, *((read, "evictions") for read in OWN_READS)):
        resource = BY_KIND.get(read.kind)
        if resource is not None:
            found.append(Permission(resource.group, resource.plural, resource.reading, reader))
    if not dry_run:
        found += [*EVENTS, *(each for name in plugins for each in OF_PLUGINS.get(name, ()))]
    return tuple({(each.group, each.resource, each.verbs): each for each in reversed(found)}.values())[::-1]
