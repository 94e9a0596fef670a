"""The shipped policies keep their own unit tests: `koord-policy test policies --mutate --min-coverage 100`."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.documents import Kind, load_paths
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.coverage import ExpressionCoverage, percent
from koordpolicy.engine.testing.mutation import mutate
from koordpolicy.engine.testing.suites import cases_of, load_suites

POLICIES = Path(__file__).parents[2] / "policies"
NAMES = [document.name for document in load_paths([POLICIES]).of(Kind.SCHEDULER, Kind.QOS, Kind.DESCHEDULER)]


@pytest.fixture(scope="module")
def loaded():
    return load_suites([POLICIES], tuple(builtins()))


def test_every_shipped_policy_has_a_suite(loaded):
    assert [document.name for document in loaded.untested] == []


def test_all_cases_pass_and_see_every_branch(loaded):
    coverage = ExpressionCoverage()
    results = [run_case(suite, case, coverage) for suite, case in cases_of(loaded.suites)]
    assert [(each.full_name, each.mismatches) for each in results if not each.passed] == []
    reports = coverage.reports(loaded.suites)
    missed = [(report.document.name, goal.text, goal.outcome)
              for report in reports for each in report.expressions for goal in each.missed]
    assert (percent(reports), missed) == (100.0, [])


@pytest.mark.parametrize("name", NAMES)
def test_every_mutant_is_noticed_or_justified(loaded, name):
    outcome = mutate(loaded.suites, policies=[name])
    assert [(fate.mutant.place, fate.mutant.at, fate.mutant.change) for fate in outcome.survivors] == []
    assert outcome.stale == ()
    assert outcome.fates
