"""Comments, and `koord-policy.yaml`, that keep rules from speaking."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.lint import LintConfiguration
from koordpolicy.engine.lint.configuration import nearest, parse, pattern
from koordpolicy.engine.source import PolicyError, Severity, Source

from .conftest import findings, scheduler_policy, told

TRUE = "filter:\n{above}- name: it\n  expression: requested.cpu >= 0{behind}"


def with_comment(behind: str = "", above: str = "") -> str:
    return scheduler_policy(TRUE.format(behind=f"  # {behind}" if behind else "", above=above))


def test_an_ignore_with_a_reason_silences_its_line_by_id_or_name():
    assert told(with_comment()) == [("KP010", "requested.cpu >= 0")]
    assert told(with_comment("koord-policy: ignore KP010 because it is an example")) == []
    assert told(with_comment("koord-policy: ignore always-true because it is an example")) == []


def test_an_ignore_alone_on_its_line_is_about_the_next_line_that_says_something():
    text = with_comment().replace(
        "    expression",
        "    # koord-policy: ignore KP010 because it is an example\n    # and so on\n\n    expression",
    )
    assert told(text) == []


def test_an_ignore_of_another_rule_silences_nothing_and_is_told():
    comment = "# koord-policy: ignore KP011 because of nothing"
    assert told(with_comment(comment[2:])) == [("KP010", "requested.cpu >= 0"), ("KP041", comment)]


def test_an_unknown_rule_is_told_with_the_nearest_one():
    (finding,) = findings(with_comment("koord-policy: ignore always-treu, KP010 because of nothing"))
    assert (finding.rule.id, finding.found.message, finding.found.help) == (
        "KP041", "there is no rule `always-treu` to ignore", "did you mean `always-true`?",
    )


def test_an_ignore_that_names_no_rule_is_told():
    assert [rule for rule, _ in told(with_comment("koord-policy: ignore because I say so"))] == ["KP010", "KP041"]


def configuration(text: str) -> LintConfiguration:
    return parse(Source("koord-policy.yaml", text), Path())


def test_a_rule_weighs_what_the_settings_say():
    settings = configuration("lint: {rules: {always-true: error}}")
    assert [each.severity for each in findings(with_comment(), settings=settings)] == [Severity.ERROR]
    assert told(with_comment(), settings=configuration("lint: {rules: {KP010: off}}")) == []


def test_a_rule_that_is_off_makes_no_ignore_needless():
    settings = configuration("lint: {rules: {KP010: off}}")
    assert told(with_comment("koord-policy: ignore KP010 because it is an example"), settings=settings) == []


@pytest.mark.parametrize(("glob", "silent"), [
    ("policy.yaml", True), ("*.yaml", True), ("**/policy.yaml", True), ("./policy.yaml", True), ("policies/", False),
    ("polic", False),
])
def test_a_rule_is_silent_about_the_paths_that_the_settings_name(glob: str, silent: bool):
    settings = configuration(f"lint: {{ignores: [{{paths: ['{glob}'], rules: [KP010], reason: it is one}}]}}")
    assert (told(with_comment(), settings=settings) == []) is silent


def test_a_folder_covers_what_is_below_it_and_a_star_stays_within_one():
    assert pattern("policies/trace/").fullmatch("policies/trace/a/b.yaml")
    assert pattern("policies/**/b.yaml").fullmatch("policies/b.yaml")
    assert not pattern("policies/*.yaml").fullmatch("policies/a/b.yaml")


@pytest.mark.parametrize(("text", "message", "help_"), [
    ("lnt: {}", "unknown field `lnt`", "did you mean `lint`?"),
    ("lint: {rules: {KP010: loud}}", "`loud`", ""),
    ("lint: {rules: {always-treu: off}}", "there is no rule `always-treu`", "did you mean `always-true`?"),
    ("lint: {ignores: [{paths: [a]}]}", "missing field `reason`", ""),
    ("lint: {ignores: [{paths: [a], rules: [KP999], reason: b}]}", "there is no rule `KP999`", ""),
])
def test_settings_are_strict(text: str, message: str, help_: str):
    with pytest.raises(PolicyError) as caught:
        configuration(text)
    (problem,) = caught.value.problems
    assert message in problem.message
    assert help_ in problem.help


def test_the_nearest_settings_up_to_the_repository_count(tmp_path: Path):
    (tmp_path / "koord-policy.yaml").write_text("{}")
    below = tmp_path / "repository" / "policies"
    below.mkdir(parents=True)
    assert nearest(below) == tmp_path / "koord-policy.yaml"
    (tmp_path / "repository" / ".git").mkdir()
    assert nearest(below) is None
