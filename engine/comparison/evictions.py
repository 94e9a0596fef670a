"""Evictions that policies would make, and the descheduler's dry cycle with its proofs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler import config as descheduling
from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.descheduler.proof.prove import Proving
from koordpolicy.engine.descheduler.proof.verdicts import EvictionProof
from koordpolicy.engine.descheduler.results import CycleResult, EvictionOutcome
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings

from .placements import SchedulerPlacements


@dataclass(frozen=True, slots=True)
class PredictedEviction:
    """A pod that would be evicted, with the framework (`descheduler`, `qos`, or `scheduler` for a preemption), plugin,
    rule and reason.

    `proof` says whether it helps; None for other frameworks than the descheduler.
    """

    pod: str
    node: str
    framework: str
    plugin: str
    rule: str
    reason: str
    proof: EvictionProof | None = None


class _Settled(SourceStreaks):
    """A history in which every source has been the same for any duration."""

    def observe(
        self, profile: str, item: str, node: str, *, source: bool, now: int, timeout: int,  # noqa: ARG002 - the base's
    ) -> int:
        """Return the cycles in a row."""
        return 2**31 if source else 0


@contextmanager
def proving_of(
    registry: Registry, cluster: Cluster, settings: Settings | None, clock: Callable[[], int],
) -> Iterator[Proving | None]:
    """Return the means to prove evictions, valid in the block: these profiles, and a budget without a clock.

    As for other proofs, ties are broken at random, so that a pod that may come back by luck is known to. None without
    settings. `clock` returns the time of the cluster, in ns since the epoch.
    """
    if settings is None:
        yield None
        return
    placements = SchedulerPlacements(Scheduler(
        cluster, Live(registry), replace(settings, tie_break="random"), clock=clock,
    ))
    try:
        yield Proving(placements, clock=lambda: 0.0)
    finally:
        placements.close()


def dry_cycle(
    registry: Registry, snapshot: Snapshot, configuration: descheduling.DeschedulerConfiguration | None, cycles: int,
    proving: Proving | None,
) -> CycleResult:
    """Return the last of `cycles` dry cycles over a snapshot, whose sources have been the same for any duration."""
    result = CycleResult(registry.generation, dry_run=True, nodes=snapshot.size)
    if not registry.of_framework(Framework.DESCHEDULER):
        return result
    configuration = configuration or descheduling.default()
    profiles = build_profiles(
        configuration.profiles, registry, dry_run=True, snapshot=lambda: snapshot, memory=_Settled(),
    )
    if not any(profile.deschedule or profile.balance for profile in profiles):
        return result
    for _ in range(cycles):
        result = run_cycle(profiles, snapshot, limits=configuration.limits, generation=registry.generation,
                           node_selector=configuration.node_selector, proving=proving)
    return result


def evictions_of(cycle: CycleResult) -> tuple[PredictedEviction, ...]:
    """Return the evictions that a cycle would make."""
    return tuple(_predicted(each) for each in cycle.evicted)


def useless_of(cycle: CycleResult) -> tuple[PredictedEviction, ...]:
    """Return the evictions that only their proof stopped, of pods that nothing else evicts."""
    return tuple(_predicted(each) for each in cycle.useless)


def _predicted(outcome: EvictionOutcome) -> PredictedEviction:
    pod, node, of = outcome
    return PredictedEviction(pod, node, Framework.DESCHEDULER.value, of.plugin, of.rule, of.reason, of.proof)
