"""The models of drafts."""

from __future__ import annotations

from typing import Any

from .map import ColourView
from .model import Fault, Model


class CheckView(Model, frozen=True, kw_only=True, rename="camel"):
    """The problems and findings of a draft."""

    faults: list[Fault]
    policies: list[str]
    tests: int
    """The number of PolicyTests."""


class Verdicts(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of a draft about a pod on each node, without all other plugins."""

    refused_by: list[int]
    """By row: the rule that refused the node, by number; -1 if none did."""
    rules: list[str]
    totals: list[int]
    """By row: the weighted sum of the scores."""
    passed: int


class EvaluationView(Model, frozen=True, kw_only=True, rename="camel"):
    """The expression at the cursor, on all nodes for a pod; `verdicts` of the whole draft."""

    expression: str
    """Empty if there is none at the cursor."""
    field: str
    line: int
    colours: ColourView | None
    verdicts: Verdicts | None
    failure: str = ""


class BudgetView(Model, frozen=True, kw_only=True, rename="camel"):
    """A budget of a change and what is spent of it."""

    name: str
    budget: str
    count: int
    of: int
    within: bool


class EffectView(Model, frozen=True, kw_only=True, rename="camel"):
    """The effect of a draft on the cluster, as `koord-policy diff --output json`."""

    difference: dict[str, Any]
    budgets: list[BudgetView]
    replaced: list[str]
    """The policies that the draft replaces."""


class Miss(Model, frozen=True, kw_only=True, rename="camel"):
    """An expectation of a test that was not met."""

    about: str
    expected: str
    got: str
    line: int = 0


class CaseView(Model, frozen=True, kw_only=True, rename="camel"):
    """The result of a test case."""

    suite: str
    name: str
    line: int
    passed: bool
    misses: list[Miss] = []


class CoverageLine(Model, frozen=True, kw_only=True, rename="camel"):
    """The outcomes of conditions at one line of a draft."""

    line: int
    seen: int
    """The number of outcomes that a case has shown."""
    goals: int
    """The number of possible outcomes."""
    missed: list[str]
    """The others, as text."""


class TestsView(Model, frozen=True, kw_only=True, rename="camel"):
    """The results of a draft's PolicyTests, with coverage: the lines with an outcome that no case has shown."""

    cases: list[CaseView]
    lines: list[CoverageLine]
    """The lines with conditions, in their order."""
    coverage: float
    """Percent of the outcomes of conditions that the cases have shown."""


class Completion(Model, frozen=True, kw_only=True, rename="camel"):
    """A word that may follow."""

    label: str
    kind: str
    """`field`, `value`, `variable`, `function` or `keyword`."""
    detail: str = ""
    doc: str = ""


class CompletionView(Model, frozen=True, kw_only=True, rename="camel"):
    """The words that may follow at an offset; `start` is the offset of the word that they replace."""

    start: int
    items: list[Completion]
    left_out: int


class DescriptionView(Model, frozen=True, kw_only=True, rename="camel"):
    """The description of what is at an offset, as Markdown; empty if there is nothing to say."""

    markdown: str


class TextRange(Model, frozen=True, kw_only=True, rename="camel"):
    """A part of a draft; offsets are in code points."""

    start: int
    end: int


class RenameView(Model, frozen=True, kw_only=True, rename="camel"):
    """The places of a draft at which a name is replaced; none if there is no name of the draft at the offset."""

    old: str
    places: list[TextRange]
