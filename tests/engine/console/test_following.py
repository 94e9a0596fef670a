"""A live cluster and policies, as the console follows them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.watched_cluster import WatchedCluster
from koordpolicy.engine.console.following import ClusterFollowing, PolicyFollowing, console_reads
from koordpolicy.engine.console.models.overview import ClusterOverview
from koordpolicy.engine.console.policies import overview
from koordpolicy.engine.console.policy_set import PolicySet
from koordpolicy.engine.console.state import ConsoleState, settings_for
from koordpolicy.engine.console.view_thread import ViewThread
from koordpolicy.engine.documents import files_of, load, read_file
from koordpolicy.engine.source import PolicyError, Problem
from tests.waiting import PATIENCE_S

from ..client.object_server import ObjectServer
from .conftest import HOT, NOW, OBJECTS, node, pod


class Changes:
    """Counts the changes of a thread's state, for tests that wait for one."""

    def __init__(self, views: ViewThread) -> None:
        self._seen = threading.Semaphore(0)
        views.changed = self._seen.release

    def wait(self) -> None:
        assert self._seen.acquire(timeout=PATIENCE_S)


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "hot.yaml").write_text(HOT, encoding="utf-8")
    return tmp_path / "policies"


@pytest.fixture
def views(policies: Path, discovered) -> Iterator[ViewThread]:
    sources = [read_file(each) for each in files_of(policies, [])]
    cluster = Cluster()
    cluster.upsert_all(OBJECTS)
    found = ViewThread(ConsoleState(cluster, PolicySet.of(load(sources), sources, discovered), now=NOW, name="dump"))
    yield found
    found.close()


def following(policies: Path, views: ViewThread, discovered, **more) -> PolicyFollowing:
    return PolicyFollowing(
        [str(policies)], views, lambda loaded, sources: PolicySet.of(loaded, sources, discovered),
        lambda state, found: ConsoleState(state.cluster, found, now=state.now, name=state.name),
        python_plugins=discovered.plugins, **more)


def seen(views: ViewThread) -> ClusterOverview:
    """The overview, computed by the thread that owns the state."""
    found: list[ClusterOverview] = []
    views.change(lambda state: found.append(overview(state))).result(PATIENCE_S)  # type: ignore[func-returns-value]
    return found[0]


def names(views: ViewThread) -> list[str]:
    return sorted(each.name for each in views.state.policies.plugins)


def test_changed_policies_replace_the_state_and_invalid_ones_are_shown_with_their_problems(
    policies: Path, views: ViewThread, discovered,
):
    first, changes, found = views.state, Changes(views), following(policies, views, discovered)
    found.reloader.begin(0.0)
    assert views.state is first  # nothing has changed since the start
    (policies / "more.yaml").write_text(HOT.replace("keep-off-hot-nodes", "another"), encoding="utf-8")
    found.reloader.step(10.0)
    found.reloader.step(20.0)
    changes.wait()
    assert names(views) == ["another", "keep-off-hot-nodes"]
    assert views.state.cluster is first.cluster
    (policies / "more.yaml").write_text(HOT.replace("usage.cpu", "usage.cpx"), encoding="utf-8")
    found.reloader.step(30.0)
    found.reloader.step(40.0)
    changes.wait()
    problems = views.state.policies.problems
    assert {Path(each.span.name).name for each in problems} == {"more.yaml"}
    assert any("cpx" in each.message for each in problems)
    assert seen(views).errors > 0
    found.close()


def test_policies_whose_objects_are_not_listed_are_refused_with_the_reason(
    policies: Path, views: ViewThread, discovered,
):
    changes, refuse = Changes(views), threading.Event()

    def cover(_: object) -> None:
        if refuse.is_set():
            raise PolicyError([Problem("the new policies read devices, which cannot be listed", code="c")])

    found = following(policies, views, discovered, cover=cover)
    found.reloader.begin(0.0)
    refuse.set()
    (policies / "more.yaml").write_text(HOT.replace("keep-off-hot-nodes", "another"), encoding="utf-8")
    found.reloader.step(10.0)
    found.reloader.step(20.0)
    changes.wait()
    assert names(views) == ["keep-off-hot-nodes"]
    assert [each.message for each in views.state.policies.problems] == [
        "the new policies read devices, which cannot be listed"]
    found.close()


def test_a_replaced_state_listens_to_the_cluster_no_more(views: ViewThread):
    cluster = views.state.cluster
    before = len(cluster._listeners)
    for _ in range(3):
        views.change(lambda state: ConsoleState(
            state.cluster, state.policies, now=state.now, name=state.name)).result(PATIENCE_S)
    assert len(cluster._listeners) == before


@contextmanager
def followed(policies_of, prepare: Callable[[ConsoleState], None] = lambda _: None) -> Iterator[
        tuple[ObjectServer, ViewThread, Changes]]:
    """A live cluster with one node, whose changes are followed from then on."""
    with ObjectServer() as server:
        server.put(node("one", "a"))
        found = policies_of(HOT)
        settings = settings_for(found.registry)
        watched = WatchedCluster(server.connection, Cluster(kinds=frozenset({"Node", "Pod"})),
                                 console_reads(settings, found.registry))
        watched.start()
        views = ViewThread(ConsoleState(watched.cluster, found, now=watched.now(), name="kube", settings=settings,
                                        watches=lambda: watched.views))
        prepare(views.state)
        changes, follower = Changes(views), ClusterFollowing(watched, views, shortest=0.01)
        follower.start()
        try:
            yield server, views, changes
        finally:
            follower.close()
            views.close()


def test_changes_of_a_live_cluster_are_in_the_next_views(policies_of):
    with followed(policies_of) as (server, views, changes):
        assert seen(views).nodes == 1
        server.put(node("two", "b"))
        server.put(pod("web-1", "1"))
        while ((view := seen(views)).nodes, view.pending) != (2, 1):
            changes.wait()
        assert [each.pod for each in view.waiting] == ["shop/web-1"]
        assert {each.kind for each in view.kinds if not each.fault} >= {"Node", "Pod"}


def test_changes_are_followed_after_some_that_could_not_be_applied(policies_of, monkeypatch, caplog):
    failed = threading.Event()

    def fail_once(state: ConsoleState) -> None:
        renew = state.renew

        def renew_but_once(now: int) -> None:
            if not failed.is_set():
                failed.set()
                raise RecursionError("too deep")
            renew(now)

        monkeypatch.setattr(state, "renew", renew_but_once)

    with followed(policies_of, fail_once) as (server, views, changes):
        server.put(node("two", "b"))
        assert failed.wait(PATIENCE_S)
        server.put(node("three", "b"))
        while seen(views).nodes != 3:
            changes.wait()
    assert "changes of the cluster were not applied" in caplog.messages
