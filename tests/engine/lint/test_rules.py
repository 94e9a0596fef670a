"""Every rule by its own examples, which the documentation shows."""

from __future__ import annotations

import pytest

from koordpolicy.engine.lint import RULES, LintRule

from .conftest import findings


def found(rule: LintRule, text: str) -> set[str]:
    policy, configuration = ("", text) if rule.configuration else (text, "")
    return {each.rule.id for each in findings(policy, configuration)}


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: f"{rule.id}-{rule.name}")
def test_what_is_to_be_avoided_is_found_by_its_rule_alone_and_what_is_preferred_by_none(rule: LintRule):
    assert found(rule, rule.avoid) == {rule.id}
    assert found(rule, rule.prefer) == set()


def test_ids_and_names_are_given_once():
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    assert list(RULES) == sorted(RULES)
    assert all(key == rule.id for key, rule in RULES.items())


def test_a_rule_looks_at_documents_or_at_the_set_but_for_those_about_ignores():
    assert [rule.id for rule in RULES.values() if (rule.each is None) is (rule.whole is None)] == ["KP040", "KP041"]
