"""Results of cases."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from koordpolicy.engine.escaping import visible
from koordpolicy.engine.explanation import counted, plain
from koordpolicy.engine.source import Span

_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not allow."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One expectation that was not met: its subject, and the outcome.

    `values` are depth, text and value of the sub-expressions that led to it.
    """

    about: str
    expected: str
    got: str
    span: Span | None = field(default=None, repr=False)
    values: tuple[tuple[int, str, object], ...] = ()
    values_left_out: int = 0
    """The number of further sub-expressions."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        data: dict[str, Any] = {"about": self.about, "expected": self.expected, "got": self.got}
        if self.span is not None:
            file, line, column = self.span.place
            data |= {"file": file, "line": line, "column": column}
        if self.values:
            data["values"] = [
                {"depth": depth, "text": text, "value": plain(value)} for depth, text, value in self.values
            ]
        if self.values_left_out:
            data["valuesLeftOut"] = self.values_left_out
        return data


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of one case. `rules` and `rows` count evaluations: none is never a success."""

    suite: str
    name: str
    file: str
    line: int
    mismatches: tuple[Mismatch, ...]
    rules: int
    rows: int
    seconds: float

    @property
    def passed(self) -> bool:
        """True if all expectations were met."""
        return not self.mismatches

    @property
    def full_name(self) -> str:
        """The suite's name and the case's."""
        return f"{self.suite}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        data: dict[str, Any] = {
            "suite": self.suite, "name": self.name, "file": self.file, "line": self.line, "passed": self.passed,
            "rules": self.rules, "rows": self.rows, "seconds": round(self.seconds, 6),
        }
        if self.mismatches:
            data["failures"] = [each.to_json() for each in self.mismatches]
        return data


def failed(results: Sequence[CaseResult]) -> tuple[CaseResult, ...]:
    """Return the cases that failed."""
    return tuple(each for each in results if not each.passed)


def lines_of(mismatch: Mismatch) -> Iterator[str]:
    """Yield a mismatch as text: its subject, a diff of expected and got, and the values that led to it."""
    where = f" (line {mismatch.span.place[1]})" if mismatch.span is not None else ""
    yield f"{mismatch.about}{where}"
    yield f"  - {mismatch.expected}"
    yield f"  + {mismatch.got}"
    for depth, text, value in mismatch.values:
        shown = value if isinstance(value, str) and value.startswith("error: ") else json.dumps(value, default=str)
        yield f"      {'  ' * depth}{text} = {shown}"
    if mismatch.values_left_out:
        yield f"      and {counted(mismatch.values_left_out, 'more value')}"


def to_junit(results: Sequence[CaseResult]) -> str:
    """Return the results as JUnit's XML: one test suite per PolicyTest."""
    suites: dict[str, list[CaseResult]] = {}
    for each in results:
        suites.setdefault(each.suite, []).append(each)
    count, bad = len(results), len(failed(results))
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<testsuites name="koord-policy" tests="{count}" failures="{bad}" errors="0" time="{_seconds(results)}">',
    ]
    for name, of_suite in suites.items():
        lines.append(f'  <testsuite name={_quoted(name)} tests="{len(of_suite)}" failures="{len(failed(of_suite))}" '
                     f'errors="0" skipped="0" time="{_seconds(of_suite)}">')
        for each in of_suite:
            head = (f'    <testcase classname={_quoted(name)} name={_quoted(each.name)} file={_quoted(each.file)} '
                    f'line="{each.line}" time="{each.seconds:.6f}"')
            if each.passed:
                lines.append(f"{head}/>")
                continue
            text = "\n".join(line for mismatch in each.mismatches for line in lines_of(mismatch))
            first = each.mismatches[0]
            message = f"{first.about}: expected {first.expected}, got {first.got}"
            lines += [f"{head}>", f"      <failure message={_quoted(message)}>{escape(_printable(text))}</failure>",
                      "    </testcase>"]
        lines.append("  </testsuite>")
    return "\n".join((*lines, "</testsuites>", ""))


def _seconds(results: Sequence[CaseResult]) -> str:
    return f"{sum(each.seconds for each in results):.6f}"


def _quoted(text: str) -> str:
    return quoteattr(_printable(text), {"\n": "&#10;"})


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", visible(text))
