"""What became of a case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..source import Span


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One expectation that was not met: about what, and what came out instead.

    `values` are depth, text and value of the sub-expressions that led to it.
    """

    about: str
    expected: str
    got: str
    span: Span | None = None
    values: tuple[tuple[int, str, object], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        data: dict[str, Any] = {"about": self.about, "expected": self.expected, "got": self.got}
        if self.span is not None:
            file, line, column = self.span.place
            data |= {"file": file, "line": line, "column": column}
        if self.values:
            data["values"] = [{"depth": depth, "text": text, "value": value} for depth, text, value in self.values]
        return data


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of one case. `rules` and `rows` say how much was evaluated: nothing is never a success."""

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
        """Whether all came out as expected."""
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
