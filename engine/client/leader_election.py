"""Leader election by a Lease: of several processes with the same lock, one works and the others wait.

The protocol is that of client-go's leader election, so that it may share a Lease with Kubernetes' own components. An
election runs on a thread with an event loop and a transport of its own: neither decisions that saturate a core nor
requests that wait for the client's limit delay a renewal.

There is no fencing: requests that a leader sent before it stopped may arrive later. Each write must therefore carry a
UID or resourceVersion, or be refused by the API server if it comes twice, as a Binding is.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import math
import random
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from koordpolicy.engine.kubernetes.times import rfc3339_micro
from koordpolicy.engine.source import PolicyError

from .connection import Connection
from .event_recorder import EventSink
from .lease_thread import LeaseThread
from .resources import ApiResource, ObjectReference
from .transport import ApiError, ConnectionFailed, Transport

_LOG: Final = logging.getLogger(__name__)

LEASES: Final = ApiResource("Lease", "coordination.k8s.io", "v1", "leases")
_JITTER: Final = 1.2
_SHORTEST_TIMEOUT_S: Final = 1.0
_TOLERANCE_S: Final = 20.0
"""Seconds after the end of its Lease from which a leader counts as unhealthy, as in kube-scheduler."""
LEASE_FAILURES: Final = (
    ApiError, ConnectionFailed, PolicyError, TimeoutError, ValueError, TypeError, RecursionError)
"""The errors of `request_lease`: of the request, or of an answer that is not a Lease."""


class Ended(enum.Enum):
    """The reason why a server of a live cluster ended."""

    STOPPED = "stopped"
    LOST_LEASE = "lost lease"


def new_identity() -> str:
    """Return an identity that no other process has: the host's name and a random UUID."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The Lease and its times, in seconds. Raises `ValueError` if the times contradict each other."""

    namespace: str
    name: str
    identity: str
    """Of this process; must differ from that of all others."""
    lease_s: float = 15.0
    """Others take over if the Lease has not changed for this long; rounded up to seconds in the Lease."""
    renew_s: float = 10.0
    """The leader gives up if it cannot renew the Lease for this long."""
    retry_s: float = 2.0
    """Between two renewals, and at least between two attempts to become the leader."""

    def __post_init__(self) -> None:
        if not self.namespace or not self.name or not self.identity:
            raise ValueError("namespace, name and identity of a Lease must not be empty")
        if self.retry_s <= 0:
            raise ValueError("retryPeriod must be greater than zero")
        if self.lease_s < 1:
            raise ValueError("leaseDuration must be one second at least")
        if self.lease_s <= self.renew_s:
            raise ValueError("leaseDuration must be greater than renewDeadline")
        if self.renew_s <= _JITTER * self.retry_s:
            raise ValueError("renewDeadline must be greater than retryPeriod*JitterFactor")

    @property
    def request_s(self) -> float:
        """Seconds after which a request fails: half of the renew deadline, at least 1."""
        return max(_SHORTEST_TIMEOUT_S, self.renew_s / 2)


@dataclass(frozen=True, slots=True)
class Leadership:
    """The state of an election, for other threads. `LeaderElection.leads` says whether this process may work."""

    leading: bool = False
    """True from the acquisition of the Lease until it is released or given up."""
    since: float = 0.0
    """Time at which `leading` changed last, in seconds since the epoch; 0 if it never did."""
    renewed_at: float = float("-inf")
    """The elector's clock when the last successful renewal was sent, in seconds."""
    holder: str = ""
    """The identity in the Lease when it was last seen; empty if nobody holds it."""
    gave_up: bool = False
    """True if this process led and could not renew the Lease, or lost it to another one: it must end."""
    fault: str = ""
    """The error of the last attempt; empty after a success."""
    renewals: int = 0
    slow_paths: int = 0
    """Attempts that read the Lease first: all but renewals, and renewals of a Lease that had changed."""


async def request_lease(
    transport: Transport, settings: LeaseSettings, method: str, path: str, body: bytes | None = None,
) -> dict[str, Any]:
    """Send a request about a Lease, and return the Lease of the answer; raises one of `LEASE_FAILURES`."""
    # No retries within a request: they would sleep as long as the server says, past the deadline.
    answer = json.loads(await transport.request(method, path, body=body, timeout=settings.request_s, retries=0))
    if not isinstance(answer, dict) or not isinstance(answer.get("spec", {}), dict):
        raise ValueError("the server's answer is no Lease")  # noqa: TRY004 - as for what is no JSON
    return answer


def lease_seconds(spec: Mapping[str, Any], default: float) -> float:
    """Return how long a Lease lasts after a renewal; `default` stands for a duration that is missing."""
    duration = spec.get("leaseDurationSeconds")
    return float(duration) if isinstance(duration, int) and duration > 0 else default


class LeaderElector:
    """One election: acquires the Lease, renews it until that fails for too long, or until it is cancelled.

    Belongs to one event loop; `state` and `leads` may be read anywhere. `LeaderElection` runs it on a thread.
    """

    def __init__(
        self, transport: Transport, settings: LeaseSettings, *,
        on_started: Callable[[], None] | None = None, on_stopped: Callable[[], None] | None = None,
        on_new_leader: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
        seen: tuple[Mapping[str, Any], float] | None = None,
    ) -> None:
        """`seen` is the Lease as it was read before, and the time of `clock` when it was first read like that.

        Callbacks are called in the loop and must not block, as renewals wait for them; their errors are logged.

        `on_started` follows the acquisition, `on_stopped` the end of a leadership, before the Lease is released;
        `on_new_leader` gets each new identity in the Lease, also the own one. `clock` measures intervals and `now` is
        the time that is written, both in seconds. `jitter` returns numbers in [0, 1).
        """
        self.state = Leadership()
        self.settings = settings
        self._transport = transport
        self._path = LEASES.path(settings.namespace, settings.name)
        self._on_started = on_started
        self._on_stopped = on_stopped
        self._on_new_leader = on_new_leader
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._jitter = jitter
        self._lease: dict[str, Any] | None = None if seen is None else dict(seen[0])
        """The Lease as the server last returned it."""
        self._observed_at = float("-inf") if seen is None else seen[1]
        """The own clock when the Lease was last seen to have changed."""
        self._release_due = False
        """True if the Lease may be this process's though it does not lead: a request that acquires it was cut off."""

    @property
    def lease(self) -> ObjectReference:
        """The Lease, with its UID once it was read or written; for the loop, and thus for callbacks."""
        uid = ((self._lease or {}).get("metadata") or {}).get("uid") or ""
        return ObjectReference(LEASES, self.settings.namespace, self.settings.name, str(uid))

    def leads(self) -> bool:
        """Return True while this process holds the Lease and no other can have taken it over.

        It is False as soon as the last renewal is older than the Lease's duration, even if the loop has not run since,
        as in a paused process.
        """
        state = self.state
        return state.leading and self._clock() < state.renewed_at + self.settings.lease_s

    async def run(self) -> None:
        """Wait for the Lease, lead, and return once leadership is given up; the caller must end the process then.

        Cancel it to stop: a leader releases the Lease then, so that another one takes over at its next attempt.
        """
        stopped = False
        try:
            await self._acquire()
            self._call(self._on_started)
            await self._renew()
        except asyncio.CancelledError:
            stopped = True
            raise
        finally:
            if self.state.leading:
                self._set_leading(False, gave_up=not stopped)
                self._call(self._on_stopped)
                self._release_due = True
            if stopped and self._release_due:
                await self._release()

    async def _acquire(self) -> None:
        while not await self._attempt(self.settings.request_s * 2):
            await self._sleep(self.settings.retry_s * (1.0 + _JITTER * self._jitter()))
        _LOG.info("%s leads: it holds the Lease %s/%s", self.settings.identity, self.settings.namespace,
                  self.settings.name)
        self._set_leading(True)

    async def _renew(self) -> None:
        while True:
            await self._sleep(self.settings.retry_s)
            # With some settings a retry period and a renew deadline together are longer than the Lease.
            deadline = min(self._clock() + self.settings.renew_s, self.state.renewed_at + self.settings.lease_s)
            while True:
                remaining_s = deadline - self._clock()
                if remaining_s <= 0:
                    return self._give_up(f"the Lease was not renewed in time: {self.state.fault}")
                if await self._attempt(remaining_s):
                    break
                if self.state.holder not in {self.settings.identity, ""}:
                    return self._give_up(f"{self.state.holder} holds the Lease")
                await self._sleep(max(0.0, min(self.settings.retry_s, deadline - self._clock())))

    def _give_up(self, why: str) -> None:
        _LOG.error("%s leads no more: %s", self.settings.identity, why)
        self.state = replace(self.state, fault=why)

    async def _attempt(self, limit: float) -> bool:
        """Acquire or renew the Lease within `limit` seconds; return False if another holds it, or on a failure."""
        try:
            async with asyncio.timeout(limit):
                acquired = await (self._put_renewal() if self.state.leading else self._read_and_put())
        except LEASE_FAILURES as error:
            self._failed(error)
            return False
        self.state = replace(self.state, fault="")
        return acquired

    async def _put_renewal(self) -> bool:
        """Renew the Lease as it was last seen; read it if it has changed since."""
        try:
            await self._put(self._renewed())
        except ApiError as error:
            if error.code not in {404, 409}:
                raise
            return await self._read_and_put()
        return True

    async def _read_and_put(self) -> bool:
        self.state = replace(self.state, slow_paths=self.state.slow_paths + 1)
        try:
            self._observe(await self._request("GET", self._path))
        except ApiError as error:
            if error.code != 404:
                raise
            self._lease = None
        if self._lease is not None and not self._available():
            return False
        await self._put(self._renewed())
        return True

    def _available(self) -> bool:
        """Return True if the Lease is this process's, nobody's, or has not changed for its duration."""
        spec = self._spec()
        holder = spec.get("holderIdentity") or ""
        seconds = lease_seconds(spec, self.settings.lease_s)
        return holder in {"", self.settings.identity} or self._clock() >= self._observed_at + seconds

    def _renewed(self) -> dict[str, Any]:
        """Return the Lease with this process as its holder; other fields stay."""
        spec, now = self._spec(), rfc3339_micro(int(self._now() * 1e9))
        transitions = spec.get("leaseTransitions")
        transitions = transitions if isinstance(transitions, int) else 0
        is_holder = spec.get("holderIdentity") == self.settings.identity
        lease = self._lease or {
            "apiVersion": LEASES.api_version, "kind": LEASES.kind,
            "metadata": {"namespace": self.settings.namespace, "name": self.settings.name}}
        return {**lease, "spec": {
            **spec, "holderIdentity": self.settings.identity, "leaseDurationSeconds": math.ceil(self.settings.lease_s),
            "acquireTime": spec.get("acquireTime") or now if is_holder else now, "renewTime": now,
            "leaseTransitions": transitions if is_holder or self._lease is None else transitions + 1}}

    async def _put(self, lease: dict[str, Any]) -> None:
        sent, self._release_due = self._clock(), True
        body = json.dumps(lease).encode()
        if self._lease is None:
            answer = await self._request("POST", LEASES.path(self.settings.namespace), body)
        else:
            answer = await self._request("PUT", self._path, body)
        self.state = replace(self.state, renewed_at=sent, renewals=self.state.renewals + 1)
        self._observe(answer)

    async def _release(self) -> None:
        """Free the Lease if it is this process's; a request that was cut off may have changed it, so it is read."""
        try:
            async with asyncio.timeout(self.settings.request_s * 2):
                try:
                    self._observe(await self._request("GET", self._path))
                except ApiError as error:
                    if error.code != 404:
                        raise
                    return  # the request that was cut off has not created it
                spec = self._spec()
                if spec.get("holderIdentity") != self.settings.identity:
                    return
                now = rfc3339_micro(int(self._now() * 1e9))
                released = {**(self._lease or {}), "spec": {
                    **spec, "holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}}
                self._observe(await self._request("PUT", self._path, json.dumps(released).encode()))
        except LEASE_FAILURES as error:
            self._failed(error)
        else:
            _LOG.info("%s released the Lease %s/%s", self.settings.identity, self.settings.namespace,
                      self.settings.name)

    async def _request(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        return await request_lease(self._transport, self.settings, method, path, body)

    def _spec(self) -> dict[str, Any]:
        return (self._lease or {}).get("spec") or {}

    def _observe(self, lease: dict[str, Any]) -> None:
        before, self._lease = self._spec(), lease
        if before != self._spec():
            self._observed_at = self._clock()
        holder = self._spec().get("holderIdentity") or ""
        if holder != self.state.holder:
            self.state = replace(self.state, holder=holder)
            if holder and self._on_new_leader is not None:
                on_new_leader = self._on_new_leader
                self._call(lambda: on_new_leader(holder))

    def _set_leading(self, leading: bool, *, gave_up: bool = False) -> None:
        self.state = replace(self.state, leading=leading, since=self._now(), gave_up=gave_up)

    def _failed(self, error: BaseException) -> None:
        why = str(error) or "it does not answer in time"
        if why != self.state.fault:
            _LOG.warning("the Lease %s/%s cannot be acquired, renewed or released: %s", self.settings.namespace,
                         self.settings.name, why)
        self.state = replace(self.state, fault=why)

    def _call(self, callback: Callable[[], None] | None) -> None:
        if callback is None:
            return
        try:
            callback()
        except Exception:
            _LOG.exception("a callback of the leader election failed")


class LeaderElection:
    """An election on a thread of its own. `start` it once, `stop` it at the end of the process."""

    def __init__(
        self, connect: Callable[[], Connection], settings: LeaseSettings, *, user_agent: str = "koord-policy",
        on_started: Callable[[], None] | None = None, on_stopped: Callable[[], None] | None = None,
        on_new_leader: Callable[[str], None] | None = None, events: EventSink | None = None, controller: str = "",
    ) -> None:
        """`connect` returns a connection that nothing else uses, as credentials belong to one event loop; it is called
        here, and its errors are raised.

        `events` records that this process became the leader, and that it stopped leading, as `controller` and with
        client-go's reason and notes. Their actions differ, as events that differ in their notes alone are one series.

        Callbacks are called on the election's thread, see `LeaderElector`. If `on_stopped` is called without a `stop`
        before, leadership was given up: `state.gave_up` is True, and the process must end.
        """
        transport = Transport(connect(), user_agent=f"{user_agent}/leader-election", rate=0)
        self._events = events
        self._controller = controller
        self._elector = LeaderElector(
            transport, settings, on_started=partial(self._changed, "BecomeLeader", "became leader", on_started),
            on_stopped=partial(self._changed, "StopLeading", "stopped leading", on_stopped),
            on_new_leader=on_new_leader)
        self._thread = LeaseThread("leader-election", transport, self._elector.run)

    @property
    def state(self) -> Leadership:
        """The state of the election."""
        return self._elector.state

    def leads(self) -> bool:
        """Return True while this process may work, see `LeaderElector.leads`."""
        return self._elector.leads()

    def start(self) -> None:
        """Start to wait for the Lease."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Stop leading and release the Lease; return False if that takes more than `timeout` seconds.

        Stop all writes first: another process may lead as soon as the Lease is released. May be called again.
        """
        return self._thread.stop(timeout)

    def release(self, seconds: float) -> None:
        """Stop at the end of a process, see `LeaseThread.release`."""
        self._thread.release(seconds)

    def _changed(self, action: str, what: str, callback: Callable[[], None] | None) -> None:
        elector = self._elector
        if callback is not None:
            callback()
        if self._events is not None:
            self._events.record(
                elector.lease, type="Normal", reason="LeaderElection", action=action, controller=self._controller,
                note=f"{elector.settings.identity} {what}")


def renewal_fault(lease: LeaseSettings | None, election: LeaderElection | None, now: float) -> str:
    """Return why a leader is not healthy: its Lease ended more than 20 s ago; empty for all others.

    `now` is the elector's clock in seconds; `lease` and `election` are None without an election.
    """
    if lease is None or election is None or not (leadership := election.state).leading:
        return ""
    late = now - leadership.renewed_at - lease.lease_s
    return f"failed election to renew leadership on lease {lease.name} for {late:.0f} s" if late > _TOLERANCE_S else ""
