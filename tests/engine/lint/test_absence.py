"""Guarantees of a document before a read: its match, its conditions and its earlier rules."""

from __future__ import annotations

from .conftest import absent, scheduler_policy


def test_a_rule_before_it_and_a_condition_on_either_side_guard_a_read():
    guard, read = "{name: g, expression: \"'pool' in node.metadata.labels\"}", \
        "{name: r, expression: \"node.metadata.labels['pool'] != 'a'\"}"
    score = "score:\n- {name: s, expression: \"node.metadata.labels['pool'] == 'a' ? 100 : nodeInfo.pods\"}"
    assert absent(scheduler_policy(f"filter:\n- {guard}\n- {read}\n{score}")) == []
    assert absent(scheduler_policy(f"filter:\n- {read}\n- {guard}")) == ["node.metadata.labels['pool']"]
    for conditions in (f"- {guard}\n- {read}", f"- {read}\n- {guard}"):
        assert absent(scheduler_policy(f"matchConditions:\n{conditions}\n{score}")) == []
    assert absent(scheduler_policy(f"matchConditions:\n- {read}\n{score}")) == ["node.metadata.labels['pool']"] * 2


def test_a_message_need_not_guard_what_it_shows():
    assert absent(scheduler_policy(
        "filter:\n- {name: it, expression: nodeInfo.pods < 9, messageExpression: \"node.metadata.labels['pool']\"}",
    )) == []
