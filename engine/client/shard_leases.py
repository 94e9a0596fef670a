"""The Leases of shards: each of several processes that share work holds one, out of a fixed set.

A process takes the first shard that is free, and holds it as a leader holds its Lease. A process that holds a shard is
alive; the others see that from the Leases.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .connection import Connection
from .leader_election import LEASE_FAILURES, LEASES, LeaderElector, LeaseSettings, lease_seconds, request_lease
from .lease_thread import LeaseThread
from .transport import ApiError, Transport

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShardLeaseView:
    """A shard as this process saw it last."""

    holder: str = ""
    """Empty if nobody holds it."""
    renew_time: str = ""
    """The time of the last renewal, as the holder wrote it."""
    duration_s: float = 0.0
    seen_at: float = float("-inf")
    """The own clock when it was first seen like this."""
    lease: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def is_held(self, now: float) -> bool:
        """Return whether somebody holds it; `now` is of the own clock."""
        return bool(self.holder) and now < self.seen_at + self.duration_s

    def after(self, lease: Mapping[str, Any] | None, now: float, longest_s: float) -> ShardLeaseView:
        """Return the view after a look at the Lease, None if there is none; `longest_s` stands for a duration that is
        missing.
        """
        spec = (lease or {}).get("spec") or {}
        holder, renew_time = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if (holder, renew_time) == (self.holder, self.renew_time):
            return self
        return ShardLeaseView(holder, renew_time, lease_seconds(spec, longest_s), now, lease or {})


class ShardKeeper:
    """Holds one of the shards, as soon as one is free.

    It belongs to one event loop; any thread reads `shard` and `holders`.
    """

    def __init__(
        self, transport: Transport, shards: Sequence[LeaseSettings], *, looks: Callable[[], bool] = lambda: True,
        changed: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """All `shards` have this process' identity. While it holds one it looks at the others only if `looks()`.

        `changed` is called in the loop when this process gets a shard or loses it.
        """
        self._transport = transport
        self._shards = tuple(shards)
        self._looks = looks
        self._changed = changed
        self._clock = clock
        self._sleep = sleep
        self._views: dict[str, ShardLeaseView] = {}
        self._elector: LeaderElector | None = None
        self._reported_shard = ""
        self._task: asyncio.Task[None] | None = None
        self._fault = ""

    @property
    def shard(self) -> str:
        """The name of the Lease that this process holds; empty without one."""
        elector = self._elector
        return elector.settings.name if elector is not None and elector.leads() else ""

    def holders(self) -> tuple[str, ...]:
        """Return the identities that hold shards, as they were seen last, in the order of the shards."""
        now, own = self._clock(), self.shard
        return tuple(shard.identity if shard.name == own else self._views[shard.name].holder for shard in self._shards
                     if shard.name == own or (shard.name in self._views and self._views[shard.name].is_held(now)
                                             and self._views[shard.name].holder != shard.identity))

    async def run(self) -> None:
        """Take a shard and hold it, another one if it is lost; cancel this to release it."""
        try:
            while True:
                if self._task is not None and self._task.done():
                    self._end()
                if self._task is None or not self.shard or self._looks():
                    await self._look()
                    await self._choose()
                if self.shard != self._reported_shard:
                    self._reported_shard = self.shard
                    self._changed()
                await self._sleep(self._shards[0].retry_s)
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    def _end(self) -> None:
        if self._task is not None and not self._task.cancelled() and (error := self._task.exception()) is not None:
            _LOG.error("the Lease of a shard failed", exc_info=error)
        self._task, self._elector = None, None

    async def _look(self) -> None:
        found = await asyncio.gather(*map(self._read, self._shards), return_exceptions=True)
        now = self._clock()
        fault = ""
        for shard, lease in zip(self._shards, found, strict=True):
            if isinstance(lease, BaseException):
                if not isinstance(lease, LEASE_FAILURES):
                    raise lease
                fault = str(lease) or type(lease).__name__
            else:
                self._views[shard.name] = self._views.get(shard.name, ShardLeaseView()).after(lease, now, shard.lease_s)
        if fault and fault != self._fault:
            _LOG.warning("the Leases of the shards cannot be read: %s", fault)
        self._fault = fault

    async def _read(self, shard: LeaseSettings) -> Mapping[str, Any] | None:
        try:
            return await request_lease(self._transport, shard, "GET", LEASES.path(shard.namespace, shard.name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _choose(self) -> None:
        """Begin to acquire a shard that is free, unless one is held; leave one that another process got first."""
        now = self._clock()
        if self._task is not None and self._elector is not None:
            if self.shard or not self._is_taken(self._elector.settings, now):
                return
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._end()
        free = next((each for each in self._shards if each.name in self._views and not self._is_taken(each, now)), None)
        if free is not None and self._task is None:
            view = self._views[free.name]
            self._elector = LeaderElector(
                self._transport, free, clock=self._clock, sleep=self._sleep,
                seen=(view.lease, view.seen_at) if view.lease else None)
            self._task = asyncio.create_task(self._elector.run())

    def _is_taken(self, shard: LeaseSettings, now: float) -> bool:
        view = self._views.get(shard.name)
        return view is not None and view.is_held(now) and view.holder != shard.identity


class ShardLeases:
    """A shard keeper on a thread of its own. `start` it once, `stop` it at the end of the process."""

    def __init__(
        self, connect: Callable[[], Connection], shards: Sequence[LeaseSettings], *, user_agent: str = "koord-policy",
        looks: Callable[[], bool] = lambda: True, changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` returns a connection that nothing else uses; see `ShardKeeper` for the others."""
        transport = Transport(connect(), user_agent=f"{user_agent}/shards", rate=0)
        self._keeper = ShardKeeper(transport, shards, looks=looks, changed=changed)
        self._thread = LeaseThread("shard-leases", transport, self._keeper.run)

    @property
    def shard(self) -> str:
        """The name of the Lease that this process holds; empty without one."""
        return self._keeper.shard

    def holders(self) -> tuple[str, ...]:
        """Return the identities that hold shards, as they were seen last."""
        return self._keeper.holders()

    def start(self) -> None:
        """Start to wait for a shard."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Release the shard; return False if that takes more than `timeout` seconds. May be called again."""
        return self._thread.stop(timeout)

    def release(self, seconds: float) -> None:
        """Stop at the end of a process, see `LeaseThread.release`."""
        self._thread.release(seconds)
