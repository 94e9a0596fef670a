"""Replays of the console's flight recording under other policies: one at a time, with a deadline and progress."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.flight_recorder.fields import need_recorded
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.replay import replay
from koordpolicy.engine.flight_recorder.settings import replay_settings
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.serving.daemons import Daemons
from koordpolicy.engine.source import PolicyError, Problems

from .faults import faults
from .guard import NotPermitted
from .models.time import ReplayView
from .past import Past
from .policy_set import PolicySet, draft_of
from .state import UnknownNameError
from .time_views import replay_result, seconds

SECONDS: Final = 300.0
"""The default of the time that a replay may take."""
_POINTS: Final = 60
_MOST_QUEUED: Final = 4
_REMEMBERED: Final = 16
_ENDS: Final = frozenset({"done", "failed", "cancelled"})
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    view: ReplayView
    start: int
    end: int
    text: str
    file: str
    policies: PolicySet
    deadline: Deadline | None = None
    cancelled: bool = False


class ReplayJobs:
    """The replays that were started; the last ones are remembered. `close` ends them."""

    def __init__(self, past: Past, *, limit: float = SECONDS) -> None:
        """`limit` is the time that a replay may take, in seconds."""
        self._past = past
        self._limit = limit
        self._jobs: OrderedDict[int, _Job] = OrderedDict()
        self._number = 0
        self._thread = Daemons(1, "replays")

    def start(self, policies: PolicySet, start: int, end: int, text: str = "", file: str = "") -> ReplayView:
        """Begin a replay of a part of the recording (ns since the epoch) under policies, or a draft beside them.

        `file` is the policy file that the draft replaces.

        Raises:
            NotPermitted: too many replays wait.
            ValueError: the part has no duration.
        """
        if start > end:
            raise ValueError("the start of a replay is after its end")
        if sum(each.view.phase not in _ENDS for each in self._jobs.values()) >= _MOST_QUEUED:
            raise NotPermitted(503, "too many replays are running: try again", **{"Retry-After": "5"})
        self._number += 1
        job = _Job(ReplayView(number=self._number, phase="queued", done=0, of=0, start=seconds(start),
                              end=seconds(end), draft=bool(text)), start, end, text, file, policies)
        self._jobs[self._number] = job
        while len(self._jobs) > _REMEMBERED:
            self._jobs.popitem(last=False)
        self._thread.submit(self._run, job)
        return job.view

    def state(self, number: int) -> ReplayView:
        """Return how far a replay is, or its result; raise `UnknownNameError` if it is not remembered."""
        return self._job(number).view

    def cancel(self, number: int) -> ReplayView:
        """End a replay; one that has ended stays as it is. Raises what `state` raises."""
        job = self._job(number)
        job.cancelled = True
        if job.deadline is not None:
            job.deadline.cancel()
        return job.view

    def close(self) -> None:
        """End all replays; waits for nothing."""
        for number in tuple(self._jobs):
            self.cancel(number)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _job(self, number: int) -> _Job:
        job = self._jobs.get(number)
        if job is None:
            raise UnknownNameError(f"replay {number} is not remembered: start it again")
        return job

    def _run(self, job: _Job) -> None:
        deadline = job.deadline = Deadline(self._limit)
        if job.cancelled:
            deadline.cancel()
        try:
            with deadline:
                self._compute(job)
        except OverdueError:
            job.view = replace(job.view, phase="cancelled" if job.cancelled else "failed", failure="" if job.cancelled
                               else f"it takes more than {self._limit:g} s: choose a shorter time")
        except PolicyError as error:
            job.view = replace(job.view, phase="failed", failure=visible(error.problems[0].message),
                               faults=faults(error.problems))
        except Exception:
            _LOG.exception("a replay failed")
            job.view = replace(job.view, phase="failed", failure="the console failed to replay; its log says why")

    def _compute(self, job: _Job) -> None:
        Deadline.poll()
        job.view = replace(job.view, phase="reading")
        registry = self._registry(job)
        recording = FlightRecording.open(self._past.directory).between(job.start, job.end, Deadline.poll)
        overview = recording.overview()
        settings = replay_settings(overview.first.settings, registry)
        need_recorded(overview.fields, settings.profiles, registry)
        job.view = replace(job.view, phase="replaying", of=overview.decisions)

        def progress(done: int) -> None:
            Deadline.poll()
            job.view = replace(job.view, done=done)

        result = replay(recording, overview, Live(registry), settings, clock=time.perf_counter, points=_POINTS,
                        progress=progress)
        Deadline.poll()  # after it, expressions end in errors
        job.view = replace(job.view, phase="done", done=overview.decisions, result=replay_result(
            result, same_policies=overview.digests == [registry.digest]))

    def _registry(self, job: _Job) -> Registry:
        if not job.text:
            return job.policies.registry
        _, loaded = draft_of(job.text, job.file)
        Problems(list(loaded.problems)).raise_errors()
        registry, replaced = job.policies.with_draft(loaded.documents, job.file)
        job.view = replace(job.view, replaced=list(replaced))
        return registry
