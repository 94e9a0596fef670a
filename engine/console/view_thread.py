"""`ViewThread`: the thread that owns the console's state and computes views, and a second one for views that are long.

Views of whole cycles are computed by the second thread on a fork of the state. So are evaluations of what a client has
typed if these took much time lately, and all views of a client whose views did while there are others. Both threads
share their time fairly among clients (`FairThread`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Final

import msgspec
from aiohttp import web

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError

from .fair_thread import FairThread, UsedTime
from .guard import NotPermitted, retry_after
from .models.model import Model
from .past import PAST_TIMES, Past, recorded, time_of
from .routes import CLIENT
from .shared_answers import SharedAnswers
from .spare_state import SpareState
from .state import ConsoleState

SECONDS: Final = 5.0
"""The default of the processor time that a view may take."""
_MOST_QUEUED: Final = 64
_MOST_OF_ONE: Final = 24
_LIGHT_S: Final = 3.0
"""Views of clients that have used more are computed by the second thread, see the module."""
_BUDGET_S: Final = 30.0
"""Clients that have used more are refused while there are others."""
_PRESENT_S: Final = 60.0
"""The time for which a client counts as present after a view."""
_OVERDUE: Final = "it takes more than {:g} s of processor time"
_CONSOLE: Final = ""
"""The client for the console's own work."""


class ViewThread:
    """Computes views of a state, each within a deadline. `close` ends its threads."""

    def __init__(self, state: ConsoleState, *, seconds: float = SECONDS, past: Past | None = None,
                 used: UsedTime | None = None, timer: Callable[[], float] = time.thread_time) -> None:
        """`past` is the recording from which states of other times come, `used` what clients have used before.

        `timer` returns the seconds that the calling thread has worked.
        """
        self.state = state
        """Other threads may read its policies only."""
        self.seconds = seconds
        """The processor time that a view may take."""
        self.changed: Callable[[], None] = lambda: None
        """Called by the thread after each change; must not block."""
        self._past = past
        self._used = used or UsedTime()
        self._owner = FairThread("console", self._used, timer=timer)
        self._aside = FairThread("console-aside", self._used, timer=timer)
        self._spare = SpareState()
        self._shared = SharedAnswers()

    async def answer(
        self, view: Callable[[ConsoleState], Model], *, times: float = 1.0, at: str = "", key: str = "",
        kind: str = "", movable: bool = False, typed: bool = False,
    ) -> web.Response:
        """Return a view as an answer; it may take `times` the time of others.

        With `at`, a time as RFC 3339, the view is of the recorded cluster at that time. Of views with the same `key`
        one is computed, and shared until the state changes; without a key it is computed for this request alone. A
        `movable` view reads nothing but its state, so that any thread with a state of its own may compute it. Views of
        one `kind` wait for each other; a `typed` one evaluates what a user has typed.

        Raises:
            UnknownNameError: `at` is given, and there is no recording.
            ValueError: `at` is not a time.
            NotPermitted: too many views wait, or those of this client took too much time.
            OverdueError: it takes more processor time; the message is for viewers.
        """
        client = CLIENT.get()
        allowed = self.seconds * max(times, PAST_TIMES if at else 0)

        def compute(state_of: Callable[[], ConsoleState]) -> bytes:
            found: bytes | None = None
            with contextlib.suppress(OverdueError), Deadline(allowed, time.thread_time) as deadline:
                state = state_of()
                try:
                    found = msgspec.json.encode(view(state))
                finally:
                    if deadline.passed:
                        state.forget()
                        found = None
            if found is None:
                raise OverdueError(_OVERDUE.format(allowed))
            return found

        def compute_aside() -> bytes:
            of, state = self._forked(at, allowed)
            try:
                return compute(lambda: state)
            finally:
                self._spare.put(of, state)

        def submit() -> Future[bytes]:
            self._check(client)
            if movable and (times > 1 or (typed and self._used_for(client, kind) > _LIGHT_S) or (
                    self._used.of(client) > _LIGHT_S and self._shares(client))):
                return self._aside.submit(client, compute_aside, kind)
            return self._owner.submit(client, lambda: compute(lambda: self._state_at(at)), kind)

        # A viewer who leaves must not end the computation for the others.
        body = await asyncio.shield(asyncio.wrap_future(self._shared.get(key, submit) if key else submit()))
        return web.Response(body=body, content_type="application/json", charset="utf-8")

    def change(self, change: Callable[[ConsoleState], ConsoleState | None]) -> Future[None]:
        """Let the thread call a function with the state, between two views, and use the state that it returns.

        That may be the same one, with another content: shared views are computed again in any case. If the function
        returns None, nothing has changed; if it raises, the state stays.
        """
        def run() -> None:
            before = self.state
            after = change(before)
            if after is None:
                return
            self.state = after
            if after is not before:
                before.close()
            self._shared.clear()
            self.changed()

        return self._owner.submit(_CONSOLE, run)

    def close(self) -> None:
        """End the threads; waits for nothing."""
        self._owner.close()
        self._aside.close()
        self._spare.close()

    def _check(self, client: str) -> None:
        """Raise `NotPermitted` if the views of a client, or of all, are too many, or took too much time."""
        self._used.charge(client, 0.0)
        if self._owner.waiting(client) + self._aside.waiting(client) >= _MOST_OF_ONE:
            raise NotPermitted(429, "too many of your views are being computed: try again", **retry_after(1))
        if self._owner.waiting() + self._aside.waiting() >= _MOST_QUEUED:
            raise NotPermitted(503, "too many views are being computed: try again", **retry_after(1))
        excess = self._used.of(client) - _BUDGET_S
        if excess > 0 and self._shares(client):
            wait = excess / self._used.drain
            raise NotPermitted(429, f"your views took too much of the time that others need, too: try again in "
                               f"{max(1.0, wait):.0f} s", **retry_after(wait))

    def _used_for(self, client: str, kind: str) -> float:
        return self._owner.used_for(client, kind) + self._aside.used_for(client, kind)

    def _shares(self, client: str) -> bool:
        return self._used.has_others(client, _PRESENT_S)

    def _state_at(self, at: str) -> ConsoleState:
        """Return the state at a time of the recording, or the present one without a time. For the owner only."""
        return recorded(self._past).state_at(time_of(at), self.state.policies) if at else self.state

    def _forked(self, at: str, allowed: float) -> tuple[Hashable, ConsoleState]:
        """Return a fork of the state with what it is of, for the second thread: the last one, if it is up to date."""
        spare = self._spare.take()

        def fork() -> tuple[Hashable, Callable[[], ConsoleState] | None]:
            with Deadline(allowed, time.thread_time):
                state = self._state_at(at)
            of = (state.number, state.cluster.version, state.now)
            return of, None if spare is not None and spare[0] == of else state.fork()

        try:
            of, make = self._owner.submit(_CONSOLE, fork).result()
        except BaseException as error:
            if spare is not None:
                self._spare.put(*spare)
            if isinstance(error, OverdueError):
                raise OverdueError(_OVERDUE.format(allowed)) from None
            raise
        if make is None:
            assert spare is not None  # it is up to date
            return spare
        if spare is not None:
            spare[1].close()
        return of, make()
