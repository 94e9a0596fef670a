"""The playground: a draft is checked, evaluated, compared and tested."""

from __future__ import annotations

from dataclasses import replace

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console import playground
from koordpolicy.engine.console.authoring import complete, describe, rename
from koordpolicy.engine.console.faults import faults_of
from koordpolicy.engine.console.models.playground import Verdicts
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.lint.configuration import load as settings
from koordpolicy.engine.source import PolicyError

from .conftest import HOT, NOW, OBJECTS, TEST, node, pod

DRAFT = HOT.replace("percent: 65", "percent: 20")


def at(text: str, part: str) -> int:
    return text.index(part) + len(part)


def test_a_draft_without_fault_has_no_findings(state):
    view = playground.check_draft(state.policies, HOT + TEST)
    assert (view.faults, view.policies, view.tests) == ([], ["keep-off-hot-nodes"], 1)


def test_faults_of_a_draft_have_their_place_in_it(state):
    [fault] = playground.check_draft(state.policies, DRAFT.replace("usage.cpu *", "usage.cpux *")).faults
    assert (fault.severity, fault.file, fault.line, fault.column) == ("error", "draft.yaml", 9, 34)
    assert playground.check_draft(state.policies, "a: [").faults[0].severity == "error"
    assert playground.check_draft(state.policies, "").policies == []


FULL = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: pack-nodes, annotations: {policy.koordinator.sh/description: Pods fill nodes.}}
spec:
  params: {percent: 65}
  variables: [{name: cpu, expression: usage.cpu * 100 / allocatable.cpu}]
  score:
  - {name: fullest-first, expression: "math.least(params.percent, variables.cpu)"}
"""


def test_a_draft_is_linted_beside_the_policies_that_it_does_not_replace(policies_of):
    policies = policies_of(HOT, FULL)
    message = ("`pack-nodes` prefers nodes with more `usage.cpu`, `keep-off-hot-nodes` those with less: in one profile "
               "they undo each other")
    assert [(each.code, each.file, each.line, each.message) for each in faults_of(policies)] == [
        ("KP032", "1.yaml", 8, message)]
    for draft, file in ((HOT, ""), (HOT, "0.yaml"), (FULL, ""), (FULL, "1.yaml")):
        assert [each.code for each in playground.check_draft(policies, draft, file).faults] == ["KP032"]
    # A draft that was opened from a file replaces all of it, also a policy of another name.
    assert playground.check_draft(policies, FULL.replace("pack", "fill"), "0.yaml").faults == []


def test_settings_of_the_linter_hold_for_active_policies_and_drafts(policies_of, tmp_path):
    (tmp_path / "koord-policy.yaml").write_text("lint: {rules: {KP032: off}}", encoding="utf-8")
    policies = replace(policies_of(HOT, FULL), settings=settings(tmp_path / "koord-policy.yaml"))
    assert faults_of(policies) == []
    assert playground.check_draft(policies, HOT).faults == []


def test_the_expression_at_the_cursor_is_evaluated_on_all_nodes(state):
    view = playground.evaluate_draft(state, DRAFT, "shop/web-2", at(DRAFT, "variables.cpu < par"))
    assert (view.expression, view.line, view.colours.classes, view.colours.codes) == (
        "variables.cpu < params.percent", 12, ["false"], [0, 0, -1])
    assert view.verdicts == Verdicts(refused_by=[0, 0, 0], rules=["keep-off-hot-nodes/below-watermark"],
                                     totals=[0, 0, 0], passed=0)
    view = playground.evaluate_draft(state, HOT, "shop/web-2", at(HOT, "usage.cpu"))
    assert (view.field, view.colours.numbers) == ("spec.variables[0].expression", [25, 75, None])
    assert view.verdicts == Verdicts(refused_by=[-1, 0, 0], rules=["keep-off-hot-nodes/below-watermark"],
                                     totals=[75, 0, 0], passed=1)
    assert playground.evaluate_draft(state, HOT, "shop/web-2", 0).expression == ""
    with pytest.raises(PolicyError):
        playground.evaluate_draft(state, HOT.replace("usage.cpu", "usage.cpux"), "shop/web-2", 0)


def test_the_effect_of_a_draft_is_compared_with_its_budgets_and_changes_nothing(state):
    version = state.cluster.version
    view = playground.effect_of(state, DRAFT, {"pending": "0"})
    assert view.replaced == ["keep-off-hot-nodes"]
    assert view.difference["counts"]["nowPending"] == 1
    assert [(each.count, each.budget, each.within) for each in view.budgets] == [(1, "0", False)]
    same = playground.effect_of(state, HOT, {})
    assert not any(same.difference["counts"].values())
    assert (state.snapshot.names, state.cluster.pod("shop/web-2").node_name) == (["cool", "hot", "unmeasured"], "")
    assert state.cluster.version >= version
    with pytest.raises(ValueError, match="is not a budget"):
        playground.effect_of(state, HOT, {"moved": "many"})
    state.forget()  # the outcome of the active policies
    told: list[float] = []
    playground.effect_of(state, DRAFT, {}, progress=told.append)
    assert (told[0] < 0.5, told[-1], told) == (True, 1.0, sorted(told))


def test_the_effect_of_a_draft_is_that_in_the_cluster_of_now(policies_of):
    cluster = Cluster()
    cluster.upsert_all(OBJECTS)
    state = ConsoleState(cluster, policies_of(HOT), now=NOW, name="kube")
    for name in ("first", "second"):
        assert not any(playground.effect_of(state, HOT, {}).difference["counts"].values())
        cluster.upsert_all([node(name, "z"), pod(f"{name}-1", "1")])
        state.renew(NOW)
    assert playground.effect_of(state, DRAFT, {}).difference["counts"]["nowPending"] > 0


def test_tests_of_a_draft_run_with_coverage(state):
    view = playground.run_tests(state.policies, HOT + TEST)
    assert [(case.name, case.passed) for case in view.cases] == [("a cool node passes", True)]
    assert [(each.line, each.seen, each.goals, each.missed) for each in view.lines] == [
        (9, 1, 1, []), (12, 1, 2, ["never false: variables.cpu < params.percent"]),
        (13, 0, 1, ["not evaluated: 'cpu at ' + string(variables.cpu) + '%'"]),
        (15, 0, 1, ["not evaluated: math.greatest(0, 100 - variables.cpu)"]),
    ]
    assert 0 < view.coverage < 100
    failing = TEST.replace("{cool: pass}", "{cool: {fail: below-watermark}}")
    [case] = playground.run_tests(state.policies, HOT + failing).cases
    assert not case.passed
    assert case.misses


@pytest.mark.parametrize("field", ["  policies: [/etc]", "  fixtures: {files: [/etc/passwd]}"])
def test_tests_of_a_draft_read_no_files(state, field: str):
    case = "  cases:\n  - {name: x, pod: web, nodes: [cool], filter: {cool: pass}}\n"
    test = f"{TEST.partition('spec:')[0]}spec:\n{field}\n{case}"
    with pytest.raises(PolicyError, match="cannot name files"):
        playground.run_tests(state.policies, HOT + test)


def test_completion_offers_what_the_place_sees(state):
    text = HOT.replace("variables.cpu <", "nodeInfo.unsch <")
    view = complete(state.policies, text, at(text, "nodeInfo.unsch"))
    assert [(item.label, item.kind, item.detail) for item in view.items] == [("unschedulable", "field", "bool")]
    assert text[view.start:at(text, "nodeInfo.unsch")] == "unsch"
    assert "usage" in [item.label for item in complete(state.policies, HOT, at(HOT, "expression: us")).items]
    assert [item.label for item in complete(state.policies, HOT, at(HOT, "variables.cpu")).items] == ["cpu"]
    assert complete(state.policies, "", 0).start == 0
    assert complete(state.policies, "a: [", 4).items == []


def test_a_variable_and_a_param_are_renamed_in_the_policy_and_its_tests():
    text = HOT + TEST.replace("pod: web,", "pod: web, params: {percent: 50},")

    def after(place: int, name: str) -> str:
        found = rename(text, place, name)
        parts = text
        for each in sorted(found.places, key=lambda each: each.start, reverse=True):
            parts = parts[:each.start] + name + parts[each.end:]
        return parts

    assert after(at(text, "variables.cp"), "load") == (
        text.replace("variables.cpu", "variables.load").replace("{name: cpu,", "{name: load,"))
    most = text.replace("percent:", "most:").replace("params.percent", "params.most")
    assert after(at(text, "{perc"), "most") == most
    assert rename(text, 0, "most").places == []
    with pytest.raises(PolicyError, match="`1st` is not a name"):
        rename(text, at(text, "variables.cp"), "1st")


def test_a_part_of_an_expression_is_described_with_its_type(state):
    assert "int" in describe(state.policies, HOT, at(HOT, "usage.c")).markdown
    assert describe(state.policies, "\n", 0).markdown == ""
