"""The command that runs the live tests: the files that it is given, or all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

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
