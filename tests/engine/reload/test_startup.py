from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import InvalidAtStart, Reloader
from koordpolicy.engine.source import PolicyError

from .conftest import (
    ConfigMapMount,
    Time,
    begun,
    compiled,
    digest_of,
    messages,
    names,
    refuse_odd,
    reloader_of,
    report_overdue,
    serve,
    write,
)


def test_a_source_without_policies_at_start_is_refused_unless_it_may_be_empty(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="")
    with pytest.raises(PolicyError, match="holds no policy"):
        compiled(Live(), time, policies)
    assert begun(Live(), time, policies).status().healthy


def test_a_source_that_is_empty_at_start_goes_on_with_the_last_good_set(tmp_path: Path, time: Time) -> None:
    policies, live = write(tmp_path / "p", a="plugin SchedulerPlugin-one"), Live()
    begun(Live(), time, policies, allow_empty=False, state_dir=tmp_path / "s").close()
    (policies / "a.yaml").unlink()
    reloader = begun(live, time, policies, allow_empty=False, state_dir=tmp_path / "s")
    time.run(reloader, 5)
    assert (names(live), messages(reloader)) == (["SchedulerPlugin-one"], [f"`{policies}` holds no policy"])


def test_what_nobody_can_run_is_invalid_at_start(tmp_path: Path, live: Live) -> None:
    with pytest.raises(PolicyError, match="`odd` is odd"):
        reloader_of(live, write(tmp_path / "p", a="plugin odd"), check=refuse_odd).begin(0)


def test_invalid_at_start_is_refused_with_everything_that_is_wrong(tmp_path: Path, live: Live) -> None:
    one, two = write(tmp_path / "1", a="nonsense"), write(tmp_path / "2", a="plugin x", b="plugin x")
    (one / "b.yaml").write_bytes(b"\xff")
    with pytest.raises(PolicyError) as caught:
        reloader_of(live, one, two, tmp_path / "gone").begin(0)
    assert [problem.message for problem in caught.value.problems] == [
        f"`{tmp_path}/gone` cannot be read: it does not exist",
        "`nonsense` is not a declaration", "byte 0xff at offset 0 is not UTF-8",
    ]
    assert live.registry.generation == 0


def last_good(live: Live, time: Time, *paths: Path, state: Path) -> Reloader:
    return begun(live, time, *paths, state_dir=state, invalid_at_start=InvalidAtStart.LAST_GOOD)


def test_invalid_at_start_may_mean_the_last_good_set(tmp_path: Path, time: Time) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    begun(Live(), time, one, two, state_dir=tmp_path / "state")
    published = digest_of(one)
    write(one, a="nonsense")
    write(two, a="plugin three")
    live = Live()
    reloader = last_good(live, time, one, two, state=tmp_path / "state")
    first, second = reloader.status().sources
    assert names(live) == ["one", "three"]
    assert (first.digest, first.last_good, first.since) == (published, True, 5.0)
    assert (second.digest, second.last_good) == (digest_of(two), False)
    assert messages(reloader, 0) == ["`nonsense` is not a declaration"]
    write(one, a="plugin four")
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["four", "three"], True)


def test_the_last_good_set_bridges_a_missing_or_empty_mount(tmp_path: Path, time: Time) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    begun(Live(), time, mount.path, state_dir=tmp_path / "state")
    mount.unmount()
    mount.path.rmdir()
    live = Live()
    reloader = last_good(live, time, mount.path, state=tmp_path / "state")
    assert (names(live), reloader.status().sources[0].unmounted) == (["one"], True)
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin two"})
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["two"], True)


@pytest.mark.parametrize("invalid", InvalidAtStart)
def test_an_empty_directory_at_start_is_intentionally_empty_an_interval_later_too(
    tmp_path: Path, time: Time, invalid: InvalidAtStart,
) -> None:
    one, two = write(tmp_path / "1", a="plugin one"), write(tmp_path / "2", a="plugin two")
    settings = {"state_dir": tmp_path / "state", "invalid_at_start": invalid}
    begun(Live(), time, one, two, clock=lambda: 3.0, **settings)
    (one / "a.yaml").unlink()
    write(two, a="plugin three")
    live = Live()
    reloader = begun(live, time, one, two, **settings)
    first, second = reloader.status().sources
    assert names(live) == ["one", "three"]
    assert (first.last_good, first.since, first.warnings) == (
        True, 3.0, (f"`{one}` holds no policy files; looking again",),
    )
    assert (second.last_good, second.digest) == (False, digest_of(two))
    time.run(reloader, 1.2)
    assert (names(live), reloader.status().healthy) == (["three"], True)
    assert reloader.status().sources[0].digest == digest_of(one)


def test_what_an_empty_directory_held_comes_back_as_if_it_had_never_been_away(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    (policies / "a.yaml").rename(tmp_path / "away")
    live = Live()
    reloader = begun(live, time, policies, state_dir=tmp_path / "state")
    (tmp_path / "away").rename(policies / "a.yaml")
    time.run(reloader, 5)
    assert (names(live), live.registry.generation, reloader.status().healthy) == (["one"], 1, True)


def test_an_empty_directory_at_start_is_taken_at_once_where_nothing_can_be_held(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin odd")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    (policies / "a.yaml").unlink()
    live = Live()
    reloader = begun(live, time, policies, state_dir=tmp_path / "state", check=refuse_odd)
    assert (names(live), reloader.status().healthy) == ([], True)


def test_the_last_good_set_keeps_texts_that_began_with_a_byte_order_mark(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="\ufeffplugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    published = digest_of(policies)
    write(policies, a="nonsense")
    reloader = last_good(Live(), time, policies, state=tmp_path / "state")
    assert reloader.status().sources[0].digest == published


def test_the_last_good_set_is_what_was_published_again_once_the_edit_is_taken_back(tmp_path: Path, time: Time) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    write(policies, a="nonsense")
    reloader = begun(Live(), time, policies, state_dir=tmp_path / "state", invalid_at_start=InvalidAtStart.LAST_GOOD)
    assert (reloader.status().healthy, reloader.status().sources[0].last_good) == (False, True)
    write(policies, a="plugin one")
    time.run(reloader, 1)
    assert (reloader.status().healthy, reloader.status().sources[0].last_good) == (True, False)


@pytest.mark.parametrize(("damage", "message"), [
    (lambda path: path.unlink(), "there is no last good set in `STATE`"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]), "the last good set `FILE` has 145 of 146 bytes"),
    (lambda path: path.write_bytes(path.read_bytes().replace(b"plugin one", b"plugin two")),
     "the last good set `FILE` is damaged: its checksum does not fit"),
    (lambda path: path.write_bytes(b""), "`FILE` is not a last good set of this version"),
    (lambda path: path.write_bytes(b"\xff\x00" * 1000), "`FILE` is not a last good set of this version"),
    (lambda path: (path.unlink(), path.mkdir()), "the last good set `FILE` cannot be read: is a directory"),
])
def test_a_last_good_set_that_is_not_whole_is_refused(tmp_path: Path, time: Time, damage, message: str) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    begun(Live(), time, policies, state_dir=tmp_path / "state")
    state = tmp_path / "state/last-good.json"
    size = state.read_bytes().split(b" ")[1].decode()
    damage(state)
    write(policies, a="nonsense")
    live = Live()
    with pytest.raises(PolicyError) as caught:
        last_good(live, time, policies, state=tmp_path / "state")
    expected = message.replace("FILE", str(state)).replace("STATE", str(state.parent))
    if "bytes" in message:
        expected = f"the last good set `{state}` has {int(size) - 1} of {size} bytes"
    assert sorted(problem.message for problem in caught.value.problems) == sorted(
        [expected, "`nonsense` is not a declaration"])
    assert live.registry.generation == 0


def test_valid_policies_start_beside_a_damaged_last_good_set_and_heal_it(tmp_path: Path, time: Time) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/last-good.json").write_text("garbage")
    live = Live()
    policies = write(tmp_path / "p", a="plugin one")
    last_good(live, time, policies, state=tmp_path / "state")
    write(policies, a="nonsense")
    last_good(other := Live(), time, policies, state=tmp_path / "state")
    assert names(other) == ["one"]


def test_a_restart_does_not_bring_back_what_was_rolled_back_from(tmp_path: Path, live: Live, time: Time) -> None:
    policies, state = write(tmp_path / "p", a="plugin one"), tmp_path / "state"
    reloader = begun(live, time, policies, state_dir=state)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.restore()
    serve(reloader, time)
    again = Live()
    reloader = begun(again, time, policies, state_dir=state)
    time.run(reloader, 100)
    assert names(again) == ["one"]
    assert [problem.message for problem in reloader.status().sources[0].problems] == [
        "it was rolled back before the last start"]
    write(policies, a="plugin three")
    time.run(reloader, 2)
    assert (names(again), reloader.status().healthy) == (["three"], True)


def test_policies_that_may_wait_begin_with_nothing_active(tmp_path: Path, live: Live, time: Time) -> None:
    policies = tmp_path / "p"
    reloader = begun(live, time, policies, invalid_at_start=InvalidAtStart.WAIT)
    assert (live.registry.generation, reloader.status().sources[0].unmounted) == (0, True)
    write(policies, a="nonsense")
    time.run(reloader, 2)
    assert (live.registry.generation, reloader.status().sources[0].problems[0].code) == (0, "toy")
    write(policies, a="plugin one")
    time.run(reloader, 2)
    assert (names(live), reloader.status().healthy) == (["one"], True)


def test_a_restart_does_not_bring_back_what_failed_too_often(tmp_path: Path, live: Live, time: Time) -> None:
    policies, state = write(tmp_path / "p", a="plugin one"), tmp_path / "state"
    reloader = begun(live, time, policies, state_dir=state, max_error_rate=0.1, first_decisions=10)
    reloader.observe(1, 10, 0)
    time.run(reloader, 2)
    write(policies, a="plugin two")
    time.run(reloader, 2)
    reloader.observe(2, 10, 9)
    time.run(reloader, 2)
    assert (names(live), reloader.status().history[1].failed) == (
        ["one"], "9 of the first 10 decisions under generation 2 had failing expressions")
    again = Live()
    reloader = begun(again, time, policies, state_dir=state, max_error_rate=0.1, first_decisions=10)
    assert (names(again), reloader.status().healthy) == (["one"], False)


def test_an_overdue_content_stays_blocked_over_a_restart(tmp_path: Path, time: Time, live: Live) -> None:
    policies, state = write(tmp_path / "p", a="plugin one"), tmp_path / "state"
    reloader = begun(live, time, policies, state_dir=state)
    write(policies, a="plugin slow")
    time.run(reloader, 1)
    report_overdue(reloader, live, "slow")
    time.run(reloader, 1)
    again = Live()
    reloader = begun(again, time, policies, state_dir=state)
    assert (names(again), [problem.code for problem in reloader.status().sources[0].problems]) == (["one"], ["held"])
    write(policies, a="plugin fast")
    time.run(reloader, 1)
    assert names(again) == ["fast"]
