"""One DeschedulerPlugin document over one snapshot: the variables of its expressions, and their results.

Sources and targets are evaluated for all nodes at once; pods, and nodes after moves, one by one. If an expression
fails, the pod stays (or the node is neither source nor target), and the failure is recorded. A node without a metric is
neither if the expression reads measured values.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cel.vector.frame import Column
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.objects.metrics import MeasuredList, Unmeasured
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.cluster.pod_variables import pod_values
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import AggregateProgram, CompiledDescheduler, Rule
from koordpolicy.engine.documents import Over
from koordpolicy.engine.evaluation.facts import Facts, summarize_rows
from koordpolicy.engine.evaluation.pod_selection import accepts_pod
from koordpolicy.engine.evaluation.sort_order import sort_key
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.descheduler import EvictionChoice, EvictionMode, Evictor
from koordpolicy.engine.framework.points import FailurePolicy, Refusal

from .placement import PodPlacements
from .pods import AssignedPods, NodeFit
from .room import Amounts, TargetsRoom, amounts_of_target
from .workload_limits import PodOwners, WorkloadBudget, WorkloadLimits

T = TypeVar("T")

_UNMEASURED: Final = Unmeasured("no metric of the pod, or an expired one")
_MEASURED: Final = frozenset(("usage", "estimated", "metricAge", "nodeMetric"))
_OF_NODE: Final = frozenset((
    "node", "nodeInfo", "allocatable", "requested", "nonZeroRequested", "usage", "estimated", "metricAge", "nodeMetric",
    "devices", "aggregates",
))
_OF_POD: Final = _OF_NODE | {"podUsage", "placement"}


class RowBindings(Mapping[str, object]):
    """The variables of one row: `values`, and those in `names`, each computed by `read` when it is first read."""

    __slots__ = ("_names", "_read", "_values")

    def __init__(self, values: dict[str, object], names: AbstractSet[str], read: Callable[[str], object]) -> None:
        self._values = values
        self._names = names
        self._read = read

    def __getitem__(self, name: str) -> object:
        if name not in self._values:
            if name not in self._names:
                raise KeyError(name)
            self._values[name] = self._read(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values or name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._values.keys() | self._names)

    def __len__(self) -> int:
        return len(self._values.keys() | self._names)


@dataclass(slots=True)
class NodeState:
    """A node during one cycle: its state in the snapshot, changed by the planned moves."""

    row: int
    name: str
    usage_change: dict[str, int] = field(default_factory=dict)
    requested_change: dict[str, int] = field(default_factory=dict)
    nonzero_change: dict[str, int] = field(default_factory=dict)
    pods_change: int = 0

    @property
    def changed(self) -> bool:
        """True if any pod was moved."""
        return bool(self.pods_change or self.usage_change or self.requested_change)

    def move(self, pod: PodInfo, usage: Mapping[str, int], sign: int) -> None:
        """Add a pod's amounts (`sign` 1) or subtract them (-1)."""
        self.pods_change += sign
        for change, amounts in (
            (self.requested_change, pod.requests), (self.nonzero_change, pod.nonzero_requests()),
            (self.usage_change, usage),
        ):
            for name, amount in amounts.items():
                change[name] = change.get(name, 0) + sign * amount

    def copy(self) -> NodeState:
        """Return an independent copy."""
        return NodeState(self.row, self.name, dict(self.usage_change), dict(self.requested_change),
                         dict(self.nonzero_change), self.pods_change)


class DocumentBudget:
    """Counts the evictions of one call against the document's own limits."""

    def __init__(self, compiled: CompiledDescheduler, snapshot: Snapshot) -> None:
        limits = self._limits = compiled.spec.limits
        self._workloads = WorkloadBudget(WorkloadLimits(limits.per_workload, limits.per_owner), PodOwners(snapshot))
        self._nodes: dict[str, int] = {}
        self._namespaces: dict[str, int] = {}
        self._total = 0

    def refusal(self, pod: PodInfo) -> str:
        """Return the limit that keeps a pod; empty if there is none."""
        limits = self._limits
        if limits.per_node is not None and self._nodes.get(pod.node_name, 0) >= limits.per_node:
            return f"at most {counted(limits.per_node, 'pod')} per node"
        if limits.per_namespace is not None and self._namespaces.get(pod.namespace, 0) >= limits.per_namespace:
            return f"at most {counted(limits.per_namespace, 'pod')} per namespace"
        if limits.total is not None and self._total >= limits.total:
            return f"at most {counted(limits.total, 'pod')} in all"
        return self._workloads.refusal(pod)

    def done(self, pod: PodInfo) -> None:
        """Count an eviction."""
        self._nodes[pod.node_name] = self._nodes.get(pod.node_name, 0) + 1
        self._namespaces[pod.namespace] = self._namespaces.get(pod.namespace, 0) + 1
        self._total += 1
        self._workloads.done(pod)


@dataclass(slots=True)
class Targets:
    """The nodes that may take pods in a cycle, and the room that they share, if any."""

    nodes: list[NodeState]
    room: TargetsRoom | None


class DocumentCycle:
    """One document over one snapshot."""

    def __init__(
        self, compiled: CompiledDescheduler, snapshot: Snapshot, rows: Sequence[int], leaving: Collection[str] = (),
    ) -> None:
        """`leaving` are the keys of pods that other plugins evicted in this cycle; nodes are evaluated without them."""
        self.compiled = compiled
        self.snapshot = snapshot
        self.rows = rows
        self._leaving = frozenset(leaving)
        self.assigned = AssignedPods(snapshot)
        self._fit = NodeFit(snapshot)
        self._placements = PodPlacements(snapshot, rows, self._fit)
        self._frame = snapshot.frame({})
        self._values: dict[str, object] = {"params": compiled.params, "now": Timestamp(snapshot.now)}
        self._facts: Facts | None = None
        self._columns: dict[Program, Column] = {}

    # Variables of expressions

    def of_node(self, state: NodeState) -> RowBindings:
        """Return the variables of a node."""
        return RowBindings(dict(self._values), _OF_NODE, functools.partial(self._node_value, state))

    def of_pod(self, state: NodeState, pod: PodInfo, target: NodeState | None = None) -> RowBindings:
        """Return the variables of a pod and its node, or of a pod and a node that may take it."""
        return RowBindings({**self._values, **pod_values(pod)}, _OF_POD,
                           functools.partial(self._pod_value, state, pod, target or state))

    def _aggregates(self) -> Facts:
        """Return the aggregates; computed when one is first read, once per cycle."""
        if self._facts is None:
            self._facts = Facts()  # an aggregate may read those before it
            summarize_rows(self._facts, self.compiled.aggregates, self._rows_of)
        return self._facts

    def _rows_of(self, aggregate: AggregateProgram) -> Iterator[RowBindings]:
        for row in self.rows:
            state = self.state(row)
            if not self.matches_node(state):
                continue
            if aggregate.over is Over.NODES:
                yield self.of_node(state)
            else:
                yield from (self.of_pod(state, pod) for pod in self.assigned.active(row)
                            if pod.key not in self._leaving)

    def _pod_value(self, state: NodeState, pod: PodInfo, seen: NodeState, name: str) -> object:
        """Return a variable of a pod on `state`, with those of the node `seen`."""
        if name == "podUsage":
            return self.pod_usage(state, pod)
        if name == "placement":
            return self._placements.of(pod)
        return self._node_value(seen, name)

    def _node_value(self, state: NodeState, name: str) -> object:
        if name == "aggregates":
            return self._aggregates()
        if state.row < 0:
            raise EvaluationError(f"the node `{state.name}` of the pod is not known")
        value = self._frame.row_value(name, state.row)
        if name in ("usage", "estimated") and state.usage_change and not isinstance(value, Unmeasured):
            changed: Any = value
            return MeasuredList({
                key: max(amount + state.usage_change.get(key, 0), 0) if isinstance(amount, int) else amount
                for key, amount in changed.items()
            })
        change = {"requested": state.requested_change, "nonZeroRequested": state.nonzero_change}.get(name)
        if change:
            changed = dict(value)  # type: ignore[call-overload]
            for key, amount in change.items():
                changed[key] = changed.get(key, 0) + amount
            return ResourceList(changed)
        if name == "nodeInfo" and state.pods_change:
            info: Any = value
            return {**info, "pods": info["pods"] + state.pods_change}
        return value

    def pod_usage(self, state: NodeState, pod: PodInfo) -> Mapping[str, int]:
        """Return a pod's measured usage; reading it is an error if there is none."""
        metric = self.snapshot.row(state.row).metric if state.row >= 0 else None
        fresh = state.row >= 0 and self.snapshot.is_fresh(state.row)
        used = metric.pods.get(pod.key) if metric is not None and fresh else None
        if used is None:
            return _UNMEASURED
        return MeasuredList(used)

    # Nodes

    def state(self, row: int) -> NodeState:
        """Return a node as it is at the beginning of the cycle, without the pods that other plugins evicted."""
        state = NodeState(row, self.snapshot.names[row])
        for pod in self.assigned.active(row) if self._leaving else ():
            if pod.key in self._leaving:
                state.move(pod, self._known_usage(state, pod), -1)
        return state

    def _known_usage(self, state: NodeState, pod: PodInfo) -> Mapping[str, int]:
        """Return a pod's measured usage; nothing without a metric."""
        usage = self.pod_usage(state, pod)
        return {} if isinstance(usage, Unmeasured) else usage

    def matches_node(self, state: NodeState) -> bool:
        """Return whether the document matches the node."""
        match = self.compiled.spec.match.nodes
        labels = self.snapshot.node(state.row)["metadata"].get("labels") or {}
        return match is None or match.accepts(state.name, labels)

    def holds(self, program: Program, state: NodeState, evictor: Evictor, rule: str) -> bool:
        """Return whether an expression is true for a node; a failure is recorded and counts as false."""
        return self._evaluated(state, evictor, rule, (program,), lambda: self._value_of(program, state)) is True

    def _evaluated(
        self, state: NodeState, evictor: Evictor, rule: str, programs: Iterable[Program], evaluate_: Callable[[], T],
    ) -> T | None:
        """Return the result of `evaluate_` for a node; None if it failed, or the programs read a metric that the node
        lacks. Both are reported to the evictor.
        """
        if not self.snapshot.is_fresh(state.row) and any(
            path[0] in _MEASURED for program in programs for path in program.checked.reads
        ):
            message = f"without a metric, or with an expired one, `{rule}` is not evaluated"
            evictor.observe(state.name, "unmeasured", message)
            return None
        try:
            return evaluate_()
        except EvaluationError as error:
            evictor.fail(rule, state.name, error.message)
            return None

    def source_key(self, state: NodeState, evictor: Evictor) -> tuple[Any, ...] | None:
        """Return the sort key of a source; None if it cannot be computed."""
        keys = self.compiled.source_sort
        programs = [each.program for each in keys]
        return self._evaluated(state, evictor, "nodes.sort", programs, lambda: sort_key(keys, self.of_node(state)))

    def _value_of(self, program: Program, state: NodeState) -> object:
        """Return an expression's value for a node; unchanged nodes are evaluated all at once."""
        if state.changed:
            return program.evaluate(self.of_node(state))
        column = self._columns.get(program)
        if column is None:
            values = dict(self._values)
            if "aggregates" in program.variables:
                values["aggregates"] = self._aggregates()
            column = evaluate(program, self.snapshot.frame(values), np.array(self.rows, dtype=np.intp))
            self._columns[program] = column
        if state.row in column.errors:
            raise column.errors[state.row]
        return bool(column.values[bisect.bisect_left(self.rows, state.row)])

    def targets(self, evictor: Evictor, sources: set[int]) -> Targets | None:
        """Return the nodes that may take pods, or None if the document requires no target."""
        target, room = self.compiled.target, self.compiled.room
        if target is None:
            return None
        found: list[NodeState] = []
        added: list[Amounts] = []
        for row in self.rows:
            state = self.state(row)
            if row in sources or not self.matches_node(state) or not self.holds(target, state, evictor, "nodes.target"):
                continue
            if room is not None:
                amounts = self._added(room.of_target, state, evictor)
                if amounts is None:
                    continue
                added.append(amounts)
            evictor.observe(state.name, "target")
            found.append(state)
        return Targets(found, None if room is None else TargetsRoom(added))

    def _added(self, program: Program, state: NodeState, evictor: Evictor) -> Amounts | None:
        return self._evaluated(state, evictor, "nodes.room.ofTarget", (program,),
                             lambda: amounts_of_target(program, self.of_node(state)))

    def place(self, state: NodeState, pod: PodInfo, targets: Targets, evictor: Evictor) -> Amounts | Refusal:
        """Return the amounts that a pod takes from the room that the targets share, or the reason why it stays.

        Without such a room the pod is placed on the first target that takes it, and a target that becomes too full is
        dropped. The placement stays even if the pod is not evicted in the end, to be safe.
        """
        error: EvaluationError | None = None
        for target in targets.nodes:
            try:
                if self._takes(target, state, pod):
                    break
            except EvaluationError as failure:
                error = error or failure
        else:
            if error is None:
                return Refusal("nodes.target", "no target node takes it")
            return self._failed("nodes.fit", pod, error, evictor)
        if targets.room is None:
            target.move(pod, self._known_usage(state, pod), 1)
            assert self.compiled.target is not None
            if not self.holds(self.compiled.target, target, evictor, "nodes.target"):
                targets.nodes.remove(target)
            return {}
        assert self.compiled.room is not None
        try:
            return targets.room.amounts_of_pod(self.compiled.room.of_pod, self.of_pod(state, pod))
        except EvaluationError as failure:
            return self._failed("nodes.room.ofPod", pod, failure, evictor)

    def _takes(self, target: NodeState, state: NodeState, pod: PodInfo) -> bool:
        """Return whether a target takes a pod of a source; raises `EvaluationError` if `nodes.fit` fails."""
        program = self.compiled.fit
        if program is None:
            return self._fit.fits(pod, target.row, reserved=target.requested_change)
        return program.evaluate(self.of_pod(state, pod, target)) is True

    def _failed(self, rule: str, pod: PodInfo, error: EvaluationError, evictor: Evictor) -> Refusal:
        """Record that an expression failed for a pod, and return the refusal that keeps the pod."""
        evictor.fail(rule, pod.key, error.message)
        return Refusal(rule, f"`{rule}` failed: {error.message}", error=error)

    def is_finished(self, state: NodeState, evictor: Evictor) -> bool:
        """Return whether no more pods must leave the node: `until` is true, or failed."""
        program = self.compiled.until
        if program is None:
            return False
        try:
            return program.evaluate(self.of_node(state)) is not False
        except EvaluationError as error:
            evictor.fail("until", state.name, error.message)
            return True

    def is_relieved(self, state: NodeState, pods: Iterable[PodInfo]) -> bool:
        """Return whether `until` is true for the node without these pods; false if it fails."""
        program = self.compiled.until
        assert program is not None
        without = state.copy()
        for pod in pods:
            without.move(pod, self._known_usage(state, pod), -1)
        try:
            return program.evaluate(self.of_node(without)) is True
        except EvaluationError:
            return False

    def size(self, state: NodeState, pod: PodInfo) -> float:
        """Return the share of the node's cpu and memory that a pod uses, or requests if it is not measured; 0..2."""
        usage = self.pod_usage(state, pod)
        amounts: Mapping[str, int] = pod.requests if isinstance(usage, Unmeasured) else dict(usage)
        allocatable = self.snapshot.row(state.row).allocatable
        return sum(
            min(1.0, amounts.get(name, 0) / allocatable[name]) for name in ("cpu", "memory") if allocatable[name] > 0
        )

    # Pods

    def is_chosen(self, state: NodeState, pod: PodInfo) -> bool:
        """Return whether a pod meets all criteria on a node; raises `EvaluationError` if one fails."""
        if not accepts_pod(self.compiled.spec.match.pods, pod, self.snapshot):
            return False
        bindings = self.of_pod(state, pod)
        return all(rule.program.evaluate(bindings) is True
                   for rule in (*self.compiled.match_conditions, *self.compiled.criteria))

    def candidates(self, state: NodeState, pods: Iterable[PodInfo], evictor: Evictor) -> list[PodInfo]:
        """Return the pods that meet all criteria and that no filter vetoes."""
        found = []
        for pod in pods:
            if evictor.is_leaving(pod) or not accepts_pod(self.compiled.spec.match.pods, pod, self.snapshot):
                continue
            bindings = self.of_pod(state, pod)
            if not all(self._is_true(rule, bindings, pod, evictor) for rule in self.compiled.match_conditions):
                continue
            if not all(self._is_true(rule, bindings, pod, evictor) for rule in self.compiled.criteria):
                continue
            if evictor.filter(pod) is None and evictor.pre_eviction_filter(pod) is None:
                found.append(pod)
        return found

    def _is_true(self, rule: Rule, bindings: RowBindings, pod: PodInfo, evictor: Evictor) -> bool:
        try:
            return rule.program.evaluate(bindings) is True
        except EvaluationError as error:
            evictor.keep(pod, self._failed(rule.name, pod, error, evictor))
            return False

    def veto(self, state: NodeState, pod: PodInfo) -> Refusal | None:
        """Return why an EvictionFilter keeps the pod, or None."""
        spec = self.compiled.spec
        if not accepts_pod(spec.match.pods, pod, self.snapshot):
            return None
        if state.row >= 0 and not self.matches_node(state):
            return None
        for rule in (*self.compiled.match_conditions, *self.compiled.criteria):
            is_condition = rule in self.compiled.match_conditions
            try:
                true = rule.program.evaluate(self.of_pod(state, pod)) is True
            except EvaluationError as error:
                # A failing criterion vetoes, unless the failure policy is to ignore it.
                if spec.failure_policy is FailurePolicy.IGNORE:
                    continue
                return Refusal(rule.name, f"`{rule.name}` failed: {error.message}", error=error)
            if not true:
                return None if is_condition else Refusal(rule.name, self._message(rule, state, pod))
        return None

    def choice(self, state: NodeState, pod: PodInfo) -> EvictionChoice:
        """Return how a pod that the document matches leaves; raises `EvaluationError`."""
        compiled = self.compiled
        if not accepts_pod(compiled.spec.match.pods, pod, self.snapshot):
            return EvictionChoice()
        if state.row >= 0 and not self.matches_node(state):
            return EvictionChoice()
        bindings = self.of_pod(state, pod)
        if not all(rule.program.evaluate(bindings) is True for rule in compiled.match_conditions):
            return EvictionChoice()
        mode_of, seconds_of = compiled.eviction_mode, compiled.eviction_grace_period
        mode = "" if mode_of is None else mode_of.evaluate(bindings)
        seconds = -1 if seconds_of is None else seconds_of.evaluate(bindings)
        if mode not in ("", *EvictionMode):
            raise EvaluationError(f"`{mode}` is no mode of an eviction: return one of {', '.join(EvictionMode)}, or ''")
        return EvictionChoice(
            EvictionMode(str(mode)) if mode else None, seconds if isinstance(seconds, int) and seconds >= 0 else None,
        )

    def _message(self, rule: Rule, state: NodeState, pod: PodInfo) -> str:
        if rule.message_program is not None:
            try:
                text = rule.message_program.evaluate(self.of_pod(state, pod))
            except EvaluationError:
                text = ""
            if isinstance(text, str) and text:
                return text
        return rule.message or f"`{rule.name}` is not true of it"

    def in_order(
        self, pods: Sequence[tuple[NodeState, PodInfo]], evictor: Evictor,
    ) -> list[tuple[NodeState, PodInfo]]:
        """Return pods, with their nodes, in the order of the sort keys; a pod for which a key fails stays."""
        sortable: list[tuple[tuple[Any, ...], tuple[NodeState, PodInfo]]] = []
        for state, pod in pods:
            bindings = self.of_pod(state, pod)
            try:
                sortable.append((sort_key(self.compiled.sort, bindings), (state, pod)))
            except EvaluationError as error:
                evictor.keep(pod, self._failed("sort", pod, error, evictor))
        return [pair for _, pair in sorted(sortable, key=lambda each: each[0])]

    @property
    def chosen_by(self) -> str:
        """The names of the criteria, which all candidates meet."""
        return ", ".join(rule.name for rule in self.compiled.criteria) or "nodes.source"

    def evict(self, state: NodeState, pod: PodInfo, evictor: Evictor, budget: DocumentBudget) -> bool:
        """Evict a candidate within the document's limits; return whether it was evicted."""
        over = budget.refusal(pod)
        if over:
            evictor.keep(pod, Refusal("limits", over), rule=self.chosen_by)
            return False
        messages = [text for rule in self.compiled.criteria if (text := self._reason(rule, state, pod))]
        unnamed = self.chosen_by if self.compiled.criteria else "its node is a source"
        if not evictor.evict(pod, "; ".join(messages) or unnamed, rule=self.chosen_by):
            return False
        budget.done(pod)
        state.move(pod, self._known_usage(state, pod), -1)
        return True

    def _reason(self, rule: Rule, state: NodeState, pod: PodInfo) -> str:
        if rule.message or rule.message_program is not None:
            return self._message(rule, state, pod)
        return ""
