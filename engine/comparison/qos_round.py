"""One dry cycle of the QoS manager over a snapshot, on each node with a metric.

A NodeMetric is of one time, but thresholds may have a duration: the cluster is assumed to have been in this state for
the longest one. Control groups are assumed to be those without any policy: best-effort pods may use all CPUs. Without a
NodeResourceTopology, a node's CPUs are assumed to be single-threaded cores of one socket. A window has one sample,
which is its average and every percentile.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.agent.cpuset import format_cpuset
from koordpolicy.engine.agent.metric_cache.series import MetricSeries
from koordpolicy.engine.agent.qos_manager.documents import RoundReport
from koordpolicy.engine.agent.qos_manager.explanation import explain_round
from koordpolicy.engine.agent.qos_manager.manager import Manager
from koordpolicy.engine.agent.qos_manager.suppression import (
    CPUSET_FILE,
    QUOTA_FILE,
    UNLIMITED,
    read_processors,
)
from koordpolicy.engine.agent.recording import MetricsRecording, RecordedReadings
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.kubernetes.vocabulary import CPU_TOPOLOGY_ANNOTATION

_OF_NODE: Final = ("NodeSLO", "NodeResourceTopology")
_TOPOLOGY: Final = "NodeResourceTopology"
_MILLI: Final = 1000
_MOST_CPUS: Final = 8192
"""The most CPUs that Linux supports; a larger number is not believed."""


@dataclass(frozen=True, slots=True)
class NodeRound:
    """The result of one round of one plugin on one node; `enforced` is false with Warn or Audit."""

    node: str
    plugin: str
    report: RoundReport
    enforced: bool


class _SnapshotRecording(MetricsRecording):
    """The NodeMetrics of a snapshot, as a recording of two equal samples, `span` nanoseconds apart."""

    def __init__(self, snapshot: Snapshot, span: int, only: str = "") -> None:
        """`only` names the node that is recorded; empty means all."""
        super().__init__()
        self._view = snapshot
        self.times = sorted({snapshot.now, snapshot.now + span})
        for kind in _OF_NODE:
            for key, each in snapshot.objects(kind).items():
                self.objects[kind, key.rpartition("/")[2]] = each
        for row in range(snapshot.size) if not only else (snapshot.index[only],):
            at = snapshot.row(row)
            if at.metric is None or not snapshot.is_fresh(row):
                continue
            name = at.name
            self.nodes[name] = at.node
            self.pods[name] = at.pods
            self._add(name, "node", name, at.metric.usage)
            for key, usage in at.metric.pods.items():
                self._add(name, "pod", key, usage)
            cpus = self._processors(name, at.allocatable["cpu"])
            self.files[name] = {CPUSET_FILE: format_cpuset(range(cpus)), QUOTA_FILE: str(UNLIMITED)}

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot itself."""
        return self._view

    def _add(self, node: str, what: str, name: str, usage: Mapping[str, Any]) -> None:
        self.series[node, what, name] = {
            resource: MetricSeries(self.times, [amount] * len(self.times))
            for resource, amount in usage.items() if isinstance(amount, int)
        }

    def _processors(self, node: str, allocatable: int) -> int:
        """Return the number of processors of the node; a missing topology is generated."""
        known = self.objects.get((_TOPOLOGY, node))
        count = min(max(1, -(-allocatable // _MILLI)), _MOST_CPUS)
        try:
            listed = read_processors(known) if known is not None else ()
        except EvaluationError:
            return count  # reported by its reader
        if listed:
            return len(listed)
        metadata: dict[str, Any] = dict((known or {}).get("metadata") or {"name": node})
        metadata["annotations"] = {
            **(metadata.get("annotations") or {}), CPU_TOPOLOGY_ANNOTATION: _plain_topology(count),
        }
        self.objects[_TOPOLOGY, node] = {**(known or {}), "kind": _TOPOLOGY, "metadata": metadata}
        return count


@functools.cache
def _plain_topology(count: int) -> str:
    """Return the annotation of so many single-threaded cores of one socket."""
    return json.dumps({"detail": [{"id": number, "core": number, "socket": 0, "node": 0} for number in range(count)]})


def qos_rounds(
    registry: Registry, snapshot: Snapshot, *, gates: Mapping[str, bool] | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> Iterator[NodeRound]:
    """Yield the results of the active QoS plugins, by node, plugin and round; nothing is written.

    A second round is run if a threshold is true and does not hold yet.

    `progress` is called with the part that is done, from 0 to 1.

    Raises:
        PolicyError: a plugin cannot be activated, or a gate is unknown.
    """
    manager = Manager(gates or {}, snapshot=lambda: snapshot, now=snapshot.now)
    manager.use(registry)
    if not manager.intervals:
        return
    recording = _SnapshotRecording(snapshot, _span(registry))
    names = sorted(manager.intervals)
    for number, node in enumerate(recording.nodes, start=1):
        for name in names:
            for time in recording.times:
                readings = RecordedReadings(recording, node, time, recording.files[node])
                report, enforced = manager.run(name, readings)
                yield NodeRound(node, name, report, enforced)
                if all(each.holds for each in report.thresholds if each.true):
                    break  # no threshold waits for its duration
        manager.forget()  # rounds look through all of it for what is gone from their node
        progress(number / len(recording.nodes))


def explain_node(
    registry: Registry, snapshot: Snapshot, node: str, *, gates: Mapping[str, bool] | None = None,
) -> Finding:
    """Return the findings of each QoS plugin on a node in such a cycle, with the distances of its thresholds.

    Raises:
        KeyError: there is no such node, or it has no current metric.
        PolicyError: a plugin cannot be activated, or a gate is unknown.
    """
    return explain_round(_SnapshotRecording(snapshot, _span(registry), node), registry, node, gates=gates)


def _span(registry: Registry) -> int:
    """Return the longest `for` of a threshold of any document, in nanoseconds."""
    made = (plugin.make({}, None) for plugin in registry.of_framework(Framework.QOS) if plugin.source)
    return max((each.for_ns for compiled in made if isinstance(compiled, CompiledQoS)
                for each in compiled.thresholds), default=0)
