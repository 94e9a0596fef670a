"""Replays of the console's flight recording under other policies: one at a time, with a deadline and progress."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.flight_recorder.fields import need_recorded
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.replay import replay
from koordpolicy.engine.flight_recorder.settings import replay_settings
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import Problems

from .jobs import SECONDS, BackgroundJob, BackgroundJobs
from .models.time import ReplayView
from .past import Past
from .policy_set import PolicySet, draft_of
from .time_views import replay_result, seconds

_POINTS: Final = 60


class ReplayJobs:
    """The replays that were started. `close` ends them."""

    def __init__(self, past: Past, *, limit: float = SECONDS) -> None:
        """`limit` is the time that a replay may take, in seconds."""
        self._past = past
        self.jobs: BackgroundJobs[ReplayView] = BackgroundJobs(
            "replay", "replays", limit=limit, advice="choose a shorter time")

    def start(self, policies: PolicySet, start: int, end: int, text: str = "", file: str = "") -> ReplayView:
        """Begin a replay of a part of the recording (ns since the epoch) under policies, or a draft beside them.

        `file` is the policy file that the draft replaces.

        Raises:
            NotPermitted: too many replays wait.
            ValueError: the part has no duration.
        """
        if start > end:
            raise ValueError("the start of a replay is after its end")
        view = ReplayView(start=seconds(start), end=seconds(end), draft=bool(text))
        draft = (text, file) if text else None
        return self.jobs.start(view, lambda: partial(
            self._compute, policies=policies, start=start, end=end, draft=draft))

    def close(self) -> None:
        """End all replays; waits for nothing."""
        self.jobs.close()

    def _compute(
        self, job: BackgroundJob[ReplayView], *, policies: PolicySet, start: int, end: int,
        draft: tuple[str, str] | None,
    ) -> None:
        job.update(phase="reading")
        registry = policies.registry if draft is None else self._with_draft(job, policies, *draft)
        recording = FlightRecording.open(self._past.directory).between(start, end, Deadline.poll)
        overview = recording.overview()
        settings = replay_settings(overview.first.settings, registry)
        need_recorded(overview.fields, settings.profiles, registry)
        job.update(phase="replaying", of=overview.decisions)
        result = replay(recording, overview, Live(registry), settings, clock=time.perf_counter, points=_POINTS,
                        progress=lambda done: job.update(done=done))
        # After the deadline, expressions end in errors: then there is no result.
        job.update(phase="done", done=overview.decisions, result=replay_result(
            result, same_policies=overview.digests == [registry.digest]))

    def _with_draft(self, job: BackgroundJob[ReplayView], policies: PolicySet, text: str, file: str) -> Registry:
        _, loaded = draft_of(text, file)
        Problems(list(loaded.problems)).raise_errors()
        registry, replaced = policies.with_draft(loaded.documents, file)
        job.update(replaced=list(replaced))
        return registry
