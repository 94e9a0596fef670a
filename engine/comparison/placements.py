"""Placements of the successors of evicted pods by scheduling profiles, for the descheduler's proofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.proof.verdicts import Landing, Preference
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, decide
from koordpolicy.engine.scheduler.verdict.verdict import Verdict, in_fixed_words
from koordpolicy.engine.texts import first_of

DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The scheduler of a pod that names none (Kubernetes' default of `spec.schedulerName`)."""
_MOST_PREFERENCES: Final = 5
_MOST_TIED: Final = 10
"""If a random tie-break chooses among more nodes, the pod is assumed to run on another one than it leaves."""


class SchedulerPlacements:
    """Places pods by the profiles of a scheduler, which schedules nothing (implements `SuccessorPlacements`).

    Valid for snapshots of the scheduler's cluster, in the thread that owns it.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def place(self, pod: PodInfo, snapshot: Snapshot, *, home: str, avoids_home: bool) -> Landing | None:
        """Return the placement of a pod without preemption.

        None if no profile has the name of its scheduler, unless such pods are scheduled all the same (see
        `Settings.foreign_pods`).
        """
        name = str(pod.object["spec"].get("schedulerName") or DEFAULT_SCHEDULER)
        active = self._scheduler.refresh()
        profile = active.profile_of(pod) if self._scheduler.settings.foreign_pods else active.profiles.get(name)
        if profile is None:
            return None
        name = profile.name
        row = snapshot.index.get(home, -1)
        others = np.delete(np.arange(snapshot.size, dtype=np.intp), row) if avoids_home and row >= 0 else None
        verdict = decide(profile, pod, snapshot, candidates=others, preempts=False)
        if verdict.node is None:
            return Landing(name, reasons=_reasons(verdict))
        tied = self._tied(verdict)
        if len(tied) <= _MOST_TIED:
            landing = Landing(name, verdict.node, tuple(verdict.names[each] for each in tied), len(verdict.passed),
                              _reasons(verdict) if len(verdict.passed) == 1 else {})
            if not landing.may_be(home):
                return landing
            shown, left_out = first_of(_preferences(verdict, row), _MOST_PREFERENCES)
            return replace(landing, preferred_by=tuple(shown), preferred_by_left_out=left_out)
        # The chance of any one node is small, so also that of `home`.
        return Landing(name, verdict.names[next(each for each in tied if each != row)], passed=len(verdict.passed))

    def close(self) -> None:
        """Close the scheduler."""
        self._scheduler.close()

    def _tied(self, verdict: Verdict) -> list[int]:
        """Return the rows of which the scheduler chooses one at random; empty if its choice is certain."""
        if self._scheduler.settings.tie_break == "first" or verdict.totals is None:
            return []
        best: list[int] = verdict.passed[verdict.totals == verdict.totals.max()].tolist()
        return best if len(best) > 1 else []


def _reasons(verdict: Verdict) -> dict[str, int]:
    """Return the numbers of nodes by plugin and reason of their refusal."""
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        return {f"{plugin}: {refusal.message}": verdict.size}
    return {
        f"{step.plugin}: {reason}": len(rows) for step in verdict.filters if step.enforcement is Enforcement.ENFORCE
        for reason, rows in in_fixed_words(step, step.refused).items()
    }


def _preferences(verdict: Verdict, row: int) -> Sequence[Preference]:
    """Return the scorers that prefer the node at a row to the best of the others, the strongest first."""
    totals = verdict.totals
    if totals is None:
        return ()
    others = np.flatnonzero(verdict.passed != row)
    if len(others) in (0, len(verdict.passed)):
        return ()
    other = int(verdict.passed[others[totals[others].argmax()]])
    found: Mapping[str, Preference] = {
        step.plugin: Preference(step.plugin, step.weight, int(step.scores.values[row]), verdict.names[other],
                                int(step.scores.values[other]))
        for step in verdict.scores if step.scores.values[row] > step.scores.values[other]
    }
    return sorted(found.values(), key=lambda each: -each.weight * (each.score - each.other_score))
