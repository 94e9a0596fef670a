"""What plugins of the scheduler fulfil: the scheduling framework's extension points, and Koordinator's.

All of them are small protocols; a plugin gets a capability because it has the methods. Where a question is about
nodes, it is asked for all rows at once. What a plugin says no with is a `Refusal`; None means "go on". What it raises
is its failure, and never ends the scheduler: see `engine.scheduler.cycle.schedule_one`.

A what-if is another snapshot (see `Snapshot.overlay`), never a change that is undone: a plugin that keeps something per
node derives it of the pods that the *snapshot* shows there, so that preemption, nominated pods and restored
reservations need nothing of it. There is no AddPod or RemovePod to write: the framework asks `pre_filter` again, of the
overlay.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from koordpolicy.engine.cluster.events import Event

if TYPE_CHECKING:
    from koordpolicy.engine.cel.check.checked_ast import Path
    from koordpolicy.engine.cel.vector.frame import Rows
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.snapshot import Snapshot

    from .points import Answer, CacheKey, Code, Point, Refusal, Scores


_Kind = TypeVar("_Kind")


class CycleState(dict[object, Any]):
    """What plugins remember during one decision, under keys of their own: use the value's class as the key, see `of`.

    Each reading and writing is atomic, and so is taking what is cloned. One decision runs in one thread; what crosses
    to a binding cycle is handed over whole. `clone` is what a what-if runs on.
    """

    def of(self, kind: type[_Kind]) -> _Kind | None:
        """Return what stands under its own class; None where nothing of that kind does."""
        found = self.get(kind)
        return found if isinstance(found, kind) else None

    def clone(self) -> CycleState:
        """Return a state of its own; a value with a method `clone` is cloned, others are shared and must not change."""
        return CycleState({
            key: value.clone() if callable(getattr(value, "clone", None)) else value
            for key, value in list(self.items())  # taken at once: a plugin's own thread may write meanwhile
        })


class Skip(enum.Enum):
    """The answer of a plugin that has nothing to do with this pod: it is left out, and others are asked."""

    SKIP = "Skip"


SKIP = Skip.SKIP


@dataclass(frozen=True, slots=True)
class OnlyNodes:
    """The answer of a preFilter that knows the only nodes to look at; the answers of several are intersected."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wait:
    """The answer of a permit that holds the pod until somebody allows it, at most so long (nanoseconds)."""

    timeout: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """The answer of a preBind, applyPatch or bind plugin whose input and output is still to be done.

    `call` does it, in any thread and beside later decisions: it may use the handle's `client` and `log`, the draft, and
    values that it was made with. It must neither read nor write the plugin, the cycle state, a snapshot or the queue.
    What it returns or raises counts as the plugin's own answer.
    """

    call: Callable[[], Refusal | Skip | None]


@dataclass(frozen=True, slots=True)
class Nomination:
    """The answer of a postFilter that made room: the node that the pod will get, and the pods that have to go first."""

    node: str
    victims: tuple[PodInfo, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """The answer of a transformer: another pod, another view of the cluster, or both; None leaves what was."""

    pod: PodInfo | None = None
    snapshot: Snapshot | None = None
    """With the same rows: an overlay (see `Snapshot.overlay`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Which pod goes where, for pods that are placed together: node names by pod key."""

    nodes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod in the queue: since when it waits there (nanoseconds since the epoch), and how often it was tried."""

    pod: PodInfo
    since: int = 0
    attempts: int = 0
    first_attempt: int = 0
    """When it was tried first; 0 before that."""


# The queue


@runtime_checkable
class PreEnqueue(Protocol):
    """Asked before a pod may wait to be decided about; a gated pod costs nothing until something may change that."""

    def pre_enqueue(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod must not be tried yet, or None."""
        ...


@runtime_checkable
class QueueSort(Protocol):
    """The order of the queue; a profile has exactly one."""

    def queue_key(self, queued: QueuedPod) -> Any:
        """Return what the queue sorts by, smallest first; it must not change while the pod waits."""
        ...


@runtime_checkable
class NextPod(Protocol):
    """Says which pod comes next, before the queue is asked; the first plugin of the process that has this is taken."""

    def next_pod(self) -> str | None:
        """Return the key of a waiting pod, or None to leave it to the queue."""
        ...


@runtime_checkable
class Hinted(Protocol):
    """Says which events may make a pod schedulable that this plugin refused; without it, every event may."""

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether the pod is worth another try after the event."""
        ...


@runtime_checkable
class Depends(Protocol):
    """Says what its refusals depend on, so that no hints need to be written: what changes there may help.

    Documents have this from their expressions.
    """

    def depends_on(self, rules: frozenset[str]) -> frozenset[Path]:
        """Return the paths of the variables of filters (`("node", "metadata", "labels")`) that these rules read."""
        ...


@runtime_checkable
class Cacheable(Protocol):
    """Says what the results of its filter or its score depend on, so that they are cached.

    Then it is called about changed nodes only. The result about a node must not depend on which other nodes it is
    called about (so no score that is normalised over them), nor on anything that `CacheKey` does not name. It must be
    as fast about a few rows as those are few.
    """

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return what the result for the pod depends on; None where that cannot be said."""
        ...


# The scheduling cycle


@runtime_checkable
class BeforePreFilter(Protocol):
    """Transforms the pod or the view of the cluster before anything is asked (Koordinator's PreFilterTransformer)."""

    def before_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Changed | Refusal | None:
        """Return what is to be another; a refusal ends the cycle."""
        ...


@runtime_checkable
class PreFilter(Protocol):
    """Asked once per pod, before any node: a refusal ends the decision."""

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Return why this pod cannot be placed at all, or None.

        `OnlyNodes` narrows the choice; `SKIP` leaves out this plugin's filter for the pod.
        """
        ...


@runtime_checkable
class AfterPreFilter(Protocol):
    """Asked when all preFilters have passed."""

    def after_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | None:
        """Return why the cycle ends here, or None; `rows` are what the preFilters left."""
        ...


@runtime_checkable
class FindOneNode(Protocol):
    """Knows the one node that a pod has to go to; the first plugin that has this is asked."""

    def find_one_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Plan | Refusal | Skip:
        """Return a plan that holds this pod, why there is none, or `SKIP`."""
        ...


@runtime_checkable
class PreferNodes(Protocol):
    """Knows nodes that are worth a try before all others; the first plugin that has this is asked."""

    def prefer_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Sequence[str] | Skip:
        """Return names of nodes, best first: the first that passes all filters is taken."""
        ...


@runtime_checkable
class BeforeFilter(Protocol):
    """Transforms the view of the cluster before filters are asked."""

    def before_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Changed | Refusal | None:
        """Return what is to be another; a refusal ends the cycle."""
        ...


@runtime_checkable
class Filter(Protocol):
    """Asked once per pod for all nodes."""

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Return which of the nodes at `rows` (ascending row numbers) the pod may run on."""
        ...


@runtime_checkable
class FilterNode(Protocol):
    """Asked per node; simpler to write than `Filter`, and much slower on large clusters."""

    def filter_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Return why the pod may not run on the node at this row, or None."""
        ...


@runtime_checkable
class AfterFilter(Protocol):
    """Told what the filters left."""

    def after_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | None:
        """Return why the cycle ends here, or None."""
        ...


NO_CANDIDATE: Final = "candidates"
"""The rule of a postFilter's refusal that looked for a node where room can be made, and found none.

A node that the pod was nominated for before is then taken back.
"""


class Refused(Protocol):
    """What a postFilter is told of the nodes that refused a pod; rows are those of the snapshot."""

    def code(self, row: int) -> Code:
        """Return how the node was refused: only `Unschedulable` can be helped by taking pods away."""
        ...

    def reason(self, row: int) -> Refusal:
        """Return why the node was refused first."""
        ...

    def resolvable(self) -> Rows:
        """Return the rows that were refused with `Unschedulable`."""
        ...

    def passes(self, changed: Snapshot, rows: Rows) -> Rows:
        """Return the rows that would pass all filters in another view of the cluster; changes no state."""
        ...

    def why_not(self, changed: Snapshot, row: int) -> tuple[str, ...]:
        """Return the reasons for which a node would refuse the pod in another view; empty where it would not.

        They are those of the first filter that refuses, in fixed words; changes no state.
        """
        ...


@runtime_checkable
class PostFilter(Protocol):
    """Asked when no node passed: may make room (preemption); the first that nominates a node ends the asking."""

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal | None:
        """Return who has to go from which node, why nothing helps, or None."""
        ...


@runtime_checkable
class AfterPostFilter(Protocol):
    """Told that no node passed, and what the postFilters made of it."""

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused, nomination: Nomination | None,
    ) -> None:
        """Take note."""
        ...


@runtime_checkable
class PreScore(Protocol):
    """Asked once per pod before the scores, with the nodes that passed."""

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | Skip | None:
        """Prepare; `SKIP` leaves out this plugin's score for the pod, a refusal is an error and ends the cycle."""
        ...


@runtime_checkable
class BeforeScore(Protocol):
    """Transforms the pod or the view of the cluster before scores are asked."""

    def before_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Changed | Refusal | None:
        """Return what is to be another; a refusal ends the cycle."""
        ...


@runtime_checkable
class Score(Protocol):
    """Asked once per pod for the nodes that passed."""

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Return 0..100 for `rows`, normalised over them; the framework checks the range."""
        ...


@runtime_checkable
class ScoreNode(Protocol):
    """Asked per node; see `FilterNode`."""

    def score_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> int:
        """Return 0..100 for the node at this row."""
        ...


@runtime_checkable
class ResizePod(Protocol):
    """Gives a pod other requests once its node is known (feature gate ResizePod)."""

    def resize_pod(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> PodInfo | Refusal | None:
        """Return the pod as it is to be assumed."""
        ...


@runtime_checkable
class Reserve(Protocol):
    """Takes what the pod needs on the chosen node (devices, for example) and can give it back."""

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Reserve for the pod on the node; a refusal undoes what others reserved."""
        ...

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Undo `reserve`; idempotent, and may come without it; `row` is -1 where the node is gone meanwhile."""
        ...


@runtime_checkable
class Permit(Protocol):
    """May hold a pod that has its node until others are ready."""

    def permit(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | Wait | None:
        """Return why the pod must give its node back, how long it may wait, or None to let it go on."""
        ...


# The binding cycle


@runtime_checkable
class ThreadSafe(Protocol):
    """Declares that preBind, applyPatch and bind may be called in any thread, several at once, beside decisions.

    Such a plugin reads and writes nothing that other points of it write, uses no snapshot and no part of the handle but
    `client`, `log` and `now`, and writes into no cycle state. All other points are called in the thread that
    decides, as those of plugins are that declare nothing.
    """

    thread_safe: bool


@runtime_checkable
class PreBind(Protocol):
    """Prepares a pod that is about to be bound."""

    def pre_bind(
        self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str,
    ) -> Refusal | Deferred | None:
        """Write into `draft` (a deep copy of the pod's object) what the pod should carry; one patch is made of all."""
        ...


@runtime_checkable
class PreBindReservation(Protocol):
    """Prepares a Reservation that is about to become available, as `PreBind` does a pod."""

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,
    ) -> Refusal | Deferred | None:
        """Write into the copy of the Reservation what it should carry."""
        ...


@runtime_checkable
class ApplyPatch(Protocol):
    """Makes the one patch of what the preBinds changed (Koordinator's PreBindExtensions)."""

    def apply_patch(
        self, state: CycleState, original: Mapping[str, Any], modified: Mapping[str, Any],
    ) -> Refusal | Skip | Deferred | None:
        """Patch the object; the first plugin that does not skip decides."""
        ...


@runtime_checkable
class Bind(Protocol):
    """Binds a pod to its node; the first plugin that does not skip has done it."""

    def bind(self, state: CycleState, pod: PodInfo, node: str) -> Refusal | Skip | Deferred | None:
        """Bind, or say why that failed."""
        ...


@runtime_checkable
class PostBind(Protocol):
    """Told that a pod is bound."""

    def post_bind(self, state: CycleState, pod: PodInfo, node: str) -> None:
        """Take note."""
        ...


# Failure


@runtime_checkable
class BeforeError(Protocol):
    """Asked before the framework handles a pod that did not get a node."""

    def before_error(self, pod: PodInfo, refusal: Refusal) -> bool:
        """Return whether the failure is handled with that, so that nobody else is asked."""
        ...


@runtime_checkable
class AfterError(Protocol):
    """Told that the framework has handled a pod that did not get a node."""

    def after_error(self, pod: PodInfo, refusal: Refusal) -> bool:
        """Return whether no other one is to be told."""
        ...


@runtime_checkable
class ForgetPod(Protocol):
    """Told that an assumed pod was forgotten; all of them are told, whatever fails."""

    def forget_pod(self, pod: PodInfo) -> None:
        """Release what the pod held; idempotent."""
        ...


# Reservations


@runtime_checkable
class ReservationRestore(Protocol):
    """Shows a pod what reservations that it may use hold, as free."""

    def pre_restore(self, state: CycleState, pod: PodInfo) -> Refusal | None:
        """Prepare, once per pod."""
        ...

    def restore(
        self, state: CycleState, pod: PodInfo, matched: Sequence[Any], unmatched: Sequence[Any], node: str,
    ) -> Refusal | None:
        """Restore on one node; `matched` and `unmatched` are the node's reservations."""
        ...


@runtime_checkable
class ReservationFilter(Protocol):
    """May refuse a reservation for a pod."""

    def filter_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod may not use the reservation on the node."""
        ...


@runtime_checkable
class ReservationScore(Protocol):
    """Says which of several reservations suits a pod best."""

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> int:
        """Return 0..100; the framework checks the range, and sums over plugins."""
        ...


@runtime_checkable
class ReservationNominator(Protocol):
    """Chooses, per pod and node, the reservation that the pod takes."""

    def nominate_reservation(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Remember the choice for `pod` on the node; a refusal ends the cycle."""
        ...

    def forget_nomination(self, pod: PodInfo) -> None:
        """Forget what was chosen for the pod."""
        ...


# Topology


@dataclass(frozen=True, slots=True)
class TopologyHint:
    """NUMA nodes that would do for a resource: a bit mask (None: any), and whether that is how it should be."""

    mask: int | None
    preferred: bool
    score: int = 0


@runtime_checkable
class TopologyHints(Protocol):
    """Knows on which NUMA nodes of a node a pod's resources could come from (NUMATopologyHintProvider)."""

    def topology_hints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
        """Return hints by resource; None for a resource means that it does not matter, an empty list that none fits."""
        ...

    def allocate_by_topology(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, affinity: TopologyHint,
    ) -> Refusal | None:
        """Return why the resources cannot come from these NUMA nodes; a dry run."""
        ...


# Observation


@runtime_checkable
class Endpoints(Protocol):
    """Answers questions about its state, under `/apis/v1/plugins/<name>/` of the status server."""

    def endpoints(self) -> Mapping[str, Any]:
        """Return callables by path (`nodes/{name}`); each takes the path's parts and returns plain data or None."""
        ...


# Work beside the decisions


class Controller(Protocol):
    """Looks at the cluster now and then, and writes what follows from it."""

    name: str
    period: int
    """Nanoseconds between two runs."""

    def run(self, now: int) -> None:
        """Look, and write; `now` is in nanoseconds since the epoch. In the thread that decides, between decisions."""
        ...


@runtime_checkable
class Controllers(Protocol):
    """Has work beside the decisions (Koordinator's ControllerProvider)."""

    def controllers(self) -> Sequence[Controller]:
        """Return what is to be run; asked once."""
        ...
