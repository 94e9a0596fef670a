"""Recordings in the console: reading a timeline, reaching moments, and the state of the console there.

One segment of 1,000 nodes, 10,000 pods and 200,000 updates of pods over an hour; `KOORD_POLICY_BENCH_UPDATES` is
another number of them. Times are the processor's. Objects are as small as a pod can be: larger ones take longer.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console.past import state_of
from koordpolicy.engine.console.policy_set import PolicySet
from koordpolicy.engine.documents import load
from koordpolicy.engine.flight_recorder.fields import Fields
from koordpolicy.engine.flight_recorder.moments import Moments
from koordpolicy.engine.flight_recorder.recorder import FlightRecorder, RecorderSettings
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.segments import Limits
from koordpolicy.engine.flight_recorder.timeline import Timeline
from koordpolicy.engine.framework.discovery import DiscoveredPlugins
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings

from .figure import Figure

NODES, PODS = 1_000, 10_000
UPDATES = int(os.environ.get("KOORD_POLICY_BENCH_UPDATES", "200000"))
START, HOUR = 1_790_000_000_000_000_000, 3_600_000_000_000


def main() -> Iterator[Figure]:
    """Yield the figures."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "flight"
        record(path)
        yield from _figures(path)


def _figures(path: Path) -> Iterable[Figure]:
    recording = FlightRecording.open(path)
    records = PODS + NODES + UPDATES
    begun = time.process_time()
    timeline = Timeline()
    for step in recording.steps():
        timeline.take(step)
    yield Figure("timeline, per record", (time.process_time() - begun) * 1e6 / records, "us", 100)
    begun = time.process_time()
    timeline.spans(0, 2**62, 240)
    yield Figure("timeline, an answer of 240 spans", (time.process_time() - begun) * 1e3, "ms", 50)
    moments = Moments(path)
    for name, part in (("the end, from the start of the segment", 1.0), ("half of it, from a checkpoint", 0.5),
                       ("a minute later", 0.5 + 1 / 60)):
        begun = time.process_time()
        moment = moments.at(START + int(part * HOUR))
        yield Figure(f"moment: {name}", time.process_time() - begun, "s")
    policies = PolicySet.of(load([]), (), DiscoveredPlugins(tuple(builtins()), ()))
    begun = time.process_time()
    state_of(moment, policies, START, name="", poll=lambda: None)
    yield Figure("state of the console at a moment", time.process_time() - begun, "s")


def record(path: Path) -> None:
    """Record an hour in one segment."""
    now = START
    cluster = Cluster()
    cluster.upsert_all({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{number:04d}", "uid": f"node-{number}"},
        "spec": {},
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}}} for number in range(NODES))
    pods = [{
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "namespace": "shop", "uid": f"pod-{number}"},
        "spec": {"nodeName": f"node-{number % NODES:04d}", "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "2Gi"}}}]},
        "status": {"phase": "Running"}} for number in range(PODS)]
    cluster.upsert_all(pods)
    recorder = FlightRecorder(path, RecorderSettings("bench", Settings(), Fields.parse(["all"])),
                              Live(Registry.of(builtins(), generation=1)), clock=lambda: now,
                              limits=Limits(2**40, 1e9, 2**40), capacity=10_000_000)
    recorder.start(cluster)
    for number in range(UPDATES):
        now = START + HOUR * (number + 1) // UPDATES
        pod = pods[number % PODS]
        cluster.upsert({**pod, "metadata": {**pod["metadata"], "annotations": {"update": str(number)}}})
    recorder.close()
