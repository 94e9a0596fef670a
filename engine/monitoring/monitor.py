"""`ServerMonitor`: polls running servers, and remembers their figures of the last minutes.

One thread makes rounds; requests run beside each other on a few threads. All readers share what it found: their number
costs the servers nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordpolicy.engine.agent import metric_table as agent
from koordpolicy.engine.client.server_calls import Caller, EndpointAnswer
from koordpolicy.engine.descheduler.live import metric_table as descheduler
from koordpolicy.engine.manager.operations import LEADER as MANAGER_LEADER
from koordpolicy.engine.scheduler.observe import metric_table as table
from koordpolicy.engine.serving.client_metrics import REQUESTS
from koordpolicy.engine.serving.daemons import Daemons

from .addresses import RESOLVED, UnresolvedError, addresses_of
from .alerts import READ, STEP_S, AlertBook, RaisedAlert, Reading, of_window
from .exposition import Exposition, growth, increase, quantile, read_exposition, upper_bound

INTERVAL_S: Final = 5.0
"""The default of the seconds between two rounds."""
MOST_SERVERS: Final = 500
"""The maximum number of servers that are polled."""
LONGEST_ANSWER: Final = 8 * 1024 * 1024
"""The maximum size of an answer in bytes."""
TIMEOUT_S: Final = 3.0
"""The default of the seconds that a request may take."""
_THREADS: Final = 16
_LONGEST_PAUSE_S: Final = 60.0
_RESOLVE_S: Final = 30.0
_POINTS: Final = 180
_STEPS: Final = 61
"""Readings of one minute's distance: those of the last hour."""
_MINUTES: Final = 5
"""Rates per second are those of so many minutes."""
_FORGET_S: Final = 600.0
"""Seconds after which an address is forgotten that its name does not have any more."""
_LARGEST_TIME: Final = 1e12
"""The end of times that servers report, in seconds since the epoch: no other number is a time."""
_LOG: Final = logging.getLogger(__name__)

_ATTEMPTS: Final = table.SCHEDULE_ATTEMPTS.name
_CALLS: Final = table.DECISIONS.name
_EVICTED: Final = descheduler.PODS_EVICTED.name
_DECISION_SECONDS: Final = (table.ALGORITHM_SECONDS.name, table.DECISION_SECONDS.name)
_EVALUATIONS: Final = table.EXPRESSION_EVALUATIONS.name
_ERRORS: Final = table.EXPRESSION_ERRORS.name
_RULE_REFUSALS: Final = table.RULE_REFUSALS.name
_STARTED: Final = agent.START_TIME.name
_NAMES: Final = READ | {
    _ATTEMPTS, _CALLS, _EVICTED, _EVALUATIONS, _ERRORS, _RULE_REFUSALS, _STARTED, REQUESTS.name,
    table.PENDING_PODS.name, table.READY.name, agent.READY.name, agent.GENERATION.name, MANAGER_LEADER.name,
    *(f"{name}_{part}" for name in _DECISION_SECONDS for part in ("bucket", "sum", "count")),
}
_OVER_TIME: Final = READ | {_EVALUATIONS, _ERRORS, _RULE_REFUSALS}
"""The series whose readings of an hour are stored."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """The last answers of a server. Times are of the monotonic clock, in seconds."""

    endpoint: str
    kind: str = ""
    """`scheduler`, `extender`, `descheduler`, `agent` or `manager`; empty before the first answer."""
    answer: EndpointAnswer | None = None
    """The last answer of /status that was one; of a server without that page an empty one."""
    metrics: Exposition = field(default_factory=Exposition)
    heard: float | None = None
    """The time of its last answer."""
    error: str = ""
    """The reason why it does not answer; empty if it does."""
    failures: int = 0
    """Failures in a row."""
    due: float = 0.0
    """The time before which it is not called again."""
    started: float | None = None
    """The time when its process started, in seconds since the epoch; None if it does not report that."""
    restarts: int = 0
    waiting: Mapping[str, Any] = field(default_factory=dict)
    """The answer of `/waiting`, of a scheduler that leads."""

    @property
    def leading(self) -> bool | None:
        """True or False for a server with a Lease that leads or does not; else None."""
        if self.kind == "manager":
            amount = self.metrics.total(MANAGER_LEADER.name)
            return None if amount is None else bool(amount)
        found = None if self.answer is None else self.answer.data.get("leading")
        return found if isinstance(found, bool) else None

    @property
    def decides(self) -> bool:
        """True for a server that answers, and that leads if it has a Lease."""
        return self.heard is not None and not self.error and self.leading is not False


@dataclass(frozen=True, slots=True)
class FigurePoint:
    """The figures of all servers at one time; None where no server has them."""

    at: float
    bound: float | None = None
    """Pods that were placed, per second."""
    waiting: float | None = None
    """Pods in the queues."""
    decision_s: float | None = None
    """The mean duration of decisions since the last round, in seconds."""
    decision_p99_s: float | None = None
    evicted: float | None = None
    """Pods that were evicted, per minute."""


@dataclass(frozen=True, slots=True)
class EvaluationCounts:
    """The evaluations of an expression by all servers in the stored time, counted by node: all, those that failed and
    those that refused; and the evaluations per second at last.
    """

    plugin: str
    point: str
    rule: str
    evaluations: float
    errors: float
    refusals: float
    per_second: float


@dataclass(frozen=True, slots=True)
class MonitorView:
    """The state of all servers after a round; for any thread."""

    version: int = 0
    at: float = 0.0
    servers: tuple[ServerState, ...] = ()
    points: tuple[FigurePoint, ...] = ()
    """Oldest first."""
    alerts: tuple[RaisedAlert, ...] = ()
    rules: tuple[EvaluationCounts, ...] = ()
    rules_s: float = 0.0
    """The seconds that the numbers of evaluations are of."""
    unresolved: tuple[str, ...] = ()
    """The reasons why names have no address."""


class ServerMonitor:
    """Polls servers in a thread of its own; `view` is for any thread."""

    def __init__(
        self, words: Sequence[str], caller: Callable[[], Caller], *, interval: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time,
    ) -> None:
        """`words` are addresses as `addresses_of` takes them; `interval` is in seconds.

        `caller` is called for each round, as its token may have been replaced. It raises `OSError` or `ValueError` if
        it cannot be read: then the one before goes on.
        """
        self.view = MonitorView()
        self.interval = interval
        self._words = tuple(words)
        self._new_caller = caller
        self._caller = caller()
        self._clock = clock
        self._now = now
        self._changed: Callable[[], None] = lambda: None
        self._daemons = Daemons(_THREADS, "servers")
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._states: dict[str, ServerState] = {}
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._resolve_at = 0.0
        self._unresolved: tuple[str, ...] = ()
        self._hours: dict[str, deque[Reading]] = {}
        self._points: deque[FigurePoint] = deque(maxlen=_POINTS)
        self._book = AlertBook()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function after each round, in the monitor's thread; it must not block."""
        self._changed = changed

    def start(self) -> None:
        """Make rounds in a thread, until `close`."""
        self._thread = threading.Thread(target=self._run, name="monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the rounds; waits for nothing."""
        self._stop.set()
        self._daemons.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = self._clock()
            try:
                self.poll()
            except Exception:
                if self._stop.is_set():
                    return
                _LOG.exception("a round of requests to servers failed")
            self._stop.wait(max(0.1, began + self.interval - self._clock()))

    def poll(self) -> None:
        """Make one round: call the servers that are due, and renew the view."""
        began = self._clock()
        self._renew_caller()
        self._resolve(began)
        before = dict(self._states)
        due = [each for each in self._states.values() if each.due <= began]
        calls: list[Future[ServerState]] = [self._daemons.submit(self._called, each) for each in due]
        wait(calls)
        for call in calls:
            found = call.result()
            self._states[found.endpoint] = found
        now = self._clock()
        for endpoint, state in self._states.items():
            self._note(endpoint, state, now)
        self._points.append(point_of(now, [
            (before[each.endpoint], each) for each in self._states.values() if each.endpoint in before]))
        hours = {endpoint: tuple(readings) for endpoint, readings in self._hours.items()}
        rules, seconds = rules_of(now, hours)
        self.view = MonitorView(
            self.view.version + 1, now, tuple(self._states.values()), tuple(self._points),
            self._book.look(now, self._now(), {each.endpoint: hours.get(each.endpoint, ()) for each
                                               in self._states.values() if not each.error}),
            rules, seconds, self._unresolved)
        self._changed()

    def _renew_caller(self) -> None:
        try:
            self._caller = self._new_caller()
        except (OSError, ValueError) as error:
            _LOG.warning("the token for the servers cannot be read: %s", error)

    def _resolve(self, now: float) -> None:
        """Look up the addresses of names again, from time to time: a replica that is replaced has another one."""
        if self._states and now < self._resolve_at:
            return
        self._resolve_at = now + _RESOLVE_S
        unresolved = []
        for word in self._words:
            if word in self._resolved and not word.startswith(RESOLVED):
                continue
            try:
                self._resolved[word] = tuple(addresses_of(word))
            except UnresolvedError as error:
                unresolved.append(str(error))
        self._unresolved = tuple(unresolved)
        known = list(dict.fromkeys(each for word in self._words for each in self._resolved.get(word, ())))
        for endpoint in known[:MOST_SERVERS]:
            self._states.setdefault(endpoint, ServerState(endpoint))
        for endpoint, state in list(self._states.items()):
            is_forgotten = endpoint not in known and (state.heard is None or now - state.heard > _FORGET_S)
            if is_forgotten:
                del self._states[endpoint]
                self._hours.pop(endpoint, None)

    def _called(self, state: ServerState) -> ServerState:
        """Call a server; return its state. Never raises for what it answers."""
        answer = self._caller.ask(state.endpoint, "/status")
        without = answer.code == 404
        text, error = self._caller.text(state.endpoint, "/metrics") if answer.ok or without else ("", answer.error)
        now = self._clock()
        if error:
            failures = state.failures + 1
            return replace(state, error=error, failures=failures, due=now + min(
                self.interval * (1 << min(failures - 1, 10)), _LONGEST_PAUSE_S) - self.interval / 2)
        metrics = read_exposition(text, _NAMES)
        data = answer.data if answer.ok else {}
        kind = kind_of(data, metrics)
        if not kind:
            return replace(state, error="what answers there is no koord-policy", failures=state.failures + 1,
                           due=now + _LONGEST_PAUSE_S)
        started = _started(data, metrics)
        restarted = state.heard is not None and has_restarted(state.started, started, state.metrics, metrics)
        found = ServerState(
            state.endpoint, kind, EndpointAnswer(state.endpoint, answer.code, data), metrics, now, started=started,
            restarts=state.restarts + restarted)
        if kind != "scheduler" or not found.decides:
            return found
        waiting = self._caller.ask(state.endpoint, "/waiting")
        return replace(found, waiting=waiting.data if waiting.ok else {})

    def _note(self, endpoint: str, state: ServerState, now: float) -> None:
        """Store a reading: one a minute, and the newest."""
        if state.heard is None:
            return
        hour = self._hours.setdefault(endpoint, deque(maxlen=_STEPS + 1))
        reading = Reading(state.heard, Exposition({
            name: series for name, series in state.metrics.series.items() if name in _OVER_TIME}))
        while hour and now - hour[0].at > STEP_S * _STEPS:
            hour.popleft()
        if len(hour) > 1 and hour[-1].at - hour[-2].at < STEP_S:
            hour[-1] = reading
        elif not hour or hour[-1].at != reading.at:
            hour.append(reading)


def kind_of(status: Mapping[str, Any], metrics: Exposition) -> str:
    """Return the kind of a server, by what its answers hold; empty if it is none of ours."""
    if "cycles" in status:
        return "descheduler"
    if "leading" in status or "lostPods" in status:
        return "scheduler"
    if metrics.of(agent.READY.name):
        return "agent"
    if metrics.of(MANAGER_LEADER.name):
        return "manager"
    if "decisions" in status or "assumedPods" in status:
        return "extender"
    # A server whose policies are not loaded yet reports that alone.
    return "scheduler" if set(status) - {"started"} == {"ready"} else ""


def has_restarted(
    before: float | None, started: float | None, earlier: Exposition, metrics: Exposition,
) -> bool:
    """Return whether a server is another process than before: it started at another time, or counts from 0 again."""
    if before is not None and started is not None:
        return abs(before - started) > 1
    counts = [each.total(REQUESTS.name) for each in (earlier, metrics)]
    return counts[0] is not None and counts[1] is not None and counts[1] < counts[0]


def point_of(at: float, servers: Sequence[tuple[ServerState, ServerState]]) -> FigurePoint:
    """Return the figures of all servers, of their states before and after a round."""
    bound: list[float] = []
    evicted: list[float] = []
    waiting: list[float] = []
    seconds = count = 0.0
    buckets: dict[float, float] = {}
    for before, after in servers:
        if not after.decides:
            continue
        queued = after.metrics.total(table.PENDING_PODS.name)
        if queued is not None:
            waiting.append(queued)
        if before.heard is None or after.heard is None or after.heard <= before.heard:
            continue
        span = after.heard - before.heard
        placed = _grown(before, after, _ATTEMPTS, result="scheduled") if after.kind == "scheduler" else _grown(
            before, after, _CALLS, verb="bind", result="ok") if after.kind == "extender" else None
        if placed is not None:
            bound.append(placed / span)
        if after.kind == "descheduler":
            evicted.append(60 * (_grown(before, after, _EVICTED, result="success") or 0.0) / span)
        for name in _DECISION_SECONDS:
            seconds += _grown(before, after, f"{name}_sum") or 0.0
            count += _grown(before, after, f"{name}_count") or 0.0
            for labels, amount in growth((before.metrics, after.metrics), f"{name}_bucket"):
                if (limit := upper_bound(labels)) is not None:
                    buckets[limit] = buckets.get(limit, 0.0) + amount
    return FigurePoint(
        at, sum(bound) if bound else None, sum(waiting) if waiting else None, seconds / count if count else None,
        quantile(buckets, 0.99), sum(evicted) if evicted else None)


def rules_of(now: float, hours: Mapping[str, Sequence[Reading]]) -> tuple[tuple[EvaluationCounts, ...], float]:
    """Return the use of each expression by all servers, most evaluated first, and the seconds that it is of."""
    totals: dict[tuple[str, str, str], list[float]] = {}
    longest = 0.0
    for readings in hours.values():
        if len(readings) < 2:
            continue
        longest = max(longest, readings[-1].at - readings[0].at)
        recent = of_window(readings, now, _MINUTES * 60)
        span = recent[-1].at - recent[0].at if recent else 0.0
        for place, (name, chosen) in enumerate(((_EVALUATIONS, readings), (_ERRORS, readings),
                                                (_RULE_REFUSALS, readings), (_EVALUATIONS, recent))):
            for labels, amount in growth([each.metrics for each in chosen], name):
                known = dict(labels)
                row = totals.setdefault((known.get("plugin", ""), known.get("point", ""), known.get("rule", "")),
                                        [0.0, 0.0, 0.0, 0.0])
                row[place] += amount / (span or 1.0) if chosen is recent else amount
    uses = [EvaluationCounts(*key, *row) for key, row in totals.items()]
    return tuple(sorted(uses, key=lambda each: (-each.evaluations, each.plugin, each.point, each.rule))), longest


def _grown(before: ServerState, after: ServerState, name: str, **labels: str) -> float | None:
    """Return by how much a counter has grown; None if the server does not have it."""
    if not after.metrics.of(name):
        return None
    return increase((before.metrics.total(name, **labels) or 0.0, after.metrics.total(name, **labels) or 0.0))


def _started(status: Mapping[str, Any], metrics: Exposition) -> float | None:
    """Return when the process of a server started; None if it reports no time."""
    found = status.get("started", metrics.total(_STARTED))
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and abs(found) < _LARGEST_TIME else None
