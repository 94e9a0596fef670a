"""Mutants, and whether cases notice them."""

from __future__ import annotations

from koordpolicy.engine.documents import load as load_documents
from koordpolicy.engine.source import Source
from koordpolicy.engine.testing.mutation import mutants_of, mutate

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: mutable}
spec:
  params: {limit: 5, names: [a], on: true, share: 0.5, zero: 0.0}
  filter:
  - name: rule
    expression: "!(requests.cpu * 2 < 6 + 1 && [1, 2].all(x, x >= 0u) || math.greatest(1, 2) == 2)"
    messageExpression: "'no ' + string(1)"
"""


def changes(policy):
    (document,) = load_documents([Source("p.yaml", policy)]).documents
    return [(each.at, each.change) for each in mutants_of(document)]


def test_constants_and_operators_are_nudged_one_by_one():
    assert changes(POLICY) == [
        ("params.limit", "`5` to `4`"), ("params.limit", "`5` to `6`"),
        ("params.names.0", "`a` to `a~`"),
        ("params.on", "`True` to `False`"),
        ("params.share", "`0.5` to `0.45`"), ("params.share", "`0.5` to `0.55`"),
        ("params.zero", "`0.0` to `-1.0`"), ("params.zero", "`0.0` to `1.0`"),
        *(("filter.rule", change) for change in (
            "`!` taken away",
            "`*` to `/`", "`2` to `1`", "`2` to `3`", "`<` to `<=`", "`6` to `5`", "`6` to `7`", "`+` to `-`",
            "`1` to `0`", "`1` to `2`", "`&&` to `||`", "`1` to `0` (2)", "`1` to `2` (2)", "`2` to `1` (2)",
            "`2` to `3` (2)", "`all` to `exists`", "`>=` to `>`", "`0u` to `1u`", "`||` to `&&`",
            "`greatest` to `least`", "`1` to `0` (3)", "`1` to `2` (3)", "`2` to `1` (3)", "`2` to `3` (3)",
            "`==` to `!=`", "`2` to `1` (4)", "`2` to `3` (4)",
        )),
    ]


def test_what_stands_beside_expressions_is_nudged_too():
    assert changes("""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: drain}
spec:
  type: Balance
  nodes: {source: nodeInfo.unschedulable, anomaly: {consecutive: 3, timeout: 5m}}
  sort: [{expression: podInfo.priority, order: Descending}]
  limits: {perNode: 2}
""") == [
        ("nodes.anomaly.consecutive", "`3` to `2`"), ("nodes.anomaly.consecutive", "`3` to `4`"),
        ("nodes.anomaly.timeout", "`5m` to `4m59s`"), ("nodes.anomaly.timeout", "`5m` to `5m1s`"),
        ("sort.0.order", "`Descending` to `Ascending`"),
        ("limits.perNode", "`2` to `1`"), ("limits.perNode", "`2` to `3`"),
    ]


SMALL = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: small}
spec:
  params: {limit: 1000}
  filter:
  - {name: rule, expression: requests.cpu < params.limit, message: too large}
"""
HEAD = "fixtures: {nodes: {n: {}}}\n"
BOUNDARY = """\
- {name: below, pod: {cpu: 999m}, filter: pass}
- {name: above, pod: {cpu: 1}, filter: {n: {fail: rule}}}
"""


def outcome(load, cases, **more):
    return mutate(load(cases, head=more.pop("head", HEAD), policies=SMALL, **more).suites)


def test_cases_at_the_boundary_notice_every_mutant(load):
    found = outcome(load, BOUNDARY)
    assert {(fate.mutant.change, fate.killed_by) for fate in found.fates} == {
        ("`1000` to `999`", "suite/below"), ("`1000` to `1001`", "suite/above"), ("`<` to `<=`", "suite/above"),
    }
    assert (found.survivors, found.stale) == ((), ())


def test_a_mutant_that_is_no_valid_policy_counts_for_nothing_though_no_case_runs(load):
    spans = SMALL.replace("requests.cpu < params.limit", "\"duration('1s') > duration('0s')\"")
    cases = "- {name: bad, expectInvalid: {document: 'kind: x', problems: [unknown]}}\n"
    found = mutate(load(cases, head=HEAD, policies=spans).suites)
    assert {fate.mutant.change for fate in found.survivors if "duration" not in fate.mutant.change} == {
        "`1000` to `999`", "`1000` to `1001`", "`>` to `>=`"}
    assert not any("~" in fate.mutant.change for fate in found.fates)


def test_mutants_that_no_case_notices_are_listed_with_their_place(load):
    found = outcome(load, "- {name: far below, pod: {cpu: 1m}, filter: pass}\n")
    assert [(fate.mutant.at, fate.mutant.change, fate.mutant.span.place[1:]) for fate in found.survivors] == [
        ("params.limit", "`1000` to `999`", (5, 12)), ("params.limit", "`1000` to `1001`", (5, 12)),
        ("filter.rule", "`<` to `<=`", (7, 43)),
    ]


def test_a_survivor_may_be_justified_and_a_justification_of_nothing_is_told(load):
    found = outcome(load, "- {name: below, pod: {cpu: 999m}, filter: pass}\n", head=HEAD + """\
survivors:
- {at: filter.rule, change: "`<` to `<=`", because: nobody asks for a whole core}
- {at: params.limit, change: "`1000` to `999`", because: this one is noticed}
""")
    assert [(fate.mutant.change, fate.justified) for fate in found.fates if not fate.killed_by] == [
        ("`1000` to `1001`", ""), ("`<` to `<=`", "nobody asks for a whole core"),
    ]
    assert [(suite, each.change) for suite, each in found.stale] == [("suite", "`1000` to `999`")]
