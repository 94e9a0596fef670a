from __future__ import annotations

import argparse
import json
import logging
import sys

import pytest

from koordpolicy.engine.cli.logs import JsonFormatter, log_level, start_logs


@pytest.fixture(autouse=True)
def _restore():
    root = logging.getLogger("koordpolicy.scheduler")
    before = root.handlers[:], root.propagate, root.level
    yield
    root.handlers[:], root.propagate = before[0], before[1]
    root.setLevel(before[2])
    logging.getLogger("koordpolicy.scheduler.Gang").setLevel(logging.NOTSET)


def test_levels_are_read_by_plugin():
    assert (log_level("Gang=debug"), log_level("*=ERROR")) == (("Gang", logging.DEBUG), ("*", logging.ERROR))


@pytest.mark.parametrize(("text", "message"), [
    ("Gang", "`Gang` is not PLUGIN=LEVEL, such as `Coscheduling=debug`"),
    ("=debug", "`=debug` is not PLUGIN=LEVEL, such as `Coscheduling=debug`"),
    ("Gang=debag", "there is no level `debag`: did you mean `debug`?"),
    ("Gang=loud", "there is no level `loud`: choose one of debug, info, warning, error"),
])
def test_a_level_that_cannot_be_read_says_what_to_write(text, message):
    with pytest.raises(argparse.ArgumentTypeError) as error:
        log_level(text)
    assert str(error.value) == message


def test_a_plugin_is_heard_from_its_level_on_and_others_from_warnings_on(capsys):
    start_logs([("Gang", logging.DEBUG)], ["Gang"], enabled=False)
    logging.getLogger("koordpolicy.scheduler.Gang").debug("two of three are there")
    logging.getLogger("koordpolicy.scheduler.Other").info("not asked for")
    logging.getLogger("koordpolicy.scheduler.Other").warning("odd")
    assert capsys.readouterr().err == (
        "D koordpolicy.scheduler.Gang: two of three are there\nW koordpolicy.scheduler.Other: odd\n"
    )


def test_nothing_changes_where_nothing_is_asked_for():
    before = logging.getLogger("koordpolicy.scheduler").handlers[:]
    start_logs([], [], enabled=False)
    assert logging.getLogger("koordpolicy.scheduler").handlers == before


def formatted(record, generation=lambda: 7):
    return JsonFormatter(generation).format(record)


def record(message, *arguments, **extra):
    made = logging.LogRecord("koordpolicy.engine", logging.WARNING, __file__, 1, message, arguments, None)
    made.created = 1_700_000_000.25
    vars(made).update(extra)
    return made


def test_a_record_is_a_line_of_json():
    assert json.loads(formatted(record("%s is not bound", "shop/web", pod="shop/web", generation=3))) == {
        "time": "2023-11-14T22:13:20.250Z", "level": "warning", "logger": "koordpolicy.engine",
        "message": "shop/web is not bound", "pod": "shop/web", "generation": 3}


def test_a_record_without_a_generation_has_the_active_one_if_there_is_one():
    assert json.loads(formatted(record("ready")))["generation"] == 7
    assert json.loads(formatted(record("starts"), lambda: None)).keys() == {"time", "level", "logger", "message"}


def test_a_traceback_is_a_text_of_the_record():
    made = record("failed")
    try:
        int("what was wrong")
    except ValueError:
        made.exc_info = sys.exc_info()
    found = json.loads(formatted(made))
    assert found["exception"].endswith("'what was wrong'")
    assert found["exception"].startswith("Traceback")


def test_text_of_others_can_neither_control_a_terminal_nor_imitate_a_record():
    hostile = 'a\x1b[2J\u202e\n{"level": "error"}\n::error::x ##[group]'
    line = formatted(record("%s", hostile, pod=hostile))
    assert "\n" not in line
    assert not any(character in line for character in "\x1b\u202e")
    assert "##[" not in line
    assert json.loads(line)["message"] == json.loads(line)["pod"] == hostile
