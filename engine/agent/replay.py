"""The QoS manager's run loop over recorded time: runs each strategy on each node at its intervals.

A strategy runs at the start, then one interval after each of its rounds. Its writes change the recorded control group
files, which its next round reads, and its evictions succeed; the recorded pods and their usage do not react to them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.explanation import plain_or_cut
from koordpolicy.engine.framework.qos import Adjustment
from koordpolicy.engine.framework.registry import Registry

from .qos_manager.documents import (
    RoundError,
    RoundReport,
    ThresholdState,
)
from .qos_manager.evictions import EvictionMemory, eviction_id
from .qos_manager.manager import Manager, Writers
from .recorded_files import apply_writes
from .recording import MetricsRecording, RecordedReadings, load

if TYPE_CHECKING:
    from .qos_manager.configuration import StrategyArgs


@dataclass(frozen=True, slots=True)
class ReplayedRound:
    """One round of one plugin on one node at `time` (ns since the epoch), `elapsed` ns after the recording began.

    `enforced` is false if the document only warns or audits: then its adjustments were not made.
    """

    time: int
    elapsed: int
    node: str
    plugin: str
    adjustments: tuple[Adjustment, ...] = ()
    thresholds: tuple[ThresholdState, ...] = ()
    errors: tuple[RoundError, ...] = ()
    enforced: bool = True

    @property
    def eventful(self) -> bool:
        """True if anything was adjusted or failed."""
        return bool(self.adjustments or self.errors)

    def to_json(self) -> dict[str, object]:
        """Return the round as plain data."""
        return {
            "time": str(Timestamp(self.time)), "elapsedSeconds": self.elapsed / 1_000_000_000, "node": self.node,
            "plugin": self.plugin, "enforced": self.enforced,
            "actions": [_adjustment(each) for each in self.adjustments],
            "thresholds": [
                {"name": each.name, "subject": each.subject, "true": each.true, "holds": each.holds,
                 **({"message": each.message} if each.message else {})}
                for each in self.thresholds
            ],
            "errors": [
                {"item": each.item, "subject": each.subject, "message": each.message,
                 **({"reason": each.reason} if each.reason else {})}
                for each in self.errors
            ],
        }


def _adjustment(each: Adjustment) -> dict[str, object]:
    values, cut = plain_or_cut(dict(each.values))
    return {
        "kind": each.kind, "subject": each.subject, "reason": each.reason, "recovers": each.recovers,
        **({"item": each.item} if each.item else {}),
        **({"values": values} if each.values else {}), **({"truncated": True} if cut else {}),
        **({"writes": [{"file": name, "text": text} for name, text in each.writes]} if each.writes else {}),
    }


def replay(
    file: Path | MetricsRecording,
    registry: Registry,
    *,
    gates: Mapping[str, bool] | None = None,
    enable: Iterable[str] = (),
    args: Mapping[str, StrategyArgs] | None = None,
    changes: Mapping[int, Registry] | None = None,
) -> Iterator[ReplayedRound]:
    """Yield every round over a recording, in order of time, then of node, then of plugin.

    `args` are those of strategies in Python. `changes` activates other registries, by ns after the start of the
    recording.

    Raises:
        PolicyError: the file cannot be read, or a plugin cannot be activated.
    """
    recording = file if isinstance(file, MetricsRecording) else load(file)
    manager = Manager(gates or {}, frozenset(enable), args or {}, snapshot=lambda: recording.snapshot,
                      now=recording.start)
    manager.use(registry)
    return _rounds(recording, manager, sorted((changes or {}).items(), key=lambda each: each[0]))


def rounds(recording: MetricsRecording, manager: Manager) -> Iterator[ReplayedRound]:
    """Yield the rounds of `replay` for strategies that are already active."""
    return _rounds(recording, manager, [])


def _rounds(
    recording: MetricsRecording, manager: Manager, changes: list[tuple[int, Registry]],
) -> Iterator[ReplayedRound]:
    files = {node: dict(recording.files.get(node, {})) for node in sorted(recording.nodes)}
    due = [(recording.start, node, name) for node in files for name in sorted(manager.intervals)]
    heapq.heapify(due)
    writers = Writers()
    evicted = {node: EvictionMemory() for node in files}

    def readings_at(time: int, node: str) -> RecordedReadings:
        return RecordedReadings(recording, node, time, files[node], evicted[node].view(time))

    def applied(time: int, node: str, name: str, report: RoundReport, *, enforced: bool = True) -> ReplayedRound:
        errors = report.errors
        if enforced:
            errors += writers.note(node, name, report.adjustments, manager.intervals)
            for adjustment in report.adjustments:
                apply_writes(files[node], adjustment.writes)
            of_node = recording.pods.get(node, {})
            evicted[node].note(
                (eviction_id(of_node[each.subject]) for each in report.adjustments
                 if each.kind == "evict" and each.subject in of_node), time)
        return ReplayedRound(
            time, time - recording.start, node, name, report.adjustments, report.thresholds, errors, enforced,
        )

    while due:
        if changes and recording.start + changes[0][0] <= due[0][0]:
            after, registry = changes.pop(0)
            time = recording.start + after
            manager.use(registry)
            for node in files:
                for name, found in manager.recover_leaving(readings_at(time, node)):
                    yield applied(time, node, name, found)
            manager.drop_leaving()
            known = {(node, name) for _, node, name in due}
            for node in files:
                for name in manager.intervals:
                    if (node, name) not in known:
                        heapq.heappush(due, (time, node, name))
            continue
        time, node, name = heapq.heappop(due)
        if time > recording.end:
            continue
        if name not in manager.intervals:
            continue
        report, enforced = manager.run(name, readings_at(time, node))
        yield applied(time, node, name, report, enforced=enforced)
        heapq.heappush(due, (time + manager.intervals[name], node, name))
