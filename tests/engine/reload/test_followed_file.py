"""The newest valid content of a file is active; a faulty one is refused with its place."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from koordpolicy.engine.cluster.kinds import NOT_LISTED
from koordpolicy.engine.reload.followed_file import FollowedFile
from koordpolicy.engine.source import PolicyError, Problem, Source


def number(source: Source) -> int:
    if not source.text.strip().isdigit():
        raise PolicyError([Problem("this is no number", source.span(0))])
    return int(source.text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "number"
    found.write_text("1")
    return found


def looks(file: FollowedFile[int], times: int = 2) -> list[bool]:
    return [file.look() for _ in range(times)]


def test_a_new_content_is_active_when_it_was_seen_twice(path: Path):
    times = iter([10.0, 20.0])
    file = FollowedFile(path, number, clock=lambda: next(times))
    assert (file.value, looks(file), file.status.loaded_at) == (1, [False, False], 10.0)
    path.write_text("2")
    assert looks(file, 3) == [False, True, False]
    assert (file.value, file.status.loaded_at) == (2, 20.0)


def test_a_content_that_is_written_at_the_moment_is_waited_for(path: Path):
    file = FollowedFile(path, number)
    for text in ("22", "222", "2222"):
        path.write_text(text)
        assert not file.look()
    assert (looks(file), file.value) == ([True, False], 2222)


def test_a_faulty_content_is_refused_with_its_place_until_it_is_mended(
    path: Path, caplog: pytest.LogCaptureFixture,
):
    file = FollowedFile(path, number)
    path.write_text("two")
    assert (looks(file, 4), file.value) == ([False] * 4, 1)
    (problem,) = file.status.problems
    assert problem.render().splitlines()[0] == f"{path}:1:1: error: this is no number"
    (message,) = caplog.messages  # said once
    assert f"the new content of `{path}` is refused, and the last one stays active" in message
    path.write_text("1")
    assert (looks(file), file.status.problems) == ([False, False], ())
    path.write_text("3")
    assert (looks(file), file.value) == ([False, True], 3)


def test_a_missing_file_leaves_the_last_content_active(path: Path, caplog: pytest.LogCaptureFixture):
    file = FollowedFile(path, number)
    path.unlink()
    assert (looks(file), file.value, len(caplog.messages)) == ([False, False], 1, 1)
    assert "cannot read" in file.status.problems[0].message
    path.write_text("1")
    assert (looks(file), file.status.problems) == ([False, False], ())


def test_a_content_that_is_not_accepted_is_refused_and_one_that_waits_is_tried_again(path: Path):
    codes = ["profile", NOT_LISTED, ""]

    def accept(value: int) -> None:
        code = codes.pop(0)
        if code:
            raise PolicyError([Problem(f"{value} is too much", code=code)])

    file = FollowedFile(path, number)
    file.accept = accept
    path.write_text("2")
    assert (looks(file, 4), codes) == ([False] * 4, [NOT_LISTED, ""])
    path.write_text("3")
    assert (looks(file, 4), codes, file.value) == ([False, False, True, False], [], 3)


def test_a_file_that_is_faulty_at_start_is_an_error(path: Path):
    path.write_text("one")
    with pytest.raises(PolicyError, match="this is no number"):
        FollowedFile(path, number)


def test_a_thread_looks_until_it_is_closed(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("koordpolicy.engine.reload.followed_file.LOOK_S", 0.001)
    file, changed = FollowedFile(path, number), threading.Event()
    path.write_text("2")
    file.start(changed.set)
    try:
        assert changed.wait(60)
    finally:
        file.close()
    assert file.value == 2
