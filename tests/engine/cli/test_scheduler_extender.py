"""The extender as kube-scheduler meets it: real sockets, real reloads, a free port."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import http.client
import json
import logging
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
import pytest
import trustme
import yaml
from prometheus_client.parser import text_string_to_metric_families

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender, scheduler
from koordpolicy.engine.cluster.sources.api import Binding
from koordpolicy.engine.cluster.sources.listing import Listed, Listing
from koordpolicy.engine.framework.points import Answer, Framework
from koordpolicy.engine.scheduler.extender.loaded import Loaded, Refresh
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.source import PolicyError, Problem
from koordpolicy.plugin import python_plugin
from tests.output_schemas import check_part

from .conftest import node, pod

MEBIBYTE = 1024 * 1024


PUBLISHED = {"/status": ("status", "serverStatus"), "/explain": ("explain", "finding")}
"""Where the schemas of what paths answer stand: the command, and the definition in its schema."""


class Client:
    """Asks a server as kube-scheduler does: one connection, JSON both ways."""

    def __init__(self, url, context=None):
        self.url, address = url, urlsplit(url)
        if address.scheme == "https":
            self.connection = http.client.HTTPSConnection(address.hostname, address.port, timeout=30, context=context)
        else:
            self.connection = http.client.HTTPConnection(address.hostname, address.port, timeout=30)

    def __call__(self, method, path, body=None):
        if isinstance(body, dict):
            body = json.dumps(body).encode()
        try:
            self.connection.request(
                method, path, body, {"Content-Type": "application/json"} if body is not None else {},
            )
            response = self.connection.getresponse()
            text, kind = response.read().decode(), response.headers.get_content_type()
        except Exception:
            self.connection.close()
            raise
        data = json.loads(text) if kind == "application/json" else text
        published = PUBLISHED.get(path.partition("?")[0])
        if published is not None and response.status == 200 and data is not text:
            check_part(*published, data)
        return response.status, data

    def metric(self, name, **labels):
        """Return a sample's value; 0 where there is none."""
        status, text = self("GET", "/metrics")
        assert status == 200
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0

    def until(self, fulfils, path="/status"):
        """Ask until the answer is as wished, for at most 20 seconds."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            status, answer = self("GET", path)
            if status == 200 and fulfils(answer):
                return answer
        raise AssertionError(f"still {answer}")


@contextmanager
def running(server, *, ready=True, context=None):
    """Run a server in a thread of its own until the block ends; raise what ends it before, or then."""
    loop, stop, bound, loaded, urls, faults = (
        asyncio.new_event_loop(), asyncio.Event(), threading.Event(), threading.Event(), [], [],
    )

    def tell(url):
        urls.append(url)
        bound.set()

    def serve():
        try:
            loop.run_until_complete(server.run("127.0.0.1", 0, stop, bound=tell, ready=lambda _: loaded.set()))
        except Exception as error:
            faults.append(error)
        bound.set()
        loaded.set()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert bound.wait(30)
        assert not ready or loaded.wait(30)
        if not faults:
            client = Client(urls[0], context)
            try:
                yield client
            finally:
                client.connection.close()
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        pending = {task for task in asyncio.all_tasks(loop) if not task.done()}
        loop.close()
    assert not pending
    if faults:
        raise faults[0]


def arguments(*words):
    """Return the options of a command line."""
    parser = argparse.ArgumentParser()
    scheduler.add_arguments(parser)
    # A process of its own for each test that needs none would take most of the time.
    return parser.parse_args(["--extender", "--compile-timeout", "0", *map(str, words)])


@contextmanager
def serving(*words, context=None):
    """Serve what a command line asks for."""
    with running(extender.server_of(arguments(*words), builtins), context=context) as client:
        yield client


def document(threshold=100, name="small-enough"):
    return (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
        f"metadata: {{name: {name}}}\nspec:\n"
        "  filter:\n"
        f'  - {{name: cores, expression: allocatable.cpu <= {threshold}, messageExpression: "string(allocatable.cpu) '
        f"+ 'm is too much'\"}}\n"
        "  score:\n"
        f"  - {{name: cores, expression: {threshold} > 5000 ? allocatable.cpu / 100 : 100 - allocatable.cpu / 100}}\n"
    ).replace(
        "expression: " + str(threshold) + " >", f'expression: "{threshold} >',
    ).replace("allocatable.cpu / 100}\n", 'allocatable.cpu / 100"}\n')


@pytest.fixture
def policies(tmp_path):
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "policy.yaml").write_text(document(4000))
    return folder


@pytest.fixture
def dump(tmp_path):
    file = tmp_path / "cluster.yaml"
    items = [node("one", cpu="1"), node("two", cpu="2"), node("four"), node("eight", cpu="8")]
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


@pytest.fixture
def client(policies, dump):
    with serving("--policies", policies, "--cluster", dump) as client:
        yield client


def question(*names, uid="u1", name="p", **rest):
    asked = pod(name, "1")
    asked["metadata"]["uid"] = uid
    return {"Pod": asked, "Nodes": None, "NodeNames": list(names)} | rest


def test_names_are_filtered_and_prioritized(client):
    assert client("POST", "/filter", question("eight", "two", "one", "gone")) == (200, {
        "Nodes": None, "NodeNames": ["two", "one"],
        "FailedNodes": {"eight": "small-enough: 8000m is too much",
                        "gone": "koord-policy: node `gone` is not among the nodes that are known"},
        "FailedAndUnresolvableNodes": {}, "Error": "",
    })
    assert client("POST", "/prioritize", question("two", "one")) == (
        200, [{"Host": "two", "Score": 0}, {"Host": "one", "Score": 10}])


def test_whole_nodes_are_filtered_and_prioritized(policies):
    nodes = [{key: value for key, value in node(name, cpu=cpu).items() if key not in ("kind", "apiVersion")}
             for name, cpu in (("a", "1"), ("b", "8"))]
    with serving("--policies", policies) as client:
        status, answer = client("POST", "/filter", question(NodeNames=None, Nodes={"metadata": {}, "items": nodes}))
        assert (status, answer["Nodes"], answer["NodeNames"]) == (200, {"metadata": {}, "items": nodes[:1]}, None)
        assert answer["FailedNodes"] == {"b": "small-enough: 8000m is too much"}
        assert client("POST", "/prioritize", question(NodeNames=None, Nodes={"items": nodes})) == (
            200, [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 0}])


def test_an_edit_is_in_force_for_the_next_pod_and_not_between_the_calls_of_one(client, policies):
    best = {"NodeNames": ["one", "two"]}
    assert client("POST", "/filter", question("one", "two", "eight"))[1]["NodeNames"] == best["NodeNames"]
    beside = policies.parent / "beside.yaml"
    beside.write_text(document(9000))
    beside.rename(policies / "policy.yaml")
    client.until(lambda status: status["policies"]["generation"] == 2)
    assert client(
        "POST", "/filter", question("one", "two", "eight", uid="u2"),
    )[1]["NodeNames"] == ["one", "two", "eight"]
    old, new = [{"Host": "one", "Score": 10}, {"Host": "two", "Score": 0}], [
        {"Host": "one", "Score": 0}, {"Host": "two", "Score": 10},
    ]
    assert client("POST", "/prioritize", question("one", "two"))[1] == old
    assert client("POST", "/prioritize", question("one", "two", uid="u2"))[1] == new
    decisions = client("GET", "/status")[1]["decisions"]
    assert [(each["uid"], each["generation"], each["pinned"]) for each in decisions] == [
        ("u2", 2, True), ("u1", 1, True), ("u2", 2, False), ("u1", 1, False)]


def test_an_invalid_edit_leaves_what_runs_and_is_told(client, policies):
    (policies / "policy.yaml").write_text(document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
    status = client.until(lambda status: not status["policies"]["healthy"])
    assert "cpuu" in status["policies"]["sources"][0]["problems"][0]["message"]
    assert client("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
    assert client.metric("koord_policy_reloads_total", result="failure") == 1
    assert client.metric("koord_policy_policies_healthy") == 0


def test_status_shows_what_is_in_force_before_any_decision_is_made_under_it(policies, dump):
    with serving("--policies", policies, "--cluster", dump, "--allow-empty") as client:
        (policies / "policy.yaml").rename(policies / "policy.txt")
        status = client.until(lambda status: status["policies"]["generation"] == 2)
    assert (status["generation"], status["profiles"]) == (
        2, [{"name": "default-scheduler", "generation": 2, "preFilters": [], "filters": [], "scores": []}])
    assert status["policies"]["sources"][0]["warnings"] == [f"`{policies}` holds no policy files"]


def test_with_files_as_the_unit_only_the_wrong_file_stays_behind(policies, dump):
    other = policies / "other.yaml"
    other.write_text(document(8000, name="other"))
    with serving("--policies", policies, "--cluster", dump, "--reload-unit", "file") as client:
        (policies / "policy.yaml").write_text(document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
        other.write_text(document(1000, name="other"))
        status = client.until(lambda status: status["policies"]["generation"] == 2)["policies"]
        assert (
            status["healthy"], status["sources"][0]["mixed"], len(status["sources"][0]["problems"]),
        ) == (False, True, 1)
        assert client("POST", "/filter", question("one", "two", "eight"))[1]["FailedNodes"] == {
            "two": "other: 2000m is too much", "eight": "other: 8000m is too much"}


def test_every_call_is_answered_while_policies_are_reloaded(client, policies):
    for number in range(1, 6):
        (policies / "policy.yaml").write_text(document(4000 + number))
        answers = set()

        def in_force(status, wanted=number + 1, answers=answers):
            answers.add(
                json.dumps(client("POST", "/filter", question("one", "eight", uid=str(len(answers))))[1]["NodeNames"]),
            )
            return status["policies"]["generation"] >= wanted

        client.until(in_force)
        assert answers == {'["one"]'}


@pytest.mark.parametrize(("verb", "body", "reason"), [
    ("/filter", b"{", "the body is no JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
    ("/filter", b"\xff", "the body is not UTF-8 at byte 0"),
    ("/prioritize", b"", "the body is no JSON: Expecting value at line 1, column 1"),
    ("/prioritize", b"[" * 50_000, "the body is nested too deeply"),
    ("/filter", b'{"Pod":{"metadata":{"name":"p"},"spec":{"containers":[]}},"NodeNames":[]}',
     "`Pod`: `spec.containers` is missing or empty: a pod has at least one container"),
    (
        "/filter",
        (
            b'{"Pod":{"metadata":{"name":"p"},"spec":{"containers":'
            b'[{"resources":{"requests":{"cpu":"12Zi"}}}]}},"NodeNames":[]}'
        ),
        None,
    ),
    ("/filter", b'{"NodeNames":[NaN]}', "the body is no JSON: `NaN` is no number"),
])
def test_a_malformed_body_is_answered_with_400_and_a_reason(client, verb, body, reason):
    status, answer = client("POST", verb, body)
    assert (status, set(answer)) == (400, {"error"})
    assert "Traceback" not in answer["error"]
    if reason is not None:
        assert answer["error"] == reason
    assert client.metric("koord_policy_decisions_total", result="malformed", verb=verb[1:]) == 1
    assert client("POST", "/filter", question("one"))[0] == 200


def test_a_body_that_is_too_large_is_answered_with_413(policies, dump):
    with serving("--policies", policies, "--cluster", dump, "--max-body", "1") as client:
        status, answer = client("POST", "/filter", b" " * (MEBIBYTE + 1))
        assert (status, answer) == (
            413, {"error": f"the body has {MEBIBYTE + 1} bytes, at most {MEBIBYTE} are taken (`--max-body`)"},
        )
        exact = json.dumps(question("one")).encode().ljust(MEBIBYTE)
        assert client("POST", "/filter", exact)[0] == 200
        # Without a length, what arrives is counted.
        chunks = (b" " * 65_536 for _ in range(17))
        client.connection.request(
            "POST", "/filter", chunks, encode_chunked=True, headers={"Transfer-Encoding": "chunked"},
        )
        response = client.connection.getresponse()
        assert (response.status, json.loads(response.read())) == (
            413, {"error": f"the body has more than {MEBIBYTE} bytes, which is all that is taken (`--max-body`)"})


def test_services_tell_what_is_known_of_nodes_and_plugins(client):
    assert client("GET", "/apis/v1/__services__") == (
        200, {"GET": ["/apis/v1/__services__", "/apis/v1/nodes/{nodeName}"]},
    )
    status, node = client("GET", "/apis/v1/nodes/eight")
    assert (status, node["name"], node["pods"]) == (200, "eight", [])
    assert client("GET", "/apis/v1/nodes/eigth") == (404, {"error": "there is no node `eigth`: did you mean `eight`?"})
    assert client("GET", "/apis/v1/plugins/None/x")[0] == 404


def test_flags_are_switched_only_by_those_who_may(client):
    assert client("PUT", "/debug/flags/s", b"5") == (
        403, {"error": "nothing can be changed over HTTP: start the server with `--admin-token-file`"})


def test_unknown_paths_and_wrong_methods_are_told_what_there_is(client):
    assert client("GET", "/nothing") == (
        404,
        {
            "error": "there is no `/nothing`: ask /apis/v1/{path}, /debug/flags/{flag}, /explain, /filter, /healthz, "
                     "/metrics, /prioritize, /promote, /readyz, /rollback, /status",
        },
    )
    assert client("POST", "/bind", b"{}")[0] == 404
    assert client("GET", "/filter") == (405, {"error": "`/filter` takes POST, not GET"})
    assert client("DELETE", "/status") == (405, {"error": "`/status` takes GET, HEAD, not DELETE"})


def test_a_pod_that_is_known_or_sent_is_explained_as_data_and_as_text(client):
    asked = question()["Pod"]
    status, whole = client("POST", "/explain", asked)
    assert (status, whole["kind"], whole["pod"]) == (200, "decision", "shop/p")
    refusal = next(part for part in whole["parts"] if part["kind"] == "refusals")["parts"][0]
    assert (refusal["plugin"], refusal["nodes"], refusal["reason"]) == (
        "small-enough", ["eight"], "`allocatable.cpu <= 4000` is false")
    assert client("POST", "/explain", question()) == (200, whole)
    status, text = client("POST", "/explain?node=eight&output=text", asked)
    assert (status, text) == (200, (
        "eight is refused for shop/p\n"
        "shop/p  koord-prod LS  requests cpu 1  profile default-scheduler\n"
        "\n"
        "filters\n"
        "  refused  small-enough (cores): 8000m is too much\n"
        "           allocatable.cpu 8 cores, must be at most 4 cores: over by 4 cores\n"
        "\n"
        "it would run there if\n"
        "  (no change of the pod or of a node was found)\n"
    ))
    assert client("POST", "/filter", question("one"))[0] == 200, "decisions go on"


@pytest.mark.parametrize(("method", "path", "body", "status", "reason"), [
    ("GET", "/explain", None, 400, "which pod? ask `?pod=NAMESPACE/NAME`, or send one with POST"),
    (
        "GET", "/explain?pod=shop/gone", None, 404,
        "there is no pod `shop/gone` among the 0 that are known: send it with POST",
    ),
    ("GET", "/explain?pdo=x", None, 400, "`pdo` is no parameter: there are `pod`, `node` and `output`"),
    ("GET", "/explain?pod=x&output=xml", None, 400, "`output` is `xml`: say `json` or `text`"),
    ("GET", f"/explain?pod={'x' * 600}", None, 400, "a name has more than 512 characters"),
    ("POST", "/explain?pod=x", {}, 400, "`pod` is named and a pod is sent: do one of both"),
    ("POST", "/explain", b"{", 400, None), ("POST", "/explain", b"[]", 400, None),
    ("POST", "/explain", b"[" * 100_000, 400, None),
    ("POST", "/explain", {"metadata": {"name": "p"}, "spec": {"containers": []}}, 400, None),
    ("POST", "/explain?node=fourr", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}, 404,
     "there is no node `fourr` among the 4 that are known: did you mean `four`?"),
    ("DELETE", "/explain", None, 405, "`/explain` takes GET, HEAD, POST, not DELETE"),
])
def test_what_cannot_be_explained_is_told(client, method, path, body, status, reason):
    answered = client(method, path, body)
    assert answered[0] == status
    assert reason is None or answered[1] == {"error": reason}


def test_status_tells_what_runs_and_what_was_decided(client, policies, dump):
    client("POST", "/filter", question("one", "eight"))
    client("POST", "/prioritize", question("one", "two"))
    status = client("GET", "/status")[1]
    assert status["profiles"] == [{
        "name": "default-scheduler", "generation": 1, "preFilters": [], "filters": ["small-enough"],
        "scores": [{"plugin": "small-enough", "weight": 1}]}]
    assert status["cluster"] == {"source": str(dump), "nodes": 4}
    assert (status["ready"], status["fault"], status["trouble"], status["pinnedPods"]) == (True, None, [], 0)
    assert (status["policies"]["generation"], status["policies"]["sources"][0]["path"]) == (1, str(policies))
    prioritized, filtered = status["decisions"]
    assert filtered["refusals"] == [
        {
            "plugin": "small-enough", "reason": "8000m is too much", "count": 1, "nodes": ["eight"],
            "enforcement": "Enforce",
        },
    ]
    assert prioritized["best"] == [
        {"node": "one", "total": 90, "priority": 10, "plugins": {"small-enough": 90}},
        {"node": "two", "total": 80, "priority": 0, "plugins": {"small-enough": 80}}]
    assert "totals" not in prioritized
    assert [each.get("totals") for each in client("GET", "/status?pod=shop/p")[1]["decisions"]] == [
        {"one": 90, "two": 80}, None,
    ]
    assert client("GET", "/status?pod=shop/other")[1]["decisions"] == []


def test_metrics_count_what_was_decided(client):
    client("POST", "/filter", question("one", "eight", "gone"))
    client("POST", "/filter", question("eight"))
    client("POST", "/prioritize", question("one", "two"))
    found = {
        name: client.metric(name, **labels) for name, labels in {
            "koord_policy_refusals_total": {"plugin": "small-enough"}, "koord_policy_unknown_nodes_total": {},
            "koord_policy_generation": {}, "koord_policy_ready": {}, "koord_policy_nodes": {},
            "koord_policy_config_info": {},
            "koord_policy_decision_duration_seconds_count": {"verb": "filter"},
        }.items()
    }
    assert found == {
        "koord_policy_refusals_total": 2, "koord_policy_unknown_nodes_total": 1, "koord_policy_generation": 1,
        "koord_policy_ready": 1, "koord_policy_nodes": 4, "koord_policy_config_info": 1,
        "koord_policy_decision_duration_seconds_count": 2,
    }
    counted = {(verb, result): client.metric("koord_policy_decisions_total", verb=verb, result=result)
               for verb in ("filter", "prioritize") for result in ("ok", "refused")}
    assert counted == {
        ("filter", "ok"): 1, ("filter", "refused"): 1, ("prioritize", "ok"): 1, ("prioritize", "refused"): 0,
    }
    assert client.metric("koord_policy_last_reload_success_timestamp_seconds") > 1e9
    digest = client("GET", "/status")[1]["policies"]["digest"]
    assert client.metric("koord_policy_config_info", hash=digest) == 1


def test_failing_expressions_are_counted_by_plugin_point_and_rule(tmp_path, dump):
    (tmp_path / "p.yaml").write_text(
        document(4000).replace("allocatable.cpu <= 4000", "\"node.metadata.labels['zone'] == 'a'\""),
    )
    with serving("--policies", tmp_path / "p.yaml", "--cluster", dump) as client:
        client("POST", "/filter", question("one", "two"))
        assert client.metric(
            "koord_policy_expression_errors_total", plugin="small-enough", point="filter", rule="cores",
        ) == 2


class Counts:
    """Counts the nodes that it is asked about."""

    def __init__(self, args, handle):
        self.handle = handle

    def filter(self, state, pod, snapshot, rows):
        self.handle.count("nodes_asked_total", len(rows))
        self.handle.count("nodes_asked", profile=self.handle.profile)
        return Answer(np.ones(snapshot.size, np.bool_))


def test_what_plugins_count_is_among_the_metrics(policies, dump):
    def offered():
        return (*builtins(), python_plugin("Counts", Framework.SCHEDULER, Counts))

    options = arguments("--policies", policies, "--cluster", dump, "--enable", "Counts")
    with running(extender.server_of(options, offered)) as client:
        client("POST", "/filter", question("one", "two"))
        client("POST", "/filter", question("one", uid="u2"))
        found = [
            client.metric("koord_policy_plugin_nodes_asked_total", profile=name) for name in ("", "default-scheduler")
        ]
        assert found == [3, 2]


def test_built_in_plugins_decide_only_where_they_are_named(policies, dump):
    wants = question("one", "two", Pod=pod("p", "1500m"))
    with serving("--policies", policies, "--cluster", dump) as client:
        assert client("POST", "/filter", wants)[1]["NodeNames"] == ["one", "two"]
    with serving("--cluster", dump, "--enable", "NodeResourcesFit") as client:
        answer = client("POST", "/filter", wants)[1]
        assert (answer["NodeNames"], answer["FailedAndUnresolvableNodes"]) == (
            ["two"], {"one": "NodeResourcesFit: Insufficient cpu"},
        )
        assert client("GET", "/status")[1]["profiles"][0]["filters"] == ["NodeResourcesFit"]


def test_priorities_may_keep_their_proportions(policies, dump):
    with serving("--policies", policies, "--cluster", dump, "--priorities", "Max") as client:
        assert client("POST", "/prioritize", question("one", "two"))[1] == [
            {"Host": "one", "Score": 10}, {"Host": "two", "Score": 8},
        ]


def test_health_is_answered_and_readiness_is_not_while_policies_and_cluster_are_loaded():
    go_on, found = threading.Event(), []

    def load():
        assert go_on.wait(30)
        raise OSError("it was only a test")

    def meet():
        with running(Server(load), ready=False) as client:
            try:
                found.extend(
                    [
                        client("GET", "/healthz"), client("GET", "/readyz"), client("POST", "/filter", question("one")),
                        client("GET", "/status"), client.metric("koord_policy_ready"),
                    ],
                )
            finally:
                go_on.set()
            # Stopped before the fault is seen, it would end well.
            with contextlib.suppress(OSError, http.client.HTTPException):
                client.until(lambda _: False)

    with pytest.raises(OSError, match="it was only a test"):
        meet()
    waiting = 503, {"error": "policies and cluster are not loaded yet"}
    assert found == [(200, "ok\n"), waiting, waiting, (200, {"ready": False}), 0]


def test_a_server_that_is_ready_says_so(client):
    assert client("GET", "/readyz") == (200, "ok\n")
    assert client("GET", "/healthz") == (200, "ok\n")


def test_health_is_answered_while_a_decision_is_made(policies, dump):
    entered, go_on = threading.Event(), threading.Event()
    load = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins)

    class Slow:
        def __init__(self, extender):
            self.scheduler, self.cluster, self.close, self.review = (
                extender.scheduler, extender.cluster, extender.close, extender.review,
            )
            self.shadow, self.audits = extender.shadow, extender.audits
            self.pins, self.recent, self.asked = 0, (), extender

        def answer(self, verb, body):
            entered.set()
            assert go_on.wait(30)
            return self.asked.answer(verb, body)

    def slowly():
        loaded = load()
        return type(loaded)(Slow(loaded.extender), loaded.reloader)

    answers = []
    with running(Server(slowly)) as client:
        other = Client(client.url)
        asking = threading.Thread(target=lambda: answers.append(other("POST", "/filter", question("one"))[0]))
        asking.start()
        assert entered.wait(30)
        assert client("GET", "/healthz")[0] == 200
        assert client("GET", "/readyz")[0] == 200
        go_on.set()
        asking.join()
        other.connection.close()
    assert answers == [200]


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


# Binding


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


def test_pods_are_bound_where_that_is_wanted_and_count_at_once(policies, dump):
    load = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins)
    bound = []

    def bind(binding):
        if binding.name == "held":
            raise PolicyError([Problem("shop/held: no")])
        if binding.name == "odd":
            raise RuntimeError("it was only a test")
        bound.append(binding)

    def binding():
        loaded = load()
        return dataclasses.replace(loaded, bind=bind)

    with running(Server(binding, binds=True)) as client:
        assert client("POST", "/filter", question("one", "two", uid="u1"))[0] == 200
        assert client("POST", "/prioritize", question("one", "two", uid="u1"))[0] == 200

        def ask(name="p", **rest):
            return client(
                "POST", "/bind", {"PodName": name, "PodNamespace": "shop", "PodUID": "u1", "Node": "two"} | rest,
            )

        assert ask() == (200, {"Error": ""})
        assert bound == [Binding("shop", "p", "u1", "two")]
        assert client("GET", "/apis/v1/nodes/two")[1]["pods"][0]["name"] == "p"
        assert client.metric("koord_policy_assumed_pods") == 1
        assert ask("held") == (200, {"Error": "koord-policy: shop/held: no"})
        assert ask("odd") == (200, {"Error": "koord-policy: an unexpected error, which is in the log of koord-policy"})
        assert [
            client.metric("koord_policy_decisions_total", verb="bind", result=result) for result in ("ok", "error")
        ] == [1, 2]
        for body, reason in (
            ({"Node": ""}, "`Node` is missing"), ({"PodUID": 1}, "`PodUID` must be a text, not a number"),
            ({"Node": "../../x"}, "`Node` is `../../x`, which is no name of an object"),
        ):
            assert ask(**body) == (400, {"error": reason})
        assert client("POST", "/bind", b" " * 70_000)[0] == 413
        assert len(bound) == 1


def test_a_binding_that_hangs_is_seen_in_metrics_and_status(policies, dump):
    load = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins)
    entered, gate = threading.Event(), threading.Event()

    def bind(binding):
        entered.set()
        assert gate.wait(20)

    def seen(client):
        status = client("GET", "/status")[1]
        found = client.metric("koord_policy_oldest_binding_seconds"), status["oldestBindingSeconds"]
        return client.metric("koord_policy_binding_pods"), status["bindingPods"], [each > 0 for each in found]

    with running(Server(lambda: dataclasses.replace(load(), bind=bind), binds=True)) as client:
        assert seen(client) == (0, 0, [False, False])
        body = {"PodName": "p", "PodNamespace": "shop", "PodUID": "u1", "Node": "two"}
        other = Client(client.url)
        caller = threading.Thread(target=other, args=("POST", "/bind", body))
        caller.start()
        assert entered.wait(20)
        time.sleep(0.01)
        assert seen(client) == (1, 1, [True, True])
        gate.set()
        caller.join(20)
        other.connection.close()


@pytest.mark.parametrize("words", [("--bind-pods",), ("--bind-pods", "--cluster", "dump.yaml")])
def test_binding_needs_a_live_cluster(run, policies, words):
    done = run("scheduler", "--extender", "--policies", policies, *words)
    assert (done.exit, done.err) == (
        2, "koord-policy: `--bind-pods` needs a live cluster: `--cluster kube[:CONTEXT]`\n",
    )


# The end


def test_a_signal_that_comes_twice_at_once_is_one_and_a_later_one_ends_the_process():
    stop, times, ended = asyncio.Event(), [5.0, 5.4, 5.5], []
    ending = extender.Ending(stop, 3600, clock=lambda: times.pop(0), give_up=ended.append)
    ending()
    ending()
    assert (stop.is_set(), ending.timer.is_alive(), ended) == (True, True, [])
    ending()
    ending.timer.cancel()
    assert ended == ["a second signal came"]


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Return files of a server's certificate, and the authorities of servers, clients and strangers."""
    folder = tmp_path_factory.mktemp("tls")
    servers, clients, strangers = trustme.CA(), trustme.CA(), trustme.CA()
    issued = servers.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(folder / "tls.crt", append=number > 0)
    clients.cert_pem.write_to_path(folder / "ca.crt")

    def context(authority=None):
        made = ssl.create_default_context()
        servers.configure_trust(made)
        if authority is not None:
            authority.issue_cert("kube-scheduler@example.com").configure_cert(made)
        return made

    return folder, context, clients, strangers


def test_tls_is_served_to_those_who_trust_it(policies, dump, certificates):
    folder, context, _, _ = certificates
    with serving(
        "--policies", policies, "--cluster", dump, "--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key",
        context=context(),
    ) as client:
        assert client.url.startswith("https://127.0.0.1:")
        assert client("POST", "/filter", question("one"))[1]["NodeNames"] == ["one"]
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(client.url, ssl.create_default_context())("GET", "/healthz")


def test_with_a_client_ca_only_its_clients_get_in(policies, dump, certificates):
    folder, context, clients, strangers = certificates
    options = ("--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key", "--client-ca", folder / "ca.crt")
    with serving("--policies", policies, "--cluster", dump, *options, context=context(clients)) as client:
        assert client("POST", "/filter", question("one"))[1]["NodeNames"] == ["one"]
        for refused in (context(), context(strangers)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                Client(client.url, refused)("GET", "/healthz")
        assert client("GET", "/healthz")[0] == 200


def test_probes_without_a_certificate_have_an_address_of_their_own(policies, dump, certificates):
    folder, context, clients, _ = certificates
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    options = ("--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key", "--client-ca", folder / "ca.crt",
               "--health-bind", f"127.0.0.1:{port}")
    with serving("--policies", policies, "--cluster", dump, *options, context=context(clients)) as client:
        probe = Client(f"http://127.0.0.1:{port}")
        assert client("POST", "/filter", question("one"))[0] == 200
        assert probe("GET", "/readyz") == (200, "ok\n")
        assert probe.metric("koord_policy_decisions_total", verb="filter", result="ok") == 1
        assert probe("GET", "/status") == (404, {"error": "there is no `/status`: ask /healthz, /metrics, /readyz"})
        assert probe("POST", "/filter", question("one"))[0] == 404
        probe.connection.close()


# The command line


@pytest.mark.parametrize(("words", "message"), [
    (["--bind", "nowhere"], "`nowhere` is no address such as 127.0.0.1:8888"),
    (["--bind", "127.0.0.1:99999"], "`127.0.0.1:99999` is no address such as 127.0.0.1:8888"),
    ([], "nothing would decide: name policies with `--policies`, or built-in plugins with `--enable`"),
    (["--enable", "x", "--tls-cert", "a"], "`--tls-cert` and `--tls-key` go together"),
    (
        ["--enable", "x", "--client-ca", "a"],
        "`--client-ca` needs `--tls-cert` and `--tls-key`: without them nobody is asked who they are",
    ),
    (["--enable", "x", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "there is no file `/nowhere`"),
    (
        ["--enable", "NodeResourceFit", "--bind", "127.0.0.1:0"],
        "`--enable`: there is no plugin `NodeResourceFit`: did you mean `NodeResourcesFit`?",
    ),
    (["--enable", "x", "--output", "json"], "`--output`, `--dry-run` and `--tie-break` mean nothing to an extender"),
    (["--max-body", "0"], "`0` is no whole number from 1 to 1024"),
    (["--refresh", "0.5"], "`0.5` is no number of seconds from 1 to 86400, and not 0"),
    (["--max-error-rate", "2"], "`2` is no number from 0 to 1"),
])
def test_options_that_cannot_be_meant_are_refused(run, words, message):
    done = run("scheduler", "--extender", *words)
    assert done.exit == 2
    assert message in done.err


def test_options_of_the_extender_go_with_it(run):
    done = run("scheduler", "--cluster", "c.yaml", "--state-dir", "s")
    assert (done.exit, done.err) == (2, "koord-policy: `--state-dir` goes with `--extender`\n")
    assert "which cluster?" in run("scheduler").err


def test_policies_that_are_invalid_at_start_end_the_command(run, policies, dump):
    (policies / "policy.yaml").write_text(document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
    done = run("scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies", policies, "--cluster", dump)
    assert done.exit == 3
    assert "policy.yaml:6:" in done.err
    assert "cpuu" in done.err


def test_the_last_good_policies_are_taken_where_that_is_asked_for(policies, dump, tmp_path):
    options = (
        "--policies", policies, "--cluster", dump, "--state-dir", tmp_path / "state", "--invalid-at-start", "last-good",
    )
    with serving(*options) as client:
        assert client("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
    (policies / "policy.yaml").write_text("kind: Nonsense\n")
    with serving(*options) as client:
        assert client("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
        assert client("GET", "/status")[1]["policies"]["sources"][0]["lastGood"] is True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_says_where_it_listens_and_ends_on_a_signal(policies, dump, number):
    command = [
        sys.executable, "-m", "koordpolicy", "scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies",
        str(policies), "--cluster", str(dump),
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONWARNINGS": "default"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    ) as process:
        try:
            found = re.fullmatch(r"listening on (http://127\.0\.0\.1:\d+)\n", process.stdout.readline())
            assert process.stdout.readline() == f"ready: generation 1, plugins small-enough; 4 nodes from {dump}\n"
            client = Client(found[1])
            assert client("POST", "/filter", question("one"))[1]["NodeNames"] == ["one"]
            client.connection.close()
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
        except BaseException:
            process.kill()
            raise
    assert (process.returncode, out) == (0, "")
    assert err == "INFO koordpolicy.engine.reload.reloader: generation 1 is active: 1 policy (small-enough)\n"


def test_an_address_that_is_taken_is_told(run, policies):
    with serving("--policies", policies) as client:
        port = urlsplit(client.url).port
        done = run("scheduler", "--extender", "--bind", f"127.0.0.1:{port}", "--policies", policies)
    assert (done.exit, done.err) == (2, (
        f"koord-policy: cannot listen: error while attempting to bind on address ('127.0.0.1', {port}): "
        "address already in use: name another address with `--bind`\n"))


UNIT_TEST = (
    "{apiVersion: policy.koordinator.sh/v1alpha2, kind: PolicyTest, metadata: {name: s}, spec: {fixtures: {nodes: {n: "
    "{labels: {kind: SchedulerPlugin}}}}, cases: [{name: c, pod: {cpu: 1}, filter: pass}]}}"
)


@pytest.mark.parametrize("text", ["", "# kind: SchedulerPlugin\n", "---\n---\n", UNIT_TEST])
def test_emptied_policies_stay_in_force_and_the_server_is_not_ready(policies, text):
    with serving("--policies", policies) as client:
        assert (
            client("GET", "/readyz")[0], client.metric("koord_policy_active_policies", kind="SchedulerPlugin"),
        ) == (200, 1)
        assert client.metric("koord_policy_active_policies", kind="QoSPlugin") == 0
        good = [each.read_text() for each in policies.iterdir()]
        for each in policies.iterdir():
            each.write_text(text)
        found = client.until(lambda status: status["policies"]["sources"][0]["problems"])
        assert [each["message"] for each in found["policies"]["sources"][0]["problems"]] == [
            f"`{policies}` holds no policy",
        ]
        assert found["ready"] is False
        assert client(
            "GET", "/readyz",
        ) == (503, {"error": f"`{policies}` holds no policy, and the last good set decides: put the policies "
                                                           "back, or start with `--allow-empty`"})
        assert (
            client.metric("koord_policy_ready"), client.metric("koord_policy_active_policies", kind="SchedulerPlugin"),
        ) == (0, 1)
        for each, was in zip(policies.iterdir(), good, strict=True):
            each.write_text(was)
        client.until(lambda status: not status["policies"]["sources"][0]["problems"])
        assert client("GET", "/readyz")[0] == 200


def test_policies_may_be_emptied_where_that_is_allowed(policies):
    with serving("--policies", policies, "--allow-empty") as client:
        for each in policies.iterdir():
            each.unlink()
        client.until(lambda status: status["policies"]["generation"] == 2)
        assert (
            client("GET", "/readyz")[0], client.metric("koord_policy_active_policies", kind="SchedulerPlugin"),
        ) == (200, 0)
