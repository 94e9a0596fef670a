"""A cluster that the extender watches, and kinds that its source lacks."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import replace

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender
from koordpolicy.engine.cluster.sources.changes import KindView
from koordpolicy.engine.scheduler.extender import server as extender_server
from koordpolicy.engine.scheduler.extender.server import Server

from ..conftest import node
from .serving import arguments, document, edit, question, running, serving


class Watched:
    """A cluster that tests change, in place of a `WatchedCluster`."""

    def __init__(self, cluster, kinds):
        self.cluster, self.views, self.lag_s = cluster, {kind: KindView(time.time()) for kind in kinds}, 0.0
        self.changes, self.broken, self.compared = deque(), False, 0
        self.wake = lambda: None

    def change(self, *objects, delete=()):
        self.changes.extend([*(("Node", name) for name in delete), *objects])
        self.wake()

    def fail(self, kind, fault):
        self.views = self.views | {kind: replace(self.views[kind], fault=fault)}
        self.wake()

    def recover(self, kind):
        self.views = self.views | {kind: KindView(time.time())}
        self.wake()

    def listen(self, wake):
        self.wake = wake
        wake()

    def apply(self, _budget):
        if self.broken:
            raise OSError("nobody answers")
        if self.changes:
            each = self.changes.popleft()
            if isinstance(each, tuple):
                self.cluster.delete(*each)
            else:
                self.cluster.upsert(each)
        return bool(self.changes)

    def compare(self):
        self.compared += 1

    @property
    def mismatches(self):
        return {("Node", "missing"): self.compared}

    def heard_ago(self, _kind):
        return 0.0

    def close(self):
        pass


def watching(policies, dump, *kinds, lacking=()):
    """Return a function that loads the extender with a watched cluster, and a list that it fills with that cluster."""
    load, made = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins), []

    def loader():
        loaded = load()
        made.append(Watched(loaded.extender.cluster, kinds))
        for kind in lacking:
            loaded.extender.cluster.kinds -= {kind}
        return replace(loaded, source="the test", watched=made[0])

    return loader, made


def test_a_cluster_that_is_watched_is_followed_between_decisions(policies, dump):
    load, made = watching(policies, dump, "Node", "Pod")
    with running(Server(load)) as client:
        (watched,) = made
        others = [name for name in watched.cluster.names if name != "one"]
        watched.change(node("one", cpu="9"), node("new", cpu="3"), delete=others)
        # On the way there are two nodes as well.
        client.until(lambda status: not watched.changes and status["cluster"]["nodes"] == 2)
        answer = client("POST", "/filter", question("one", "two", "new"))[1]
        assert (answer["NodeNames"], sorted(answer["FailedNodes"])) == (["new"], ["one", "two"])
        assert client.metric("koord_policy_last_cluster_refresh_success_timestamp_seconds") > 1e9
        watched.broken = True
        watched.change(node("newer", cpu="3"), delete=["one", "new"])
        assert client("POST", "/filter", question("new"))[1]["NodeNames"] == ["new"]
        watched.broken = False
        client.until(lambda status: status["cluster"]["nodes"] == 1)


def test_a_watched_cluster_is_compared_periodically(policies, dump, monkeypatch):
    monkeypatch.setattr(extender_server, "_COMPARE_SECONDS", 0.0)
    load, made = watching(policies, dump, "Node", "Pod")
    with running(Server(load)) as client:
        client.until(lambda _: made[0].compared > 1 or made[0].wake())
        assert client.metric("scheduler_cache_mismatch_total", kind="Node", found="missing") > 1


def test_on_request_a_watched_cluster_is_compared_and_logged(policies, dump, caplog):
    caplog.set_level(logging.INFO)
    load, made = watching(policies, dump, "Node", "Pod")

    def loading():
        loaded = load()
        listen = made[0].listen

        def asking(wake):  # called in the event loop, as a signal handler is
            listen(wake)
            server.request_dump()

        made[0].listen = asking
        return loaded

    server = Server(loading)
    with running(server) as client:
        lines = []
        while not lines:
            client.until(lambda _: True)
            lines = [record.getMessage() for record in caplog.records if record.name.endswith("extender.server")]
        names = made[0].cluster.names
    assert (made[0].compared, lines[0]) == (1, "Dump of cached NodeInfo")
    assert [line.partition(",")[0] for line in lines if line.startswith("Node name: ")] == [
        f"Node name: {name}" for name in names]
    assert "Dump of scheduling queue" not in lines


def test_a_kind_that_cannot_be_watched_any_more_stops_no_other(policies, dump):
    load, made = watching(policies, dump, "Node", "Pod", "NodeMetric")
    with running(Server(load)) as client:
        (watched,) = made
        time.sleep(0.01)
        watched.fail("NodeMetric", "nodemetrics may not be watched: no")
        watched.views = watched.views | {"Node": KindView(time.time())}
        watched.change(node("new"))
        client.until(lambda status: status["cluster"]["stale"] == ["NodeMetric"])
        kinds = client("GET", "/status")[1]["cluster"]["kinds"]
        assert {kind: (view["fault"], view["listed"] is not None) for kind, view in kinds.items()} == {
            "Node": (None, True), "Pod": (None, True), "NodeMetric": ("nodemetrics may not be watched: no", True)}
        behind = client.metric("koord_policy_last_kind_refresh_success_timestamp_seconds", kind="NodeMetric")
        assert client.metric("koord_policy_last_kind_refresh_success_timestamp_seconds", kind="Node") > behind
        assert [client.metric("koord_policy_kind_stale", kind=kind) for kind in ("Node", "NodeMetric")] == [0, 1]
        client.until(lambda _: client.metric("koord_policy_cluster_refreshes_total", result="failure") == 1)
        assert client("GET", "/readyz")[0] == 200
        watched.recover("NodeMetric")
        client.until(lambda status: status["cluster"]["stale"] == [])
        client.until(lambda _: client.metric("koord_policy_cluster_refreshes_total", result="success") == 1)


def test_status_says_which_kinds_the_source_lacks_until_it_has_them(tmp_path, dump, capsys):
    directory = tmp_path / "measuring"
    directory.mkdir()
    (directory / "cool.yaml").write_text(document(name="cool").replace("allocatable.cpu", "usage.cpu"))
    load, made = watching(directory, dump, "Node", "Pod", lacking=["NodeMetric"])
    with running(Server(load)) as client:
        assert client("GET", "/status")[1]["cluster"]["lacking"] == [{"plugin": "cool", "kinds": ["NodeMetric"]}]
        made[0].cluster.kinds |= {"NodeMetric"}
        client.until(lambda status: "lacking" not in status["cluster"])
    assert "does not contain NodeMetric (read by `cool`)" in capsys.readouterr().err


def test_each_kind_that_a_reload_reads_and_the_source_lacks_is_warned_of_once(policies, dump, caplog):
    def warnings():
        return [record.getMessage() for record in caplog.records if "does not contain" in record.getMessage()]

    def edited(text, generation):
        edit(policies / "policy.yaml", text)
        client.until(lambda status: status["policies"]["generation"] == status["generation"] == generation)

    def warned(count):
        end = time.monotonic() + 60
        while len(warnings()) < count and time.monotonic() < end:
            time.sleep(0.01)
        return warnings()

    measuring = document(4000).replace("allocatable.cpu <=", "usage.cpu <=")
    selector = "spec:\n  match: {pods: {namespaceSelector: {matchLabels: {a: b}}}}\n"
    told = "the source of the cluster does not contain {}: add them to it, or do not rely on what these plugins say"
    first, then = told.format("NodeMetric (read by `small-enough`)"), told.format("Namespace (read by `selecting`)")
    caplog.set_level(logging.WARNING)
    with serving("--policies", policies, "--cluster", dump) as client:
        edited(measuring, 2)
        assert warned(1) == [first]
        edited(f"{measuring}---\n{document(name='selecting').replace('spec:', selector.strip(), 1)}", 3)
        assert warned(2) == [first, then]
