"""`ViewThread`: the one thread that owns the console's state and computes views, one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import msgspec
from aiohttp import web

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.serving.daemons import Daemons

from .guard import NotPermitted
from .models.model import Model
from .past import PAST_TIMES, Past, recorded, time_of
from .shared_answers import SharedAnswers
from .state import ConsoleState

SECONDS: Final = 5.0
"""The default of the time that a view may take."""
_MOST_QUEUED: Final = 32


class ViewThread:
    """Computes views of a state, each within a deadline. `close` ends its thread."""

    def __init__(self, state: ConsoleState, *, seconds: float = SECONDS, past: Past | None = None) -> None:
        """`past` is the recording from which states of other times come."""
        self.state = state
        """Other threads may read its policies only."""
        self.seconds = seconds
        """The time that a view may take."""
        self.changed: Callable[[], None] = lambda: None
        """Called by the thread after each change; must not block."""
        self._past = past
        self._owner = Daemons(1, "console")
        self._shared = SharedAnswers()

    async def answer(
        self, view: Callable[[ConsoleState], Model], *, times: float = 1.0, at: str = "", key: str = "",
    ) -> web.Response:
        """Return a view as an answer; it may take `times` the time of others.

        With `at`, a time as RFC 3339, the view is of the recorded cluster at that time. Of views with the same `key`
        one is computed, and shared until the state changes; without a key it is computed for this request alone.

        Raises:
            UnknownNameError: `at` is given, and there is no recording.
            ValueError: `at` is not a time.
            NotPermitted: too many views wait for the thread.
            OverdueError: it takes longer; the message is for viewers.
        """
        def compute() -> bytes:
            allowed = self.seconds * max(times, PAST_TIMES if at else 0)
            found: bytes | None = None
            with contextlib.suppress(OverdueError), Deadline(allowed) as deadline:
                state = self._state_at(at) if at else self.state
                try:
                    found = msgspec.json.encode(view(state))
                finally:
                    if deadline.passed:
                        state.forget()
                        found = None
            if found is None:
                raise OverdueError(f"it takes more than {allowed:g} s")
            return found

        def submit() -> Future[bytes]:
            if len(self._owner.seconds_unfinished()) >= _MOST_QUEUED:
                raise NotPermitted(503, "too many views are being computed: try again", **{"Retry-After": "1"})
            return self._owner.submit(compute)

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

        return self._owner.submit(run)

    def _state_at(self, text: str) -> ConsoleState:
        past = recorded(self._past)
        return past.state_at(time_of(text), self.state.policies)

    def close(self) -> None:
        """End the thread; waits for nothing."""
        self._owner.shutdown(wait=False, cancel_futures=True)
