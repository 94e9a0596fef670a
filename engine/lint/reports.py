"""Report formats of the linter, for people and tools.

Every report has the same content: place, severity, code, message and help. Columns are those of the tool: 1-based code
points, but UTF-16 code units from 0 for editors. Paths are as they were given, with `/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, Final

from koordpolicy.engine.annotations import (
    TextPlace,
    file_place,
    fingerprint,
    github_command,
    sarif,
    sarif_location,
    sarif_result,
    to_json_text,
)
from koordpolicy.engine.escaping import visible
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.source import Problem, Severity, Span, in_order, most_severe, render

from .rules import RULES, LintRule

_PAGE: Final = "docs/lint.md"
_NAMES: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "note"}


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """A problem, its related places, and whether it can be fixed automatically."""

    problem: Problem
    related: tuple[Span, ...] = ()
    fixable: bool = False

    @property
    def rule(self) -> LintRule | None:
        """The rule that found it; None for faults of YAML, schema and types."""
        return RULES.get(self.problem.code)

    @property
    def code(self) -> str:
        """The rule's id, or the code of a problem of an earlier stage."""
        return self.problem.code or "invalid"

    @property
    def place(self) -> TextPlace:
        """The place in the file; an empty file if there is no place."""
        return TextPlace("", 1, 1, 1, 1) if self.problem.span is None else file_place(self.problem.span)

    @property
    def text(self) -> str:
        """Message and help, in one line."""
        return self.problem.message + (f" ({self.problem.help})" if self.problem.help else "")


@dataclass(frozen=True, slots=True)
class LintReport:
    """All entries, in order, and the linted files and documents."""

    entries: tuple[ReportEntry, ...]
    files: tuple[str, ...]
    documents: int
    version: str = ""

    def count(self, severity: Severity) -> int:
        """Return the number of entries of a severity."""
        return sum(each.problem.severity is severity for each in self.entries)


def ordered(entries: Iterable[ReportEntry]) -> tuple[ReportEntry, ...]:
    """Return entries sorted by place, each once."""
    found = {(each.problem.span.place if each.problem.span else None, each.problem.message, each.problem.help): each
             for each in entries}
    ranks = {id(problem): rank for rank, problem in enumerate(in_order(each.problem for each in found.values()))}
    ranked = [each for each in found.values() if id(each.problem) in ranks]
    return tuple(sorted(ranked, key=lambda each: ranks[id(each.problem)]))


def as_text(report: LintReport) -> str:
    """Return the report for people: each finding with its line and a caret."""
    lines = []
    shown = [report.entries[index] for index in most_severe([each.problem.severity for each in report.entries], 100)]
    for each in shown:
        problem = each.problem
        if each.rule is not None:
            problem = replace(problem, message=f"{problem.message} [{each.code}]")
        lines.append(render([problem]))
        lines.extend(f"  = see {span}" for span in each.related)
    if len(report.entries) > len(shown):
        lines.append(f"... and {len(report.entries) - len(shown)} more")
    if lines:
        lines.append("")
    counts = [counted(report.count(Severity.ERROR), "error"), counted(report.count(Severity.WARNING), "warning")]
    notes = report.count(Severity.NOTE)
    if notes:
        counts.append(counted(notes, "note"))
    where = f"{counted(report.documents, 'document')} of {counted(len(report.files), 'file')}"
    lines.append(f"{', '.join(counts)} in {where}")
    fixable = sum(each.fixable for each in report.entries)
    if fixable:
        lines.append(f"{counted(fixable, 'finding')} can be fixed with --fix")
    return visible("\n".join(lines)) + "\n"


def as_json(report: LintReport) -> str:
    """Return the report as plain data."""
    problems = []
    for each in report.entries:
        plain = each.problem.to_json()
        if each.rule is not None:
            plain["rule"] = each.rule.name
        if each.related:
            plain["related"] = [dict(zip(("file", "line", "column"), span.place, strict=True)) for span in each.related]
        if each.fixable:
            plain["fixable"] = True
        problems.append(plain)
    return to_json_text({
        "errors": report.count(Severity.ERROR), "warnings": report.count(Severity.WARNING),
        "notes": report.count(Severity.NOTE), "documents": report.documents, "files": len(report.files),
        "problems": problems,
    })


def as_sarif(report: LintReport) -> str:
    """Return the report as SARIF 2.1.0, as code scanning services read it."""
    known = {each.code: each for each in report.entries}
    rules = [
        {
            "id": code, "name": each.rule.name if each.rule else code,
            "shortDescription": {"text": each.rule.name.replace("-", " ") if each.rule else code.replace("-", " ")},
            **({"fullDescription": {"text": each.rule.why}} if each.rule else {}),
            "defaultConfiguration": {"level": _NAMES[each.rule.severity if each.rule else Severity.ERROR]},
        }
        for code, each in sorted(known.items())
    ]
    results = []
    for each in report.entries:
        place = None if each.problem.span is None else each.place
        result = sarif_result(each.code, _NAMES[each.problem.severity], each.text, place, mark=_fingerprint(each))
        if each.related:
            result["relatedLocations"] = [
                {"id": number, **sarif_location(file_place(span))} for number, span in enumerate(each.related, start=1)
            ]
        results.append(result)
    return to_json_text(sarif(report.version, rules, results))


def _fingerprint(entry: ReportEntry) -> str:
    return fingerprint(entry.code, entry.place.file, entry.problem.message, entry.problem.span)


def as_junit(report: LintReport) -> str:
    """Return the report as JUnit XML: a case per finding, which fails but for notes; one per file without findings."""
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415 - only for this format

    by_file: dict[str, list[ReportEntry]] = {PurePath(file).as_posix(): [] for file in report.files}
    for each in report.entries:
        by_file.setdefault(each.place[0], []).append(each)
    total = failures = 0
    suites = []
    for file, entries in by_file.items():
        cases = []
        failed = 0
        for each in entries:
            name = f"{each.code} at {each.place[1]}:{each.place[2]}"
            head = f"    <testcase classname={quoteattr(_xml_chars(file))} name={quoteattr(name)}"
            if each.problem.severity is Severity.NOTE:
                cases.append(f"{head}/>")
                continue
            failed += 1
            level = _NAMES[each.problem.severity]
            body = _xml_text(each.problem.render())
            cases.append(f"{head}>\n      <failure type={quoteattr(level)} message={quoteattr(_xml_chars(each.text))}>"
                         f"{body}</failure>\n    </testcase>")
        if not entries:
            cases.append(f'    <testcase classname={quoteattr(_xml_chars(file))} name="lint"/>')
        total, failures = total + len(cases), failures + failed
        named = quoteattr(_xml_chars(file))
        suite = f'  <testsuite name={named} tests="{len(cases)}" failures="{failed}" errors="0">\n'
        suites.append(suite + "\n".join(cases) + "\n  </testsuite>")
    head = '<?xml version="1.0" encoding="UTF-8"?>\n'
    return (f'{head}<testsuites name="koord-policy lint" tests="{total}" failures="{failures}">\n'
            + "\n".join(suites) + "\n</testsuites>\n")


def _xml_chars(text: str) -> str:
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff") else "?"
                   for c in visible(text))


def _xml_text(text: str) -> str:
    from xml.sax.saxutils import escape  # noqa: PLC0415 - only for this format

    return escape(_xml_chars(text))


def as_github(report: LintReport) -> str:
    """Return workflow commands, which GitHub shows at the lines of a pull request."""
    return "".join(
        github_command(_NAMES[each.problem.severity], each.code, each.text, each.place) for each in report.entries
    )


def as_gitlab(report: LintReport) -> str:
    """Return GitLab's code quality report (Code Climate's issues)."""
    weights = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.NOTE: "info"}
    seen: dict[str, int] = {}
    issues = []
    for each in report.entries:
        mark = _fingerprint(each)
        seen[mark] = seen.get(mark, 0) + 1
        if seen[mark] > 1:  # equal messages on equal lines: GitLab drops entries with the same fingerprint
            mark = hashlib.sha256(f"{mark} {seen[mark]}".encode()).hexdigest()[:32]
        file, line, column, end_line, end_column = each.place
        issues.append({
            "type": "issue", "description": each.text, "check_name": each.code, "fingerprint": mark,
            "severity": weights[each.problem.severity], "categories": ["Bug Risk"],
            "location": {"path": file, "positions": {
                "begin": {"line": line, "column": column}, "end": {"line": end_line, "column": end_column},
            }},
        })
    return to_json_text(issues)


def as_lsp(report: LintReport) -> str:
    """Return a list of the parameters of `textDocument/publishDiagnostics`, one per file, empty ones included."""
    weights = {Severity.ERROR: 1, Severity.WARNING: 2, Severity.NOTE: 3}
    by_file: dict[str, list[dict[str, Any]]] = {file: [] for file in report.files}
    for each in report.entries:
        span = each.problem.span
        diagnostic: dict[str, Any] = {
            "range": _lsp_range(span), "severity": weights[each.problem.severity], "code": each.code,
            "source": "koord-policy", "message": each.text,
        }
        if each.rule is not None:
            diagnostic["data"] = {"rule": each.rule.name, "page": _PAGE, "fixable": each.fixable}
        if each.related:
            diagnostic["relatedInformation"] = [
                {"location": {"uri": _uri(other.root().source.name), "range": _lsp_range(other)}, "message": "see here"}
                for other in each.related
            ]
        if each.rule is not None and each.rule.id in ("KP001", "KP002", "KP012"):
            diagnostic["tags"] = [1]  # the tag `Unnecessary`: editors fade the text
        by_file.setdefault(span.root().source.name if span else "", []).append(diagnostic)
    return to_json_text([{"uri": _uri(file), "diagnostics": found} for file, found in by_file.items()])


def _uri(file: str) -> str:
    return f"untitled:{file.strip('<>')}" if not file or file.startswith("<") else Path(file).absolute().as_uri()


def _lsp_range(span: Span | None) -> Mapping[str, Mapping[str, int]]:
    if span is None:
        return {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}
    root = span.root()
    return {"start": _lsp_position(root, root.start), "end": _lsp_position(root, root.end)}


def _lsp_position(root: Span, offset: int) -> dict[str, int]:
    line, column = root.source.position(offset)
    before = root.source.text[offset - column + 1 : offset]
    return {"line": line - 1, "character": len(before) + sum(character > "\uffff" for character in before)}


FORMATS: Final[Mapping[str, Callable[[LintReport], str]]] = MappingProxyType({
    "text": as_text, "json": as_json, "sarif": as_sarif, "junit": as_junit, "github": as_github, "gitlab": as_gitlab,
    "lsp-json": as_lsp,
})
"""All formats by the name that `--output` takes."""


def of_rules(rules: Sequence[LintRule]) -> str:
    """Return the rules as a table for people."""
    width = max(len(rule.name) for rule in rules)
    lines = (
        f"{rule.id}  {rule.name:<{width}}  {_NAMES[rule.severity]:<7}  {'--fix' if rule.fixable else ''}"
        for rule in rules
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)
