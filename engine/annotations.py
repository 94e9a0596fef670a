"""Findings at places of files, in the formats of code hosts: GitHub's workflow commands and SARIF 2.1.0.

Columns are 1-based code points; paths are as they were given, with `/`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from koordpolicy.engine.escaping import visible, visible_json
from koordpolicy.engine.source import Span

_GITHUB: Final[Mapping[str, str]] = {"error": "error", "warning": "warning", "note": "notice"}


class TextPlace(NamedTuple):
    """A place in a file: line and column of the first character, and of the first one after it."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


def file_place(span: Span) -> TextPlace:
    """Return the place of a span in its file."""
    root = span.root()
    name, line, column = span.place
    return TextPlace(PurePath(name).as_posix() if name else "", line, column, *root.source.position(root.end))


def github_command(level: str, title: str, text: str, place: TextPlace | None) -> str:
    """Return a workflow command, which GitHub shows at the line of a pull request.

    `level` is error, warning or note.
    """
    fields = {"title": title}
    if place is not None and place.file:
        fields = {"file": place.file, "line": str(place.line), "endLine": str(place.end_line),
                  "col": str(place.column), "endColumn": str(place.end_column), **fields}
        if place.end_line != place.line:  # GitHub takes columns within one line only
            del fields["col"], fields["endColumn"]
    shown = ",".join(f"{key}={_github(value, ':,')}" for key, value in fields.items())
    return f"::{_GITHUB[level]} {shown}::{_github(text)}\n"


def _github(text: str, more: str = "") -> str:
    text = visible(text)
    for character in ("%", "\r", "\n", *more):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def fingerprint(code: str, file: str, message: str, span: Span | None) -> str:
    """Return a fingerprint of a finding that does not depend on its line number."""
    line = span.root().source.line(span.place[1]).strip() if span is not None else ""
    return hashlib.sha256("\0".join((code, file, message, line)).encode()).hexdigest()[:32]


def sarif_location(place: TextPlace) -> dict[str, Any]:
    """Return a location of SARIF."""
    return {"physicalLocation": {
        "artifactLocation": {"uri": quote(place.file)},
        "region": {"startLine": place.line, "startColumn": place.column, "endLine": place.end_line,
                   "endColumn": place.end_column},
    }}


def sarif_result(
    rule: str, level: str, text: str, place: TextPlace | None, *, mark: str = "",
) -> dict[str, Any]:
    """Return a result of SARIF; `level` is error, warning or note, `mark` a fingerprint."""
    result: dict[str, Any] = {"ruleId": rule, "level": level, "message": {"text": text}}
    if mark:
        result["partialFingerprints"] = {"koordPolicy/v1": mark}
    if place is not None:
        result["locations"] = [sarif_location(place)]
    return result


def sarif(version: str, rules: Sequence[Mapping[str, Any]], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a SARIF log of one run, as plain data; results refer to the rules by `ruleId`."""
    numbers = {rule["id"]: number for number, rule in enumerate(rules)}
    driver = {"name": "koord-policy", "version": version or "0", "informationUri": "https://koordinator.sh",
              "rules": list(rules)}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{
            "tool": {"driver": driver}, "columnKind": "unicodeCodePoints",
            "results": [{"ruleId": each["ruleId"], "ruleIndex": numbers[each["ruleId"]], **each} for each in results],
        }],
    }


def to_json_text(data: object) -> str:
    """Return plain data as JSON for people and programs, without control characters."""
    return visible_json(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)) + "\n"
