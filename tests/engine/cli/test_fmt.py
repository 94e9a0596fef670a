from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from .conftest import Run

BEFORE = """\
spec:
    filter:
      - name: a   # why
        expression: "a&&b"
kind: SchedulerPlugin
apiVersion: policy.koordinator.sh/v1alpha2
"""
AFTER = """\
spec:
  filter:
  - name: a   # why
    expression: "a && b"
kind: SchedulerPlugin
apiVersion: policy.koordinator.sh/v1alpha2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policies" / "a.yaml"
    path.parent.mkdir()
    path.write_text(BEFORE, encoding="utf-8")
    (path.parent / "data.json").write_text('{"a":1}')
    return path


def test_files_are_rewritten_once_with_their_rights(run: Run, file: Path):
    file.chmod(0o640)
    done = run("fmt", file.parent, file)
    assert (done.exit, done.out, done.err) == (0, f"{file}\n1 of 1 file changed\n", "")
    assert file.read_text(encoding="utf-8") == AFTER
    assert file.stat().st_mode & 0o777 == 0o640
    assert run("fmt", file.parent).out == "0 of 1 file changed\n"
    assert [each.name for each in file.parent.iterdir() if each.suffix == ".yaml"] == ["a.yaml"]


def test_check_lists_files_and_changes_none(run: Run, file: Path):
    done = run("fmt", file.parent, "--check")
    assert (done.exit, done.out, file.read_text(encoding="utf-8")) == (6, f"{file}\n1 of 1 file would change\n", BEFORE)
    file.write_text(AFTER, encoding="utf-8")
    done = run("fmt", file.parent, "--check")
    assert (done.exit, done.out) == (0, "0 of 1 file would change\n")


def test_diff_prints_what_would_change(run: Run, file: Path):
    done = run("fmt", file, "--diff")
    assert (done.exit, file.read_text(encoding="utf-8")) == (0, BEFORE)
    assert done.out == (
        f"--- {file}\n+++ {file} (formatted)\n@@ -1,7 +1,7 @@\n spec:\n"
        '-    filter:\n-      - name: a   # why\n-        expression: "a&&b"\n'
        '+  filter:\n+  - name: a   # why\n+    expression: "a && b"\n'
        " kind: SchedulerPlugin\n apiVersion: policy.koordinator.sh/v1alpha2\n \n1 of 1 file would change\n"
    )
    assert run("fmt", file, "--diff", "--check").exit == 6


def test_standard_input_is_formatted_to_standard_output(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BEFORE.encode())))
    assert run("fmt", "-").out == AFTER
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a: [1")))
    done = run("fmt", "-", "--stdin-name", "b.yaml")
    assert (done.exit, done.out) == (3, "")
    assert done.err.startswith("b.yaml:1:5: error: did not find expected ',' or ']'")


def test_an_unreadable_file_stays_and_the_others_are_formatted(run: Run, file: Path):
    bad = file.with_name("bad.yaml")
    bad.write_bytes(b"a:   \xff")
    done = run("fmt", file.parent)
    assert (done.exit, done.out) == (3, f"{file}\n1 of 2 files changed\n")
    assert done.err.startswith(f"{bad}:1:6: error: byte 0xff at offset 5 is not UTF-8")
    assert bad.read_bytes() == b"a:   \xff"


def test_other_paths_are_usage_errors(run: Run, file: Path):
    json = file.with_name("data.json")
    assert (run("fmt", json).exit, run("fmt", json).err) == (2, f"koord-policy: `{json}` is JSON: `fmt` is for YAML\n")
    assert run("fmt", file.parent / "nowhere").exit == 2


@pytest.mark.parametrize("text", ["", "hello\n", "apiVersion: v1\nkind: Pod\n", "- a\n", "apiVersion: [v1]\n"])
def test_a_named_file_that_is_no_policy_says_so(run: Run, tmp_path: Path, text: str):
    path = tmp_path / "other.yaml"
    path.write_text(text)
    done = run("fmt", path, "--check")
    assert (done.exit, done.err) == (
        0, f"warning: there is no policy document in `{path}`: it is laid out as other YAML\n")
    assert run("fmt", tmp_path, "--check").err == ""


def test_an_invalid_policy_is_a_policy(run: Run, tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text("---\napiVersion: policy.koordinator.sh/v9\n")
    assert run("fmt", path, "--check").err == ""
