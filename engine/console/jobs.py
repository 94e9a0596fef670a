"""`BackgroundJobs`: work that takes longer than a view may, one after the other, with a deadline and progress.

Replays and analyses are such work. Each has a view, which says how far it is and holds the result in the end.
"""

from __future__ import annotations

import logging
import secrets
import threading
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

    def update(self, **changes: Any) -> None:
        """Replace fields of the view; raise `OverdueError` if the job was cancelled, or takes too long."""
        Deadline.poll()
        self.view = replace(self.view, **changes)


class BackgroundJobs(Generic[V]):
    """Jobs that were started; the last ones are remembered. For any thread. `close` ends them."""

    def __init__(self, name: str, names: str, *, limit: float = SECONDS, advice: str = "") -> None:
        """`name` and `names` are what one and several are called; `limit` is the time that one may take, in seconds.

        `advice` says what to do about a job that takes longer.
        """
        self._name, self._names = name, names
        self._limit = limit
        self._advice = f": {advice}" if advice else ""
        self._jobs: OrderedDict[int, BackgroundJob[V]] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = Daemons(1, names)

    def start(self, view: V, compute: Callable[[BackgroundJob[V]], None], *, key: Hashable = None,
              stamp: Hashable = None) -> V:
        """Begin a job, and return its view with a number; `compute` ends with the phase `done` and a result in it.

        With a key, one with the same key that has not ended, or was done at the same stamp, is taken instead. The
        number is a random one: who was not told it cannot read the result, which may be that of somebody's draft.

        Raises:
            NotPermitted: too many jobs wait.
        """
        with self._lock:
            for job in self._jobs.values() if key is not None else ():
                if job.key == key and (job.view.phase not in _ENDS or (
                        job.view.phase == "done" and job.stamp == stamp)) and not job.cancelled:
                    return job.view
            if sum(each.view.phase not in _ENDS for each in self._jobs.values()) >= _MOST_QUEUED:
                raise NotPermitted(503, f"too many {self._names} are running: try again", **{"Retry-After": "5"})
            number = 1 + secrets.randbelow(_LARGEST_NUMBER)
            job = BackgroundJob(replace(view, number=number, phase="queued"), key, stamp)
            self._jobs[number] = job
            while len(self._jobs) > _REMEMBERED:
                self._jobs.popitem(last=False)
        self._thread.submit(self._run, job, compute)
        return job.view

    def state(self, number: int) -> V:
        """Return how far a job is, or its result; raise `UnknownNameError` if it is not remembered."""
        return self._job(number).view

    def state_of(self, request: web.Request) -> V:
        """Return the state of the job whose `number` is in a query; raises `ValueError`, and what `state` raises."""
        number = request.query.get("number", "")
        if not (number.isascii() and number.isdigit() and len(number) <= len(str(_LARGEST_NUMBER))):
            raise ValueError(f"`number` must be the number of one of the {self._names}")
        return self.state(int(number))

    def cancel(self, number: int) -> V:
        """End a job, for all who share it; one that has ended stays as it is. Raises what `state` raises."""
        job = self._job(number)
        job.cancelled = True
        if job.deadline is not None:
            job.deadline.cancel()
        return job.view

    def close(self) -> None:
        """End all jobs; waits for nothing."""
        for number in tuple(self._jobs):
            self.cancel(number)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _job(self, number: int) -> BackgroundJob[V]:
        job = self._jobs.get(number)
        if job is None:
            raise UnknownNameError(f"{self._name} {number} is not remembered: start it again")
        return job

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
