"""The counts of live processes for `--max-error-rate`: failing expressions of documents, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cli import live, live_descheduler
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.descheduler.results import DeschedulerFailure
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import Source

DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: ours}
spec:
  type: Deschedule
  criteria: [{name: it, expression: "true"}]
"""


class Counts:
    """A reloader that only remembers what it observed."""

    def __init__(self) -> None:
        self.observed: list[tuple[int, int, int]] = []

    def observe(self, generation: int, decisions: int, errors: int) -> None:
        self.observed.append((generation, decisions, errors))


@pytest.mark.parametrize(("errors", "counted"), [((), 0), (("one", "two"), 1)])
def test_an_attempt_counts_once_however_many_expressions_failed(errors: Any, counted: int):
    reloader: Any = Counts()
    attempt: Any = SimpleNamespace(verdict=SimpleNamespace(generation=7, errors=lambda: errors))
    live._FailingExpressions(reloader).observe(attempt)
    assert reloader.observed == [(7, 1, counted)]


@pytest.mark.parametrize(("failures", "outcomes", "observed"), [
    ((), 0, (7, 1, 0)),
    ((), 12, (7, 12, 0)),
    ((DeschedulerFailure("p", "ours", "no such key", "it", "d/a"),), 3, (7, 4, 1)),
    ((DeschedulerFailure("p", "ours", "would stay: no", "it", "d/a", audited=True),), 3, (7, 3, 0)),
    ((DeschedulerFailure("p", "DefaultEvictor", "no answer", "it", "d/a"),), 3, (7, 3, 0)),
    ((DeschedulerFailure("p", "LowNodeUtilization", "error getting node usage"),), 0, (7, 1, 0)),
])
def test_a_cycle_counts_the_failing_rules_of_documents(failures: Any, outcomes: int, observed: tuple[int, int, int]):
    reloader: Any = Counts()
    documents = [replace(each, source="a.yaml") for each in compile_documents(load([Source("a.yaml", DOCUMENT)]))]
    registry = Registry.of([*PLUGINS, *documents], generation=7)
    counting = live_descheduler._FailingExpressions(reloader, Live(registry))
    result = SimpleNamespace(generation=7, failures=failures, outcomes=range(outcomes))
    report: Any = SimpleNamespace(result=result, stale=())
    counting.observe(report)
    report.stale = ("Pods are too old",)
    counting.observe(report)
    assert reloader.observed == [observed]
