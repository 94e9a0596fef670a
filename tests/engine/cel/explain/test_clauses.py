from __future__ import annotations

import pytest

from koordpolicy.engine.cel.explain.clauses import (
    ABSENT,
    ClauseChange,
    Distance,
    alternatives,
    changes_of,
    distance_of,
    nearest,
)
from koordpolicy.engine.cel.scalar.program import compile as compiled
from koordpolicy.engine.cluster.objects.metrics import MeasuredList, Unmeasured
from koordpolicy.engine.cluster.objects.pods import ResourceList
from koordpolicy.engine.framework.slots import Slot, environment, unit_of
from koordpolicy.engine.framework.typed_values import typed

PARAMS = {"percent": 65, "zones": ["a", "b"]}
NODE = {"metadata": {"name": "n", "labels": {"zone": "c"}}, "spec": {"unschedulable": True}, "status": {}}
BINDINGS = {
    "params": PARAMS,
    "requests": ResourceList(cpu=3000, memory=4 * 1024**3),
    "allocatable": ResourceList(cpu=4000, memory=8 * 1024**3),
    "usage": MeasuredList(cpu=3000, memory=1024**3),
    "metricAge": 200,
    "node": NODE,
    "pod": {"metadata": {"name": "p", "labels": {"team": "web"}}, "spec": {"containers": []}},
    "nodeInfo": {"measured": True},
}
HOT = compiled("usage.cpu * 100 / allocatable.cpu", environment(Slot.FILTER, params=typed(PARAMS))).checked


def program(text):
    return compiled(text, environment(Slot.FILTER, params=typed(PARAMS)).with_definition("hot", HOT))


def unmet(text, wanted=True):
    return [[(clause.text, clause.expected) for clause in way]
            for way in alternatives(program(text).checked, BINDINGS, wanted)]


def distance(text, wanted=True):
    ((clause, *_), *_) = alternatives(program(text).checked, BINDINGS, wanted)
    return distance_of(clause, BINDINGS, unit_of)


def changes(text, wanted=True, may_vary=lambda _: True):
    ((clause, *_), *_) = alternatives(program(text).checked, BINDINGS, wanted)
    return [(change.path, change.after) for change in changes_of(clause, BINDINGS, may_vary)]


@pytest.mark.parametrize(("text", "wanted", "ways"), [
    ("metricAge < 300", True, [[]]),
    ("metricAge < 100", True, [[("metricAge < 100", True)]]),
    ("metricAge < 100 && requests.cpu < 1000", True, [[("metricAge < 100", True), ("requests.cpu < 1000", True)]]),
    ("metricAge < 100 && requests.cpu < 9000", True, [[("metricAge < 100", True)]]),
    ("metricAge < 100 || requests.cpu < 1000", True, [[("metricAge < 100", True)], [("requests.cpu < 1000", True)]]),
    ("!(metricAge > 100)", True, [[("metricAge > 100", False)]]),
    ("!(metricAge > 100 && nodeInfo.measured)", True, [[("metricAge > 100", False)], [("nodeInfo.measured", False)]]),
    ("nodeInfo.measured ? metricAge < 100 : true", True, [[("nodeInfo.measured", False)], [("metricAge < 100", True)]]),
    ("metricAge > 100", False, [[("metricAge > 100", False)]]),
    ("false", True, []),
])
def test_a_false_expression_is_taken_apart_into_the_clauses_that_would_have_to_change(text, wanted, ways):
    assert sorted(unmet(text, wanted)) == sorted(ways)


def test_definitions_are_looked_into():
    assert unmet("variables.hot < params.percent") == [[("variables.hot < params.percent", True)]]
    assert distance("variables.hot < params.percent") == Distance("hot", 75, "below", 65, "params.percent", 10, "%")


@pytest.mark.parametrize(("text", "wanted", "expected"), [
    ("usage.cpu * 100 / allocatable.cpu < 65", True,
     Distance("usage.cpu * 100 / allocatable.cpu", 75, "below", 65, "", 10, "%")),
    ("65 > usage.cpu * 100 / allocatable.cpu", True,
     Distance("usage.cpu * 100 / allocatable.cpu", 75, "below", 65, "", 10, "%")),
    ("usage.cpu > allocatable.cpu * params.percent / 100", False,
     Distance("usage.cpu", 3000, "at most", 2600, "allocatable.cpu * params.percent / 100", 400, "milli-cores")),
    ("requests.memory <= usage.memory", True,
     Distance("requests.memory", 4 * 1024**3, "at most", 1024**3, "usage.memory", 3 * 1024**3, "bytes")),
    ("metricAge < 180", True, Distance("metricAge", 200, "below", 180, "", 20, "seconds")),
    ("requests.cpu / 1000 < 2", True, Distance("requests.cpu / 1000", 3, "below", 2, "", 1, "cores")),
    ("percent(usage.cpu, allocatable.cpu) < 60", True,
     Distance("percent(usage.cpu, allocatable.cpu)", 75, "below", 60, "", 15, "%")),
    ("node.metadata.labels.zone in params.zones", True,
     Distance("node.metadata.labels.zone", "c", "one of", ["a", "b"], "params.zones")),
    ("node.metadata.labels.zone == 'a'", True, Distance("node.metadata.labels.zone", "c", "", "a")),
    ("node.metadata.labels.zone != 'c'", True, Distance("node.metadata.labels.zone", "c", "other than", "c")),
])
def test_a_comparison_knows_both_sides_the_difference_and_the_unit(text, wanted, expected):
    assert distance(text, wanted) == expected


def test_what_has_no_value_has_no_distance():
    clause = alternatives(program("usage.cpu < 1").checked, {**BINDINGS, "usage": Unmeasured("nobody measured")})[0][0]
    assert distance_of(clause, {**BINDINGS, "usage": Unmeasured("nobody measured")}) is None


@pytest.mark.parametrize(("text", "expected"), [
    ("variables.hot < params.percent", [
        (("allocatable", "cpu"), 4616), (("params", "percent"), 76), (("usage", "cpu"), 2599),
    ]),
    ("requests.cpu <= 2000", [(("requests", "cpu"), 2000)]),
    ("requests.cpu * 2 <= allocatable.cpu", [(("allocatable", "cpu"), 6000), (("requests", "cpu"), 2000)]),
    ("metricAge > 300", [(("metricAge",), 301)]),
    ("node.metadata.labels.zone == 'a'", [(("node", "metadata", "labels", "zone"), "a")]),
    ("node.metadata.labels.zone in ['a', 'b']",
     [(("node", "metadata", "labels", "zone"), "a"), (("node", "metadata", "labels", "zone"), "b")]),
    ("'gpu' in node.metadata.labels", [(("node", "metadata", "labels", "gpu"), "true")]),
    ("!('zone' in node.metadata.labels)", [(("node", "metadata", "labels", "zone"), ABSENT)]),
    ("!has(pod.metadata.labels.team)", [(("pod", "metadata", "labels", "team"), ABSENT)]),
    ("!node.spec.unschedulable", [(("node", "spec", "unschedulable"), False)]),
])
def test_the_nearest_change_of_each_path_is_found_and_has_been_tried(text, expected):
    assert changes(text) == expected


def test_what_may_not_vary_is_left_alone():
    assert changes(
        "variables.hot < params.percent", may_vary=lambda path: path[0] == "usage",
    ) == [(("usage", "cpu"), 2599)]


def test_nothing_is_changed_while_looking():
    before = repr(BINDINGS)
    changes("requests.cpu * 2 <= allocatable.cpu")
    assert repr(BINDINGS) == before


def test_the_nearest_value_stops_at_zero_and_where_nothing_helps():
    assert nearest(lambda value: value < 10, 100, -1) == 9
    assert nearest(lambda value: value > 1000, 100, 1) == 1001
    assert nearest(lambda value: value < 0, 100, -1) is None
    assert nearest(lambda value: False, 100, 1) is None


def test_a_change_says_what_was_there():
    ((clause,),) = alternatives(program("requests.cpu <= 2000").checked, BINDINGS)
    assert list(changes_of(clause, BINDINGS, lambda _: True)) == [ClauseChange(("requests", "cpu"), 3000, 2000)]


def test_of_many_clauses_that_are_false_the_first_are_told():
    many = " && ".join(f"metricAge < {number}" for number in range(100, 130))
    assert unmet(many) == [[(f"metricAge < {number}", True) for number in range(100, 108)]]
    either = " && ".join(f"(metricAge < {number} || requests.cpu < {number})" for number in range(100, 130))
    assert [len(way) for way in unmet(either)] == [8] * 16
