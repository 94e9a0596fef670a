"""Policy texts in, findings out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from koordpolicy.engine.compile import Compiled, compile_documents
from koordpolicy.engine.documents import load, read
from koordpolicy.engine.lint import LintConfiguration, LintFinding, Whole, check, subjects, suites
from koordpolicy.engine.lint.edits import apply
from koordpolicy.engine.source import Source

Check = Callable[..., tuple[LintFinding, ...]]

HEAD = (
    "apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\n"
    "metadata: {{name: {name}, annotations: {{policy.koordinator.sh/description: About.}}}}\nspec:\n"
)


def findings(text: str, configuration: str = "", settings: LintConfiguration | None = None) -> tuple[LintFinding, ...]:
    source, beside = Source("policy.yaml", text), Source("config.yaml", configuration)
    loaded = load([source])
    compiled: list[Compiled] = []
    compile_documents(loaded, observe=compiled.append)
    whole = Whole(subjects(loaded.documents, compiled), read(beside), suites=suites(loaded.documents))
    return check(whole, [source, beside], settings or LintConfiguration())


def told(text: str, configuration: str = "", settings: LintConfiguration | None = None) -> list[tuple[str, str]]:
    """Return rule and marked text of every finding, in order of place."""
    found = findings(text, configuration, settings)
    return sorted((each.rule.id, marked(each)) for each in found)


def marked(finding: LintFinding) -> str:
    assert finding.found.span is not None
    root = finding.found.span.root()
    return root.source.text[root.start : root.end]


def mended(rule: str, text: str) -> str:
    """Return the text with the fixes of what a rule finds."""
    fixes = [each.found.fix for each in findings(text) if each.rule.id == rule and each.found.fix is not None]
    edits = [edit for fix in fixes if (edit := fix()) is not None]
    return apply(edits).get("policy.yaml", text)


def absent(text: str) -> list[str]:
    """Return the reads that are marked as unguarded."""
    return [marked(each) for each in findings(text) if each.rule.id == "KP023"]


def scheduler_policy(spec: str, name: str = "example") -> str:
    body = "".join(f"  {line}\n" for line in spec.strip("\n").splitlines())
    return HEAD.format(kind="SchedulerPlugin", name=name) + body


def descheduler_policy(spec: str, name: str = "example") -> str:
    body = "".join(f"  {line}\n" for line in spec.strip("\n").splitlines())
    return HEAD.format(kind="DeschedulerPlugin", name=name) + body


def qos_policy(spec: str, name: str = "example") -> str:
    body = "".join(f"  {line}\n" for line in spec.strip("\n").splitlines())
    return HEAD.format(kind="QoSPlugin", name=name) + body


def filtering(expression: str) -> str:
    return scheduler_policy(f"filter:\n- name: it\n  expression: >-\n    {expression}")


def scoring(expression: str, more: str = "") -> str:
    return scheduler_policy(f"score:\n- name: it\n  expression: >-\n    {expression}\n{more}")


@pytest.fixture
def told_of() -> Callable[..., list[tuple[str, str]]]:
    return told
