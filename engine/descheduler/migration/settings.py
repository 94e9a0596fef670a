"""The settings of the migration controller: the internal form of MigrationControllerArgs without its filter on pods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

RESERVATION_FIRST: Final = "ReservationFirst"
EVICT_DIRECTLY: Final = "EvictDirectly"

IntOrPercent: TypeAlias = int | str
"""A number, or a text like `10%`."""

SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ObjectLimit:
    """At most `max_migrating` evictions of one object in `duration` ns, `burst` of them at once.

    Without `max_migrating` the limit of a workload is `maxMigratingPerWorkload`, and namespaces have none.
    """

    duration: int
    max_migrating: IntOrPercent | None = None
    burst: int = 0


@dataclass(frozen=True, slots=True)
class MigrationSettings:
    """The settings of migrations. Times are in nanoseconds; a limit of 0 or None means that there is none.

    `instance` names this controller in the jobs that it creates.
    """

    default_mode: str = RESERVATION_FIRST
    default_ttl: int = 300 * SECOND
    scheduler_names: tuple[str, ...] = ("koord-scheduler",)
    max_migrating_globally: int | None = None
    max_migrating_per_node: int | None = 2
    max_migrating_per_namespace: int | None = None
    max_migrating_per_workload: IntOrPercent | None = None
    max_unavailable_per_workload: IntOrPercent | None = None
    skip_expected_replicas: bool = False
    skipped_gates: frozenset[str] = frozenset()
    object_limits: tuple[tuple[str, ObjectLimit], ...] = (("workload", ObjectLimit(300 * SECOND)),)
    eviction_policy: str = "Eviction"
    default_delete_options: Mapping[str, Any] | None = None
    arbitration: bool = True
    arbitration_interval: int = SECOND // 2
    evict_per_second: float = 10
    evict_burst: int = 1
    dry_run: bool = False
    instance: str = ""
