"""Several processes that work together, each with a Lease of its own out of a fixed set of slots.

A process takes the first slot that is free, and holds it as a leader holds its Lease. Who holds a slot is alive; the
others see that from the Leases.
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
class SlotView:
    """A slot as this process saw it last."""

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

    def after(self, lease: Mapping[str, Any] | None, now: float, longest_s: float) -> SlotView:
        """Return the view after a look at the Lease, None if there is none; `longest_s` stands for a duration that is
        missing.
        """
        spec = (lease or {}).get("spec") or {}
        holder, renew_time = str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or "")
        if (holder, renew_time) == (self.holder, self.renew_time):
            return self
        return SlotView(holder, renew_time, lease_seconds(spec, longest_s), now, lease or {})


class SlotKeeper:
    """Holds one of the slots, as soon as one is free. Belongs to one event loop; any thread reads `slot`, `holders`."""

    def __init__(
        self, transport: Transport, slots: Sequence[LeaseSettings], *, looks: Callable[[], bool] = lambda: True,
        changed: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """All `slots` have this process' identity. While it holds one it looks at the others only if `looks()`.

        `changed` is called in the loop when this process gets a slot or loses it.
        """
        self._transport = transport
        self._slots = tuple(slots)
        self._looks = looks
        self._changed = changed
        self._clock = clock
        self._sleep = sleep
        self._views: dict[str, SlotView] = {}
        self._elector: LeaderElector | None = None
        self._held = ""
        self._task: asyncio.Task[None] | None = None
        self._fault = ""

    @property
    def slot(self) -> str:
        """The name of the Lease that this process holds; empty without one."""
        elector = self._elector
        return elector.settings.name if elector is not None and elector.leads() else ""

    def holders(self) -> tuple[str, ...]:
        """Return the identities that hold slots, as they were seen last, in the order of the slots."""
        now, own = self._clock(), self.slot
        return tuple(slot.identity if slot.name == own else self._views[slot.name].holder for slot in self._slots
                     if slot.name == own or (slot.name in self._views and self._views[slot.name].is_held(now)
                                             and self._views[slot.name].holder != slot.identity))

    async def run(self) -> None:
        """Take a slot and hold it, another one if it is lost; cancel this to release it."""
        try:
            while True:
                if self._task is not None and self._task.done():
                    self._end()
                if self._task is None or not self.slot or self._looks():
                    await self._look()
                    await self._choose()
                if self.slot != self._held:
                    self._held = self.slot
                    self._changed()
                await self._sleep(self._slots[0].retry_s)
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)

    def _end(self) -> None:
        if self._task is not None and not self._task.cancelled() and (error := self._task.exception()) is not None:
            _LOG.error("the Lease of a slot failed", exc_info=error)
        self._task, self._elector = None, None

    async def _look(self) -> None:
        found = await asyncio.gather(*map(self._read, self._slots), return_exceptions=True)
        now = self._clock()
        fault = ""
        for slot, lease in zip(self._slots, found, strict=True):
            if isinstance(lease, BaseException):
                if not isinstance(lease, LEASE_FAILURES):
                    raise lease
                fault = str(lease) or type(lease).__name__
            else:
                self._views[slot.name] = self._views.get(slot.name, SlotView()).after(lease, now, slot.lease_s)
        if fault and fault != self._fault:
            _LOG.warning("the Leases of the slots cannot be read: %s", fault)
        self._fault = fault

    async def _read(self, slot: LeaseSettings) -> Mapping[str, Any] | None:
        try:
            return await request_lease(self._transport, slot, "GET", LEASES.path(slot.namespace, slot.name))
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def _choose(self) -> None:
        """Begin to acquire a slot that is free, unless one is held; leave one that another process got first."""
        now = self._clock()
        if self._task is not None and self._elector is not None:
            if self.slot or not self._is_taken(self._elector.settings, now):
                return
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._end()
        free = next((slot for slot in self._slots if slot.name in self._views and not self._is_taken(slot, now)), None)
        if free is not None and self._task is None:
            view = self._views[free.name]
            self._elector = LeaderElector(
                self._transport, free, clock=self._clock, sleep=self._sleep,
                seen=(view.lease, view.seen_at) if view.lease else None)
            self._task = asyncio.create_task(self._elector.run())

    def _is_taken(self, slot: LeaseSettings, now: float) -> bool:
        view = self._views.get(slot.name)
        return view is not None and view.is_held(now) and view.holder != slot.identity


class LeaseSlots:
    """A slot keeper on a thread of its own. `start` it once, `stop` it at the end of the process."""

    def __init__(
        self, connect: Callable[[], Connection], slots: Sequence[LeaseSettings], *, user_agent: str = "koord-policy",
        looks: Callable[[], bool] = lambda: True, changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` returns a connection that nothing else uses; see `SlotKeeper` for the others."""
        transport = Transport(connect(), user_agent=f"{user_agent}/slots", rate=0)
        self._keeper = SlotKeeper(transport, slots, looks=looks, changed=changed)
        self._thread = LeaseThread("lease-slots", transport, self._keeper.run)

    @property
    def slot(self) -> str:
        """The name of the Lease that this process holds; empty without one."""
        return self._keeper.slot

    def holders(self) -> tuple[str, ...]:
        """Return the identities that hold slots, as they were seen last."""
        return self._keeper.holders()

    def start(self) -> None:
        """Start to wait for a slot."""
        self._thread.start()

    def stop(self, timeout: float | None = None) -> bool:
        """Release the slot; return False if that takes more than `timeout` seconds. May be called again."""
        return self._thread.stop(timeout)
