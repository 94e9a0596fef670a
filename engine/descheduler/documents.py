"""Plugins of DeschedulerPlugin documents: the protocols of Python plugins, over compiled expressions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import CompiledDescheduler
from koordpolicy.engine.documents import DeschedulerType, SortScope
from koordpolicy.engine.documents.specs import EvictionLimits
from koordpolicy.engine.framework.descheduler import EvictionChoice, Evictor
from koordpolicy.engine.framework.points import FailurePolicy, Refusal

from .document_cycle import DocumentBudget, DocumentCycle, NodeState, Targets
from .proof.cover import MOST_TESTS, fewest
from .results import WAITING


@dataclass(slots=True)
class _Seen:
    count: int = 0
    last: int = 0


class SourceStreaks:
    """The numbers of consecutive cycles in which nodes were sources, by profile, document and item; outlives
    generations. Profiles count separately: they may have other params, or exclude a node.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], _Seen] = {}

    def observe(self, profile: str, item: str, node: str, *, source: bool, now: int, timeout: int) -> int:
        """Count a cycle and return the number of consecutive ones; after `timeout` ns without one, counting
        restarts.
        """
        if not source:
            self._seen.pop((profile, item, node), None)
            return 0
        seen = self._seen.setdefault((profile, item, node), _Seen())
        seen.count = 1 if timeout > 0 and seen.count and now - seen.last > timeout else seen.count + 1
        seen.last = now
        return seen.count


class DocumentPlugin:
    """A compiled document at its point: Deschedule, Balance or EvictionFilter."""

    def __init__(
        self, compiled: CompiledDescheduler, memory: SourceStreaks | None = None, profile: str = "", *,
        fewest: bool = False,
    ) -> None:
        """`profile` separates its state from that of the same document in another profile.

        With `fewest` a document without `sort` evicts the fewest pods for which `until` becomes true.
        """
        self._profile = profile
        self._fewest = fewest and not compiled.sort and compiled.until is not None
        self._compiled = compiled
        self._memory = memory or SourceStreaks()
        self._latest: tuple[Snapshot, DocumentCycle] | None = None

    @property
    def name(self) -> str:
        """The document's name."""
        return self._compiled.name

    @property
    def compiled(self) -> CompiledDescheduler:
        """The programs."""
        return self._compiled

    @property
    def decides_per_node(self) -> bool:
        """True if it has no aggregates, reads no `placement`, and limits evictions per node at most."""
        compiled, limits = self._compiled, self._compiled.spec.limits
        if compiled.aggregates or replace(limits, per_node=None) != EvictionLimits():
            return False
        programs = (*(each.program for each in (*compiled.match_conditions, *compiled.criteria)),
                    *(each.program for each in compiled.sort), compiled.source)
        return not any(program is not None and "placement" in program.variables for program in programs)

    def cycle(self, snapshot: Snapshot, rows: Rows) -> DocumentCycle:
        """Return the document's view of the nodes at `rows`; for explanations."""
        return DocumentCycle(self._compiled, snapshot, [int(row) for row in rows])

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods of any phase that meet all criteria, from the nodes that are sources (all without one)."""
        cycle = self._at(snapshot, rows, evictor.leaving())
        budget = DocumentBudget(self._compiled, snapshot)
        found = (
            (state, cycle.candidates(state, cycle.assigned.all(state.row), evictor))
            for state in self._sources(cycle, evictor)
        )
        if self._compiled.spec.sort_scope is SortScope.CLUSTER:
            pairs = [(state, pod) for state, pods in found for pod in pods]
            for state, pod in cycle.in_order(pairs, evictor):
                cycle.evict(state, pod, evictor, budget)
            return
        for state, pods in found:
            for _, pod in cycle.in_order([(state, pod) for pod in pods], evictor):
                cycle.evict(state, pod, evictor, budget)

    def balance(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Move pods off the sources, as long as a target takes them and `until` is false."""
        cycle = self._at(snapshot, rows, evictor.leaving())
        sources = self._sources(cycle, evictor)
        targets = cycle.targets(evictor, {state.row for state in sources})
        budget = DocumentBudget(self._compiled, snapshot)
        for state in sources:
            candidates = cycle.candidates(state, cycle.assigned.active(state.row), evictor)
            left = [pod for _, pod in cycle.in_order([(state, pod) for pod in candidates], evictor)]
            chosen, refused = self._chosen(cycle, state, left), 0
            while left:
                stop = _stop(cycle, state, targets, evictor)
                if stop is not None:
                    for other in left:
                        evictor.keep(other, stop, rule=cycle.chosen_by)
                    break
                pod, was_chosen = (chosen[0], True) if chosen else (left[0], False)
                left, chosen = [each for each in left if each is not pod], chosen[1:]
                placed = {} if targets is None else cycle.place(state, pod, targets, evictor)
                if isinstance(placed, Refusal):
                    evictor.keep(pod, placed, rule=cycle.chosen_by)
                elif cycle.evict(state, pod, evictor, budget):
                    if targets is not None and targets.room is not None:
                        targets.room.take(placed)
                    continue
                if was_chosen:
                    refused += 1
                    chosen = self._chosen(cycle, state, left, refused)

    def eviction_filter(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Veto the eviction of a pod that the document matches and for which a criterion is not true."""
        if self._compiled.spec.type is not DeschedulerType.EVICTION_FILTER:
            return None
        cycle = self._at(snapshot, None)
        row = snapshot.index.get(pod.node_name)
        state = NodeState(-1 if row is None else row, pod.node_name)
        return cycle.veto(state, pod)

    def clears(self, snapshot: Snapshot, rows: Rows, row: int, pod: PodInfo) -> str:
        """Return why the document would evict from a node of an overlay: it is a source, or the pod meets all criteria.

        A condition that fails clears nothing.
        """
        cycle = DocumentCycle(self._compiled, snapshot, [int(each) for each in rows])
        state = NodeState(row, snapshot.names[row])
        if not cycle.matches_node(state):
            return ""
        try:
            if self._compiled.source is not None:
                source = self._compiled.source.evaluate(cycle.of_node(state)) is True
                return f"`nodes.source` of {self.name} is true of it" if source else ""
            return f"it meets the criteria of {self.name} there, too" if cycle.is_chosen(state, pod) else ""
        except EvaluationError:
            return ""

    def _chosen(
        self, cycle: DocumentCycle, state: NodeState, pods: Sequence[PodInfo], refused: int = 0,
    ) -> Sequence[PodInfo]:
        """Return the fewest of the pods that relieve the node; empty if the order is the document's own.

        After some were `refused` the search is shorter, so that all searches of a node together are bounded.
        """
        if not self._fewest:
            return ()
        return fewest(pods, lambda pod: cycle.size(state, pod), lambda leaving: cycle.is_relieved(state, leaving),
                      tests=MOST_TESTS // (1 + refused)) or ()

    def choose_eviction(self, pod: PodInfo, snapshot: Snapshot) -> EvictionChoice:
        """Return how an EvictionFilter lets a pod leave that it matches.

        Raises:
            EvaluationError: an expression failed, or its value is none that it may have.
        """
        compiled = self._compiled
        if compiled.eviction_mode is None and compiled.eviction_grace_period is None:
            return EvictionChoice()
        cycle = self._at(snapshot, None)
        row = snapshot.index.get(pod.node_name)
        try:
            return cycle.choice(NodeState(-1 if row is None else row, pod.node_name), pod)
        except EvaluationError:
            if compiled.spec.failure_policy is FailurePolicy.IGNORE:
                return EvictionChoice()
            raise

    def _at(self, snapshot: Snapshot, rows: Rows | None, leaving: Collection[str] = ()) -> DocumentCycle:
        if self._latest is None or self._latest[0] is not snapshot or rows is not None:
            chosen = range(snapshot.size) if rows is None else [int(row) for row in rows]
            self._latest = snapshot, DocumentCycle(self._compiled, snapshot, chosen, leaving)
        return self._latest[1]

    def _sources(self, cycle: DocumentCycle, evictor: Evictor) -> list[NodeState]:
        """Return the sources, in the order of `nodes.sort`."""
        compiled = self._compiled
        found: list[tuple[tuple[Any, ...], NodeState]] = []
        anomaly = compiled.spec.nodes.anomaly
        for row in cycle.rows:
            state = cycle.state(row)
            if not cycle.matches_node(state):
                continue
            is_source = compiled.source is None or cycle.holds(compiled.source, state, evictor, "nodes.source")
            if anomaly is not None:
                now, timeout = cycle.snapshot.now, anomaly.timeout_ns and max(anomaly.timeout_ns, 2 * evictor.interval)
                seen = self._memory.observe(
                    self._profile, compiled.anomaly_key, state.name, source=is_source, now=now, timeout=timeout,
                )
                if is_source and seen < anomaly.consecutive:
                    message = f"a source in {seen} of {anomaly.consecutive} cycles in a row"
                    evictor.observe(state.name, WAITING, message)
                    continue
            key = cycle.source_key(state, evictor) if is_source else None
            if key is not None:
                if compiled.source is not None:
                    evictor.observe(state.name, "source")
                found.append((key, state))
        return [state for _, state in sorted(found, key=lambda each: each[0])]


def _stop(cycle: DocumentCycle, state: NodeState, targets: Targets | None, evictor: Evictor) -> Refusal | None:
    """Return why no more pods leave a source: it gave up enough, or the targets have no more room."""
    if cycle.is_finished(state, evictor):
        return Refusal("until", f"node `{state.name}` needs to give up no more pods")
    used_up = targets.room.refusal() if targets is not None and targets.room is not None else ""
    return Refusal("nodes.room", used_up) if used_up else None
