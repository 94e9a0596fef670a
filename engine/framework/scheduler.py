"""Protocols of scheduler plugins: the scheduling framework's extension points, and Koordinator's.

Each is small; a plugin implements an extension point by having its methods. Points about nodes are called once for all
rows. A plugin rejects with a `Refusal`; None means "continue". An exception is the plugin's failure and never ends the
scheduler: see `engine.scheduler.cycle.schedule_one`.

A what-if is another snapshot (see `Snapshot.overlay`), never a change that is undone: a plugin with per-node state
derives it from the pods of the *snapshot*, so preemption, nominated pods and restored reservations require no code of
their own. There is no AddPod or RemovePod: the framework calls `pre_filter` again, with the overlay.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
    """The state of plugins during one decision, under keys of their own: use the value's class as the key, see `of`.

    Each read and write is atomic, and so is `clone`'s copy of the items. One decision runs in one thread; its state is
    handed over to the binding cycle as a whole. What-ifs run on a clone.
    """

    def of(self, kind: type[_Kind]) -> _Kind | None:
        """Return the value stored under its own class, or None."""
        found = self.get(kind)
        return found if isinstance(found, kind) else None

    def clone(self) -> CycleState:
        """Return an independent state; values with a method `clone` are cloned, others are shared and immutable."""
        return CycleState({
            key: value.clone() if callable(getattr(value, "clone", None)) else value
            for key, value in list(self.items())  # copied at once: a plugin's own thread may write meanwhile
        })


class Skip(enum.Enum):
    """The result of a plugin that does not handle this pod: it is skipped, and the others are called."""

    SKIP = "Skip"
    SKIP_SHAPE = "SkipShape"
    """The result of a preFilter or preScore that skips all pods of one shape (`PodInfo.shape`): it is not called again
    for them. At other points it is `SKIP`."""


SKIP = Skip.SKIP
SKIP_SHAPE = Skip.SKIP_SHAPE


@dataclass(frozen=True, slots=True)
class OnlyNodes:
    """The result of a preFilter that limits the nodes to consider; several are intersected."""

    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Wait:
    """The result of a permit that holds the pod until it is allowed, for at most `timeout` nanoseconds.

    It is held for at most 15 minutes, whatever `timeout` says, as kube-scheduler does.
    """

    timeout: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """The result of a preBind, applyPatch or bind plugin whose input and output is still to be done.

    `call` does it, in any thread and concurrently with later decisions: it may use the handle's `client`, `count` and
    `log`, the draft, and values that it was made with. It must neither read nor write the plugin, the cycle state, a
    snapshot or the queue. Its result or exception counts as the plugin's own. Of a preBind, the result may be
    `AwaitObjects`.
    """

    call: Callable[[], Refusal | Skip | AwaitObjects | None | Awaitable[Refusal | Skip | AwaitObjects | None]]  # noqa: RUF036 - what a coroutine returns comes last
    asynchronous: bool = False
    """True if `call` is a coroutine function: it runs in the client's event loop, which it must not block."""


@dataclass(frozen=True, slots=True)
class AwaitObjects:
    """The result of a preBind that goes on when other components have changed objects: volumes that are bound, say.

    No thread waits meanwhile, and no other decision. The binding cycle ends with an error if the pod or its node is
    deleted, or the pod is preempted.
    """

    condition: Callable[[], Refusal | AwaitObjects | bool]
    """Returns True to go on, False to wait on, or why the pod cannot be bound; or what to wait for instead.

    It is called in the scheduling thread, between decisions: at once, and after changes of `objects`. A wait that it
    returns must be for further objects: otherwise it counts as False.
    """
    objects: frozenset[tuple[str, str]]
    """Kind and key of each object that `condition` reads."""
    timeout: int
    """Nanoseconds after which the binding cycle ends with an error."""
    timed_out: str
    """The message of that error."""


class BindAnnotations:
    """The key of the cycle state for annotations that the binding must carry, by name (`Mapping[str, str]`).

    They are set only if every bind plugin of the profile has `sends_annotations = True`.
    """


@dataclass(frozen=True, slots=True)
class Nomination:
    """The result of a postFilter that made room: the nominated node, and the victims to preempt there."""

    node: str
    victims: tuple[PodInfo, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True)
class Changed:
    """The result of a transformer: another pod, another snapshot, or both; None leaves it unchanged."""

    pod: PodInfo | None = None
    snapshot: Snapshot | None = None
    """An overlay, with the same rows (see `Snapshot.overlay`)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The placement of pods that are scheduled together: node names by pod key."""

    nodes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """A pod in the queue, with the time since which it waits (nanoseconds since the epoch), and its attempts."""

    pod: PodInfo
    since: int = 0
    attempts: int = 0
    first_attempt: int = 0
    """The time of the first attempt; 0 before that."""


# The queue


@runtime_checkable
class PreEnqueue(Protocol):
    """Called before a pod enters the queue; a gated pod costs nothing until an event may help it."""

    def pre_enqueue(self, pod: PodInfo, snapshot: Snapshot) -> Refusal | None:
        """Return why the pod is gated, or None."""
        ...


@runtime_checkable
class QueueSort(Protocol):
    """The order of the queue; a profile has exactly one."""

    def queue_key(self, queued: QueuedPod) -> Any:
        """Return the sort key, smallest first; it must not change while the pod waits."""
        ...


@runtime_checkable
class NextPod(Protocol):
    """Chooses the next pod instead of the queue; only the first such plugin of the process is used."""

    def next_pod(self) -> str | None:
        """Return the key of a waiting pod, or None to leave it to the queue."""
        ...


@runtime_checkable
class Hinted(Protocol):
    """Filters the events that may make a pod schedulable that this plugin refused; without it, every event may."""

    def may_help(self, event: Event, pod: PodInfo) -> bool:
        """Return whether the pod is worth another try after the event."""
        ...


@runtime_checkable
class Depends(Protocol):
    """Declares what its refusals depend on, instead of hints: a change there may help.

    Documents derive this from their expressions.
    """

    def depends_on(self, rules: frozenset[str]) -> frozenset[Path]:
        """Return the paths of the variables of filters (`("node", "metadata", "labels")`) that these rules read."""
        ...


@runtime_checkable
class Cacheable(Protocol):
    """Declares what the results of its filter or its score depend on, so that they are cached.

    Then it is called for changed nodes only. The result for a node must not depend on the other nodes of the call (so
    no score that is normalised over them), nor on anything that `CacheKey` does not name. The time of a call must be
    proportional to the number of its rows.
    """

    def cache_key(self, point: Point, pod: PodInfo, snapshot: Snapshot) -> CacheKey | None:
        """Return the cache key of the result for the pod; None if it cannot be cached."""
        ...


# The scheduling cycle


@runtime_checkable
class BeforePreFilter(Protocol):
    """Transforms the pod or the snapshot before the preFilters (Koordinator's PreFilterTransformer)."""

    def before_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> Changed | Refusal | None:
        """Return the changes; a refusal ends the cycle."""
        ...


@runtime_checkable
class PreFilter(Protocol):
    """Called once per pod, before the filters: a refusal ends the decision."""

    def pre_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> Refusal | OnlyNodes | Skip | None:
        """Return why this pod cannot be placed at all, or None.

        `OnlyNodes` limits the nodes; `SKIP` skips this plugin's filter for the pod.
        """
        ...


@runtime_checkable
class AfterPreFilter(Protocol):
    """Called after all preFilters have passed."""

    def after_pre_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | None:
        """Return why the cycle ends here, or None; `rows` are the nodes that the preFilters left."""
        ...


@runtime_checkable
class FindOneNode(Protocol):
    """Knows the only node for a pod; only the first such plugin is called."""

    def find_one_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Plan | Refusal | Skip:
        """Return a plan that includes this pod, why there is none, or `SKIP`."""
        ...


@runtime_checkable
class PreferNodes(Protocol):
    """Knows nodes to try before all others; only the first such plugin is called."""

    def prefer_nodes(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Sequence[str] | Skip:
        """Return names of nodes, best first: the first that passes all filters is taken."""
        ...


@runtime_checkable
class BeforeFilter(Protocol):
    """Transforms the snapshot before the filters (Koordinator's FilterTransformer)."""

    def before_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Changed | Refusal | None:
        """Return the changes; a refusal ends the cycle."""
        ...


@runtime_checkable
class Filter(Protocol):
    """Filters all nodes in one call per pod."""

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Return which of the nodes at `rows` (ascending row numbers) the pod may run on."""
        ...


@runtime_checkable
class FilterNode(Protocol):
    """Filters one node per call; simpler to write than `Filter`, and much slower on large clusters."""

    def filter_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Return why the pod may not run on the node at this row, or None."""
        ...


@runtime_checkable
class AfterFilter(Protocol):
    """Called after the filters, with the feasible nodes."""

    def after_filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | None:
        """Return why the cycle ends here, or None."""
        ...


STALE_POD: Final = "stale-pod"
"""The rule of a refusal to bind a pod that is not what the scheduler knows (see `StalePodError`).

The pod is not tried again before the cluster reports what it is now.
"""

NO_CANDIDATE: Final = "candidates"
"""The rule of a postFilter's refusal if preemption found no candidate node.

The pod's nomination is then cleared.
"""


class Refused(Protocol):
    """The nodes that refused a pod, as a postFilter sees them; rows are those of the snapshot."""

    def code(self, row: int) -> Code:
        """Return the code of the node's refusal: preemption helps against `Unschedulable` only."""
        ...

    def reason(self, row: int) -> Refusal:
        """Return the node's first refusal."""
        ...

    def resolvable(self) -> Rows:
        """Return the rows that were refused with `Unschedulable`."""
        ...

    def passes(self, changed: Snapshot, rows: Rows) -> Rows:
        """Return the rows that would pass all filters in another snapshot; changes no state."""
        ...

    def why_not(self, changed: Snapshot, row: int) -> tuple[str, ...]:
        """Return the reasons why a node would refuse the pod in another snapshot; empty if it would not.

        They are those of the first filter that refuses, in fixed words; changes no state.
        """
        ...


@runtime_checkable
class PostFilter(Protocol):
    """Called if no node is feasible, to make room (preemption), until the first plugin that nominates a node."""

    def post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused,
    ) -> Nomination | Refusal | None:
        """Return the nominated node and its victims, why nothing helps, or None."""
        ...


@runtime_checkable
class AfterPostFilter(Protocol):
    """Called after the postFilters, with their nomination."""

    def after_post_filter(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Refused, nomination: Nomination | None,
    ) -> None:
        """Observe the nomination; None if there is none."""
        ...


@runtime_checkable
class PreScore(Protocol):
    """Called once per pod before the scores, with the feasible nodes."""

    def pre_score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Refusal | Skip | None:
        """Prepare; `SKIP` skips this plugin's score for the pod, a refusal is an error and ends the cycle."""
        ...


@runtime_checkable
class BeforeScore(Protocol):
    """Transforms the pod or the snapshot before the scores (Koordinator's ScoreTransformer)."""

    def before_score(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows,
    ) -> Changed | Refusal | None:
        """Return the changes; a refusal ends the cycle."""
        ...


@runtime_checkable
class Score(Protocol):
    """Scores all feasible nodes in one call per pod."""

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Return 0..100 for `rows`, normalised over them; the framework checks the range."""
        ...


@runtime_checkable
class ScoreNode(Protocol):
    """Scores one node per call; see `FilterNode`."""

    def score_node(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> int:
        """Return 0..100 for the node at this row."""
        ...


@runtime_checkable
class ResizePod(Protocol):
    """Changes a pod's requests once its node is chosen (feature gate ResizePod)."""

    def resize_pod(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> PodInfo | Refusal | None:
        """Return the pod to assume."""
        ...


@runtime_checkable
class Reserve(Protocol):
    """Reserves resources of the chosen node for the pod (devices, for example) and releases them."""

    def reserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Reserve for the pod on the node; after a refusal the other plugins' reservations are undone."""
        ...

    def unreserve(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> None:
        """Undo `reserve`; idempotent, and may be called without it; `row` is -1 if the node no longer exists."""
        ...


@runtime_checkable
class Permit(Protocol):
    """Holds a pod with a reserved node until others are ready, or rejects it."""

    def permit(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | Wait | None:
        """Return why the pod is rejected, how long it may wait, or None to continue."""
        ...


# The binding cycle


@runtime_checkable
class ThreadSafe(Protocol):
    """Declares that preBind, applyPatch and bind may be called in any thread, concurrently with decisions.

    These methods read and write nothing that the plugin's other points write, use no snapshot and no part of the handle
    but `client`, `log` and `now`, and do not write into the cycle state. All other points are called in the scheduling
    thread, as all points of other plugins are.
    """

    thread_safe: bool


@runtime_checkable
class PreBind(Protocol):
    """Prepares a pod that is about to be bound."""

    def pre_bind(
        self, state: CycleState, pod: PodInfo, draft: dict[str, Any], node: str,
    ) -> Refusal | Deferred | AwaitObjects | None:
        """Change `draft` (a deep copy of the pod's object); the changes of all plugins are applied as one patch."""
        ...


@runtime_checkable
class PreBindPreFlight(Protocol):
    """Says in advance whether preBind has anything to do for a pod; without it, it is always called.

    If no plugin has, no draft is made (kube-scheduler's PreBindPreFlight).
    """

    def pre_bind_pre_flight(self, state: CycleState, pod: PodInfo, node: str) -> bool:
        """Return whether `pre_bind` is to be called; quick, and in the scheduling thread."""
        ...


@runtime_checkable
class PreBindReservation(Protocol):
    """Prepares a Reservation that is about to become available, as `PreBind` does a pod."""

    def pre_bind_reservation(
        self, state: CycleState, reservation: dict[str, Any], node: str,
    ) -> Refusal | Deferred | AwaitObjects | None:
        """Change the copy of the Reservation."""
        ...


@runtime_checkable
class ApplyPatch(Protocol):
    """Applies the changes of the preBinds as one patch (Koordinator's PreBindExtensions)."""

    def apply_patch(
        self, state: CycleState, original: Mapping[str, Any], modified: Mapping[str, Any],
    ) -> Refusal | Skip | Deferred | None:
        """Patch the object; the first plugin that does not skip decides."""
        ...


@runtime_checkable
class Bind(Protocol):
    """Binds a pod to its node; the first plugin that does not skip decides.

    A plugin with `sends_annotations = True` writes the `BindAnnotations` of the cycle state with the binding, or skips
    all pods that have any. If all bind plugins do, the changes of preBinds that only add annotations need no patch.
    """

    def bind(self, state: CycleState, pod: PodInfo, node: str) -> Refusal | Skip | Deferred | None:
        """Bind, or return why that failed."""
        ...


@runtime_checkable
class PostBind(Protocol):
    """Called after a pod was bound."""

    def post_bind(self, state: CycleState, pod: PodInfo, node: str) -> None:
        """Observe the binding."""
        ...


# Failure


@runtime_checkable
class BeforeError(Protocol):
    """Called before the framework handles an unschedulable pod."""

    def before_error(self, pod: PodInfo, refusal: Refusal) -> bool:
        """Return whether the failure is handled, so that no other plugin is called."""
        ...


@runtime_checkable
class AfterError(Protocol):
    """Called after the framework has handled an unschedulable pod."""

    def after_error(self, pod: PodInfo, refusal: Refusal) -> bool:
        """Return whether no other plugin is to be called."""
        ...


@runtime_checkable
class ForgetPod(Protocol):
    """Called after an assumed pod was forgotten; all such plugins are called, whatever fails."""

    def forget_pod(self, pod: PodInfo) -> None:
        """Release the pod's resources; idempotent."""
        ...


# Reservations


@runtime_checkable
class ReservationRestore(Protocol):
    """Restores the resources of reservations as free for the pods that may use them."""

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
    """Filters the reservations of a pod."""

    def filter_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> Refusal | None:
        """Return why the pod may not use the reservation on the node, or None."""
        ...


@runtime_checkable
class ReservationScore(Protocol):
    """Scores the reservations of a pod."""

    def score_reservation(
        self, state: CycleState, pod: PodInfo, reservation: Any, snapshot: Snapshot, row: int,
    ) -> int:
        """Return 0..100; the framework checks the range, and adds up the plugins' scores."""
        ...


@runtime_checkable
class ReservationNominator(Protocol):
    """Nominates, per pod and node, the reservation that the pod uses."""

    def nominate_reservation(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int) -> Refusal | None:
        """Nominate a reservation of the node for the pod; a refusal ends the cycle."""
        ...

    def forget_nomination(self, pod: PodInfo) -> None:
        """Forget the pod's nominations."""
        ...


# Topology


@dataclass(frozen=True, slots=True)
class TopologyHint:
    """NUMA nodes that can provide a resource: a bit mask (None: any), and whether this is a preferred choice."""

    mask: int | None
    preferred: bool
    score: int = 0


@runtime_checkable
class TopologyHints(Protocol):
    """Provides the NUMA nodes that a pod's resources could come from (Koordinator's NUMATopologyHintProvider)."""

    def topology_hints(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int,
    ) -> Mapping[str, Sequence[TopologyHint] | None] | Refusal:
        """Return hints by resource; None for a resource means any NUMA node, an empty list that none fits."""
        ...

    def allocate_by_topology(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, affinity: TopologyHint,
    ) -> Refusal | None:
        """Return why the resources cannot come from these NUMA nodes; a dry run."""
        ...


# Observation


@runtime_checkable
class Endpoints(Protocol):
    """Serves its state under `/apis/v1/plugins/<name>/` of the status server."""

    def endpoints(self) -> Mapping[str, Any]:
        """Return callables by path (`nodes/{name}`); each takes the path's parts and returns plain data or None."""
        ...


# Controllers


class Controller(Protocol):
    """A periodic reconciliation of the cluster."""

    name: str
    period: int
    """Nanoseconds between two runs."""

    def run(self, now: int) -> None:
        """Reconcile; `now` is in nanoseconds since the epoch. Runs in the scheduling thread, between decisions."""
        ...


@runtime_checkable
class Controllers(Protocol):
    """Provides controllers (Koordinator's ControllerProvider)."""

    def controllers(self) -> Sequence[Controller]:
        """Return the controllers to run; called once."""
        ...
