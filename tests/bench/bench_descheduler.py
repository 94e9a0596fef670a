"""A cycle of the descheduler with eight plugins of Kubernetes' descheduler, and with Koordinator's LowNodeLoad.

Each size is measured in a process of its own, whose peak memory is a figure too. Times are processor time, divided by
that of the calibration loop measured between the cycles: it took 5.5 ms on the machine of docs/benchmarks.md, so that
one second is 180 of it. Garbage is collected as in a live descheduler. Cycles with proofs evict at most as many pods as
`_PROVED` says. Of several replicas one runs the plugins that decide per node on its share of the nodes.
`KOORD_POLICY_DESCHEDULER_BENCH` chooses what is measured, such as `sizes=5000 rival=0`; `rival` is the number of nodes
on which Kubernetes' own descheduler is measured too (`descheduler_rival`).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler import PLUGINS as SCHEDULER_PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.placements import SchedulerPlacements
from koordpolicy.engine.descheduler.framework import CyclePart, run_cycle
from koordpolicy.engine.descheduler.ledger import CycleLedger, Ledger, StoredLedger
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.live.shards import ShardedCycles
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.proof.prove import ProofBudget, Proving
from koordpolicy.engine.framework.points import Proof
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.serving.garbage_collection import ShortCollections
from koordpolicy.engine.source import Source

from .calibration import calibrate
from .descheduler_cluster import BALANCE, DESCHEDULE, EVICTOR_ARGS, NOW, PLUGIN_ARGS, node_metrics, nodes, pods
from .figure import Figure

_PER_NODE: Final = 30
_TURNS: Final = 5
_PROVED: Final = (25, 100, 400)
_REPLICAS: Final = (1, 2, 4, 8)
_SECOND: Final = 180.0
_SCHEDULER: Final = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: default-scheduler}]
"""
_BOUNDS: Final = {5_000: _SECOND, 50_000: 10 * _SECOND}
_LOAD_ARGS: Final[dict[str, Any]] = {
    "lowThresholds": {"cpu": 20, "memory": 20}, "highThresholds": {"cpu": 45, "memory": 45},
    "anomalyCondition": {"consecutiveAbnormalities": 1}, "nodeMetricExpirationSeconds": 3600,
}


def main() -> Iterator[Figure]:
    """Yield the times of cycles as ratios to the calibration loop, and peak memory."""
    words = os.environ.get("KOORD_POLICY_DESCHEDULER_BENCH", "").split()
    settings = {"sizes": "5000,50000", "rival": "1000", **dict(word.split("=", 1) for word in words)}
    for size in map(int, filter(None, settings["sizes"].split(","))):
        for order in ("orderly", "random"):
            title = f"{size:,} nodes, {size * _PER_NODE:,} pods, {order}"
            found = _in_process(size, order)
            yield Figure(f"{title}: first cycle / loop", found["first"], "times")
            yield Figure(f"{title}: cycle, 1 % of pods changed / loop", found["later"], "times", _BOUNDS.get(size))
            yield Figure(f"{title}: the same, processor time", found["seconds"], "s")
            yield Figure(f"{title}: candidates per cycle", found["candidates"], "pods")
            yield Figure(f"{title}: memory, peak", found["memory"], "MiB")
        if size <= 5_000:
            title = f"{size:,} nodes, {size * _PER_NODE:,} pods"
            for number in _PROVED:
                found = _in_process(size, "proof", number)
                yield Figure(f"{title}, orderly: cycle, {number} proved evictions / loop", found["later"], "times",
                             _BOUNDS.get(size) if number == _PROVED[0] else None)
            for number in _REPLICAS:
                found = _in_process(size, "share", number)
                yield Figure(f"{title}, random: share of one of {number} replicas / loop", found["later"], "times")
            yield Figure(f"{title}, random: cycle of LowNodeLoad / loop", _in_process(size, "load")["later"], "times")
    if int(settings["rival"]):
        from .descheduler_rival import compared  # noqa: PLC0415 - needs Go and a control plane

        yield from compared(int(settings["rival"]))


def _in_process(size: int, which: str, number: int = 0) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.bench_descheduler", str(size), which, str(number)], check=True,
        capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def profiles(which: str) -> tuple[DeschedulerProfile, ...]:
    """Return a profile with the eight plugins, or for `load` with LowNodeLoad, both with DefaultEvictor; for `proof`
    their evictions are proved.
    """
    if which == "load":
        spec = DeschedulerProfileSpec("bench", balance=("LowNodeLoad",), filter=("DefaultEvictor",), args={
            "LowNodeLoad": _LOAD_ARGS, "DefaultEvictor": EVICTOR_ARGS})
    else:
        spec = DeschedulerProfileSpec("bench", deschedule=DESCHEDULE, balance=BALANCE, filter=("DefaultEvictor",),
                                      args={**PLUGIN_ARGS, "DefaultEvictor": EVICTOR_ARGS})
    if which == "proof":
        spec = replace(spec, proof=dict.fromkeys((*DESCHEDULE, *BALANCE), Proof.ENFORCE))
    return build_profiles([spec], Registry.of(PLUGINS, generation=1), dry_run=True)


def measured(size: int, which: str, number: int) -> dict[str, float]:
    """Return the figures of one process: an `orderly` or `random` cluster, LowNodeLoad (`load`), with `proof` of
    `number` evictions, or the `share` of one of `number` replicas.
    """
    placed = list(pods(size, size * _PER_NODE, is_orderly=which in ("orderly", "proof")))
    cluster = Cluster([*nodes(size), *placed, *(node_metrics(placed) if which == "load" else ())])
    changed = placed[::100]
    del placed
    built = profiles(which)
    limits = CycleLimits(total=number if which == "proof" else None)
    part = _share(number) if which == "share" else None
    proving = _proving(cluster) if which == "proof" else None
    collections = ShortCollections()
    loops, cycles, candidates = [calibrate()], [], 0
    for turn in range(_TURNS + 1):
        now = NOW + turn * 60 * 10**9
        if turn:
            for pod in changed:
                ready = {"type": "Ready", "status": str(turn % 2 == 0)}
                cluster.upsert({**pod, "status": {**pod["status"], "conditions": [ready]}})
        collections.freeze()
        began = time.process_time()
        result = run_cycle(built, cluster.snapshot(now), limits=limits, proving=proving, part=part)
        cycles.append(time.process_time() - began)
        assert not result.failures, result.failures[0]
        assert not result.error, result.error
        candidates = len(result.outcomes)
        if proving is not None:
            proofs = [each.decision.proof for each in result.evicted]
            assert all(proof is not None and not proof.warns for proof in proofs), "not all are proved"
        del result
        loops += [calibrate() for _ in range(5)]
    assert candidates
    loop, later = min(loops), min(cycles[1:])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"first": cycles[0] / loop, "later": later / loop, "seconds": later, "candidates": candidates,
            "memory": memory}


class _NoStore:
    """A ledger that nobody writes, as in a dry run."""

    def load(self) -> StoredLedger:
        return StoredLedger(Ledger())

    def save(self, ledger: Ledger, version: str) -> StoredLedger:
        raise AssertionError(f"a dry run reserves nothing, but wrote {ledger} over {version}")


def _share(replicas: int) -> CyclePart:
    """Return the part of a cycle that the first of several replicas runs on its own nodes."""
    members = tuple(f"replica-{number}" for number in range(replicas))
    shards = ShardedCycles(_NoStore(), members[0], holders=lambda: members, shard=lambda: "shard-0",
                           clock=lambda: NOW, ticks=lambda: NOW)
    store = _NoStore()
    return CyclePart(CycleLedger(store, store.load(), members[0], lambda: NOW), shards.nodes_of(members))


def _proving(cluster: Cluster) -> Proving:
    """Return proofs by kube-scheduler's default profile, of as many placements as the evictions need."""
    registry = Registry.of(SCHEDULER_PLUGINS, generation=1)
    found = configuration.read(Source("scheduler.yaml", _SCHEDULER), registry)
    settings = Settings(found.profiles, tie_break="random")
    placements = SchedulerPlacements(Scheduler(cluster, Live(registry), settings, clock=lambda: NOW))
    return Proving(placements, ProofBudget(seconds=600))


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)))
