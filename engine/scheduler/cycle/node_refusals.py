"""Why each node refused a pod, and whether it would still do so after a change: for postFilters."""

from __future__ import annotations

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal

from ..queue.nominator import Nominations
from ..verdict.verdict import NOWHERE, Filtered, PodRejection, in_fixed_words
from .plugin_runner import PluginRunner


class NodeRefusals:
    """The nodes' refusals of a pod, as postFilters see them (implements `framework.scheduler.Refused`)."""

    def __init__(
        self, runner: PluginRunner, refusal: PodRejection | None, rows: Rows, nominations: Nominations | None,
    ) -> None:
        self._runner = runner
        self._refusal = refusal
        self._rows = rows
        self._nominations = nominations

    def code(self, row: int) -> Code:
        """Return the code of the node's first refusal."""
        return self.reason(row).code

    def reason(self, row: int) -> Refusal:
        """Return the node's first refusal; raises `KeyError` for a node that was not refused."""
        if self._refusal is not None:
            return self._refusal[2]
        for step in self._steps():
            if row in step.refused:
                return step.answer.explain(row)
        raise KeyError(row)

    def resolvable(self) -> Rows:
        """Return the rows that were refused with `Unschedulable`."""
        if self._refusal is not None:
            return self._rows if self._refusal[2].code is Code.UNSCHEDULABLE else NOWHERE
        found: dict[int, bool] = {}
        for step in self._steps():
            for row, helped in _resolvable(step):
                found.setdefault(row, helped)
        return np.array(sorted(row for row, helped in found.items() if helped), np.intp)

    def passes(self, changed: Snapshot, rows: Rows) -> Rows:
        """Return the rows that would pass all filters in another snapshot."""
        return self._run_filters_on(changed, rows)[2]

    def why_not(self, changed: Snapshot, row: int) -> tuple[str, ...]:
        """Return the reasons why a node would refuse the pod in another snapshot; empty if it would not."""
        rows = np.array([row], np.intp)
        runner, refusal, passed = self._run_filters_on(changed, rows)
        if refusal is not None:
            return (refusal[2].message,)
        if len(passed):
            return ()
        first = next(step for step in _enforced(runner) if row in step.refused)
        return tuple(in_fixed_words(first, rows))

    def _run_filters_on(self, changed: Snapshot, rows: Rows) -> tuple[PluginRunner, PodRejection | None, Rows]:
        was = self._runner
        runner = PluginRunner(was.profile, was.state.clone(), was.pod, changed, skipped=set(was.skipped))
        refusal, rows = runner.run_pre_filter_plugins(rows)
        return runner, refusal, runner.run_filters(rows, self._nominations) if refusal is None else NOWHERE

    def _steps(self) -> list[Filtered]:
        return _enforced(self._runner)


def _enforced(runner: PluginRunner) -> list[Filtered]:
    enforced = {each.name for each in runner.profile.filters if each.enforced}
    enforced |= {each.name for each in runner.profile.pre_filters if each.enforced}
    return [step for step in runner.steps if step.plugin in enforced]


def _resolvable(step: Filtered) -> list[tuple[int, bool]]:
    if step.answer.codes is None:
        return [(row, step.answer.explain(row).code is Code.UNSCHEDULABLE) for row in step.refused.tolist()]
    codes = step.answer.codes(step.refused)
    return [(row, code is Code.UNSCHEDULABLE) for code, rows in codes.items() for row in rows.tolist()]
