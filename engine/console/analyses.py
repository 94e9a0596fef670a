"""`AnalysisJobs`: audits and effects of drafts, over the whole cluster and in the background, while views are computed.

An analysis has a cluster of its own, as it was at its start: it does not hold up views, and changes of the cluster do
not end it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from .jobs import SECONDS, BackgroundJob, BackgroundJobs
from .models.analysis import AnalysisView
from .spare_state import IDLE, SpareState
from .state import ConsoleState

if TYPE_CHECKING:
    from .models.playground import EffectView
    from .models.policies import AuditView

_STEPS: Final = 1000
_Progress = Callable[[float], None]


class AnalysisJobs:
    """The analyses that were started, one at a time. `close` ends them."""

    def __init__(self, *, limit: float = SECONDS, idle: float = IDLE) -> None:
        """`limit` is the time that an analysis may take, in seconds. Cached results and their cluster are dropped after
        `idle` seconds without an analysis.
        """
        self.jobs: BackgroundJobs[AnalysisView] = BackgroundJobs(
            "analysis", "analyses", limit=limit,
            advice="raise `--analysis-timeout`, or run the command `audit` or `diff`")
        self._spare = SpareState(idle)

    def audit(self, state: ConsoleState, at: str = "") -> AnalysisView:
        """Begin the audit of the active policies, or return one that is under way or up to date.

        To be called by the thread that owns the state. `at` is the time of the state; empty for now.

        Raises:
            NotPermitted: too many analyses wait.
        """
        def compute(fork: ConsoleState, progress: _Progress) -> dict[str, AuditView]:
            from .audits import audit_view  # noqa: PLC0415 - a second of imports that the first page does not need

            return {"audit": audit_view(fork, progress)}

        return self._start(state, (at,), compute)

    def effect(self, state: ConsoleState, text: str, budgets: Mapping[str, str], file: str = "") -> AnalysisView:
        """Begin the comparison of a draft with the active policies, see `playground.effect_of`.

        To be called by the thread that owns the state.

        Raises:
            NotPermitted: too many analyses wait.
            PolicyError: the draft is not valid.
            ValueError: a budget is not one.
        """
        from .playground import check_effect, effect_of  # noqa: PLC0415 - as above

        check_effect(state, text, budgets, file)

        def compute(fork: ConsoleState, progress: _Progress) -> dict[str, EffectView]:
            return {"effect": effect_of(fork, text, budgets, file, progress=progress)}

        return self._start(state, ("", text, file, *sorted(budgets.items())), compute)

    def close(self) -> None:
        """End all analyses; waits for nothing."""
        self.jobs.close()
        self._spare.close()

    def _start(
        self, state: ConsoleState, what: tuple[Hashable, ...],
        compute: Callable[[ConsoleState, _Progress], Mapping[str, object]],
    ) -> AnalysisView:
        cluster = state.cluster
        stamp = (cluster.version, state.now)
        view = AnalysisView(time=state.now / 1e9, nodes=len(cluster.names), of=_STEPS,
                            pods=sum(len(row.pods) for row in cluster.rows) + len(cluster.pending))
        of = (what[0], state.policies, *stamp)
        return self.jobs.start(view, lambda: partial(self._compute, state.fork(), of, compute),
                               key=(state.policies, *what), stamp=stamp)

    def _compute(
        self, fork: Callable[[], ConsoleState], of: Hashable,
        compute: Callable[[ConsoleState, _Progress], Mapping[str, object]], job: BackgroundJob[AnalysisView],
    ) -> None:
        job.update(phase="analysing")
        spare = self._spare.take()  # what is computed in part is not used again
        if spare is not None and spare[0] != of:
            spare[1].close()
            spare = None
        state = fork() if spare is None else spare[1]
        try:
            found = compute(state, lambda part: job.update(done=int(part * _STEPS)))
            job.update(phase="done", done=_STEPS, **found)
        except BaseException:
            state.close()
            raise
        self._spare.put(of, state)
