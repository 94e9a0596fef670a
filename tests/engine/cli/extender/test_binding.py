"""Pods that the extender binds itself."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender
from koordpolicy.engine.scheduler.extender.pod_binder import Binding
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.engine.source import PolicyError, Problem

from .serving import Client, arguments, question, running


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
            ({"Node": ""}, "`Node` is missing"), ({"PodUID": 1}, "`PodUID` must be a string, not a number"),
            ({"Node": "../../x"}, "`Node` is `../../x`, which is not the name of an object"),
        ):
            assert ask(**body) == (400, {"error": reason})
        assert client("POST", "/bind", b" " * 70_000)[0] == 413
        assert len(bound) == 1


def test_a_binding_that_hangs_is_seen_in_metrics_and_status(policies, dump):
    load = extender.loader(arguments("--policies", policies, "--cluster", dump), builtins)
    entered, gate = threading.Event(), threading.Event()

    def bind(binding):
        entered.set()
        assert gate.wait(60)

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
        assert entered.wait(60)
        time.sleep(0.01)
        assert seen(client) == (1, 1, [True, True])
        gate.set()
        caller.join(60)
        other.connection.close()


@pytest.mark.parametrize("words", [("--bind-pods",), ("--bind-pods", "--cluster", "dump.yaml")])
def test_binding_needs_a_live_cluster(run, policies, words):
    done = run("scheduler", "--extender", "--policies", policies, *words)
    assert (done.exit, done.err) == (
        2, "koord-policy: `--bind-pods` needs a live cluster: `--cluster kube[:CONTEXT]`\n",
    )
