"""The forms of a report, compared whole."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from koordpolicy.engine.lint.reports import FORMATS, LintReport, ReportEntry
from koordpolicy.engine.source import Problem, Severity, Source

SOURCE = Source("a b/zone.yaml", "first: 1\nsecond: '\U0001f600 x'\n")
REPORT = LintReport(
    (
        ReportEntry(
            Problem("100 % is\nwrong", SOURCE.span(20, 23), "mend, it", Severity.ERROR, "KP033"), (SOURCE.span(0, 5),),
            True,
        ),
        ReportEntry(Problem("no file `gone`", None, "", Severity.WARNING, "unreadable")),
        ReportEntry(Problem("says nothing", SOURCE.span(0, 5), "", Severity.NOTE, "KP005")),
    ),
    ("a b/zone.yaml", "other.yaml"), 3, "1.2",
)


def test_text_shows_carets_counts_and_what_can_be_mended():
    assert FORMATS["text"](REPORT) == (
        "a b/zone.yaml:2:12: error: 100 % is wrong [KP033]\n 2 | second: '\U0001f600 x'\n   |             ^^ mend, it\n"
        "  = see a b/zone.yaml:1:1\nwarning: no file `gone`\n"
        "a b/zone.yaml:1:1: note: says nothing [KP005]\n 1 | first: 1\n   | ^^^^^\n\n"
        "1 error, 1 warning, 1 note in 3 documents of 2 files\n1 finding can be fixed with --fix\n"
    )


def test_the_text_shows_an_error_after_a_hundred_notes():
    notes = tuple(ReportEntry(Problem(f"n{number}", severity=Severity.NOTE)) for number in range(150))
    report = LintReport((*notes, ReportEntry(Problem("wrong"))), ("a.yaml",), 1)
    assert FORMATS["text"](report).splitlines()[98:] == [
        "note: n98", "error: wrong", "... and 51 more", "", "1 error, 0 warnings, 150 notes in 1 document of 1 file",
    ]


def test_json_holds_everything():
    found = json.loads(FORMATS["json"](REPORT))
    assert {key: found[key] for key in ("errors", "warnings", "notes", "documents", "files")} == {
        "errors": 1, "warnings": 1, "notes": 1, "documents": 3, "files": 2,
    }
    assert found["problems"][0] == {
        "severity": "error", "code": "KP033", "rule": "off-by-a-hundred", "message": "100 % is\nwrong",
        "help": "mend, it",
        "file": "a b/zone.yaml", "line": 2, "column": 12, "endLine": 3, "endColumn": 1, "fixable": True,
        "related": [{"file": "a b/zone.yaml", "line": 1, "column": 1}],
    }


def test_sarif_names_rules_and_places():
    (run,) = json.loads(FORMATS["sarif"](REPORT))["runs"]
    assert [(rule["id"], rule["defaultConfiguration"]["level"]) for rule in run["tool"]["driver"]["rules"]] == [
        ("KP005", "note"), ("KP033", "warning"), ("unreadable", "error"),
    ]
    assert [(each["ruleId"], each["ruleIndex"], each["level"]) for each in run["results"]] == [
        ("KP033", 1, "error"), ("unreadable", 2, "warning"), ("KP005", 0, "note"),
    ]
    assert run["results"][0]["locations"] == [{"physicalLocation": {
        "artifactLocation": {"uri": "a%20b/zone.yaml"},
        "region": {"startLine": 2, "startColumn": 12, "endLine": 3, "endColumn": 1},
    }}]
    assert "locations" not in run["results"][1]


def test_junit_fails_for_errors_and_warnings_only():
    root = ET.fromstring(FORMATS["junit"](REPORT))
    assert (root.get("tests"), root.get("failures")) == ("4", "2")
    assert [(suite.get("name"), suite.get("failures")) for suite in root] == [
        ("a b/zone.yaml", "1"), ("other.yaml", "0"), ("", "1"),
    ]


def test_github_commands_are_escaped():
    assert FORMATS["github"](REPORT) == (
        "::error file=a b/zone.yaml,line=2,endLine=3,title=KP033::100 %25 is%0Awrong (mend, it)\n"
        "::warning title=unreadable::no file `gone`\n"
        "::notice file=a b/zone.yaml,line=1,endLine=1,col=1,endColumn=6,title=KP005::says nothing\n"
    )


def test_gitlab_fingerprints_survive_a_move_and_differ_from_one_another():
    first = json.loads(FORMATS["gitlab"](REPORT))
    assert [(each["check_name"], each["severity"], each["location"]["path"]) for each in first] == [
        ("KP033", "critical", "a b/zone.yaml"), ("unreadable", "minor", ""), ("KP005", "info", "a b/zone.yaml"),
    ]
    moved = Source("a b/zone.yaml", "# more\n" + SOURCE.text)
    entry = ReportEntry(Problem("100 % is\nwrong", moved.span(27, 30), "mend, it", Severity.ERROR, "KP033"))
    again = json.loads(FORMATS["gitlab"](LintReport((entry, entry), (), 1)))
    assert again[0]["fingerprint"] == first[0]["fingerprint"] != again[1]["fingerprint"]


def test_lsp_counts_utf16_from_zero_and_clears_files_without_findings():
    first, other, nowhere = json.loads(FORMATS["lsp-json"](REPORT))
    assert first["uri"].startswith("file:///")
    assert first["uri"].endswith("/a%20b/zone.yaml")
    assert first["diagnostics"][0]["range"] == {
        "start": {"line": 1, "character": 12}, "end": {"line": 2, "character": 0},
    }
    assert (first["diagnostics"][0]["severity"], first["diagnostics"][0]["code"]) == (1, "KP033")
    assert (other["diagnostics"], len(nowhere["diagnostics"])) == ([], 1)
