"""The command that runs the live tests, with the files that it is given or all of them, and the binaries they need."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .e2e import build
from .e2e.__main__ import FOLDER, paths_of

FILE = FOLDER / "test_client.py"


@pytest.mark.parametrize("argument", [
    str(FILE), f"{FILE}::test_one", str(FOLDER), "test_client.py", "./test_client.py::test_one",
])
def test_files_and_tests_of_the_folder_are_paths(argument: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(FOLDER)
    assert paths_of(["-k", "bind", argument, "-x"]) == [argument]


def test_words_that_name_no_live_test_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.xml").touch()
    assert paths_of(["-k", "test_client.py", "--junitxml", "report.xml", "-m", "browser", "-x"]) == []


GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26.8; exit; fi
while [ "$1" != -o ]; do shift; done
echo building >> "$GO_LOG"
sleep 0.3
echo binary > "$2"
"""


def test_a_binary_that_several_want_at_once_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GO_LOG", str(log))
    with ThreadPoolExecutor(3) as pool:
        paths = [pool.submit(build.registry_binary) for _ in range(3)]
    assert {path.result().read_text() for path in paths} == {"binary\n"}
    assert log.read_text() == "building\n"
