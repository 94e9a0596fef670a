"""Time of a replay of the openb trace under each policy of the study, through the whole engine on one core.

The Go simulator's times are those of `peers.json`: BestFit 1,392 s, FGD 1,227 s. The study's whole table is 1,020 such
replays (17 workloads, 6 policies, 10 seeds); its time is estimated as if all workloads took as long as
the default one.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.sources import trace as traces
from koordpolicy.engine.experiments.frozen_heap import frozen_heap
from koordpolicy.engine.experiments.inputs import registry_of
from koordpolicy.engine.experiments.replays import STUDY, policy_of
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.fragmentation import TypicalPod, typical_pods
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.engine.scheduler.simulate import SimulationResult, simulate
from koordpolicy.engine.scheduler.trace_profile import trace_profile

from .figure import Figure, Missing

PODS_PER_SECOND = {"BestFit": 2000.0}
"""The least that a policy is meant to decide per second."""
SECONDS = {"BestFit": 3.0, "FGD": 3.0}
"""The most that a replay of the default workload with seed 42 is meant to take."""
_EXPERIMENTS = 17 * 10
_CORES = 2
_MINUTES = 45.0
_SEED = 42


def main() -> Iterator[Figure]:
    """Yield seconds and pods per second by policy over the default trace, with all figures that the study records."""
    workload, typical = default_workload()
    processor = 0.0
    for name in STUDY:
        replay = PreparedReplay.of(name, workload, typical)
        started = time.process_time()
        result = replay.run()
        processor += time.process_time() - started
        yield Figure(f"openb default, {name}: wall time", result.seconds, "s", SECONDS.get(name))
        yield Figure(
            f"openb default, {name}: decisions", result.pods_per_second, "pods/s", PODS_PER_SECOND.get(name),
            more_is_better=True,
        )
    minutes = processor * _EXPERIMENTS / _CORES / 60
    yield Figure(
        "openb, 1,020 replays on two cores, from the default workload's processor time", minutes, "min", _MINUTES,
    )


@dataclass(frozen=True, slots=True)
class PreparedReplay:
    """The default workload under one policy, compiled; every run begins with an empty cluster."""

    workload: traces.Workload
    typical: Sequence[TypicalPod]
    registry: Registry
    profile: ProfileSpec

    @classmethod
    def of(cls, name: str, workload: traces.Workload, typical: Sequence[TypicalPod]) -> PreparedReplay:
        """Return the replay under a policy of the study, or of a folder of `policies/trace`."""
        policy = policy_of(name)
        registry = registry_of(policy.texts, builtins)
        profile = trace_profile(policy.profile, typical, registry.of_framework(Framework.SCHEDULER))
        return cls(workload, typical, registry, profile)

    def run(self, clock: Callable[[], float] = time.perf_counter) -> SimulationResult:
        """Return the result of one run; its seconds are those of `clock`."""
        gc.collect()
        settings = Settings((self.profile,), seed=_SEED)
        with frozen_heap():  # as the command and experiments do
            return simulate(self.workload, Live(self.registry), settings, clock=clock, typical=self.typical)


def default_workload() -> tuple[traces.Workload, Sequence[TypicalPod]]:
    """Return the default workload of seed 42 and the trace's typical pods; raises `Missing` without the trace."""
    data = os.environ.get("KOORD_POLICY_DATA") or (
        Path(os.environ["KOORD_POLICY_CASES"]).resolve().parent / "data" if os.environ.get("KOORD_POLICY_CASES")
        else None
    )
    if data is None or not (Path(data) / "openb" / traces.POD_LIST).exists():
        raise Missing("set KOORD_POLICY_DATA to the directory that holds `openb/` with the trace's lists")
    recorded = traces.load(Path(data) / "openb")
    return traces.generate(recorded, seed=_SEED), typical_pods(recorded.pods)
