from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Mount
from koordpolicy.engine.reload.mount import Stamp
from koordpolicy.engine.reload.watch import FileEvents

from .conftest import ConfigMapMount, Time, begun, messages, names, reloader_of, write


def test_events_come_again_after_the_thread_that_reads_them_has_ended(tmp_path: Path) -> None:
    changed = threading.Event()
    events = FileEvents(changed.set)
    try:
        events.watch([str(tmp_path)])
        assert events.working
        for emitter in events._observer.emitters:
            emitter.stop()
            emitter.join()
        assert not events.working
        events.watch([str(tmp_path)])
        assert events.working
        (tmp_path / "a.yaml").write_text("x")
        assert changed.wait(60)
    finally:
        events.close()


def test_an_edit_is_active_once_the_directory_is_quiet(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin one"))
    write(tmp_path / "p", a="plugin three")
    assert reloader.step(time.now) == time.now + 0.05
    assert names(live) == ["one"]
    reloader.step(time.now + 0.05)
    assert (names(live), live.registry.generation) == (["three"], 2)


def test_a_burst_of_edits_is_one_generation(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin p0"))
    for number in range(1, 30):
        write(tmp_path / "p", a=f"plugin p{number}")
        time.run(reloader, 0.025)
    assert names(live) == ["p0"]
    time.run(reloader, 0.2)
    assert (names(live), live.registry.generation) == (["p29"], 2)


def test_a_flapping_source_is_reported_and_not_read(tmp_path: Path, time: Time, live: Live) -> None:
    reloader = begun(live, time, write(tmp_path / "p", a="plugin p0"))
    for number in range(500):
        write(tmp_path / "p", a=f"plugin p{number}")
        time.run(reloader, 0.025)
    assert names(live) == ["p0"]
    assert reloader.status().sources[0].warnings == (
        f"`{tmp_path}/p` keeps changing and is read only once it is quiet for 0.05 s",)


def test_a_half_written_file_is_refused_and_the_rest_of_it_taken(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    with (policies / "a.yaml").open("w") as file:
        file.write("plug")
        file.flush()
        time.run(reloader, 1)
        assert (names(live), messages(reloader)) == (["one"], ["`plug` is not a declaration"])
        file.write("in two")
    time.run(reloader, 1)
    assert (names(live), messages(reloader)) == (["two"], [])


def test_configmap_swaps_are_followed(tmp_path: Path, time: Time, live: Live) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    prepared = mount.prepare({"a.yaml": "plugin two", "b.yaml": "plugin three"})
    time.run(reloader, 1)
    assert names(live) == ["one"]
    old = mount.swap(prepared)
    time.run(reloader, 1)
    assert names(live) == ["three", "two"]
    mount.finish(old)
    time.run(reloader, 1)
    assert (names(live), live.registry.generation) == (["three", "two"], 2)


@pytest.mark.parametrize("remount", [False, True])
def test_an_unmounted_configmap_keeps_running_and_alarms(
    tmp_path: Path, time: Time, live: Live, remount: bool,
) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    mount.unmount()
    time.run(reloader, 200)
    status = reloader.status().sources[0]
    assert (names(live), status.unmounted, status.observed) == (["one"], True, None)
    assert messages(reloader) == [
        f"`{mount.path}` cannot be read: its `..data` is gone, so the volume is no longer mounted"]
    if remount:
        mount.write({"a.yaml": "plugin two"})
        time.run(reloader, 1)
        status = reloader.status().sources[0]
        assert (names(live), status.unmounted, status.problems) == (["two"], False, ())


def test_a_directory_that_goes_away_and_comes_back_is_followed_again(tmp_path: Path, time: Time, live: Live) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    policies.rename(tmp_path / "away")
    time.run(reloader, 5)
    assert (names(live), reloader.status().sources[0].unmounted) == (["one"], True)
    (tmp_path / "away").rename(policies)
    time.run(reloader, 1)
    assert (names(live), reloader.status().healthy) == (["one"], True)


def test_an_empty_directory_is_intentionally_empty_if_it_still_is_an_interval_later(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    (policies / "a.yaml").unlink()
    time.run(reloader, 0.2)
    assert names(live) == ["one"]
    assert reloader.status().sources[0].warnings == (f"`{policies}` holds no policy files; looking again",)
    time.run(reloader, 1.1)
    assert (names(live), live.registry.generation) == ([], 2)
    assert reloader.status().sources[0].warnings == (f"`{policies}` holds no policy files",)


class Counted(Mount):
    """Counts how often it is read."""

    reads = 0

    def read(self, previous=None):
        self.reads += 1
        return super().read(previous)


def test_an_empty_directory_is_read_twice_and_then_left_alone(tmp_path: Path, time: Time, live: Live) -> None:
    policies = Counted(write(tmp_path / "p", a="plugin one"))
    other = write(tmp_path / "q", b="plugin two\nneeds one")
    reloader = begun(live, time, policies, other)
    (tmp_path / "p/a.yaml").unlink()
    policies.reads = 0
    time.run(reloader, 30)
    # It is not taken, since the other source needs what was in it.
    assert (names(live), policies.reads, messages(reloader)) == (["one", "two"], 2, ["no plugin `one`"])
    assert reloader.status().sources[0].warnings == (f"`{tmp_path}/p` holds no policy files",)
    write(other, b="plugin two")
    time.run(reloader, 20)
    assert (names(live), policies.reads) == (["two"], 2)


def test_two_empty_versions_within_an_interval_count_once(tmp_path: Path, time: Time, live: Live) -> None:
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    mount.write({})
    time.run(reloader, 0.3)
    mount.write({})
    time.run(reloader, 0.3)
    assert names(live) == ["one"]
    time.run(reloader, 2)
    assert names(live) == []


def test_a_directory_that_is_empty_for_less_than_an_interval_loses_nothing(
    tmp_path: Path, time: Time, live: Live,
) -> None:
    policies = write(tmp_path / "p", a="plugin one")
    reloader = begun(live, time, policies)
    for _ in range(5):
        (policies / "a.yaml").unlink()
        time.run(reloader, 0.5)
        write(policies, a="plugin one")
        time.run(reloader, 0.5)
    assert (names(live), live.registry.generation) == (["one"], 1)


def test_a_change_that_no_stamp_shows_is_found_once_a_minute(tmp_path: Path, time: Time, live: Live) -> None:
    # A network file system may show stale attributes; here the target of `..data` stays and its file changes.
    mount = ConfigMapMount(tmp_path / "m")
    mount.write({"a.yaml": "plugin one"})
    reloader = begun(live, time, mount.path)
    time.run(reloader, 2)
    (mount.path / "..data/a.yaml").write_text("plugin two")
    time.run(reloader, 50)
    assert names(live) == ["one"]
    time.run(reloader, 12)
    assert names(live) == ["two"]


def test_lost_permission_keeps_what_runs_and_is_reported(tmp_path: Path, time: Time, live: Live) -> None:
    denied: list[str] = []

    def open_at(path: str, flags: int, directory: int | None) -> int:
        if path in denied:
            raise PermissionError(13, "Permission denied")
        return os.open(path, flags, dir_fd=directory)

    policies = write(tmp_path / "p", a="plugin one", b="plugin two")
    reloader = begun(live, time, Mount(policies, open_at=open_at))
    denied.append("a.yaml")
    write(policies, b="plugin three")
    time.run(reloader, 2)
    assert (names(live), messages(reloader)) == (
        ["one", "two"], [f"`{policies}/a.yaml` cannot be read: permission denied"])
    denied[:] = [str(policies)]
    time.run(reloader, 2)
    assert messages(reloader)[0] == f"`{policies}` cannot be read: permission denied"
    denied.clear()
    time.run(reloader, 2)
    assert (names(live), messages(reloader)) == (["one", "three"], [])


def test_file_events_activate_an_edit_long_before_the_next_pass(tmp_path: Path) -> None:
    swapped = threading.Event()

    class Told(Live):
        def activate(self, registry, stage=None):
            registry = super().activate(registry, stage)
            swapped.set()
            return registry

    live = Told()
    policies = write(tmp_path / "p", a="plugin one")
    first_look = threading.Event()

    class Seen(Mount):
        def stamp(self):
            stamp = super().stamp()
            if threading.current_thread().name == "reload":
                first_look.set()
            return stamp

    reloader = reloader_of(live, Seen(policies), debounce=0.01, interval=600)
    reloader.start()
    try:
        assert first_look.wait(60)
        swapped.clear()
        write(policies, a="plugin two")
        assert swapped.wait(60)
        assert names(live) == ["two"]
        swapped.clear()
        (policies / "deep").mkdir()
        (policies / "deep/b.yaml").write_text("plugin three")
        assert swapped.wait(60)
        assert names(live) == ["three", "two"]
        assert reloader.status().events
    finally:
        reloader.close()


def test_a_change_that_follows_an_event_is_found_soon_although_its_own_event_is_late(
    tmp_path: Path, live: Live,
) -> None:
    policies, told, swapped = tmp_path / "p", [], threading.Event()
    write(policies, a="plugin one")

    class Late(FileEvents):
        """Passes on an event of a file that is written beside, and no other."""

        def watch(self, paths: Sequence[str]) -> None:
            if not told:
                told.append(self._changed)
                self._changed()

    class Renamed(Mount):
        """Has the file renamed right after the look that followed the event."""

        looks = 0

        def stamp(self) -> Stamp:
            found = super().stamp()
            self.looks += 1
            if told and self.looks == 4:
                write(policies, a="plugin two")
            return found

    reloader = reloader_of(live, Renamed(policies), interval=3600.0, debounce=0.0, file_events=Late)
    reloader.stage_with(lambda registry: swapped.set() if registry.generation == 2 else None)
    reloader.start()
    try:
        assert swapped.wait(60)
    finally:
        reloader.close()
