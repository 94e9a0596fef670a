"""The extender's reports about itself: explanations, status, metrics, health."""

from __future__ import annotations

import contextlib
import http.client
import threading

import numpy as np
import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli import extender
from koordpolicy.engine.framework.points import Answer, Framework
from koordpolicy.engine.scheduler.extender.server import Server
from koordpolicy.plugin import python_plugin

from .serving import Client, arguments, document, question, running, serving


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
    ("GET", "/explain", None, 400, "no pod is named: write `?pod=NAMESPACE/NAME`, or send one with POST"),
    (
        "GET", "/explain?pod=shop/gone", None, 404,
        "there is no pod `shop/gone` among the 0 that are known: send it with POST",
    ),
    ("GET", "/explain?pdo=x", None, 400, "`pdo` is not a parameter: there are `pod`, `node` and `output`"),
    ("GET", "/explain?pod=x&output=xml", None, 400, "`output` is `xml`: say `json` or `text`"),
    ("GET", f"/explain?pod={'x' * 600}", None, 400, "a name has more than 512 characters"),
    ("POST", "/explain?pod=x", {}, 400, "`pod` is named and a pod is sent: remove one of them"),
    ("POST", "/explain", b"{", 400, None), ("POST", "/explain", b"[]", 400, None),
    ("POST", "/explain", b"[" * 20_000, 400, None),
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


def test_health_is_answered_and_readiness_is_not_while_policies_and_cluster_are_loaded():
    go_on, found = threading.Event(), []

    def load():
        assert go_on.wait(60)
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
    unready = 503, ("[+]ping ok\n[-]loaded failed: policies and cluster are not loaded yet\n[+]policies ok\n"
                    "[+]decisions ok\nreadyz check failed\n")
    assert found == [(200, "ok"), unready, waiting, (200, {"ready": False}), 0]


def test_a_server_that_is_ready_says_so(client):
    assert [client("GET", path) for path in ("/readyz", "/healthz", "/livez")] == [(200, "ok")] * 3
    assert client("GET", "/readyz?verbose") == (
        200, "[+]ping ok\n[+]loaded ok\n[+]policies ok\n[+]decisions ok\nreadyz check passed\n")
    assert client("GET", "/readyz/loaded") == (200, "ok")
    assert client("GET", "/livez/loaded") == (
        404, {"error": "`livez` has no check of that name: it has ping, decisions"})
    assert client.metric("kubernetes_healthcheck", "/metrics/slis", name="loaded", type="readyz") == 1


def test_the_options_of_a_server_can_be_read(client, policies, dump):
    assert client("GET", "/configz") == (200, {"componentconfig": {
        "kind": "ExtenderOptions", "policies": [str(policies)], "cluster": str(dump), "seed": 0,
        "compileTimeout": 0.0,
    }})


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
            assert go_on.wait(60)
            return self.asked.answer(verb, body)

    def slowly():
        loaded = load()
        return type(loaded)(Slow(loaded.extender), loaded.reloader)

    answers = []
    with running(Server(slowly)) as client:
        other = Client(client.url)
        asking = threading.Thread(target=lambda: answers.append(other("POST", "/filter", question("one"))[0]))
        asking.start()
        assert entered.wait(60)
        assert client("GET", "/healthz")[0] == 200
        assert client("GET", "/readyz")[0] == 200
        go_on.set()
        asking.join()
        other.connection.close()
    assert answers == [200]
