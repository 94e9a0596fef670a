"""The timeline of a node: what was used by class of pods, beside what an agent changed, when, and why.

Changes come from a recording, whose strategies are replayed, or from the audit log of an agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from .audit_events import KINDS, read_message
from .recorded_files import apply_writes

if TYPE_CHECKING:
    from .recording import MetricsRecording
    from .replay import ReplayedRound

NODE: Final = "node"
"""The class of all usage of a node together."""
RESOURCES: Final = ("cpu", "memory")
_NO_CLASS: Final = "none"
_EVICT: Final = "evict"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was written, with its texts before (None if unknown) and after."""

    file: str
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class AgentChange:
    """A change on a node at `time` (ns since the epoch): writes, a suppression or an eviction, and why."""

    time: int
    node: str
    plugin: str
    """The strategy or document; empty if the audit log does not name it."""
    kind: str
    """`suppressCPU`, `evict`, `cgroup` and others; `write` if the audit log does not say."""
    subject: str
    reason: str
    item: str = ""
    writes: tuple[WrittenFile, ...] = ()
    more: int = 0
    """The number of further files that the audit log does not name."""
    recovers: bool = False
    enforced: bool = True
    """False if the document only warns or audits: nothing was changed."""
    target: float | None = None
    """The cpu that a suppression leaves to best-effort pods, in milli-cores."""


def replayed_changes(recording: MetricsRecording, rounds: Iterable[ReplayedRound]) -> Iterator[AgentChange]:
    """Yield the changes of the rounds of a replayed recording, with what each file had before."""
    files = {node: dict(recording.files.get(node, {})) for node in recording.nodes}
    for each in rounds:
        of_node = files.setdefault(each.node, {})
        for adjustment in each.adjustments:
            writes = []
            for file, text in adjustment.writes:
                before = of_node.get(file)
                if each.enforced:
                    apply_writes(of_node, [(file, text)])
                writes.append(WrittenFile(file, before, of_node.get(file, text) if each.enforced else text))
            target = adjustment.values.get("target") if adjustment.kind == "suppressCPU" else None
            yield AgentChange(
                each.time, each.node, each.plugin, adjustment.kind, adjustment.subject, adjustment.reason,
                adjustment.item, tuple(writes), recovers=adjustment.recovers, enforced=each.enforced,
                target=float(target) if isinstance(target, int | float) else None)


def audited_change(event: Mapping[str, Any], node: str) -> AgentChange | None:
    """Return the change that an event of an audit log is about; None for an event without a time."""
    try:
        time = datetime.fromisoformat(str(event.get("createdAt")))
        created = int(time.timestamp() * 1000) * 1_000_000
    except (ValueError, OverflowError, OSError):
        return None
    if created < 0:
        return None
    texts = {name: str(event.get(name) or "") for name in (
        "type", "namespace", "name", "container", "reason", "message")}
    subject = "/".join(filter(None, (texts["namespace"], texts["name"], texts["container"]))) or node
    found = read_message(texts["message"])
    if found is None:
        kind = _EVICT if texts["type"] == "pod" and not event.get("level") else "write"
        return AgentChange(created, node, "", kind, subject, ": ".join(filter(None, (
            texts["reason"], texts["message"]))))
    writes = tuple(WrittenFile(each.file, each.before, each.after) for each in found.files)
    return AgentChange(created, node, found.plugin, KINDS.get(texts["reason"], "write"), subject, found.reason,
                      writes=writes, more=found.more, recovers=event.get("level") == 2)


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Usage over spans of equal length, by resource and class: the mean in canonical units, None if not measured.

    Classes are `node` and the QoS classes of its pods, whose pods' means are added.
    """

    times: tuple[int, ...]
    """The starts of the spans, in nanoseconds since the epoch."""
    width: int
    values: Mapping[str, Mapping[str, tuple[float | None, ...]]]


def usage_of(recording: MetricsRecording, node: str, start: int, end: int, points: int) -> NodeUsage:
    """Return the usage of a recorded node from `start` to `end` (ns since the epoch) in at most `points` spans."""
    start, end = max(start, recording.start), min(end, recording.end)
    if end < start:
        return NodeUsage((), recording.interval, {resource: {} for resource in RESOURCES})
    width = max(recording.interval, -(-(end - start + 1) // max(points, 1)))
    times = tuple(range(start, end + 1, width))
    found: dict[str, dict[str, tuple[float | None, ...]]] = {}
    for resource in RESOURCES:
        classes: dict[str, list[float | None]] = {}
        series = [(NODE, recording.of(node, "node", node).get(resource))]
        series += [(pod.qos_class or pod.kubernetes_qos or _NO_CLASS, recording.of(node, "pod", key).get(resource))
                   for key, pod in recording.pods.get(node, {}).items()]
        for name, each in series:
            if each is None:
                continue
            sums = classes.setdefault(name, [None] * len(times))
            for place, time in enumerate(times):
                values = each.between(time, time + width - 1)
                if values:
                    sums[place] = (sums[place] or 0.0) + sum(values) / len(values)
        found[resource] = {name: tuple(sums) for name, sums in sorted(
            classes.items(), key=lambda item: (item[0] != NODE, item[0]))}
    return NodeUsage(times, width, found)
