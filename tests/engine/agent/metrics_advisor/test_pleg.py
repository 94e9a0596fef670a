from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.agent.host.control_groups import CGROUPFS, SYSTEMD, ControlGroups
from koordpolicy.engine.agent.metrics_advisor import inotify, pleg
from koordpolicy.engine.agent.metrics_advisor.pleg import LifecycleEvent, LifecycleWatcher

ID = "0123456789abcdef"
TIERS = ("guaranteed", "burstable", "besteffort")


class Node:
    """The directories of a node, a watcher, and the events that it gave."""

    def __init__(self, root: Path, version: int, driver: str) -> None:
        self.root = root if version == 2 else root / "cpu"
        self.groups = ControlGroups(version, driver, {"": str(root)} if version == 2 else {"cpu": str(root / "cpu")})
        self.driver = driver
        self.events: list[LifecycleEvent] = []
        self.watcher = LifecycleWatcher(self.groups, self.events.append)

    def tier(self, tier: str) -> Path:
        return self.root / self.groups.tier(tier)

    def make_tiers(self) -> None:
        for tier in TIERS:
            self.tier(tier).mkdir(parents=True, exist_ok=True)

    def pod(self, tier: str, uid: str) -> Path:
        return self.root / self.groups.pod(tier, uid)

    def container(self, tier: str, uid: str, identifier: str = ID) -> Path:
        name = f"cri-containerd-{identifier}.scope" if self.driver == SYSTEMD else identifier
        return self.pod(tier, uid) / name

    def dispatch(self) -> list[LifecycleEvent]:
        """Return the events since the last call."""
        before = len(self.events)
        self.watcher.dispatch()
        return self.events[before:]


KINDS = [(1, SYSTEMD), (2, SYSTEMD), (1, CGROUPFS), (2, CGROUPFS)]


@pytest.fixture(params=KINDS, ids=lambda each: f"v{each[0]} {each[1]}")
def node(request, tmp_path):
    found = Node(tmp_path, *request.param)
    found.root.mkdir(exist_ok=True)
    yield found
    found.watcher.close()


@pytest.fixture
def running(node) -> Node:
    node.make_tiers()
    node.watcher.start()
    return node


@pytest.mark.parametrize("tier", TIERS)
def test_pods_and_containers_that_come_and_go_are_events(running, tier: str):
    running.pod(tier, "u-1").mkdir()
    assert running.watcher.wait(60)
    assert running.dispatch() == [LifecycleEvent(True, tier, "u-1")]
    running.container(tier, "u-1").mkdir()
    assert running.dispatch() == [LifecycleEvent(True, tier, "u-1", ID)]
    assert (running.watcher.pods, running.dispatch()) == ({"u-1": {ID}}, [])
    running.container(tier, "u-1").rmdir()
    assert running.dispatch() == [LifecycleEvent(False, tier, "u-1", ID)]
    running.pod(tier, "u-1").rmdir()
    assert running.dispatch() == [LifecycleEvent(False, tier, "u-1")]
    assert (running.watcher.pods, running.watcher.wait(0)) == ({}, False)


def test_containers_that_were_there_before_the_watch_are_found(running):
    running.container("burstable", "u-1").mkdir(parents=True)
    assert running.dispatch() == [
        LifecycleEvent(True, "burstable", "u-1"), LifecycleEvent(True, "burstable", "u-1", ID)]


def test_a_pod_that_goes_with_its_containers_ends_them_first(running):
    running.container("burstable", "u-1").mkdir(parents=True)
    running.dispatch()
    shutil.rmtree(running.pod("burstable", "u-1"))
    assert running.dispatch() == [
        LifecycleEvent(False, "burstable", "u-1", ID), LifecycleEvent(False, "burstable", "u-1")]


def test_pods_that_exist_at_the_start_have_no_events_but_their_containers_are_watched(node):
    node.make_tiers()
    node.pod("besteffort", "u-1").mkdir()
    node.watcher.start()
    assert (node.dispatch(), node.watcher.pods) == ([], {"u-1": frozenset()})
    node.container("besteffort", "u-1").mkdir()
    assert node.dispatch() == [LifecycleEvent(True, "besteffort", "u-1", ID)]


def test_missing_directories_are_waited_for(node):
    node.watcher.start()
    node.make_tiers()
    for tier in TIERS:
        node.pod(tier, f"u-{tier}").mkdir()
    for _ in range(2):
        node.dispatch()
    assert sorted((event.created, event.tier, event.uid) for event in node.events) == [
        (True, tier, f"u-{tier}") for tier in sorted(TIERS)]
    assert node.watcher.pods.keys() == {f"u-{tier}" for tier in TIERS}


def test_directories_that_come_one_by_one_are_waited_for(node):
    node.watcher.start()
    for tier in TIERS:
        node.tier(tier).mkdir(parents=True)
        node.dispatch()
        node.pod(tier, "u-1").mkdir()
        assert node.dispatch() == [LifecycleEvent(True, tier, "u-1")]


def test_a_tier_that_goes_and_comes_back_is_watched_again(running):
    running.pod("besteffort", "u-1").mkdir()
    running.dispatch()
    shutil.rmtree(running.tier("besteffort"))
    assert running.dispatch() == [LifecycleEvent(False, "besteffort", "u-1")]
    running.tier("besteffort").mkdir()
    running.dispatch()
    running.pod("besteffort", "u-2").mkdir()
    assert running.dispatch() == [LifecycleEvent(True, "besteffort", "u-2")]


def test_other_names_and_files_are_no_pods(running):
    for name in ("kubepods-podx.slice.d", "system.slice", "pod", "pod u", "\udcff-pod"):
        (running.tier("besteffort") / name).mkdir()
    (running.tier("besteffort") / running.pod("besteffort", "u-1").name).write_text("")
    assert running.dispatch() == []


def test_after_lost_changes_all_directories_are_listed_again(running, monkeypatch, caplog):
    running.container("burstable", "u-1").mkdir(parents=True)
    running.container("burstable", "u-2").mkdir(parents=True)
    running.dispatch()
    running.container("guaranteed", "u-3").mkdir(parents=True)
    running.container("burstable", "u-1", "ff").mkdir()
    shutil.rmtree(running.pod("burstable", "u-2"))
    running.watcher._inotify.read()  # as if they had never come
    with monkeypatch.context() as patch:
        patch.setattr(running.watcher._inotify, "read", lambda: [inotify.DirectoryChange(-1)])
        assert running.dispatch() == [
            LifecycleEvent(True, "guaranteed", "u-3"), LifecycleEvent(True, "guaranteed", "u-3", ID),
            LifecycleEvent(False, "burstable", "u-2", ID), LifecycleEvent(False, "burstable", "u-2"),
            LifecycleEvent(True, "burstable", "u-1", "ff")]
    assert "all of them are listed again" in caplog.text
    running.container("guaranteed", "u-3").rmdir()
    assert running.dispatch() == [LifecycleEvent(False, "guaranteed", "u-3", ID)]


def test_a_callback_that_fails_is_logged_and_the_next_event_comes(node, caplog):
    seen: list[str] = []

    def fail(event: LifecycleEvent) -> None:
        seen.append(event.uid)
        raise RuntimeError("no")

    node.make_tiers()
    watcher = LifecycleWatcher(node.groups, fail)
    watcher.start()
    for uid in ("u-1", "u-2"):
        node.pod("burstable", uid).mkdir()
    watcher.dispatch()
    watcher.close()
    assert (seen, caplog.text.count("the callback for")) == (["u-1", "u-2"], 2)


def test_without_watches_a_rescan_finds_what_changed(node, monkeypatch, caplog):
    def refuse(self, path: str) -> int:
        raise OSError(errno.ENOSPC, "no space", path)

    monkeypatch.setattr(inotify.Inotify, "watch", refuse)
    node.make_tiers()
    node.watcher.start()
    node.container("burstable", "u-1").mkdir(parents=True)
    assert node.dispatch() == []
    node.watcher.rescan()
    assert [event.container for event in node.events] == ["", ID]
    assert caplog.text.count("cannot be watched") == 1


def test_a_system_without_inotify_says_so(node, monkeypatch):
    class Libc:
        pass

    monkeypatch.setattr(pleg.Inotify.__init__.__globals__["ctypes"], "CDLL", lambda *arguments, **options: Libc())
    with pytest.raises(OSError, match="has no inotify"):
        node.watcher.start()


STEPS = st.lists(st.tuples(
    st.sampled_from(TIERS), st.integers(0, 2), st.integers(-1, 2), st.booleans(), st.booleans()), max_size=40)
"""A tier, a pod, one of its containers or -1, whether to make or to remove it, and whether to dispatch then."""


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_events_lead_from_nothing_to_what_is_there(tmp_path_factory, steps):
    node = Node(tmp_path_factory.mktemp("node"), 2, SYSTEMD)
    node.make_tiers()
    node.watcher.start()
    for tier, pod, container, make, dispatch in steps:
        path = node.pod(tier, f"u-{pod}") if container < 0 else node.container(tier, f"u-{pod}", f"c{container}")
        if make:
            path.mkdir(parents=True, exist_ok=True)
        elif path.exists():
            shutil.rmtree(path)
        if dispatch:
            node.dispatch()
    node.dispatch()
    node.watcher.close()
    state: set[tuple[str, str, str]] = set()
    for event in node.events:
        entry = event.tier, event.uid, event.container
        assert (entry in state) is not event.created
        (state.add if event.created else state.remove)(entry)
    there = {(tier, f"u-{pod}", "") for tier in TIERS for pod in range(3) if node.pod(tier, f"u-{pod}").exists()}
    there |= {(tier, uid, f"c{number}") for tier, uid, _ in there for number in range(3)
              if node.container(tier, uid, f"c{number}").exists()}
    assert state == there


def inotify_descriptors() -> int:
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # other threads close theirs meanwhile
            count += "inotify" in str(link.readlink())
    return count


def test_descriptors_are_closed(running):
    before = inotify_descriptors()
    running.watcher.close()
    running.watcher.close()
    assert inotify_descriptors() == before - 1
