from __future__ import annotations

import threading
from pathlib import Path

import pytest

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.source import PolicyError

from .conftest import Time, begun, digest_of, names, serve, write


def test_rolling_back_to_what_is_not_kept_changes_nothing(tmp_path: Path, live: Live, time: Time) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    asked = reloader.restore("77")
    serve(reloader, time)
    with pytest.raises(PolicyError, match="no generation `77` is in the history"):
        asked.result()
    assert (live.registry.generation, reloader.status().healthy) == (1, True)


def test_published_files_are_active_at_once_and_invalid_ones_are_reported(
    tmp_path: Path, live: Live, time: Time,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    asked = reloader.publish(str(policies), {"b.yaml": b"plugin two"})
    serve(reloader, time)
    assert (asked.result().generation, names(live), digest_of(policies)) == (
        2, ["two"], reloader.status().sources[0].digest)
    asked = reloader.publish(str(policies), {"b.yaml": b"nonsense"})
    serve(reloader, time)
    with pytest.raises(PolicyError, match="is not a declaration"):
        asked.result()
    assert names(live) == ["two"]


def test_what_was_rolled_back_is_active_where_somebody_publishes_it(tmp_path: Path, live: Live, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.restore()
    serve(reloader, time)
    reloader.publish(str(policies), {"a.yaml": b"plugin two"})
    serve(reloader, time)
    assert (names(live), reloader.status().healthy) == (["two"], True)


def test_nothing_is_published_over_what_somebody_else_has_just_changed(
    tmp_path: Path, live: Live, time: Time,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    first = live.registry.digest
    write(policies, a="plugin two")
    asked = reloader.publish(str(policies), {"a.yaml": b"plugin three"}, over=first)
    serve(reloader, time)
    with pytest.raises(PolicyError, match="has just been changed: nothing was published"):
        asked.result()
    asked = reloader.publish(str(policies), {"a.yaml": b"plugin three"}, over=first)
    serve(reloader, time)
    assert asked.exception() is not None
    assert names(live) == ["two"]
    reloader.publish(str(policies), {"a.yaml": b"plugin three"}, over=live.registry.digest)
    serve(reloader, time)
    assert names(live) == ["three"]


def test_requests_that_come_too_late_end_with_an_error(tmp_path: Path, live: Live, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    waiting, given_up = reloader.restore("1"), reloader.restore("1")
    assert given_up.cancel()
    reloader.close()
    late = reloader.publish(str(policies), {"b.yaml": b"plugin two"})
    for each in (waiting, late):
        with pytest.raises(PolicyError, match="policies are reloaded no more: nothing was changed"):
            each.result(0)
    assert (names(live), sorted(file.name for file in policies.iterdir())) == (["one"], ["a.yaml"])


def test_a_request_ends_though_the_pass_that_executes_it_fails(
    tmp_path: Path, live: Live, time: Time, monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)

    def fail(now: float) -> None:
        raise OSError("the status cannot be written")

    monkeypatch.setattr(reloader, "_publish_status", fail)
    asked = reloader.publish(str(policies), {"b.yaml": b"plugin two"})
    with pytest.raises(OSError, match="the status cannot be written"):
        serve(reloader, time)
    assert asked.result(0).generation == 2


def test_requests_end_with_an_error_where_the_thread_that_reloads_ends_by_itself(
    tmp_path: Path, live: Live, time: Time, monkeypatch: pytest.MonkeyPatch,
) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))

    def fail(now: float) -> float:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(reloader, "step", fail)
    asked = reloader.restore("1")
    with pytest.raises(RuntimeError, match="a fault of ours"):
        reloader.run(threading.Event())
    with pytest.raises(PolicyError, match="policies are reloaded no more"):
        asked.result(0)
