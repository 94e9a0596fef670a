from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.comparison.outcome import outcome
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings

from .conftest import COLD, MEASURED, NOW, Policies


def test_the_same_question_has_the_same_answer(policies: Policies, cluster: Cluster):
    settings = Settings(tie_break="random", seed=7)
    registry = policies(MEASURED)
    first, second = (outcome(registry, cluster, now=NOW, settings=settings) for _ in range(2))
    assert (first.summary, first.placements, first.misfits) == (second.summary, second.placements, second.misfits)


def test_a_pod_that_runs_cannot_be_asked_about_as_if_it_waited(policies: Policies, cluster: Cluster):
    running = cluster.pod("shop/web-1")
    assert running is not None
    with pytest.raises(ValueError, match="`shop/web-1` is on a node already"):
        outcome(policies(), cluster, [running], now=NOW)


def test_progress_goes_from_nothing_to_all(policies: Policies, cluster: Cluster):
    told: list[float] = []
    outcome(policies(COLD), cluster, now=NOW, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
