"""Coverage of expressions: the outcomes that the cases have seen.

The goals of an expression: a bool yields true and yields false; each condition that `&&` and `||` join, each condition
of `?:`, and each test of a loop, is true once and false once; each variable and every other expression is evaluated.
Whether it was ever an error is reported too, and is not a goal: many expressions cannot fail.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from koordpolicy.engine.annotations import file_place, sarif, sarif_result
from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import observe
from koordpolicy.engine.cel.syntax.ast import Call, Comprehension, Expr, Literal, children
from koordpolicy.engine.cel.values.types import BOOL
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.documents import Document
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Source, Span

from .instruments import ExpressionPlace, compiled_of, places, programs_of
from .suites import Suite

EVALUATED: Final = "evaluated"
_LOGIC: Final = ("_&&_", "_||_")

_Key: TypeAlias = tuple[str, int, int, str]
"""File, start, end and outcome: equal however often a document was loaded and checked."""


@dataclass(frozen=True, slots=True)
class Goal:
    """An outcome that cases should see: `true`, `false` or `evaluated` of a part of an expression."""

    span: Span
    text: str
    outcome: str
    seen: bool

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        _, line, column = self.span.place
        return {"text": self.text, "outcome": self.outcome, "seen": self.seen, "line": line, "column": column}


@dataclass(frozen=True, slots=True)
class Covered:
    """One expression: its goals, and whether it was ever true, false, or an error."""

    place: ExpressionPlace
    goals: tuple[Goal, ...]
    evaluations: int
    true: bool
    false: bool
    error: bool

    @property
    def missed(self) -> tuple[Goal, ...]:
        """The goals that were not seen."""
        return tuple(goal for goal in self.goals if not goal.seen)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        _, line, column = self.place.expression.span.place
        return {
            "name": self.place.name, "field": self.place.field, "line": line, "column": column,
            "evaluations": self.evaluations, "true": self.true, "false": self.false, "error": self.error,
            "goals": [goal.to_json() for goal in self.goals],
        }


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """The coverage of one document's expressions."""

    document: Document
    expressions: tuple[Covered, ...]

    @property
    def goals(self) -> int:
        """The number of goals."""
        return sum(len(each.goals) for each in self.expressions)

    @property
    def seen(self) -> int:
        """The number of goals that were seen."""
        return sum(goal.seen for each in self.expressions for goal in each.goals)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "policy": self.document.name, "file": self.document.file, "goals": self.goals, "seen": self.seen,
            "percent": percent([self]), "expressions": [each.to_json() for each in self.expressions],
        }


def percent(reports: Sequence[CoverageReport]) -> float:
    """Return the share of all goals that was seen, 0 to 100; 100 without goals."""
    goals = sum(each.goals for each in reports)
    return 100 * sum(each.seen for each in reports) / goals if goals else 100.0


@dataclass(slots=True)
class ExpressionCoverage:
    """Coverage of expressions: an `Observer` that evaluates each expression once more, node by node."""

    _seen: dict[_Key, int] = field(default_factory=dict)

    def evaluated(self, program: Program, row: int, result: object, bindings: Mapping[str, object]) -> None:
        """Record the evaluated nodes of the expression, and their values."""
        observe(program.checked, bindings, self._note)

    def _note(self, owner: Checked, node: Expr, value: object) -> None:
        if value is True:
            self._see(owner, node, "true")
        elif value is False:
            self._see(owner, node, "false")
        elif isinstance(value, EvaluationError):
            self._see(owner, node, "error")
        if node is owner.root:
            self._see(owner, node, EVALUATED)

    def _see(self, owner: Checked, node: Expr, outcome: str) -> None:
        key = (*_place(owner.source, node), outcome)
        self._seen[key] = self._seen.get(key, 0) + 1

    def reports(
        self, suites: Iterable[Suite], untested: Iterable[tuple[Document, Plugin]] = (),
    ) -> tuple[CoverageReport, ...]:
        """Return the coverage of all policies of the suites, by file; those of `untested` have none."""
        found: dict[Document, Plugin] = {}
        for suite in suites:
            plugins = {plugin.name: plugin for plugin in suite.plugins.values()}
            for document in suite.documents:
                if document.name in plugins:
                    found.setdefault(document, plugins[document.name])
        found.update(untested)
        reports = [self._report(document, plugin) for document, plugin in found.items()]
        return tuple(sorted(reports, key=lambda each: each.document.span.place))

    def _report(self, document: Document, plugin: Plugin) -> CoverageReport:
        checked = _checked(compiled_of(plugin, {}))
        expressions = []
        for source, place in places(document).items():
            if source not in checked:
                continue
            of = checked[source]
            goals = tuple(
                Goal(source.span(node.start, node.end), _text(source, node), outcome,
                     (*_place(source, node), outcome) in self._seen)
                for node, outcome in _goals(of, is_variable=place.is_variable)
            )
            root = _place(source, of.root)
            expressions.append(Covered(
                place, goals, self._seen.get((*root, EVALUATED), 0),
                *((*root, outcome) in self._seen for outcome in ("true", "false", "error")),
            ))
        return CoverageReport(document, tuple(expressions))


def _place(source: Source, node: Expr) -> tuple[str, int, int]:
    root = source.span(node.start, node.end).root()
    return root.source.name, root.start, root.end


def _text(source: Source, node: Expr) -> str:
    return " ".join(source.text[node.start : node.end].split())


def _checked(compiled: Any) -> dict[Source, Checked]:
    """Return the checked trees of all expressions of a plugin, including variables, by source."""
    found: dict[Source, Checked] = {}
    for program in programs_of(compiled):
        found.setdefault(program.source, program.checked)
        for definition in program.checked.definitions.values():
            found.setdefault(definition.source, definition)
    return found


def _goals(checked: Checked, *, is_variable: bool) -> Iterator[tuple[Expr, str]]:
    """Yield the nodes of an expression with their goals."""
    root = checked.root
    goals: dict[int, Expr] = {}
    if checked.type == BOOL and not is_variable and not isinstance(root, Literal):
        goals[root.id] = root
    else:
        yield root, EVALUATED
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(reversed(children(node)))
        for each in _conditions(node):
            if not isinstance(each, Literal) and not (isinstance(each, Call) and each.function in _LOGIC):
                goals[each.id] = each
    for node in sorted(goals.values(), key=lambda each: (each.start, -each.end)):
        yield node, "true"
        yield node, "false"


def _conditions(node: Expr) -> Sequence[Expr]:
    if isinstance(node, Comprehension):
        return () if node.predicate is None else (node.predicate,)
    if isinstance(node, Call) and node.function in _LOGIC:
        return node.args
    if isinstance(node, Call) and node.function == "_?_:_":
        return node.args[:1]
    return ()


# Output


def to_json(reports: Sequence[CoverageReport]) -> dict[str, Any]:
    """Return reports as plain data."""
    return {"percent": percent(reports), "policies": [each.to_json() for each in reports]}


def to_sarif(reports: Sequence[CoverageReport], version: str) -> dict[str, Any]:
    """Return the missing goals as SARIF 2.1.0, one note each."""
    rule = "uncovered"
    return sarif(version, [{"id": rule, "shortDescription": {"text": "No case has seen this outcome."}}], [
        sarif_result(rule, "note", f"{each.place.name}: no case has seen `{goal.text}` {_worded(goal.outcome)}",
                     file_place(goal.span))
        for report in reports for each in report.expressions for goal in each.missed
    ])


def _worded(outcome: str) -> str:
    return outcome if outcome == EVALUATED else f"be {outcome}"


def to_html(reports: Sequence[CoverageReport]) -> str:
    """Return a self-contained HTML page."""
    rows: list[str] = []
    for report in reports:
        rows.append(f"<h2>{html.escape(report.document.name)} <small>{percent([report]):.1f} %, "
                    f"{html.escape(report.document.origin)}</small></h2><table><tr><th>expression</th><th>evaluated</th>"
                    "<th>true</th><th>false</th><th>error</th><th>not seen</th></tr>")
        for each in report.expressions:
            missed = "<br>".join(f"<code>{html.escape(goal.text)}</code> {_worded(goal.outcome)}"
                                 for goal in each.missed)
            marks = "".join(f"<td>{'&#10003;' if mark else ''}</td>" for mark in (each.true, each.false, each.error))
            rows.append(f"<tr class={'missed' if each.missed else 'seen'}><td>{html.escape(each.place.name)}<br><code>"
                        f"{html.escape(each.place.expression.text)}</code></td><td>{each.evaluations}</td>{marks}"
                        f"<td>{missed}</td></tr>")
        rows.append("</table>")
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Coverage of policies</title><style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;"
        "color-scheme:light dark}table{border-collapse:collapse;width:100%}"
        "td,th{border:1px solid #8886;padding:.3rem .6rem;text-align:left;vertical-align:top}"
        ".missed td:first-child{border-left:4px solid #c33}"
        ".seen td:first-child{border-left:4px solid #393}code{white-space:pre-wrap}small{font-weight:normal}</style>"
        f"<h1>Coverage of policies: {percent(reports):.1f} %</h1>{''.join(rows)}</html>\n"
    )
