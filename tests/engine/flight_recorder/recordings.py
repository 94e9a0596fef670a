"""A cluster with a scheduling loop that is recorded, in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.flight_recorder.recorder import FlightRecorder, RecorderSettings
from koordpolicy.engine.flight_recorder.segments import Limits
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.source import Problems, Source

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
SPREAD = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: emptiest}
spec:
  score:
  - {name: emptiest, expression: "100 - requested.cpu * 100 / allocatable.cpu"}
"""
PACK = SPREAD.replace("emptiest", "fullest").replace("100 - requested", "requested")


def registry_of(*texts: str, generation: int = 1) -> Registry:
    problems = Problems([])
    loaded = load([Source(f"policy-{number}.yaml", text) for number, text in enumerate(texts)])
    compiled = compile_documents(loaded.documents, problems)
    problems.raise_errors()
    return Registry.of((*builtins(), *compiled), generation=generation)


def make_node(name: str, cpu: str = "4", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "110"}}, **more,
    }


def make_pod(name: str, cpu: str = "1", node: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
                 **({"nodeName": node} if node else {}), **spec},
        "status": {"phase": "Running" if node else "Pending"},
    }


class NotWriting:
    """An API server whose watch is played by the test: nothing that is written comes back by itself."""

    def __init__(self, cluster: Cluster, clock: Callable[[], int]) -> None:
        self.preempted: list[str] = []
        self._cluster, self._clock = cluster, clock

    def patch(self, original: Any, modified: Any) -> Any:
        return modified

    def bind(self, pod: Any, node: str) -> None:
        pass

    def evict(self, pod: Any, reason: str) -> None:
        self.preempted.append(pod.key)

    def preempt(self, pod: Any, preemptor: Any, node: str) -> None:
        known = self._cluster.object("Pod", pod.key)
        assert known is not None
        if not known["metadata"].get("deletionTimestamp"):  # as the client of a live scheduler
            self.preempted.append(pod.key)
            metadata = {**known["metadata"], "deletionTimestamp": rfc3339(self._clock())}
            self._cluster.upsert({**known, "metadata": metadata})


class Recorded:
    """A scheduler with its recorder; `now` is the time, which the test moves."""

    def __init__(
        self, directory: Path, objects: Iterable[dict[str, Any]], *texts: str, settings: Settings | None = None,
        limits: Limits | None = None, capacity: int = 65_536, live_cluster: bool = True, **about: Any,
    ) -> None:
        self.directory = directory
        self.now = START
        self.live = Live(registry_of(*texts))
        self.cluster = Cluster(objects)
        self.settings = settings or Settings()
        self.client = NotWriting(self.cluster, lambda: self.now) if live_cluster else None
        self.recorder = FlightRecorder(directory, RecorderSettings("test", self.settings, **about), self.live,
                                       clock=lambda: self.now, limits=limits, capacity=capacity)
        self.loop = SchedulingLoop(self.cluster, self.live, self.settings, clock=lambda: self.now, client=self.client,
                                   cycle_observers=[self.recorder])
        self.recorder.start(self.cluster)
        self.idle = False
        """True if the loop waits for the next change or time-out, as that of a process does."""
        self.cluster.listen(self._note)
        self.placed: dict[str, str] = {}

    def schedule(self, most: int | None = None) -> list[Verdict]:
        """Schedule ready pods, at most so many, and return the verdicts."""
        found = list(itertools.islice(self.loop.schedule_all(), most))
        self.idle = most is None or len(found) < most
        self.placed.update({each.pod.key: each.node for each in found if each.node is not None})
        return found

    def confirm(self, key: str) -> None:
        """Let the watch show where a pod was bound."""
        item = self.cluster.object("Pod", key)
        assert item is not None
        self.cluster.upsert({**item, "spec": {**item["spec"], "nodeName": self.placed[key]},
                             "status": {"phase": "Running"}})

    def after(self, seconds: float) -> None:
        """Let time pass, in which the loop wakes up where it is idle."""
        until = self.now + round(seconds * SECOND)
        while self.idle and (due := self.loop.next_time()) is not None and due <= until:
            self.now = max(self.now, due)
            self.schedule()
        self.now = until

    def _note(self, event: Event) -> None:
        self.idle = self.idle and event.assumed

    def close(self) -> None:
        self.recorder.close()
        self.loop.close()


Recording = Callable[..., Recorded]
