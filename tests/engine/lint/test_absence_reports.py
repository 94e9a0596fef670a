"""The message about an unguarded read, and its fix."""

from __future__ import annotations

import pytest

from .conftest import absent, descheduler_policy, filtering, findings, mended, scheduler_policy, scoring

_RULE = "KP023"


def outcome(text: str) -> list[str]:
    """Return the effects of absence that the messages name."""
    return [each.found.message.split("the key is absent: ")[1] for each in findings(text) if each.rule.id == _RULE]


@pytest.mark.parametrize(("policy", "filter_", "score"), [
    ("Fail", "the node is refused, reason `PolicyError`", "the item gives that node 0"),
    ("Ignore", "the check is skipped", "the item is skipped for all nodes of this decision"),
])
def test_it_is_said_what_happens_at_that_point_with_that_failure_policy(policy: str, filter_: str, score: str):
    read = "node.metadata.labels['pool'] == 'a'"
    assert outcome(filtering(read) + f"  failurePolicy: {policy}\n") == [filter_]
    assert outcome(scoring(f"{read} ? 100 : nodeInfo.pods") + f"  failurePolicy: {policy}\n") == [score]


def test_it_is_said_what_happens_in_the_other_frameworks():
    read = "pod.metadata.labels['tier'] == 'a'"
    assert outcome(descheduler_policy(f'type: Deschedule\ncriteria:\n- {{name: it, expression: "{read}"}}')) == [
        "the pod stays",
    ]
    threshold = scheduler_policy(
        "forEach: node\nthresholds:\n- {name: it, expression: \"node.metadata.labels['tier'] == 'a'\"}\n"
        "actions:\n- {name: squeeze, when: thresholds.it, suppressCPU: {target: allocatable.cpu}}",
    ).replace("SchedulerPlugin", "QoSPlugin")
    assert outcome(threshold) == [
        "nothing is done; last values stay for at most `staleAfter`, then everything is recovered",
    ]


@pytest.mark.parametrize(("before", "after"), [
    ("node.metadata.labels['pool'] != 'batch'", "node.metadata.?labels[?'pool'].orValue('') != 'batch'"),
    ('node.metadata.labels["pool"] == "a"', "node.metadata.?labels[?\"pool\"].orValue('') == \"a\""),
    ("node.metadata.labels.pool in ['a']", "node.metadata.?labels.?pool.orValue('') in ['a']"),
    ("pod.metadata.annotations['a/b'].startsWith('x') || nodeInfo.pods > 3",
     "pod.metadata.?annotations[?'a/b'].orValue('').startsWith('x') || nodeInfo.pods > 3"),
])
def test_a_read_whose_neutral_value_is_clear_is_mended(before: str, after: str):
    assert mended(_RULE, filtering(before)) == filtering(after)
    assert absent(filtering(after)) == []


@pytest.mark.parametrize("expression", [
    "node.metadata.labels['pool'] == ''", "node.metadata.labels['pool'] == nodeInfo.zone",
    "int(node.metadata.labels['tier']) > 3", "node.metadata.labels['pool'] in ['', 'a']",
])
def test_a_read_whose_neutral_value_is_not_clear_is_left_alone(expression: str):
    assert mended(_RULE, filtering(expression)) == filtering(expression)
    assert len(absent(filtering(expression))) == 1


def test_a_mended_read_keeps_the_quotes_of_its_yaml_scalar():
    text = scheduler_policy("filter:\n- {name: it, expression: 'node.metadata.labels[\"pool\"] != \"a\"'}")
    assert mended(_RULE, text) == text.replace(
        'node.metadata.labels["pool"]', 'node.metadata.?labels[?"pool"].orValue("")',
    )
    assert absent(mended(_RULE, text)) == []


def test_a_group_without_rows_is_mended_where_nothing_is_its_sum():
    text = (
        "aggregates:\n- {{name: pods, over: pods, groupBy: nodeInfo.zone, function: {}, expression: {}}}\n"
        "score:\n- {{name: it, expression: '{}', normalize: Max}}"
    )
    zone = "aggregates.pods[nodeInfo.zone]"
    for function, expression, default in (("sum", "existingPodInfo.priority", "0"), ("count", "'true'", "0")):
        before = scheduler_policy(text.format(function, expression, zone))
        assert mended(_RULE, before) == before.replace(zone, f"aggregates.pods[?nodeInfo.zone].orValue({default})")
    before = scheduler_policy(text.format("max", "existingPodInfo.priority", zone))
    assert (absent(before), mended(_RULE, before)) == ([zone], before)
