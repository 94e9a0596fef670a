"""Policies that are edited, broken, emptied and brought back while the extender serves."""

from __future__ import annotations

import json

import pytest

from .serving import document, edit, question, serving


def test_an_edit_is_in_force_for_the_next_pod_and_not_between_the_calls_of_one(client, policies):
    best = {"NodeNames": ["one", "two"]}
    assert client("POST", "/filter", question("one", "two", "eight"))[1]["NodeNames"] == best["NodeNames"]
    edit(policies / "policy.yaml", document(9000))
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
    edit(policies / "policy.yaml", document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
    status = client.until(lambda status: not status["policies"]["healthy"])
    assert "cpuu" in status["policies"]["sources"][0]["problems"][0]["message"]
    assert client("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
    assert client.metric("koord_policy_reloads_total", result="failure") == 1
    assert client.metric("koord_policy_policies_healthy") == 0


def test_status_shows_what_is_in_force_before_any_decision_is_made_under_it(policies, dump):
    with serving("--policies", policies, "--cluster", dump, "--allow-empty") as client:
        (policies / "policy.yaml").rename(policies / "policy.txt")
        status = client.until(lambda status: status["policies"]["generation"] == status["generation"] == 2)
    assert (status["generation"], status["profiles"]) == (
        2, [{"name": "default-scheduler", "generation": 2, "preFilters": [], "filters": [], "scores": []}])
    assert status["policies"]["sources"][0]["warnings"] == [f"`{policies}` holds no policy files"]


def test_with_files_as_the_unit_only_the_wrong_file_stays_behind(policies, dump):
    other = policies / "other.yaml"
    edit(other, document(8000, name="other"))
    with serving("--policies", policies, "--cluster", dump, "--reload-unit", "file") as client:
        edit(policies / "policy.yaml", document(4000).replace("allocatable.cpu <=", "allocatable.cpuu <="))
        edit(other, document(1000, name="other"))
        status = client.until(lambda status: status["policies"]["generation"] == 2)["policies"]
        assert (
            status["healthy"], status["sources"][0]["mixed"], len(status["sources"][0]["problems"]),
        ) == (False, True, 1)
        assert client("POST", "/filter", question("one", "two", "eight"))[1]["FailedNodes"] == {
            "two": "other: 2000m is too much", "eight": "other: 8000m is too much"}


def test_every_call_is_answered_while_policies_are_reloaded(client, policies):
    for number in range(1, 6):
        edit(policies / "policy.yaml", document(4000 + number))
        answers = set()

        def in_force(status, wanted=number + 1, answers=answers):
            answers.add(
                json.dumps(client("POST", "/filter", question("one", "eight", uid=str(len(answers))))[1]["NodeNames"]),
            )
            return status["policies"]["generation"] >= wanted

        client.until(in_force)
        assert answers == {'["one"]'}


def test_the_last_good_policies_are_taken_where_that_is_asked_for(policies, dump, tmp_path):
    options = (
        "--policies", policies, "--cluster", dump, "--state-dir", tmp_path / "state", "--invalid-at-start", "last-good",
    )
    with serving(*options) as client:
        assert client("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
    edit(policies / "policy.yaml", "kind: Nonsense\n")
    with serving(*options) as client:
        assert client("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
        assert client("GET", "/status")[1]["policies"]["sources"][0]["lastGood"] is True


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
            edit(each, text)
        found = client.until(lambda status: status["policies"]["sources"][0]["problems"])
        assert [each["message"] for each in found["policies"]["sources"][0]["problems"]] == [
            f"`{policies}` holds no policy",
        ]
        assert found["ready"] is False
        assert client(
            "GET", "/readyz",
        ) == (503, ("[+]ping ok\n[+]loaded ok\n"
                    f"[-]policies failed: `{policies}` holds no policy, and the last good set decides: put the "
                    "policies back, or start with `--allow-empty`\n[+]decisions ok\nreadyz check failed\n"))
        assert (
            client.metric("koord_policy_ready"), client.metric("koord_policy_active_policies", kind="SchedulerPlugin"),
        ) == (0, 1)
        for each, was in zip(policies.iterdir(), good, strict=True):
            edit(each, was)
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
