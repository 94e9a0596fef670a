"""The active profiles of a live descheduler: made of the active policies and the active configuration together.

A plugin whose document and arguments did not change keeps its state. If vetted profiles cannot be made after all, the
previous ones stay active, and the fault is reported until the next change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.kinds import FieldSets, Read, fields_read, with_whole
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.handle import Client, Handle
from koordpolicy.engine.framework.instances import Instances
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import PolicyError

from ..config import DeschedulerConfiguration
from ..documents import SourceStreaks
from ..profile import DeschedulerProfile, RunningPlugin, build_profiles

_LOG: Final = logging.getLogger(__name__)

OWN_READS: Final = (Read("PodDisruptionBudget", refines=True),)
"""The kinds that evictions read besides those of plugins: the budgets that protect a pod."""


@dataclass(frozen=True, slots=True)
class ActiveProfiles:
    """The profiles that cycles run, with the policies and the configuration that they are made of."""

    registry: Registry
    configuration: DeschedulerConfiguration
    profiles: tuple[DeschedulerProfile, ...]

    @property
    def plugins(self) -> tuple[RunningPlugin, ...]:
        """All plugins of all profiles, each as often as it is active."""
        return tuple(plugin for profile in self.profiles for plugin in profile.plugins)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of objects that decisions are made of."""
        return frozenset({"Node", "Pod"}).union(read.kind for plugin in self.plugins for read in plugin.reads)


class ProfileActivator:
    """Makes the profiles; `check` may be called in any thread, all else in the descheduler's."""

    def __init__(
        self, live: Live, configuration: Callable[[], DeschedulerConfiguration], *,
        snapshot: Callable[[], Snapshot], client: Client,
    ) -> None:
        """`configuration` returns the newest valid one; `snapshot` and `client` are those of the plugins' handles."""
        self.fault = ""
        """Why the newest policies and configuration are not active; empty if they are."""
        self._live = live
        self._configuration = configuration
        self._snapshot = snapshot
        self._client = client
        self._memory = SourceStreaks()
        self._instances = Instances(self._handle)
        self._tried: tuple[Registry, DeschedulerConfiguration] | None = None
        """The policies and the configuration that were tried last."""

    def check(self, registry: Registry, configuration: DeschedulerConfiguration) -> tuple[DeschedulerProfile, ...]:
        """Make the profiles as a check, and return them; their plugins are already closed.

        Raises:
            PolicyError: they cannot be made.
        """
        instances = Instances(self._handle)
        try:
            with instances.adopting(registry) as adoption:
                return build_profiles(configuration.profiles, registry, dry_run=configuration.dry_run,
                                      snapshot=self._snapshot, client=self._client, make=adoption.get)
        finally:
            instances.close()

    def activate(self, active: ActiveProfiles | None) -> ActiveProfiles:
        """Return the profiles of the newest policies and configuration; `active` if neither has changed.

        Raises:
            PolicyError: they cannot be made, and there are no previous ones.
        """
        registry, configuration = self._live.registry, self._configuration()
        if active is not None and self._tried is not None and (
                registry is self._tried[0] and configuration is self._tried[1]):
            return active
        self._tried = registry, configuration
        try:
            with self._instances.adopting(registry) as adoption:
                profiles = build_profiles(
                    configuration.profiles, registry, dry_run=configuration.dry_run, snapshot=self._snapshot,
                    memory=self._memory, make=adoption.get)
        except PolicyError as error:
            if active is None:
                raise
            self.fault = "; ".join(problem.message for problem in error.problems)
            _LOG.error("the previous profiles stay active, as new ones cannot be made: %s", self.fault)
            return active
        self.fault = ""
        return ActiveProfiles(registry, configuration, profiles)

    def close(self) -> None:
        """Close all plugins."""
        self._instances.close()

    def _handle(self, profile: str, plugin: str) -> Any:
        log = logging.getLogger(f"koordpolicy.descheduler.{profile}")
        del plugin
        return Handle(profile, self._snapshot, lambda: self._snapshot().now, log, client=self._client)


def reads_of(*made: tuple[DeschedulerProfile, ...], others: Iterable[Read] = ()) -> FieldSets:
    """Return the fields of each kind that the plugins of these profiles, evictions and `others` read."""
    reads = [read for profiles in made for profile in profiles for plugin in profile.plugins
             for read in with_whole(plugin.reads)]
    return fields_read([*reads, *OWN_READS, *others])
