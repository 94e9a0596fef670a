from __future__ import annotations

import logging
from pathlib import Path

import pytest

from koordpolicy.engine.framework.registry import Live

from .conftest import ConfigMapMount, Time, begun, write


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture):
    """Return the messages that were logged since the last call."""
    caplog.set_level(logging.INFO, logger="koordpolicy")

    def read() -> list[str]:
        found = [f"{record.levelname} {record.getMessage()}" for record in caplog.records]
        caplog.clear()
        return found

    return read


def test_every_generation_is_logged_once_with_its_policies(tmp_path: Path, time: Time, live: Live, lines) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    time.run(reloader, 200)
    assert lines() == ["INFO generation 1 is active: 1 policy (one)"]
    write(policies, a="\n".join(f"plugin p{number:02}" for number in range(12)))
    time.run(reloader, 200)
    shown = ", ".join(f"p{number:02}" for number in range(10))
    assert lines() == [f"INFO generation 2 is active: 12 policies ({shown} and 2 more)"]


def test_a_refused_version_is_logged_once_and_again_when_it_is_another(
    tmp_path: Path, time: Time, live: Live, lines,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    lines()
    refused = (f"ERROR {policies} refused, generation 1 stays active: {policies}/a.yaml:1:1: error: "
               "`nonsense` is not a declaration\n 1 | nonsense\n   | ^^^^^^^^")
    write(policies, a="nonsense")
    time.run(reloader, 200)
    assert lines() == [refused]
    write(policies, a="nonsense\nplugin one")
    time.run(reloader, 200)
    assert lines() == [refused]
    write(policies, a="plugin one")
    time.run(reloader, 200)
    assert lines() == [f"INFO {policies} holds the active version again: generation 1 stays active"]


def test_an_edit_that_changes_no_policy_is_logged_as_that(tmp_path: Path, time: Time, live: Live, lines) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    lines()
    write(policies, b="")
    time.run(reloader, 1)
    assert lines() == [f"INFO {policies} changed, and none of its policies did: generation 1 stays active"]


def test_a_server_that_follows_no_policies_is_not_warned(time: Time, live: Live, lines) -> None:
    begun(live, time)
    assert lines() == ["INFO generation 1 is active: no policies"]


def test_an_empty_directory_is_warned_about_before_and_when_it_takes_effect(
    tmp_path: Path, time: Time, live: Live, lines,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    lines()
    (policies / "a.yaml").unlink()
    time.run(reloader, 200)
    assert lines() == [
        f"WARNING `{policies}` holds no policy files; looking again",
        "WARNING generation 2 is active: no policies",
        f"WARNING `{policies}` holds no policy files",
    ]


def test_an_unmount_is_logged_and_what_runs_goes_on(tmp_path: Path, time: Time, live: Live, lines) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    lines()
    mount.unmount()
    time.run(reloader, 200)
    assert lines() == [
        (f"ERROR generation 1 stays active: error: `{mount.path}` cannot be read: its `..data` is gone, so the volume "
         "is no longer mounted\n  = mount or restore it")]


def test_a_roll_back_is_logged(tmp_path: Path, time: Time, live: Live, lines) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies, max_error_rate=0.5, first_decisions=10)
    write(policies, a="plugin two")
    time.run(reloader, 1)
    lines()
    reloader.observe(2, 10, 10)
    time.run(reloader, 200)
    failed = "10 of the first 10 decisions under generation 2 had failing expressions"
    assert lines() == [
        "INFO generation 3 is active: 1 policy (one)",
        (f"ERROR {policies} refused, generation 3 stays active: error: {failed}, so it was rolled back\n"
         "  = look at the errors in metrics and verdicts, and edit it"),
        f"WARNING {failed}: rolled back to what was active before",
    ]
