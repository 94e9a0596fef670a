"""kube-scheduler's extender protocol, v1: request bodies in, response bodies out (see docs/extender.md).

kube-scheduler calls twice per pod: `filter` returns the feasible nodes, then `prioritize` returns their priorities,
from 0 to 10. Both calls use one generation of the policies. This module does not depend on HTTP, and all of
it belongs to one thread, which owns the cluster.
"""

from __future__ import annotations

import enum
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe
from koordpolicy.engine.framework.instances import Lease
from koordpolicy.engine.kubernetes.objects import json_kind

from ..cycle.schedule_one import Scheduler, filter_only, score_only
from ..profiles.profile import Profile
from .blocks import Blocks, free
from .bodies import MalformedBody, NodeReader, SentNode, read_envelope
from .decision_record import DecisionRecord, Verb, record_of
from .placements import Placements
from .refusals import RefusalPieces, add_refusals
from .results import HIGHEST_PRIORITY, Texts, filter_result, host_priorities, in_blocks, json_text
from .sent_nodes import NODE_SECONDS, AdoptedNodes, NodesOfRequests, OverlaidNodes
from .shadow import ActiveAnswer, Audits, Shadow

MOST_PINS: Final = 1024
"""The maximum number of pods between their two calls."""
PIN_SECONDS: Final = 60.0
"""The time to wait for the second call: kube-scheduler makes none if only one node is feasible."""
RECENT: Final = 64
"""The number of decisions in the history."""

_LOG: Final = logging.getLogger(__name__)
_LONGEST_UID: Final = 256
_NAMES_AT_ONCE: Final = 20_000
"""The number of names that are looked up in one call, in a millisecond."""
_NULL: Final[tuple[bytes, ...]] = (b"null",)


class Priorities(enum.Enum):
    """The conversion of exact totals to 0..10 over the nodes of one request, rounded down.

    MIN_MAX: `10 * (total - lowest) // (highest - lowest)`: all levels are in use, the best nodes alone get 10; 0 where
    all are equal. MAX: `10 * total // highest`: proportions stay, and small differences vanish; 0 where the highest is.
    """

    MIN_MAX = "MinMax"
    MAX = "Max"


@dataclass(frozen=True, slots=True)
class ExtenderArgs:
    """ExtenderArgs: a pod, and the remaining nodes, by name or whole (`nodeCacheCapable: false`)."""

    pod: PodInfo
    names: Sequence[str]
    nodes: list[SentNode] | None = None
    """They are freed once the request is answered."""
    weight: int = 0
    """The most bytes of memory that the pod takes."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The response as JSON, in parts that are copied and freed one by one, and its record."""

    parts: list[bytes]
    record: DecisionRecord

    @property
    def body(self) -> bytes:
        """The whole response."""
        return b"".join(self.parts)


def read_request(body: bytes | bytearray | Blocks, reader: NodeReader | None = None) -> ExtenderArgs:
    """Read ExtenderArgs; see `read_envelope`.

    Raises:
        MalformedBody: it is none.
    """
    envelope = read_envelope(body, reader)
    pod = pod_of(envelope.pod)
    if envelope.names is not None:
        return ExtenderArgs(pod, envelope.names, weight=envelope.weight)
    if envelope.nodes is not None:
        return ExtenderArgs(pod, [node.name for node in envelope.nodes], envelope.nodes, envelope.weight)
    raise MalformedBody("`Nodes` and `NodeNames` are both missing: there is nothing to choose from")


def pod_of(pod: object) -> PodInfo:
    """Read the pod of a request; raise `MalformedBody` if it is not a pod."""
    if not isinstance(pod, dict):
        raise MalformedBody("`Pod` is missing" if pod is None else f"`Pod` must be an object, not {json_kind(pod)}")
    try:
        # Go omits the kind in requests; expressions see objects as the API server serves them.
        info = PodInfo.of({"apiVersion": "v1", "kind": "Pod", **pod})
    except ValueError as error:
        raise MalformedBody(f"`Pod`: {error}") from None
    if len(info.uid) > _LONGEST_UID or len(info.key) > 2 * _LONGEST_UID:
        raise MalformedBody(f"`Pod`: its name or `metadata.uid` is longer than {_LONGEST_UID} characters")
    return info


def rescale(totals: NDArray[np.int64], how: Priorities) -> NDArray[np.int64]:
    """Return the totals, which are not negative, as priorities from 0 to 10; see `Priorities` for the formulas."""
    if not len(totals):
        return totals
    low = int(totals.min()) if how is Priorities.MIN_MAX else 0
    span = int(totals.max()) - low
    if span == 0:
        return np.zeros(len(totals), np.int64)
    return HIGHEST_PRIORITY * (totals - low) // span


@dataclass(slots=True)
class _Pin:
    """The profile of a pod's first call, and its lease."""

    profile: Profile
    lease: Lease
    until: float


class Extender:
    """The extender of one cluster; for the thread that owns the cluster.

    `timer` returns seconds of a monotonic clock; `clock` is the time of decisions, in nanoseconds since the
    epoch.
    """

    def __init__(
        self, scheduler: Scheduler, *, clock: Callable[[], int], timer: Callable[[], float],
        priorities: Priorities = Priorities.MIN_MAX, most_pins: int = MOST_PINS, pin_seconds: float = PIN_SECONDS,
        node_seconds: float = NODE_SECONDS, shadow: Shadow | None = None, placements: Placements | None = None,
    ) -> None:
        """`placements` holds assumed placements; without it only pods that are bound here are assumed."""
        self.shadow = shadow
        self.audits = Audits()
        self.recent: tuple[DecisionRecord, ...] = ()
        """The last decisions, newest last; rebound as a whole, so that other threads may read it."""
        self._scheduler = scheduler
        self._clock = clock
        self._timer = timer
        self._priorities = priorities
        self._most_pins = most_pins
        self._pin_seconds = pin_seconds
        self._nodes: NodesOfRequests = (
            OverlaidNodes(scheduler.cluster) if scheduler.cluster.names
            else AdoptedNodes(scheduler.cluster, timer, seconds=node_seconds))
        self._reader = NodeReader()
        self._pins: OrderedDict[str, _Pin] = OrderedDict()
        self._quoted: tuple[Sequence[str], Texts] = ((), np.array((), np.object_))
        self._last_answer: ActiveAnswer | None = None
        self.placements = Placements(scheduler.cluster, timer, seconds=0) if placements is None else placements
        self._expected: tuple[ExtenderArgs, Sequence[str]] | None = None
        """The last request and its best nodes, until a placement is assumed."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that decides."""
        return self._scheduler

    @property
    def cluster(self) -> Cluster:
        """The cluster that decisions are about."""
        return self._scheduler.cluster

    def snapshot(self) -> Snapshot:
        """Return the cluster as a decision would see it now."""
        return self.cluster.snapshot(self._clock())

    @property
    def pins(self) -> int:
        """The number of pods with a generation pinned for their second call."""
        return len(self._pins)

    def answer(self, verb: Verb, body: bytes | bytearray | Blocks) -> Reply:
        """Answer one call. Errors of the decision are in the response, as far as the protocol has a field for them.

        Raises: MalformedBody: the body is not a valid request.
        """
        request = read_request(body, self._reader)
        self._last_answer = None
        self._assume_expected()
        try:
            reply = self._filter(request) if verb is Verb.FILTER else self._prioritize(request)
        except RecursionError:
            raise MalformedBody("the body is nested too deeply") from None
        except MalformedBody:  # the nodes of the request exceed a bound
            raise
        except Exception as error:  # the error is returned to kube-scheduler, and the next pod gets its turn
            _LOG.exception("deciding about %s failed", request.pod.key, extra={"pod": request.pod.key})
            reply = self._broken(verb, request, describe(error))
        finally:
            if request.nodes is not None:
                free(request.nodes)
        self.recent = (*self.recent[1 - RECENT:], reply.record)
        return reply

    def review(self) -> None:
        """Compare the last response with the decisions of the shadow and of plugins that only audit, and assume the
        placement that follows from the response. Call it after the response is sent, and before the next request. Never
        raises.
        """
        last_answer, self._last_answer = self._last_answer, None
        if last_answer is not None:
            try:
                self.audits.compare(last_answer, self._scale)
            except Exception:  # no client waits for this
                _LOG.exception("comparing what was audited failed")
            if self.shadow is not None:
                self.shadow.compare(last_answer, self._scale)
        self._assume_expected()

    def _assume_expected(self) -> None:
        expected, self._expected = self._expected, None
        if expected is not None:
            try:
                self._assume_best(*expected)
            except Exception:  # the response is sent, and the next listing shows the result
                _LOG.exception("assuming the placement of %s failed", expected[0].pod.key,
                               extra={"pod": expected[0].pod.key})

    def _assume_best(self, request: ExtenderArgs, best: Sequence[str]) -> None:
        node = self.placements.choose(request.pod, best)
        self.placements.assume(request.pod, node, weight=request.weight)

    def _scale(self, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        return rescale(totals, self._priorities)

    def close(self) -> None:
        """Release the generations pinned for pods without a second call, and close the shadow."""
        if self.shadow is not None:
            self.shadow.close()
        while self._pins:
            self._pins.popitem()[1].lease.release()

    # The two verbs

    def _filter(self, request: ExtenderArgs) -> Reply:
        self.placements.sent_again(request.pod, request.weight)
        unusable, snapshot, rows, places = self._look_up(request)
        profile = self._pin(request.pod)
        verdict = filter_only(self._scheduler.watched(profile, request.pod), request.pod, snapshot, among=rows)
        self._scheduler.log(verdict)
        self._last_answer = ActiveAnswer(profile, snapshot, rows, verdict)
        if not len(verdict.passed):
            self._unpin(request.pod)
        if len(verdict.passed) == 1 and self.placements.guesses:
            # kube-scheduler requests no priorities where a single node is left.
            self._expected = request, [snapshot.names[int(verdict.passed[0])]]
        quoted = self._quote(snapshot)
        refused = RefusalPieces(quoted)
        for name, why in unusable.items():
            refused.failed += (json_text(name), b":", json_text(why), b",")
        shown, rest = add_refusals(verdict, rows, refused)
        good = np.zeros(snapshot.size + 1, np.bool_)  # the last element is for unknown nodes
        good[verdict.passed] = True
        passed = good[places]
        nodes: list[bytes] | None = None
        names = _NULL
        if request.nodes is None:
            names = (b"[", b",".join(quoted[places[passed]].tolist()), b"]")
        else:
            # Nodes are returned unchanged.
            nodes = in_blocks(node.raw for node, fits in zip(request.nodes, passed.tolist(), strict=True) if fits)
        result = "refused" if len(places) and not passed.any() else "ok"
        record = record_of(
            Verb.FILTER, request.pod, verdict, at=self._clock(), considered=len(request.names),
            unknown=int((places < 0).sum()), result=result, refusals=shown, refusals_left_out=rest,
        )
        return Reply(filter_result(nodes, names, refused.failed, refused.unresolvable), record)

    def _prioritize(self, request: ExtenderArgs) -> Reply:
        _, snapshot, rows, places = self._look_up(request)
        profile, pinned = self._pinned(request.pod)
        try:
            verdict = score_only(self._scheduler.watched(profile, request.pod), request.pod, snapshot, among=rows)
            self._scheduler.log(verdict)
        finally:
            self._unpin(request.pod)
        assert verdict.totals is not None
        priorities = rescale(verdict.totals, self._priorities)
        self._last_answer = ActiveAnswer(profile, snapshot, rows, verdict, priorities)
        best = verdict.passed[verdict.totals == verdict.totals.max()] if len(verdict.totals) else verdict.passed
        if self.placements.guesses and (len(best) < len(verdict.passed) or len(best) == 1):
            # If all nodes are equally good, the response does not determine the pod's node.
            self._expected = request, list(map(snapshot.names.__getitem__, best.tolist()))
        scale = np.zeros(snapshot.size, np.int64)
        scale[rows] = priorities
        known, unknown = places[places >= 0], np.flatnonzero(places < 0)
        names, scores = self._quote(snapshot)[known], scale[known]
        if len(unknown):
            others = np.array([json_text(request.names[place]) for place in unknown.tolist()], np.object_)
            names, scores = np.concatenate((names, others)), np.concatenate((scores, np.zeros(len(others), np.int64)))
        record = record_of(
            Verb.PRIORITIZE, request.pod, verdict, at=self._clock(), considered=len(request.names),
            unknown=len(unknown), result="ok", pinned=pinned, priorities=priorities,
        )
        return Reply([host_priorities(names, scores)], record)

    def _broken(self, verb: Verb, request: ExtenderArgs, message: str) -> Reply:
        record = DecisionRecord(
            verb,
            request.pod.key,
            request.pod.uid,
            "error",
            self._clock(),
            considered=len(request.names),
            failures=(("koord-policy", message),),
        )
        if verb is Verb.FILTER:
            return Reply(filter_result(None, _NULL, error=f"koord-policy: {message}"), record)
        # This response has no field for an error; kube-scheduler proceeds without priorities.
        hosts = [{"Host": name, "Score": 0} for name in request.names]
        return Reply([json.dumps(hosts).encode()], record)

    def _quote(self, snapshot: Snapshot) -> Texts:
        """Return the nodes' names by row, as JSON: thousands of names are escaped once, not once per call."""
        if self._quoted[0] is not snapshot.names:
            self._quoted = snapshot.names, np.array([json_text(name) for name in snapshot.names], np.object_)
        return self._quoted[1]

    # Generations

    def _pin(self, pod: PodInfo) -> Profile:
        key = pod.uid or pod.key
        self._expire_pins()
        self._unpin(pod)
        profile, lease = self._scheduler.hold(pod)
        self._pins[key] = _Pin(profile, lease, self._timer() + self._pin_seconds)
        if len(self._pins) > self._most_pins:
            self._pins.popitem(last=False)[1].lease.release()
        return profile

    def _pinned(self, pod: PodInfo) -> tuple[Profile, bool]:
        self._expire_pins()
        pin = self._pins.get(pod.uid or pod.key)
        return (pin.profile, True) if pin is not None else (self._scheduler.profile_of(pod), False)

    def _unpin(self, pod: PodInfo) -> None:
        pin = self._pins.pop(pod.uid or pod.key, None)
        if pin is not None:
            pin.lease.release()

    def _expire_pins(self) -> None:
        now = self._timer()
        while self._pins and next(iter(self._pins.values())).until <= now:
            self._pins.popitem(last=False)[1].lease.release()

    # Nodes of a request

    def _look_up(self, request: ExtenderArgs) -> tuple[dict[str, str], Snapshot, Rows, Rows]:
        """Return the reasons against unusable nodes, the snapshot, the requested rows, and the row of each name (or
        -1).
        """
        faults: Mapping[str, str] = {}
        if request.nodes is not None:
            snapshot, faults = self._nodes.view(request.nodes, self._clock())
        else:
            snapshot = self.snapshot()
        index, names = snapshot.index, request.names
        places: Rows = np.empty(len(names), np.intp)
        for first in range(0, len(names), _NAMES_AT_ONCE):
            some = names[first:first + _NAMES_AT_ONCE]
            places[first:first + len(some)] = np.fromiter(map(index.get, some, repeat(-1)), np.intp, len(some))
        if faults:
            places[[name in faults for name in names]] = -1
        known = "not among the nodes that are known" if len(index) else (
            "not known, as no node is: it needs `--cluster`, or `nodeCacheCapable: false` in kube-scheduler")
        unusable = [names[place] for place in np.flatnonzero(places < 0).tolist()]
        failed = {name: faults.get(name) or f"koord-policy: node `{name[:256]}` is {known}" for name in unusable}
        requested = np.zeros(snapshot.size, np.bool_)
        requested[places[places >= 0]] = True
        return failed, snapshot, np.flatnonzero(requested), places
