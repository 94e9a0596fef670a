"""The extender as kube-scheduler meets it: real sockets, a free port."""

from __future__ import annotations

import json

import pytest

from ..conftest import node, pod
from .serving import MEBIBYTE, question, serving


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


@pytest.mark.parametrize(("verb", "body", "reason"), [
    ("/filter", b"{", "the body is not JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
    ("/filter", b"\xff", "the body is not UTF-8 at byte 0"),
    ("/prioritize", b"", "the body is not JSON: Expecting value at line 1, column 1"),
    ("/prioritize", b"[" * 20_000, "the body is nested too deeply"),
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
    ("/filter", b'{"NodeNames":[NaN]}', "the body is not JSON: `NaN` is not a number"),
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
            "error": "there is no `/nothing`: ask /apis/v1/{path}, /configz, /debug/flags/{flag}, /explain, /filter, "
                     "/healthz, /healthz/{check}, /livez, /livez/{check}, /metrics, /metrics/slis, /prioritize, "
                     "/promote, /readyz, /readyz/{check}, /rollback, /status",
        },
    )
    assert client("POST", "/bind", b"{}")[0] == 404
    assert client("GET", "/filter") == (405, {"error": "`/filter` takes POST, not GET"})
    assert client("DELETE", "/status") == (405, {"error": "`/status` takes GET, HEAD, not DELETE"})


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
