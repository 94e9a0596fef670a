"""Results of a replay of a flight recording: what would have happened, beside what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.times import rfc3339_micro
from koordpolicy.engine.scheduler.verdict.verdict import Failure

from .recording import RecordingGap

_SECOND: Final = 1_000_000_000
_FIGURES: Final = 8
_RUNNING: Final = 6
_PENDING: Final = 7
_SAME: Final = _SECOND
"""Placements at most this far apart are at the same time."""


@dataclass(slots=True)
class PodOutcome:
    """The recorded course of a pod, and the replayed one; times in nanoseconds since the epoch."""

    pod: str
    uid: str
    """The UID, or the key of a pod without one."""
    arrived: int
    recorded: tuple[str, int] | None = None
    """Its first node in the recording, and when it got it."""
    replayed: tuple[str, int] | None = None
    """Its first node in the replay, and when it got it."""
    recorded_reasons: Mapping[str, int] | None = None
    """Why its first recorded cycle found no node: the number of nodes by reason."""
    reasons: Mapping[str, int] | None = None
    """Why its first cycle in the replay found no node."""
    ended: int = 0
    """When it finished or was deleted; 0 if it did not."""

    @property
    def delay(self) -> float:
        """The seconds by which the replay placed it later; negative if sooner, 0 unless both placed it."""
        if self.recorded is None or self.replayed is None:
            return 0.0
        return (self.replayed[1] - self.recorded[1]) / _SECOND

    @property
    def changes(self) -> tuple[str, ...]:
        """The differences of replay and recording: `elsewhere`, `later`, `sooner`, `never` or `onlyReplayed`."""
        if self.recorded is None or self.replayed is None:
            return () if self.recorded is self.replayed else ("never",) if self.replayed is None else ("onlyReplayed",)
        elsewhere = ("elsewhere",) if self.recorded[0] != self.replayed[0] else ()
        apart = self.replayed[1] - self.recorded[1]
        return elsewhere + (("later",) if apart > _SAME else ("sooner",) if apart < -_SAME else ())

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "pod": self.pod, "uid": self.uid, "arrived": rfc3339_micro(self.arrived), "changes": list(self.changes),
            "recorded": _placement(self.recorded), "replayed": _placement(self.replayed),
            "delay": round(self.delay, 3), "reasons": dict(self.reasons or {}),
            "ended": rfc3339_micro(self.ended) if self.ended else None,
        }


CHANGES: Final = ("elsewhere", "later", "sooner", "never", "onlyReplayed")
"""The parts of a pod's outcome that can differ, see `PodOutcome.changes`."""


def _placement(found: tuple[str, int] | None) -> dict[str, object] | None:
    return None if found is None else {"node": found[0], "time": rfc3339_micro(found[1])}


@dataclass(slots=True)
class Eviction:
    """An evicted pod; times in nanoseconds since the epoch."""

    time: int
    pod: str
    node: str
    by: str
    """`preemption` or `eviction` in the replay; in the recording the reason of the pod's condition."""
    reason: str
    again: int | None = None
    """When it had a node again; None if it had none."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"time": rfc3339_micro(self.time), "pod": self.pod, "node": self.node, "by": self.by,
                "reason": self.reason, "again": None if self.again is None else rfc3339_micro(self.again)}


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the time: mean requests in percent of what is allocatable, and mean numbers of pods."""

    start: int
    end: int
    cpu: float
    memory: float
    gpu: float
    running: float
    pending: float

    def to_json(self) -> dict[str, float]:
        """Return plain data without the times."""
        return {"cpu": self.cpu, "memory": self.memory, "gpu": self.gpu, "running": self.running,
                "pending": self.pending}


class Meter:
    """Follows what the pods of a cluster request of its nodes, over the time."""

    def __init__(self, cluster: Cluster, clock: Callable[[], int], start: int, end: int, points: int) -> None:
        """Means are taken over `points` spans of equal length from `start` to `end` (ns since the epoch)."""
        self._cluster, self._clock = cluster, clock
        self._bounds = [start + (end - start) * number // points for number in range(points + 1)] if end > start else []
        self._sums = [[0] * _FIGURES for _ in self._bounds[1:]]
        self._place = 0
        self._time = start
        self._now = [0] * _FIGURES
        """Used and allocatable cpu, memory and GPU, running and pending pods."""
        self._nodes: dict[str, tuple[int, ...]] = {}
        cluster.listen(self._note)

    def finish(self) -> None:
        """Count the time until now."""
        self._advance()

    def spans(self) -> tuple[Span, ...]:
        """Return the means by span; empty if no time passes."""
        return tuple(_span(self._bounds[place], self._bounds[place + 1], sums,
                           self._bounds[place + 1] - self._bounds[place])
                     for place, sums in enumerate(self._sums) if self._bounds[place + 1] > self._bounds[place])

    def mean(self) -> Span:
        """Return the mean over the whole time; the last state if no time passes."""
        if not self._bounds:
            return _span(self._time, self._time, self._now, 1)
        total = [sum(column) for column in zip(*self._sums, strict=True)]
        return _span(self._bounds[0], self._bounds[-1], total, self._bounds[-1] - self._bounds[0])

    def _note(self, event: Event) -> None:
        if event.kind == "Pod":
            old, new = event.old_pod, event.new_pod
            self._advance()
            for pod, sign in ((old, -1), (new, 1)):
                if pod is not None:
                    self._now[_RUNNING if pod.node_name else _PENDING] += sign
            for name in {pod.node_name for pod in (old, new) if isinstance(pod, PodInfo) and pod.node_name}:
                self._refresh(name)
        elif event.kind in ("Node", "Device"):
            self._advance()
            self._refresh(event.key)

    def _refresh(self, name: str) -> None:
        index = self._cluster.index.get(name)
        amounts: tuple[int, ...] = ()
        if index is not None:
            row = self._cluster.rows[index]
            gpus = sum(row.total)
            amounts = (row.requested["cpu"], row.requested["memory"], gpus - sum(row.free),
                       row.allocatable["cpu"], row.allocatable["memory"], gpus)
        for place, amount in enumerate(self._nodes.pop(name, ())):
            self._now[place] -= amount
        for place, amount in enumerate(amounts):
            self._now[place] += amount
        if amounts:
            self._nodes[name] = amounts

    def _advance(self) -> None:
        now = self._clock()
        while self._time < now and self._place < len(self._sums):
            until = min(now, self._bounds[self._place + 1])
            duration = until - self._time
            if duration > 0:
                sums = self._sums[self._place]
                for place, amount in enumerate(self._now):
                    sums[place] += amount * duration
                self._time = until
            if until == self._bounds[self._place + 1]:
                self._place += 1
        self._time = max(self._time, now)


def _span(start: int, end: int, sums: Sequence[int], duration: int) -> Span:
    cpu, memory, gpu = (round(100 * sums[place] / sums[place + 3], 3) if sums[place + 3] else 0.0
                        for place in range(3))
    return Span(start, end, cpu, memory, gpu, round(sums[_RUNNING] / duration, 3), round(sums[_PENDING] / duration, 3))


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """The seconds that pods waited for their first node: the mean, and percentiles by nearest rank."""

    pods: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, waits: Iterable[int]) -> WaitFigures:
        """Return the figures of waits in nanoseconds."""
        ordered = sorted(waits)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0)
        ranks = (ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / _SECOND for percent in (50, 90, 99, 100))
        return cls(len(ordered), round(sum(ordered) / len(ordered) / _SECOND, 3), *(round(each, 3) for each in ranks))

    def to_json(self) -> dict[str, float]:
        """Return plain data."""
        return {"pods": self.pods, "mean": self.mean, "p50": self.p50, "p90": self.p90, "p99": self.p99,
                "most": self.most}


@dataclass(frozen=True, slots=True)
class RecordedReplay:
    """The result of a replay of a flight recording; times in nanoseconds since the epoch."""

    start: int
    end: int
    segments: int
    gaps: tuple[RecordingGap, ...]
    """The parts of the time about which the recording knows nothing."""
    notes: tuple[str, ...]
    """Faults of segments, for people."""
    pods: tuple[PodOutcome, ...]
    """The pods that the replay was responsible for, in the order of their arrival."""
    waiting: int
    """The number of them that wait for a node at the end of the replay."""
    recorded_evictions: tuple[Eviction, ...]
    evictions: tuple[Eviction, ...]
    recorded_use: Span
    """The mean over the whole time."""
    use: Span
    recorded_series: tuple[Span, ...]
    series: tuple[Span, ...]
    errors: tuple[Failure, ...]
    """The failures of plugins and expressions, each kind once."""
    problems: tuple[str, ...]
    """Recorded objects that are malformed."""
    problems_left_out: int
    """The number of further reports of such objects."""
    recorded_decisions: int
    decisions: int
    seconds: float
    """The duration of the replay, in real time."""

    @property
    def differing(self) -> tuple[PodOutcome, ...]:
        """The pods for which something differs."""
        return tuple(pod for pod in self.pods if pod.changes)

    def counts(self) -> dict[str, int]:
        """Return the number of pods by what differs about them; a pod may be placed elsewhere and later."""
        found = Counter(change for pod in self.pods for change in pod.changes)
        same = sum(pod.recorded is not None and not pod.changes for pod in self.pods)
        neither = sum(pod.recorded is None and pod.replayed is None for pod in self.pods)
        return {"same": same, **{change: found[change] for change in CHANGES}, "neither": neither}

    def waits(self) -> tuple[WaitFigures, WaitFigures]:
        """Return the waits of the pods that were placed in the recording, and of those in the replay."""
        return (WaitFigures.of(pod.recorded[1] - pod.arrived for pod in self.pods if pod.recorded is not None),
                WaitFigures.of(pod.replayed[1] - pod.arrived for pod in self.pods if pod.replayed is not None))

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        waits = self.waits()
        return {
            "start": rfc3339_micro(self.start), "end": rfc3339_micro(self.end), "segments": self.segments,
            "gaps": [{"start": rfc3339_micro(gap.start), "end": rfc3339_micro(gap.end), "dropped": gap.dropped,
                      "reason": gap.why} for gap in self.gaps],
            "notes": list(self.notes), "problems": list(self.problems),
            "problemsLeftOut": self.problems_left_out,
            "arrivals": len(self.pods), "waiting": self.waiting, "counts": self.counts(),
            "differences": [pod.to_json() for pod in self.differing],
            "waits": {"recorded": waits[0].to_json(), "replayed": waits[1].to_json()},
            "evictions": {"recorded": [each.to_json() for each in self.recorded_evictions],
                          "replayed": [each.to_json() for each in self.evictions]},
            "use": {"recorded": self.recorded_use.to_json(), "replayed": self.use.to_json()},
            "series": [
                {"start": rfc3339_micro(before.start), "end": rfc3339_micro(before.end), "recorded": before.to_json(),
                 "replayed": after.to_json()}
                for before, after in zip(self.recorded_series, self.series, strict=True)
            ],
            "errors": [each.to_json() for each in self.errors],
            "decisions": {"recorded": self.recorded_decisions, "replayed": self.decisions},
            "seconds": round(self.seconds, 3),
        }
