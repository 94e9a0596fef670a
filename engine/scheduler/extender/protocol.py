"""kube-scheduler's extender protocol, v1: request bodies in, response bodies out (see docs/extender.md).

kube-scheduler calls twice per pod: `filter` returns the feasible nodes, then `prioritize` returns their priorities,
from 0 to 10. Both calls use one generation of the policies. This module does not depend on HTTP, and all of
it belongs to one thread, which owns the cluster.
"""

from __future__ import annotations

import enum
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.instances import Lease
from koordpolicy.engine.framework.points import Code, Enforcement, Point
from koordpolicy.engine.kubernetes.objects import json_kind

from ..cycle.schedule_one import Scheduler, filter_nodes, score_nodes
from ..profiles.profile import Profile
from ..verdict.verdict import Filtered, Verdict
from .blocks import BLOCK, Blocks, free
from .bodies import MalformedBody, NodeReader, SentNode, read_envelope
from .placements import Placements
from .sent_nodes import NODE_SECONDS, AdoptedNodes, NodesOfRequests, OverlaidNodes
from .shadow import ActiveAnswer, Audits, Shadow

HIGHEST_PRIORITY: Final = 10
"""The protocol's MaxExtenderPriority."""
MOST_PINS: Final = 1024
"""The maximum number of pods between their two calls."""
PIN_SECONDS: Final = 60.0
"""The time to wait for the second call: kube-scheduler makes none if only one node is feasible."""
MOST_WORDED: Final = 100
"""The maximum number of refused nodes per filter with computed messages; the others get the rule's fixed words."""
RECENT: Final = 64
"""The number of decisions in the history."""

_LOG: Final = logging.getLogger(__name__)
_LONGEST_UID: Final = 256
_LONGEST_MESSAGE: Final = 1024
_BEST: Final = 10
_NAMES_SHOWN: Final = 5
_NAMES_AT_ONCE: Final = 20_000
"""The number of names that are looked up in one call, in a millisecond."""
_REASONS_SHOWN: Final = 20
_NULL: Final[tuple[bytes, ...]] = (b"null",)
_FIRST_HOST: Final = b'[{"Host":'
_NEXT_HOST: Final = np.array([b',"Score":%d},{"Host":' % each for each in range(HIGHEST_PRIORITY + 1)], np.object_)
_LAST_SCORE: Final = b',"Score":%d}]'
_Texts = NDArray[np.object_]
"""JSON texts as bytes, which are gathered by row."""


class Verb(enum.Enum):
    """The kind of a call."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"


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
class ShownRefusal:
    """Nodes that one plugin refused for one reason; `nodes` are the first of them."""

    plugin: str
    reason: str
    count: int
    nodes: tuple[str, ...]
    enforcement: Enforcement


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A record of a decision, for status and metrics.

    `result` is `ok`, `refused` (a filter that left no node) or `error`. `errors` counts failures by plugin, point
    and rule; for a plugin that raised, once, without a rule. `best` are the best nodes with their exact totals,
    priorities and scores per plugin; `totals` are those of all nodes, in the order of `rows`.
    """

    verb: Verb
    pod: str
    uid: str
    result: str
    at: int
    """Nanoseconds since the epoch, by the clock of decisions."""
    generation: int = 0
    profile: str = ""
    pinned: bool = False
    """True if the generation is still that of the pod's first call."""
    considered: int = 0
    passed: int = 0
    unknown: int = 0
    refusals: tuple[ShownRefusal, ...] = ()
    refused_by: Mapping[str, int] = field(default_factory=dict)
    """The number of nodes that each plugin refused, enforced refusals only."""
    unenforced: tuple[tuple[str, Enforcement, int], ...] = ()
    """Plugins that only warn or audit, and how many nodes they would have refused."""
    errors: Mapping[tuple[str, Point, str], int] = field(default_factory=dict)
    failures: tuple[tuple[str, str], ...] = ()
    """Plugin and message of what failed."""
    best: tuple[tuple[str, int, int, Mapping[str, int]], ...] = ()
    names: Sequence[str] = field(default=(), repr=False)
    rows: Rows = field(default_factory=lambda: np.zeros(0, np.intp), repr=False)
    totals: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    refusals_left_out: int = 0
    """The number of further reasons beside `refusals`."""
    failures_left_out: int = 0
    """The number of further failures beside `failures`."""

    def to_json(self, *, every: bool = False) -> dict[str, Any]:
        """Return plain data; `every` adds the exact totals of all nodes."""
        result: dict[str, Any] = {
            "verb": self.verb.value, "pod": self.pod, "uid": self.uid, "result": self.result, "at": self.at / 1e9,
            "generation": self.generation, "profile": self.profile, "pinned": self.pinned, "nodes": self.considered,
            "unknownNodes": self.unknown,
        }
        if self.verb is Verb.FILTER:
            result["passed"] = self.passed
            result["refusals"] = [
                {"plugin": each.plugin, "reason": each.reason, "count": each.count, "nodes": list(each.nodes),
                 **({"nodesLeftOut": each.count - len(each.nodes)} if each.count > len(each.nodes) else {}),
                 "enforcement": each.enforcement.value} for each in self.refusals
            ]
            if self.refusals_left_out:
                result["refusalsLeftOut"] = self.refusals_left_out
        else:
            result["best"] = [
                {"node": name, "total": total, "priority": priority, "plugins": dict(scores)}
                for name, total, priority, scores in self.best
            ]
            if len(self.totals) > len(self.best):
                result["bestLeftOut"] = len(self.totals) - len(self.best)
            if every:
                pairs = zip(self.rows.tolist(), self.totals.tolist(), strict=True)
                result["totals"] = {self.names[row]: total for row, total in pairs}
        result["errors"] = [{"plugin": plugin, "message": message} for plugin, message in self.failures]
        if self.failures_left_out:
            result["errorsLeftOut"] = self.failures_left_out
        return result


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
        self._quoted: tuple[Sequence[str], _Texts] = ((), np.array((), np.object_))
        self._seen: ActiveAnswer | None = None
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
        self._seen = None
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
        seen, self._seen = self._seen, None
        if seen is not None:
            try:
                self.audits.compare(seen, self._scale)
            except Exception:  # no client waits for this
                _LOG.exception("comparing what was audited failed")
            if self.shadow is not None:
                self.shadow.compare(seen, self._scale)
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
        verdict = filter_nodes(self._scheduler.watched(profile, request.pod), request.pod, snapshot, among=rows)
        self._scheduler.log(verdict)
        self._seen = ActiveAnswer(profile, snapshot, rows, verdict)
        if not len(verdict.passed):
            self._unpin(request.pod)
        if len(verdict.passed) == 1 and self.placements.guesses:
            # kube-scheduler requests no priorities where a single node is left.
            self._expected = request, [snapshot.names[int(verdict.passed[0])]]
        quoted = self._quote(snapshot)
        refused = _Refused(quoted)
        for name, why in unusable.items():
            refused.failed += (_json(name), b":", _json(why), b",")
        shown, rest = _refuse(verdict, rows, refused)
        good = np.zeros(snapshot.size + 1, np.bool_)  # the last element is for unknown nodes
        good[verdict.passed] = True
        passed = good[places]
        nodes: list[bytes] | None = None
        names = _NULL
        if request.nodes is None:
            names = (b"[", b",".join(quoted[places[passed]].tolist()), b"]")
        else:
            # Nodes are returned unchanged.
            nodes = _in_blocks(node.raw for node, fits in zip(request.nodes, passed.tolist(), strict=True) if fits)
        result = "refused" if len(places) and not passed.any() else "ok"
        record = self._record(Verb.FILTER, request, verdict, unknown=int((places < 0).sum()), result=result,
                              refusals=shown, refusals_left_out=rest)
        return Reply(_filter_result(nodes, names, refused.failed, refused.unresolvable), record)

    def _prioritize(self, request: ExtenderArgs) -> Reply:
        _, snapshot, rows, places = self._look_up(request)
        profile, pinned = self._pinned(request.pod)
        try:
            verdict = score_nodes(self._scheduler.watched(profile, request.pod), request.pod, snapshot, among=rows)
            self._scheduler.log(verdict)
        finally:
            self._unpin(request.pod)
        assert verdict.totals is not None
        priorities = rescale(verdict.totals, self._priorities)
        self._seen = ActiveAnswer(profile, snapshot, rows, verdict, priorities)
        best = verdict.passed[verdict.totals == verdict.totals.max()] if len(verdict.totals) else verdict.passed
        if self.placements.guesses and (len(best) < len(verdict.passed) or len(best) == 1):
            # If all nodes are equally good, the response does not determine the pod's node.
            self._expected = request, list(map(snapshot.names.__getitem__, best.tolist()))
        scale = np.zeros(snapshot.size, np.int64)
        scale[rows] = priorities
        known, unknown = places[places >= 0], np.flatnonzero(places < 0)
        names, scores = self._quote(snapshot)[known], scale[known]
        if len(unknown):
            others = np.array([_json(request.names[place]) for place in unknown.tolist()], np.object_)
            names, scores = np.concatenate((names, others)), np.concatenate((scores, np.zeros(len(others), np.int64)))
        record = self._record(Verb.PRIORITIZE, request, verdict, unknown=len(unknown), result="ok", pinned=pinned,
                              priorities=priorities)
        return Reply([_host_priorities(names, scores)], record)

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
            return Reply(_filter_result(None, _NULL, error=f"koord-policy: {message}"), record)
        # This response has no field for an error; kube-scheduler proceeds without priorities.
        hosts = [{"Host": name, "Score": 0} for name in request.names]
        return Reply([json.dumps(hosts).encode()], record)

    def _quote(self, snapshot: Snapshot) -> _Texts:
        """Return the nodes' names by row, as JSON: thousands of names are escaped once, not once per call."""
        if self._quoted[0] is not snapshot.names:
            self._quoted = snapshot.names, np.array([_json(name) for name in snapshot.names], np.object_)
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

    # Answers and records

    def _record(
        self, verb: Verb, request: ExtenderArgs, verdict: Verdict, *, unknown: int, result: str,
        refusals: tuple[ShownRefusal, ...] = (), refusals_left_out: int = 0, pinned: bool = False,
        priorities: NDArray[np.int64] | None = None,
    ) -> DecisionRecord:
        errors = _errors(verdict)
        failures = tuple((each.plugin, each.message[:_LONGEST_MESSAGE]) for each in verdict.errors()) if errors else ()
        refused_by: dict[str, int] = {}
        if verdict.refusal is not None:
            refused_by[verdict.refusal[0]] = len(request.names) - unknown
        for step in verdict.filters:
            if step.enforcement is Enforcement.ENFORCE and len(step.refused):
                refused_by[step.plugin] = len(step.refused)
        record = DecisionRecord(
            verb, request.pod.key, request.pod.uid, result, self._clock(), verdict.generation, verdict.profile,
            pinned, len(request.names), len(verdict.passed), unknown, refusals, refused_by,
            tuple((step.plugin, step.enforcement, len(step.refused)) for step in verdict.filters
                  if step.enforcement is not Enforcement.ENFORCE and len(step.refused)),
            errors, failures[:_REASONS_SHOWN], refusals_left_out=refusals_left_out,
            failures_left_out=len(failures[_REASONS_SHOWN:]),
        )
        if priorities is None or verdict.totals is None:
            return record
        return replace(record, best=_best(verdict, verdict.totals, priorities), names=verdict.names,
                       rows=verdict.passed, totals=verdict.totals)


def _json(text: str) -> bytes:
    return json.dumps(text).encode()


def _filter_result(
    nodes: list[bytes] | None, names: Iterable[bytes], failed: Sequence[bytes] = (),
    unresolvable: Sequence[bytes] = (), error: str = "",
) -> list[bytes]:
    """Return ExtenderFilterResult of parts in JSON; those of the maps are pieces of `"name":"message",`."""
    begin = b'{"Nodes":null' if nodes is None else b"]}"
    rest = b"".join((
        begin, b',"NodeNames":', *names, b',"FailedNodes":{', *failed[:-1],
        b'},"FailedAndUnresolvableNodes":{', *unresolvable[:-1], b'},"Error":', _json(error), b"}"))
    return [rest] if nodes is None else [b'{"Nodes":{"metadata":{},"items":[', *nodes, rest]


def _in_blocks(items: Iterable[msgspec.Raw]) -> list[bytes]:
    """Return JSON values with commas between them, in parts of about a block."""
    parts: list[bytes] = []
    some: list[bytes | msgspec.Raw] = []
    size = 0
    for item in items:
        some.append(item)
        size += len(memoryview(item))
        if size > BLOCK:
            parts.append(b",".join(some))
            some, size = [b""], 0  # the next part begins with a comma
    if len(some) > 1 or (some and not parts):
        parts.append(b",".join(some))
    return parts


def _host_priorities(names: _Texts, priorities: NDArray[np.int64]) -> bytes:
    """Return HostPriorityList of nodes with their priorities; the names are JSON already."""
    if not len(names):
        return b"[]"
    # Each name but the first follows the priority before it: so there are two pieces per node, both there already.
    pieces = np.empty(2 * len(names) + 1, np.object_)
    pieces[0] = _FIRST_HOST
    pieces[1::2] = names
    pieces[2::2] = _NEXT_HOST[priorities]
    pieces[-1] = _LAST_SCORE % priorities[-1]
    return b"".join(pieces.tolist())


@dataclass(slots=True)
class _Refused:
    """Refused nodes in the form of the response."""

    quoted: _Texts
    """The nodes' names by row, as JSON."""
    failed: list[bytes] = field(default_factory=list)
    """Pieces of the members of `FailedNodes`, a comma after each member."""
    unresolvable: list[bytes] = field(default_factory=list)

    def add(self, plugin: str, reason: str, code: Code, rows: Rows) -> None:
        """Add nodes that were refused for one reason."""
        if len(rows):
            # Joined by the message, which is written once per reason and not once per node: 5,000 may be refused.
            message = b":" + _json(_message(plugin, reason, code))
            into = self.unresolvable if code is Code.UNRESOLVABLE else self.failed
            into += (b"%b," % message).join(self.quoted[rows].tolist()), message, b","


def _refuse(verdict: Verdict, rows: Rows, refused: _Refused) -> tuple[tuple[ShownRefusal, ...], int]:
    """Add each refused node with `plugin: reason`; return the commonest reasons, and the number of the others."""
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        refused.add(plugin, refusal.message, refusal.code, rows)
        return (_shown(plugin, refusal.message, rows, verdict.names, Enforcement.ENFORCE),), 0
    shown: list[ShownRefusal] = []
    rest = 0
    for step in verdict.filters:
        if not len(step.refused):
            continue
        try:
            reasons, codes = _explained(step)
        except BaseException as error:  # the border between framework and plugin: a refusal is valid without its reason
            must_be_survived(error)
            reasons = {f"why is not known: {describe(error)}": step.refused}
            codes = {Code.ERROR: step.refused}
        ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
        shown += (_shown(step.plugin, reason, found, verdict.names, step.enforcement)
                 for reason, found in ordered[:_REASONS_SHOWN])
        rest += len(ordered[_REASONS_SHOWN:])
        if step.enforcement is Enforcement.ENFORCE:
            joined = _joined(reasons, len(step.refused))
            for code, coded in codes.items():
                is_coded = np.zeros(len(verdict.names), np.bool_)
                is_coded[coded] = True
                for reason, found in joined.items():
                    refused.add(step.plugin, reason, code, found[is_coded[found]])
    return tuple(shown), rest


def _shown(plugin: str, reason: str, rows: Rows, names: Sequence[str], enforcement: Enforcement) -> ShownRefusal:
    first = tuple(str(names[int(row)]) for row in rows[:_NAMES_SHOWN])
    return ShownRefusal(plugin, reason[:_LONGEST_MESSAGE], len(rows), first, enforcement)


def _joined(reasons: Mapping[str, Rows], count: int) -> Mapping[str, Rows]:
    """Return one reason for each of `count` rows: several reasons of a row are joined by commas."""
    if sum(map(len, reasons.values())) == count:
        return reasons
    texts: dict[int, str] = {}
    for reason, rows in reasons.items():
        for row in rows.tolist():
            texts[row] = f"{texts[row]}, {reason}" if row in texts else reason
    groups: dict[str, list[int]] = {}
    for row, text in texts.items():
        groups.setdefault(text, []).append(row)
    return {text: np.array(rows, np.intp) for text, rows in groups.items()}


def _explained(step: Filtered) -> tuple[Mapping[str, Rows], Mapping[Code, Rows]]:
    """Return the refused rows by reason and by code: in one pass if the plugin supports it, else row by row.

    Messages are computed for the first `MOST_WORDED` nodes; the others get the rule's fixed words.
    """
    answer, refused = step.answer, step.refused
    if answer.reasons is not None and answer.codes is not None:
        if answer.brief is None or len(refused) <= MOST_WORDED:
            return answer.reasons(refused), answer.codes(refused)
        reasons = dict(answer.reasons(refused[:MOST_WORDED]))
        for reason, rows in answer.brief(refused[MOST_WORDED:]).items():
            reasons[reason] = np.concatenate((reasons[reason], rows)) if reason in reasons else rows
        return reasons, answer.codes(refused)
    texts: dict[str, list[int]] = {}
    codes: dict[Code, list[int]] = {}
    for row in refused.tolist():
        refusal = answer.explain(row)
        texts.setdefault(refusal.message or refusal.rule, []).append(row)
        codes.setdefault(refusal.code, []).append(row)
    return ({text: np.array(rows, np.intp) for text, rows in texts.items()},
            {code: np.array(rows, np.intp) for code, rows in codes.items()})


def _message(plugin: str, reason: str, code: Code) -> str:
    mark = f"{code.value}: " if code is Code.ERROR else ""
    return f"{plugin}: {mark}{reason}"[:_LONGEST_MESSAGE]


def _errors(verdict: Verdict) -> Counter[tuple[str, Point, str]]:
    found = Counter((failure.plugin, failure.point, failure.rule) for failure in verdict.failures)
    for step in verdict.filters:
        for rule, failed in step.answer.errors.items():
            found[step.plugin, Point.FILTER, rule] += len(failed)
    for scored in verdict.scores:
        for rule, failed in scored.scores.errors.items():
            found[scored.plugin, Point.SCORE, rule] += len(failed)
    return +found


def _best(
    verdict: Verdict, totals: NDArray[np.int64], priorities: NDArray[np.int64],
) -> tuple[tuple[str, int, int, Mapping[str, int]], ...]:
    rows, most = verdict.passed, len(totals) - _BEST
    # Only those that may be among the best are sorted.
    among = np.flatnonzero(totals >= np.partition(totals, most)[most]) if most > 0 else np.arange(len(totals))
    # Rows are sorted by name, and a stable sort preserves that order among equals.
    first = among[np.argsort(-totals[among], kind="stable")[:_BEST]]
    return tuple(
        (verdict.names[int(rows[place])], int(totals[place]), int(priorities[place]),
         {step.plugin: int(step.scores.values[rows[place]]) for step in verdict.scores})
        for place in first
    )
