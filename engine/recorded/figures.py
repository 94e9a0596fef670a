"""Results of a replay of a recording: waiting times, usage over time, evictions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import pairwise
from typing import Any, Final

from koordpolicy.engine.descheduler.proof.verdicts import EvictionProof
from koordpolicy.engine.scheduler.verdict.verdict import Failure

SECOND: Final = 1_000_000_000
"""One second in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Milli-cores, MiB and thousandths of devices."""

    cpu: int = 0
    memory: int = 0
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """The state from a time on (nanoseconds) until the next step."""

    time: int
    used: Amounts
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class Use:
    """Mean allocation over a span, in percent of the cluster; 0 for resources that the cluster does not have."""

    cpu: float
    memory: float
    gpu: float


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A part of the replay's time, in seconds since the recording began, with its figures."""

    start: float
    end: float
    cpu: float
    memory: float
    gpu: float
    """Means over the span, in percent of the cluster's capacity."""
    running: float
    pending: float
    """Means over the span, in pods."""
    most_pending: int
    evicted: int


COLUMNS: Final = tuple(each.name for each in fields(TimeSpan))
"""The columns of the series as CSV."""
_IN_JSON: Final = {"most_pending": "mostPending"}


@dataclass(frozen=True, slots=True)
class Waits:
    """Waiting times of some pods, in seconds: the mean, and percentiles by nearest rank; all 0 if there are none."""

    pods: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, waits: Sequence[int]) -> Waits:
        """Return the figures of waits in nanoseconds."""
        ordered = sorted(waits)

        def rank(percent: int) -> float:
            return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] / SECOND if ordered else 0.0

        mean = sum(ordered) / len(ordered) / SECOND if ordered else 0.0
        return cls(len(ordered), round(mean, 3), *(round(rank(percent), 3) for percent in (50, 90, 95, 99, 100)))


@dataclass(frozen=True, slots=True)
class RecordedEviction:
    """An evicted pod: time and reason of the eviction, and the seconds until it ran again (None: it did not).

    `proof` says whether the eviction helps; None if it was not proved, as that of a victim of preemption.
    """

    time: float
    pod: str
    node: str
    plugin: str
    rule: str
    reason: str
    again: float | None
    proof: EvictionProof | None = None

    @property
    def proved(self) -> str:
        """The result of the proof; empty if there is none."""
        return "" if self.proof is None else self.proof.result.value

    def to_json(self) -> dict[str, Any]:
        """Return plain data; without a proof `proof` is absent."""
        return {"time": self.time, "pod": self.pod, "node": self.node, "plugin": self.plugin, "rule": self.rule,
                "reason": self.reason, "again": self.again,
                **({} if self.proof is None else {"proof": self.proof.to_json()})}


@dataclass(frozen=True, slots=True)
class StoppedEviction:
    """An eviction that was not made, since its proof says that it would not help: the time and proof of its first
    cycle, and the number of descheduling cycles that stopped it while the pod ran on this node.
    """

    time: float
    pod: str
    node: str
    plugin: str
    rule: str
    proof: EvictionProof
    cycles: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"time": self.time, "pod": self.pod, "node": self.node, "plugin": self.plugin, "rule": self.rule,
                "cycles": self.cycles, "proof": self.proof.to_json()}


@dataclass(frozen=True, slots=True)
class NeverRan:
    """A pod that left, or was still pending at the end, without having run: its wait, and the reasons (nodes by
    reason).
    """

    pod: str
    waited: float
    left: bool
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RecordingResult:
    """The result of a replay."""

    capacity: Amounts
    arrivals: int
    waits: Waits
    """The waits of the pods that ran, from their creation until they first had a node."""
    waits_again: Waits
    """The waits of evicted pods that ran again, from the eviction until they had a node."""
    never_ran: tuple[NeverRan, ...]
    """The pods that never ran, in the order of their creation."""
    evictions: tuple[RecordedEviction, ...]
    cycles: int
    """The number of descheduling cycles."""
    steps: Sequence[Step]
    end: int
    """The time when the last pod had left, or no event could help the pending ones any more; in nanoseconds."""
    errors: tuple[Failure, ...]
    """Failures of plugins and expressions of the scheduler, each kind once."""
    descheduler_errors: tuple[str, ...]
    """The failures of the descheduler, as texts."""
    decisions: int
    seconds: float
    """The duration of the replay, in real time."""
    first_waits: Sequence[tuple[int, int]] = ()
    """For each pod that ran, the time of its first node and its wait until then; in nanoseconds."""
    useless: tuple[StoppedEviction, ...] = ()
    """The evictions that a proof stopped, in the order of their first time."""

    @property
    def start(self) -> int:
        """The time of the first arrival, in nanoseconds; `end` if there was none."""
        return self.steps[0].time if self.steps else self.end

    def use(self) -> Use:
        """Return the mean use over the whole time."""
        (span,) = self.series(1) or (TimeSpan(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0),)
        return Use(span.cpu, span.memory, span.gpu)

    def most(self) -> Use:
        """Return the maximum use of each resource at any time."""
        used = [astuple(step.used) for step in self.steps] or [(0, 0, 0)]
        return Use(*(round(_percent(max(amounts), has), 3)
                     for amounts, has in zip(zip(*used, strict=True), astuple(self.capacity), strict=True)))

    def series(self, points: int) -> tuple[TimeSpan, ...]:
        """Return the time divided into spans of equal length; empty if no time passed."""
        if not self.steps or self.end <= self.start:
            return ()
        bounds = [self.start + (self.end - self.start) * number // points for number in range(points + 1)]
        times = [step.time for step in self.steps]
        evicted = [round(each.time * SECOND) for each in self.evictions]
        return tuple(self._span(start, end, times, evicted, last=end == self.end)
                     for start, end in pairwise(bounds) if end > start)

    def _span(self, start: int, end: int, times: Sequence[int], evicted: Sequence[int], *, last: bool) -> TimeSpan:
        sums, most = [0] * 5, 0
        for step, duration in self._within(start, end, times):
            row = (step.used.cpu, step.used.memory, step.used.gpu, step.running, step.pending)
            sums = [total + amount * duration for total, amount in zip(sums, row, strict=True)]
            most = max(most, step.pending)
        means = [total / (end - start) for total in sums]
        capacity = astuple(self.capacity)
        cpu, memory, gpu = (round(_percent(mean, has), 3) for mean, has in zip(means[:3], capacity, strict=True))
        happened = sum(start <= time < end or (last and time == end) for time in evicted)
        running, pending = (round(mean, 3) for mean in means[3:])
        return TimeSpan(start / SECOND, end / SECOND, cpu, memory, gpu, running, pending, most, happened)

    def _within(self, start: int, end: int, times: Sequence[int]) -> Iterator[tuple[Step, int]]:
        """Yield the steps within a span, each with its duration there."""
        first = max(0, bisect_right(times, start) - 1)
        for number in range(first, len(times)):
            if times[number] >= end:
                return
            until = times[number + 1] if number + 1 < len(times) else end
            if (duration := min(until, end) - max(times[number], start)) > 0:
                yield self.steps[number], duration

    def to_json(self, points: int) -> dict[str, Any]:
        """Return plain data, with the series divided into `points` spans."""
        return {
            "arrivals": self.arrivals,
            "ran": self.waits.pods,
            "start": self.start / SECOND,
            "end": self.end / SECOND,
            "waits": asdict(self.waits),
            "waitsAgain": asdict(self.waits_again),
            "neverRan": [
                {"pod": each.pod, "waited": each.waited, "left": each.left, "reasons": dict(each.reasons)}
                for each in self.never_ran
            ],
            "use": {"mean": asdict(self.use()), "most": asdict(self.most())},
            "mostPending": max((step.pending for step in self.steps), default=0),
            "cycles": self.cycles,
            "evictions": [each.to_json() for each in self.evictions],
            "useless": [each.to_json() for each in self.useless],
            "series": [{_IN_JSON.get(name, name): value for name, value in asdict(span).items()}
                       for span in self.series(points)],
            "errors": [each.to_json() for each in self.errors],
            "deschedulerErrors": list(self.descheduler_errors),
            "decisions": self.decisions,
            "seconds": round(self.seconds, 3),
        }


def _percent(amount: float, has: int) -> float:
    return 100 * amount / has if has else 0.0
