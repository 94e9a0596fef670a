"""`BackgroundJobs`: work that takes longer than a view may, one after the other, with a deadline and progress.

Replays and analyses are such work. Each has a view, which says how far it is and holds the result in the end.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from aiohttp import web
from msgspec.structs import replace

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.serving.daemons import Daemons
from koordpolicy.engine.source import PolicyError

from .faults import faults
from .guard import NotPermitted
from .models.model import JobView, Model
from .state import UnknownNameError

V = TypeVar("V", bound=JobView)
SECONDS: Final = 300.0
"""The default of the time that a job may take."""
_MOST_QUEUED: Final = 4
_REMEMBERED: Final = 16
_MOST_VIEWERS: Final = 256
_LEFT: Final = 70.0
"""The time without a question, in seconds, after which a viewer is believed to have left: pages ask twice a second, and
once a minute where a browser slows the timers of a tab in the background."""
_ENDS: Final = frozenset({"done", "failed", "cancelled"})
_LARGEST_NUMBER: Final = 2**53 - 1
"""The largest integer that JavaScript reads exactly."""
_LOG: Final = logging.getLogger(__name__)


class JobNumber(Model, frozen=True, kw_only=True, rename="camel"):
    """The body of a request about a job that was started."""

    number: int


@dataclass(slots=True)
class BackgroundJob(Generic[V]):
    """One of the jobs; its thread replaces the view while it works."""

    view: V
    key: Hashable = None
    stamp: Hashable = None
    deadline: Deadline | None = None
    cancelled: bool = False

    def cancel(self) -> None:
        """End the job; one that has ended stays as it is."""
        self.cancelled = True
        if self.deadline is not None:
            self.deadline.cancel()

    def update(self, **changes: Any) -> None:
        """Replace fields of the view; raise `OverdueError` if the job was cancelled, or takes too long."""
        Deadline.poll()
        self.view = replace(self.view, **changes)


@dataclass(slots=True)
class _Viewer(Generic[V]):
    """Somebody who started a job, or shares it."""

    job: BackgroundJob[V]
    last_request: float
    """The time at which the viewer asked last."""
    left: V | None = None
    """The view of a job that the viewer has cancelled, and that others wait for."""


class BackgroundJobs(Generic[V]):
    """Jobs that were started; the most recently read ones are remembered. Safe in any thread; `close` ends them."""

    def __init__(self, name: str, names: str, *, limit: float = SECONDS, advice: str = "",
                 clock: Callable[[], float] = time.monotonic) -> None:
        """`name` and `names` are what one and several are called; `limit` is the time that one may take, in seconds.

        `advice` says what to do about a job that takes longer.
        """
        self._name, self._names = name, names
        self._limit = limit
        self._advice = f": {advice}" if advice else ""
        self._clock = clock
        self._viewers: OrderedDict[int, _Viewer[V]] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = Daemons(1, names)

    def start(self, view: V, prepare: Callable[[], Callable[[BackgroundJob[V]], None]], *, key: Hashable = None,
              stamp: Hashable = None) -> V:
        """Begin a job, and return its view with a number. What the job needs of the caller's thread is prepared first,
        if it is not shared; the function that `prepare` returns ends with the phase `done` and a result in the view.

        With a key, one with the same key that has not ended, or was done at the same stamp, is shared instead. Each
        viewer has another number, a random one: who was not told it can neither read the result, which may be that of
        somebody's draft, nor cancel the job.

        Raises:
            NotPermitted: too many jobs wait.
        """
        with self._lock:
            jobs = self._jobs()
            shared = next((job for job in jobs if key is not None and job.key == key and not job.cancelled and (
                job.view.phase not in _ENDS or (job.view.phase == "done" and job.stamp == stamp))), None)
            if shared is not None:
                return self._viewed(shared)
            if sum(each.view.phase not in _ENDS and not each.cancelled for each in jobs) >= _MOST_QUEUED:
                raise NotPermitted(503, f"too many {self._names} are running: try again", **{"Retry-After": "5"})
            compute = prepare()
            job = BackgroundJob(replace(view, phase="queued"), key, stamp)
            begun = self._viewed(job)
        self._thread.submit(self._run, job, compute)
        return begun

    def _jobs(self) -> list[BackgroundJob[V]]:
        return list({id(each.job): each.job for each in self._viewers.values()}.values())

    def _viewed(self, job: BackgroundJob[V]) -> V:
        """Add a viewer of a job, and return the view.

        Beyond the limits, viewers who have not asked for longest are forgotten. A job without any is forgotten too; it
        ends then, as nobody could see its result or cancel it.
        """
        number = 1 + secrets.randbelow(_LARGEST_NUMBER)
        self._viewers[number] = _Viewer(job, self._clock())
        while len(self._viewers) > _MOST_VIEWERS or len(self._jobs()) > _REMEMBERED:
            _, forgotten = self._viewers.popitem(last=False)
            if not any(each.job is forgotten.job for each in self._viewers.values()):
                forgotten.job.cancel()
        return replace(job.view, number=number)

    def state(self, number: int) -> V:
        """Return how far a job is, or its result; raise `UnknownNameError` if it is not remembered."""
        with self._lock:
            viewer = self._viewer(number)
            viewer.last_request = self._clock()
            self._viewers.move_to_end(number)
            return replace(viewer.left or viewer.job.view, number=number)

    def state_of(self, request: web.Request) -> V:
        """Return the state of the job whose `number` is in a query; raises `ValueError`, and what `state` raises."""
        number = request.query.get("number", "")
        if not (number.isascii() and number.isdigit() and len(number) <= len(str(_LARGEST_NUMBER))):
            raise ValueError(f"`number` must be the number of one of the {self._names}")
        return self.state(int(number))

    def cancel(self, number: int) -> V:
        """End a job, unless others who share it still ask for it: then it is cancelled for this viewer only.

        One that has ended stays as it is. Raises what `state` raises.
        """
        with self._lock:
            viewer = self._viewer(number)
            if viewer.left is None and viewer.job.view.phase not in _ENDS:
                viewer.left = replace(viewer.job.view, phase="cancelled")
                since = self._clock() - _LEFT
                if not any(each.job is viewer.job and each.left is None and each.last_request > since
                           for each in self._viewers.values()):
                    viewer.job.cancel()
            return replace(viewer.left or viewer.job.view, number=number)

    def close(self) -> None:
        """End all jobs; waits for nothing."""
        with self._lock:
            for job in self._jobs():
                job.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _viewer(self, number: int) -> _Viewer[V]:
        viewer = self._viewers.get(number)
        if viewer is None:
            raise UnknownNameError(f"{self._name} {number} is not remembered: start it again")
        return viewer

    def _run(self, job: BackgroundJob[V], compute: Callable[[BackgroundJob[V]], None]) -> None:
        deadline = job.deadline = Deadline(self._limit)
        if job.cancelled:
            deadline.cancel()
        try:
            with deadline:
                Deadline.poll()
                compute(job)
        except OverdueError:
            job.view = replace(job.view, phase="cancelled" if job.cancelled else "failed", failure="" if job.cancelled
                               else f"it takes more than {self._limit:g} s{self._advice}")
        except PolicyError as error:
            job.view = replace(job.view, phase="failed", failure=visible(error.problems[0].message),
                               faults=faults(error.problems))
        except Exception:
            _LOG.exception("the %s failed", self._name)
            job.view = replace(job.view, phase="failed",
                               failure=f"the console failed in the {self._name}; its log says why")
