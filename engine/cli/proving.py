"""The options of commands that prove evictions, and the means that they name: scheduling profiles, and the memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from koordpolicy.engine.comparison.placements import SchedulerPlacements
from koordpolicy.engine.descheduler.live.server import SchedulerOfPods
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.proof.store import FileMemoryStore
from koordpolicy.engine.descheduler.results import EvictionOutcome
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec, all_reads_of
from koordpolicy.engine.source import in_order, render

from .composition import DEFAULT_PROFILE, knows_scheduler, need_file
from .exits import Stop
from .terminal import warn
from .verdicts import names

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.descheduler.proof.memory import UselessEvictionMemory


@contextmanager
def proving(options: argparse.Namespace, registry: Registry, cluster: Cluster, now: int) -> Iterator[Proving | None]:
    """Return the means of proofs, valid in the block; None if the options name none.

    Raises:
        Stop: there is no such file, or the memory cannot be read.
        PolicyError: the configuration or the memory is not valid.
    """
    memory = None if options.memory is None else _read(Path(options.memory))
    settings = _settings(options.scheduler_config, registry)
    if settings is None:
        yield None if memory is None else Proving(memory=memory)
        return
    placements = SchedulerPlacements(Scheduler(cluster, Live(registry), settings, clock=lambda: now))
    try:
        yield Proving(placements, memory=memory)
    finally:
        placements.close()


def scheduler_of_pods(path: Path | None, live: Live) -> SchedulerOfPods:
    """Return the scheduler of a live cluster's pods by the file of `--scheduler-config` and the policies.

    Without a file kube-scheduler's default plugins are taken for those of `default-scheduler`, and for those of the
    profiles that SchedulerPlugins name.

    Raises:
        Stop: there is no such file.
        PolicyError: it is not valid.
    """
    settings = _settings(path, live.registry) or _default_settings(live.registry)
    return SchedulerOfPods(
        lambda registry: all_reads_of(settings.profiles, registry),
        lambda cluster, clock: SchedulerPlacements(Scheduler(cluster, live, settings, clock=clock)),
        assumed=path is None)


def save_memory(options: argparse.Namespace, memory: UselessEvictionMemory | None) -> None:
    """Write the memory to the file of `--memory`, if there is one.

    Raises:
        Stop: it cannot be written.
    """
    if options.memory is None or memory is None:
        return
    try:
        FileMemoryStore(Path(options.memory)).save(memory)
    except OSError as error:
        raise Stop(f"the memory cannot be written to `{options.memory}`: {_reason(error)}") from None


def warn_of_proofs(outcomes: Iterable[EvictionOutcome]) -> None:
    """Report on standard error the evictions that are made with a warning."""
    found: dict[str, list[str]] = {}
    for pod, _, decision in outcomes:
        if decision.evicted and decision.proof is not None and decision.proof.warns:
            found.setdefault(decision.proof.message, []).append(pod)
    for message, pods in found.items():
        warn(f"warning: {names(pods)} would be evicted: {message}")


def how_to_prove(option: str, policies: str) -> str:
    """Return the message for evictions that should have been proved where no scheduler is known.

    `option` takes the file of its profiles, `policies` says where SchedulerPlugins are named.
    """
    return (f"no eviction was proved: name the profiles of the pods' scheduler with `{option}`, or SchedulerPlugins "
            f"{policies}")


def _settings(path: Path | None, registry: Registry) -> Settings | None:
    """Return the settings of the scheduler; None if nothing is known of it.

    kube-scheduler chooses at random among equal nodes.
    """
    if path is not None:
        need_file(path, "`--scheduler-config` takes a KubeSchedulerConfiguration")
        found = configuration.load(path, registry)
        if found.warnings:
            warn(render(in_order(found.warnings)))
        return Settings(found.profiles, tie_break="random", foreign_pods=False)
    return _default_settings(registry) if knows_scheduler(None, registry) else None


def _default_settings(registry: Registry) -> Settings:
    """Return kube-scheduler's default plugins, for its default profile and those that policies name."""
    named = {name for each in registry.of_framework(Framework.SCHEDULER) for name in each.profiles or ()}
    profiles = (DEFAULT_PROFILE, *sorted(named - {DEFAULT_PROFILE}))
    return Settings(tuple(ProfileSpec(name) for name in profiles), tie_break="random", foreign_pods=False)


def _read(path: Path) -> UselessEvictionMemory:
    try:
        return FileMemoryStore(path).load()
    except OSError as error:
        raise Stop(f"the memory `{path}` cannot be read: {_reason(error)}") from None


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
