from __future__ import annotations

import argparse
import logging

import pytest

from koordpolicy.engine.cli.logs import log_level, start_logs


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
    start_logs([("Gang", logging.DEBUG)], ["Gang"], wanted=False)
    logging.getLogger("koordpolicy.scheduler.Gang").debug("two of three are there")
    logging.getLogger("koordpolicy.scheduler.Other").info("not asked for")
    logging.getLogger("koordpolicy.scheduler.Other").warning("odd")
    assert capsys.readouterr().err == (
        "D koordpolicy.scheduler.Gang: two of three are there\nW koordpolicy.scheduler.Other: odd\n"
    )


def test_nothing_changes_where_nothing_is_asked_for():
    before = logging.getLogger("koordpolicy.scheduler").handlers[:]
    start_logs([], [], wanted=False)
    assert logging.getLogger("koordpolicy.scheduler").handlers == before
