"""A cluster that the extender lists again and again, and kinds that its source lacks."""

from __future__ import annotations

import logging
import time

import yaml

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender
from koordpolicy.engine.cluster.sources.listing import Listed, Listing
from koordpolicy.engine.scheduler.extender.loaded import Loaded, Refresh
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.source import Problem

from ..conftest import node
from .serving import arguments, document, question, running, serving


class Source:
    """Lists a cluster that tests change; `None` fails."""

    def __init__(self, *objects):
        self.objects, self.failed = objects, {}

    def __call__(self):
        if self.objects is None:
            raise OSError("nobody answers")
        return Listed(self.objects, self.failed)


def test_a_cluster_that_is_listed_again_is_followed_between_decisions(policies, dump):
    load = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins)
    listed = Source(*yaml.safe_load(dump.read_text())["items"])

    def following():
        loaded = load()
        return Loaded(
            loaded.extender, loaded.reloader, "the test", Refresh(listed, Listing(listed.objects, now=1e9), 0.001),
        )

    with running(Server(following)) as client:
        listed.objects = (node("one", cpu="9"), node("new", cpu="3"))
        client.until(lambda status: status["cluster"]["nodes"] == 2)
        answer = client("POST", "/filter", question("one", "two", "new"))[1]
        assert (answer["NodeNames"], sorted(answer["FailedNodes"])) == (["new"], ["one", "two"])
        assert client.metric("koord_policy_last_cluster_refresh_success_timestamp_seconds") > 1e9
        listed.objects = None
        while not client.metric("koord_policy_cluster_refreshes_total", result="failure"):
            pass
        assert client("POST", "/filter", question("new"))[1]["NodeNames"] == ["new"]
        listed.objects = (node("newer", cpu="3"),)
        client.until(lambda status: status["cluster"]["nodes"] == 1)


def test_a_kind_that_cannot_be_listed_any_more_stops_no_other(policies, dump):
    load = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins)
    metric = {"kind": "NodeMetric", "metadata": {"name": "one"}, "status": {}}
    source = Source(*yaml.safe_load(dump.read_text())["items"], metric)

    def following():
        loaded = load()
        listing = Listing(
            source.objects, kinds=["Node", "NodeMetric", "Device"], failed={"Device": Problem("there is none")},
            now=1e9,
        )
        return Loaded(loaded.extender, loaded.reloader, "the test", Refresh(source, listing, 0.001))

    source.failed = {"Device": Problem("there is none")}
    with running(Server(following)) as client:
        assert client.metric("koord_policy_last_cluster_refresh_success_timestamp_seconds") >= 1e9
        source.failed = source.failed | {"NodeMetric": Problem("nodemetrics may not be listed: no")}
        source.objects = (node("one"), node("new"))
        client.until(lambda status: status["cluster"]["nodes"] == 2 and status["cluster"]["stale"] == ["NodeMetric"])
        kinds = client("GET", "/status")[1]["cluster"]["kinds"]
        assert {kind: (view["fault"], view["listed"] is not None) for kind, view in kinds.items()} == {
            "Node": (None, True), "NodeMetric": ("nodemetrics may not be listed: no", True),
            "Device": ("there is none", False),
        }
        behind = client.metric("koord_policy_last_kind_refresh_success_timestamp_seconds", kind="NodeMetric")
        assert client.metric("koord_policy_last_cluster_refresh_success_timestamp_seconds") == behind
        assert client.metric("koord_policy_last_kind_refresh_success_timestamp_seconds", kind="Node") > behind
        assert [
            client.metric("koord_policy_kind_stale", kind=kind) for kind in ("Node", "NodeMetric", "Device")
        ] == [0, 1, 0]
        assert client.metric("koord_policy_cluster_refreshes_total", result="partial") > 0
        assert client("GET", "/readyz")[0] == 200
        source.failed = {"Device": Problem("there is none")}
        client.until(lambda status: status["cluster"]["stale"] == [])


def test_status_says_which_kinds_the_source_lacks_until_it_has_them(tmp_path, dump, capsys):
    directory = tmp_path / "measuring"
    directory.mkdir()
    (directory / "cool.yaml").write_text(document(name="cool").replace("allocatable.cpu", "usage.cpu"))
    load = extender.loader(arguments("--policies", directory, "--cluster", dump), builtins)
    source = Source(*yaml.safe_load(dump.read_text())["items"])

    def following():
        loaded = load()
        listing = Listing(source.objects, kinds=["Node", "Pod", "NodeMetric"], failed=source.failed, now=1e9)
        return Loaded(loaded.extender, loaded.reloader, "the test", Refresh(source, listing, 0.001))

    source.failed = {"NodeMetric": Problem("there is none")}
    with running(Server(following)) as client:
        assert client("GET", "/status")[1]["cluster"]["lacking"] == [{"plugin": "cool", "kinds": ["NodeMetric"]}]
        source.failed = {}
        client.until(lambda status: "lacking" not in status["cluster"])
    assert "does not contain NodeMetric (read by `cool`)" in capsys.readouterr().err


def test_each_kind_that_a_reload_reads_and_the_source_lacks_is_warned_of_once(policies, dump, caplog):
    def warnings():
        return [record.getMessage() for record in caplog.records if "does not contain" in record.getMessage()]

    def edited(text, generation):
        beside = policies.parent / "beside.yaml"
        beside.write_text(text)
        beside.rename(policies / "policy.yaml")
        client.until(lambda status: status["policies"]["generation"] == status["generation"] == generation)

    def warned(count):
        end = time.monotonic() + 20
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
