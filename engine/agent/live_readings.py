"""The readings of the node on which the agent runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Evictions, Host

from .logical_directory import logical_directory
from .node_variables import NodeVariables
from .parts import AgentParts

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo


class VariablesCache:
    """The variables of the node, made again only when it or one of its pods is another object."""

    def __init__(self) -> None:
        self._of: tuple[object, tuple[PodInfo, ...]] = None, ()
        self._variables: NodeVariables | None = None

    def of(self, node: Mapping[str, Any], pods: tuple[PodInfo, ...]) -> NodeVariables:
        """Return the variables; raise `EvaluationError` if the Node is malformed."""
        before_node, before = self._of
        same = before_node is node and (before is pods or (len(before) == len(pods) and all(
            one.object is other.object for one, other in zip(before, pods, strict=True))))
        if self._variables is None or not same:
            self._variables = NodeVariables(node, pods)
            self._of = node, pods
        return self._variables


class LiveReadings:
    """One node now (implements `NodeReadings`).

    Objects and pods are those of the moment at which this was made; files are read when they are looked up.
    """

    def __init__(
        self, parts: AgentParts, now: int, *, files: Mapping[str, str], variables: VariablesCache,
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
        self._variables = variables
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
    def variables(self) -> NodeVariables:
        """The node and its pods as expressions see them, without measurements."""
        return self._variables.of(self._node, self._pods)

    def directory(self, pod: PodInfo, container: str = "") -> str:
        """Return the logical directory of a pod or of one of its containers."""
        return logical_directory(pod, container)

    def object(self, kind: str) -> Mapping[str, Any] | None:
        """Return the NodeSLO or the NodeResourceTopology of the node, if there is one."""
        return self._objects.get(kind)
