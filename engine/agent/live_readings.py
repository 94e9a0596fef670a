"""The readings of the node on which the agent runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Evictions, Host

from .parts import AgentParts
from .recording import logical_directory

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot


class SnapshotCache:
    """The node and its pods as a cluster, made again only when one of them is another object."""

    def __init__(self) -> None:
        self._of: tuple[object, tuple[PodInfo, ...]] = None, ()
        self._snapshot: Snapshot | None = None

    def of(self, node: Mapping[str, Any], pods: tuple[PodInfo, ...]) -> Snapshot:
        """Return the snapshot."""
        before_node, before = self._of
        same = self._snapshot is not None and before_node is node and len(before) == len(pods) and all(
            one.object is other.object for one, other in zip(before, pods, strict=True))
        if not same:
            from koordpolicy.engine.cluster.cluster import Cluster  # noqa: PLC0415 - numpy, which only documents need

            self._snapshot = Cluster(
                [node, *(pod.object for pod in pods)], kinds=frozenset({"Node", "Pod", "Namespace"})).snapshot()
            self._of = node, pods
        assert self._snapshot is not None
        return self._snapshot


class LiveReadings:
    """One node now (implements `NodeReadings`).

    Objects and pods are those of the moment at which this was made; files are read when they are looked up.
    """

    def __init__(
        self, parts: AgentParts, now: int, *, files: Mapping[str, str], snapshots: SnapshotCache,
        inject: Callable[[tuple[PodInfo, ...]], tuple[PodInfo, ...]] = lambda pods: pods,
    ) -> None:
        """`inject` returns the pods with the policies that plugins give them.

        Raises:
            EvaluationError: the node is not known yet.
        """
        node = parts.states.node
        if node is None:
            raise EvaluationError(f"the node `{parts.node}` is not known yet", reason="NoNode")
        self._parts = parts
        self._now = now
        self._node = node
        self._pods = inject(parts.states.pods)
        self._files = files
        self._host: Host | None = None
        self._snapshots = snapshots
        self._evictions = parts.evictor.evictions
        self._usage = parts.usage.at(now)
        self._objects = {"NodeSLO": parts.states.node_slo, "NodeResourceTopology": parts.states.topology}
        self.collect_interval = self._usage.collect_interval
        self.node_usage = self._usage.node_usage
        self.pod_usage = self._usage.pod_usage
        self.container_usage = self._usage.container_usage
        self.application_usage = self._usage.application_usage
        self.best_effort_cpu = self._usage.best_effort_cpu
        self.measured = self._usage.measured
        self.age = self._usage.age

    @property
    def now(self) -> int:
        """The time, in nanoseconds since the epoch."""
        return self._now

    @property
    def node(self) -> Mapping[str, Any]:
        """The node as the API server serves it."""
        return self._node

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node."""
        return self._pods

    @property
    def host(self) -> Host:
        """The machine, with the volumes that claims are bound to now."""
        if self._host is None:
            host = self._parts.host
            self._host = replace(host, storage=replace(host.storage, claims=self._parts.claims()))
        return self._host

    @property
    def files(self) -> Mapping[str, str]:
        """The files by logical name."""
        return self._files

    @property
    def evictions(self) -> Evictions:
        """The earlier evictions on the node."""
        return self._evictions

    @property
    def snapshot(self) -> Snapshot:
        """The node and its pods as a cluster, without measurements."""
        return self._snapshots.of(self._node, self._pods)

    def directory(self, pod: PodInfo, container: str = "") -> str:
        """Return the logical directory of a pod or of one of its containers."""
        return logical_directory(pod, container)

    def object(self, kind: str) -> Mapping[str, Any] | None:
        """Return the NodeSLO or the NodeResourceTopology of the node, if there is one."""
        return self._objects.get(kind)
