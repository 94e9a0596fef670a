"""Cases about SchedulerPlugins."""

from __future__ import annotations

from koordpolicy.engine.testing import instruments
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.results import lines_of
from koordpolicy.engine.testing.suites import cases_of

from .conftest import HOT


def test_what_comes_out_as_expected_passes(misses):
    assert misses("""\
        - name: all kinds of outcomes
          pod: web
          with: {nodes: {warm: {labels: {"off": ""}}}}
          filter:
            cool: pass
            warm: skip
            hot: {fail: below, message: cpu at 90}
            blind: {error: below, reason: NoMetric}
          score: {cool: 90, warm: skip}
          order: [cool, warm]
          place: cool
          refused: {hot: hot/below, blind: hot}
        - name: a range, for all
          pod: web
          nodes: [cool, warm]
          filter: pass
          score: 40..90
        - name: other params
          pod: web
          params: {limit: 95}
          filter: {hot: pass}
        - name: the pod as a whole
          plugin: sized
          pod: {from: web, cpu: 4}
          preEnqueue: pass
          preFilter: {fail: small, message: too large}
          place: []
        - name: before it is queued
          plugin: sized
          pod: bad
          preEnqueue: {fail: named, message: a bad name}
    """) == {
        "all kinds of outcomes": [], "a range, for all": [], "other params": [], "the pod as a whole": [],
        "before it is queued": [],
    }


def test_a_false_check_an_error_and_what_nobody_asked_are_never_taken_for_each_other(misses):
    assert misses("""\
        - name: mixed up
          pod: web
          filter: {cool: skip, warm: {error: below}, hot: {fail: open}, blind: {fail: below}}
        - name: not its business
          pod: {from: web, object: {metadata: {namespace: other}}}
          filter: pass
          nodes: [cool]
    """) == {
        "mixed up": [
            "filter of `cool`: skip | pass",
            "filter of `warm`: error of `below` | pass",
            "filter of `hot`: fail of `open` | fail of `below`: cpu at 90",
            (
                "filter of `blind`: fail of `below` | error of `below` (NoMetric): no metric of the node, or an "
                "expired one"
            ),
        ],
        "not its business": ["filter of `cool`: pass | skip: the document does not apply here"],
    }


def test_an_error_that_is_ignored_is_an_error_still(misses):
    ignoring = HOT.replace("spec:\n", "spec:\n  failurePolicy: Ignore\n", 1)
    assert misses("""\
        - {name: ignored, pod: web, filter: {blind: {error: below, reason: NoMetric}}}
        - {name: let through, pod: web, nodes: [blind], place: blind}
    """, policies=ignoring) == {"ignored": [], "let through": []}


def test_a_wrong_message_reason_score_order_or_place_is_told_with_what_came_out(misses):
    assert misses("""\
        - {name: message, pod: web, filter: {hot: {fail: below, message: cpu at 91}}}
        - {name: reason, pod: web, filter: {blind: {error: below, reason: Other}}}
        - {name: score, pod: web, score: {cool: 91, warm: 41..50, hot: 0}}
        - {name: order, pod: web, order: [warm, cool]}
        - {name: place, pod: web, nodes: [cool, warm], place: warm}
        - {name: refused, pod: web, refused: {hot: hot/open, cool: hot}}
    """) == {
        "message": ["filter of `hot`: fail of `below`: cpu at 91 | fail of `below`: cpu at 90"],
        "reason": [
            ("filter of `blind`: error of `below` (Other) | error of `below` (NoMetric): no metric of the node, or an"
            " expired one"),
        ],
        "score": [
            "score of `cool`: 91 | 90", "score of `warm`: 41..50 | 40",
            "score of `hot`: 0 | fail of `below`: the filter refuses the node",
        ],
        "order": ["order: warm > cool | cool > warm with cool 90, warm 40"],
        "place": ["place: warm | cool (scores: cool 556, warm 506)"],
        "refused": [
            "refusal of `hot`: hot/open | hot/below: cpu at 90", "refusal of `cool`: hot | it is not refused",
        ],
    }


def test_names_that_do_not_exist_are_failures(misses):
    found = misses("""\
        - {name: rule, pod: web, filter: {hot: {fail: belov}}}
        - {name: node, pod: web, filter: {hott: pass}}
        - {name: pod, pod: wep, filter: pass}
        - {name: fixture, pod: web, with: {nodes: {hott: {cpu: 1}}}, filter: pass}
        - {name: plugin, plugin: hit, pod: web, filter: pass}
        - {name: param, pod: web, params: {limits: 1}, filter: pass}
        - {name: item, pod: web, score: {cool: {error: coolst}}}
        - {name: profile, pod: web, place: cool, profile: other, refused: {cool: TaintTolerations}}
        - {name: key, pod: {object: {spec: {priorty: 1}}}, filter: pass}
        - {name: base, pod: {from: wep}, filter: pass}
        - {name: everything named, pod: web, nodes: [cool], filter: {cool: pass, "*": pass}}
        - {name: framework, pod: web, evicts: []}
    """)
    assert found == {
        "rule": ["filter of `hot`: the rule `belov` | there is no such rule: did you mean `below`?"],
        "node": ["the case: a case that can run | there is no node `hott`: did you mean `hot`?"],
        "pod": ["the case: a case that can run | there is no pod `wep`: did you mean `web`?"],
        "fixture": [
            "the case: a case that can run | there is no fixture under `nodes` `hott`: did you mean `hot`?",
        ],
        "plugin": ["the case: a case that can run | there is no plugin `hit`: did you mean `hot`?"],
        "param": ["the case: a case that can run | `hot` has no param `limits`: did you mean `limit`?"],
        "item": ["score of `cool`: the item `coolst` | there is no such item: there are `coolest`"],
        "profile": [
            "the case: a case that can run | there is no plugin `TaintTolerations`: did you mean `TaintToleration`?",
        ],
        "key": [
            "the case: a case that can run | Pod `pod` has no field `spec.priorty`: did you mean `priority`?",
        ],
        "base": [
            ("the case: a case that can run | the pod `pod` has an unknown base: there is no pod `wep`: did you mean"
            " `web`?"),
        ],
        "everything named": ["the case: a case that can run | `*` is about no node: all are named"],
        "framework": ["the case: a case that can run | `evicts` cannot be expected of `hot`, a scheduler plugin"],
    }


def test_a_case_in_which_nothing_was_evaluated_fails(misses):
    assert misses("""\
        - {name: nothing, pod: {from: web, object: {metadata: {namespace: other}}}, nodes: [cool], place: cool}
    """) == {"nothing": ["the case: something is evaluated | nothing was evaluated: is the plugin about this pod?"]}


def test_a_result_says_how_much_it_touched_and_which_values_led_to_a_failure(load):
    loaded = load("- {name: one, pod: web, filter: {hot: pass}}\n")
    ((suite, case),) = cases_of(loaded.suites)
    result = run_case(suite, case, explains=True)
    (mismatch,) = result.mismatches
    assert (result.full_name, result.rules, result.rows, result.line) == ("suite/one", 4, 4, case.span.place[1])
    assert mismatch.values == (
        (0, "variables.cpu < params.limit", False),
        (0, "variables.cpu", 90),
        (1, "usage.cpu * 100 / allocatable.cpu", 90),
        (1, "usage.cpu * 100", 900000),
        (1, "usage.cpu", 9000),
        (1, "allocatable.cpu", 10000),
        (0, "params.limit", 65),
    )


def test_values_that_are_left_out_are_counted(load, monkeypatch):
    monkeypatch.setattr(instruments, "_MOST_VALUES", 2)
    ((suite, case),) = cases_of(load("- {name: one, pod: web, filter: {hot: pass}}\n").suites)
    (mismatch,) = run_case(suite, case, explains=True).mismatches
    assert (len(mismatch.values), mismatch.values_left_out, mismatch.to_json()["valuesLeftOut"]) == (2, 5, 5)
    assert [*lines_of(mismatch)][-1] == "      and 5 more values"


def test_where_the_wanted_node_refused_the_values_say_why(load):
    loaded = load("- {name: one, pod: web, nodes: [cool, hot], place: hot}\n")
    ((suite, case),) = cases_of(loaded.suites)
    (mismatch,) = run_case(suite, case, explains=True).mismatches
    assert mismatch.got == "cool (hot is refused by hot: cpu at 90)"
    assert mismatch.values == ((0, "variables.cpu", 90), (0, "params.limit", 65))


def test_the_seed_makes_ties_random_and_repeatable(load):
    loaded = load("""\
        - {name: first, pod: web, nodes: [cool, cold], place: cold}
        - {name: drawn, pod: web, nodes: [cool, cold], seed: 3, place: [cool, cold]}
    """, head="plugin: hot\nfixtures: {nodes: {cool: {usage: {cpu: 1}}, cold: {from: cool}}, pods: {web: {cpu: 1}}}\n")
    assert [run_case(suite, case).mismatches for suite, case in cases_of(loaded.suites)] == [(), ()]
