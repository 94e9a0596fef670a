from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.audit import AuditEvent, AuditLog, AuditPages, AuditSettings, PageError, _backwards

TIME = 1_700_000_000_123_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(tmp_path: Path, clock: Clock, **settings: int) -> AuditLog:
    return AuditLog(AuditSettings(tmp_path / "audit", **settings), clock=clock)


def event(number: int, level: int = 0) -> AuditEvent:
    return AuditEvent(TIME, "node", "CPUBurst", f"event {number}", level)


def messages(lines) -> list[str]:
    return [json.loads(line)["message"] for line in lines]


def test_an_event_has_koordlets_fields_and_no_empty_ones():
    found = AuditEvent(TIME, "pod", "CPUBurst", "to 3", 2, "shop", "web").to_json()
    assert found == {"createdAt": "2023-11-14T22:13:20.123Z", "type": "pod", "level": 2, "namespace": "shop",
                     "name": "web", "reason": "CPUBurst", "message": "to 3"}
    assert AuditEvent(TIME, "node", "x").to_json().keys() == {"createdAt", "type", "reason"}


def test_events_above_the_verbosity_are_dropped(tmp_path, clock):
    log = made(tmp_path, clock)
    log.add(event(1, level=3))
    log.add(event(2, level=4))
    assert messages(log.lines()) == ["event 1"]


def test_events_are_buffered_for_five_seconds(tmp_path, clock):
    log = made(tmp_path, clock)
    log.add(event(1))
    assert log.files() == []
    clock.now = 5.0
    log.add(event(2))
    assert [path.name for path in log.files()] == ["audit.log"]
    assert messages(log.files()[0].read_text().splitlines()) == ["event 1", "event 2"]


def test_files_are_rotated_and_bounded(tmp_path, clock):
    log = made(tmp_path, clock, file_bytes=300, total_bytes=1000)
    for number in range(60):
        log.add(event(number))
        log.flush()
    assert sum(path.stat().st_size for path in log.files()) <= 1400
    found = messages(log.lines())
    assert found == [f"event {number}" for number in range(59, 59 - len(found), -1)]
    assert len(found) > 5
    assert all(path.name.startswith("audit-") for path in log.files()[1:])


def test_a_disk_that_cannot_be_written_costs_events_only(tmp_path, clock, caplog):
    (tmp_path / "audit").write_text("a file")
    log = made(tmp_path, clock)
    for number in range(2):
        log.add(event(number))
        log.flush()
    assert (log.dropped, len(caplog.records)) == (2, 1)


def test_pages_are_newest_first_and_end_without_a_token(tmp_path, clock):
    log = made(tmp_path, clock)
    for number in range(5):
        log.add(event(number))
    pages = AuditPages(log, clock=clock)
    first = pages.page("2")
    log.add(event(5))  # a later event is of no page that was begun
    second = pages.page("2", first.token)
    third = pages.page("2", second.token)
    assert [messages(page.lines) for page in (first, second, third)] == [
        ["event 4", "event 3"], ["event 2", "event 1"], ["event 0"]]
    assert third.token == ""
    with pytest.raises(PageError) as raised:
        pages.page("2", second.token)
    assert raised.value.status == 409


@pytest.mark.parametrize("size", ["0", "2049", "-1", "many", "1.5"])
def test_a_bad_size_is_refused(tmp_path, clock, size):
    with pytest.raises(PageError) as raised:
        AuditPages(made(tmp_path, clock), clock=clock).page(size)
    assert raised.value.status == 400


def test_only_four_readers_page_at_a_time_and_ten_minutes_at_most(tmp_path, clock):
    log = made(tmp_path, clock)
    for number in range(4):
        log.add(event(number))
    pages = AuditPages(log, clock=clock)
    tokens = [pages.page("1").token for _ in range(4)]
    with pytest.raises(PageError) as raised:
        pages.page("1")
    assert raised.value.status == 429
    clock.now = 300.0
    pages.page("1", tokens[0])
    clock.now = 601.0
    assert messages(pages.page("1").lines) == ["event 3"]
    assert messages(pages.page("1", tokens[0]).lines) == ["event 1"]
    with pytest.raises(PageError):
        pages.page("1", tokens[1])
    pages.close()


def test_without_events_a_page_is_empty(tmp_path, clock):
    assert AuditPages(made(tmp_path, clock), clock=clock).page().lines == ()


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), min_size=1)))
def test_lines_are_read_backwards_whatever_they_hold(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    with path.open("rb") as file:
        assert list(_backwards(file)) == lines[::-1]


def test_a_long_line_is_longer_than_a_block(tmp_path):
    path = tmp_path / "file"
    path.write_text(f"{'a' * 200_000}\n{'b' * 70_000}\nc\n")
    with path.open("rb") as file:
        assert [len(line) for line in _backwards(file)] == [1, 70_000, 200_000]
