"""Coverage: the outcomes of expressions that cases have seen."""

from __future__ import annotations

import json

from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.coverage import ExpressionCoverage, percent, to_html, to_json, to_sarif
from koordpolicy.engine.testing.suites import cases_of

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: covered}
spec:
  variables:
  - {name: used, expression: usage.cpu}
  - {name: unread, expression: 1 + 1}
  filter:
  - name: rule
    expression: "nodeInfo.unschedulable || !(variables.used > 5000 && pod.spec.containers.all(c, c.name != 'x'))"
    messageExpression: "variables.used > 7000 ? 'very hot' : 'hot'"
"""
HEAD = "fixtures: {nodes: {n: {usage: {cpu: 1}}}}\n"


def reports(load, cases):
    loaded = load(cases, head=HEAD, policies=POLICY)
    coverage = ExpressionCoverage()
    assert all(run_case(suite, case, coverage).passed for suite, case in cases_of(loaded.suites))
    return coverage.reports(loaded.suites)


def missed(found):
    return [(each.place.name, goal.text, goal.outcome)
            for report in found for each in report.expressions for goal in each.missed]


def test_every_branch_and_variable_is_a_goal(load):
    (report,) = reports(load, "- {name: one, pod: {}, filter: pass}\n")
    assert {each.place.name: [(goal.text, goal.outcome) for goal in each.goals] for each in report.expressions} == {
        "variables.used": [("usage.cpu", "evaluated")],
        "variables.unread": [("1 + 1", "evaluated")],
        "filter.rule": [(text, outcome) for text in (
            "nodeInfo.unschedulable || !(variables.used > 5000 && pod.spec.containers.all(c, c.name != 'x'))",
            "nodeInfo.unschedulable",
            "!(variables.used > 5000 && pod.spec.containers.all(c, c.name != 'x'))",
            "variables.used > 5000",
            "pod.spec.containers.all(c, c.name != 'x')",
            "c.name != 'x'",
        ) for outcome in ("true", "false")],
        "filter.rule.messageExpression": [
            ("variables.used > 7000 ? 'very hot' : 'hot'", "evaluated"), ("variables.used > 7000", "true"),
            ("variables.used > 7000", "false"),
        ],
    }


def test_what_is_short_cut_was_not_seen(load):
    found = reports(load, "- {name: one, pod: {}, filter: pass}\n")
    assert missed(found) == [
        ("variables.unread", "1 + 1", "evaluated"),
        ("filter.rule", (
            "nodeInfo.unschedulable || !(variables.used > 5000 && pod.spec.containers.all(c, c.name != "
            "'x'))"
        ),
         "false"),
        ("filter.rule", "nodeInfo.unschedulable", "true"),
        ("filter.rule", "!(variables.used > 5000 && pod.spec.containers.all(c, c.name != 'x'))", "false"),
        ("filter.rule", "variables.used > 5000", "true"),
        ("filter.rule", "pod.spec.containers.all(c, c.name != 'x')", "true"),
        ("filter.rule", "pod.spec.containers.all(c, c.name != 'x')", "false"),
        ("filter.rule", "c.name != 'x'", "true"),
        ("filter.rule", "c.name != 'x'", "false"),
        ("filter.rule.messageExpression", "variables.used > 7000 ? 'very hot' : 'hot'", "evaluated"),
        ("filter.rule.messageExpression", "variables.used > 7000", "true"),
        ("filter.rule.messageExpression", "variables.used > 7000", "false"),
    ]
    assert round(percent(found), 1) == 29.4


def test_cases_that_see_everything_leave_only_what_nobody_reads(load):
    found = reports(load, """\
        - {name: cool, pod: {}, filter: pass}
        - {name: cordoned, pod: {}, with: {nodes: {n: {unschedulable: true}}}, filter: pass}
        - {name: hot, pod: {}, with: {nodes: {n: {usage: {cpu: 6}}}}, filter: {n: {fail: rule, message: hot}}}
        - {name: very hot, pod: {}, with: {nodes: {n: {usage: {cpu: 8}}}}, filter: {n: {fail: rule, message: very hot}}}
        - name: x
          pod: {object: {spec: {containers: [{name: x}]}}}
          with: {nodes: {n: {usage: {cpu: 8}}}}
          filter: pass
        - {name: error, pod: {}, with: {nodes: {n: {usage: null}}}, filter: {n: {error: rule}}}
    """)
    assert missed(found) == [("variables.unread", "1 + 1", "evaluated")]
    rule = next(each for each in found[0].expressions if each.place.name == "filter.rule")
    assert (rule.evaluations, rule.true, rule.false, rule.error) == (6, True, True, True)


def test_reports_are_written_for_machines_and_browsers(load):
    found = reports(load, "- {name: one, pod: {}, filter: pass}\n")
    data = json.loads(json.dumps(to_json(found)))
    assert (round(data["percent"], 1), data["policies"][0]["goals"], data["policies"][0]["seen"]) == (29.4, 17, 5)
    results = to_sarif(found, "1")["runs"][0]["results"]
    assert len(results) == 12
    assert results[0]["message"]["text"] == "variables.unread: no case has seen `1 + 1` evaluated"
    assert results[0]["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 7, "startColumn": 32, "endLine": 7, "endColumn": 37,
    }
    page = to_html(found)
    assert page.startswith("<!doctype html>")
    assert "29.4 %" in page
    assert "variables.used &gt; 5000 &amp;&amp;" in page
