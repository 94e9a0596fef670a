"""The shadow, promotion and rollback as people meet them: a server on a free port, edits, requests with a token."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .serving import TOKEN, compared, decide, document, edit, question, serving, shadow_holds


def post(client, path, body=None, token=TOKEN):
    """Ask for a change with a token."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    client.connection.request("POST", path, json.dumps({} if body is None else body), headers)
    response = client.connection.getresponse()
    return response.status, json.loads(response.read())


def test_a_shadow_that_agrees_is_counted(shadowed):
    decide(shadowed, count=3)
    found = compared(shadowed, 6)
    assert {key: found[key] for key in ("ready", "same", "differs", "error", "examples", "failing")} == {
        "ready": True, "same": 6, "differs": 0, "error": 0, "examples": [], "failing": {}}
    assert shadowed.metric("koord_policy_shadow_decisions_total", verb="filter", result="same") == 3
    assert shadowed.metric("koord_policy_shadow_config_info", hash=found["hash"]) == 1


def test_a_shadow_that_differs_changes_no_answer_and_says_where(shadowed, shadow):
    edit(shadow / "policy.yaml", document(1500))
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    assert shadowed("POST", "/filter", question("one", "two", "eight"))[1]["NodeNames"] == ["one", "two"]
    found = compared(shadowed, 1)
    assert (found["same"], found["differs"]) == (0, 1)
    assert [{key: value for key, value in each.items() if key != "at"} for each in found["examples"]] == [{
        "verb": "filter", "pod": "shop/p", "nodes": 1, "gained": [], "lost": ["two"],
        "why": ["would be refused by small-enough: 2000m is too much"]}]
    assert shadowed.metric("koord_policy_shadow_decisions_total", verb="filter", result="differs") == 1


def test_a_shadow_that_scores_otherwise_differs(shadowed, shadow):
    edit(shadow / "policy.yaml", document(9000))
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    assert shadowed("POST", "/prioritize", question("one", "two"))[0] == 200
    example, = compared(shadowed, 1)["examples"]
    assert (example["verb"], example["nodes"], example["gained"], example["lost"]) == (
        "prioritize", 2, ["two"], ["one"],
    )


def test_an_invalid_shadow_keeps_nobody_from_deciding(policies, tmp_path, dump, token):
    nothing = tmp_path / "nothing"
    with serving("--policies", policies, "--shadow", nothing, "--cluster", dump, "--admin-token-file", token) as client:
        decide(client)
        assert client("GET", "/status")[1]["shadow"]["ready"] is False
        status, answer = post(client, "/promote")
        assert (status, answer["code"]) == (409, "shadow-invalid")
        nothing.mkdir()
        edit(nothing / "policy.yaml", document(1500))
        client.until(lambda status: status["shadow"]["ready"])


def test_a_shadow_that_agrees_long_enough_is_promoted_and_in_force(shadowed, shadow, policies):
    edit(shadow / "policy.yaml", document(4001))
    second = document(9000, name="second").replace("  score:\n", "").split('  - {name: cores, expression: "9000')[0]
    edit(shadow / "second.yaml", second)
    found = shadowed.until(shadow_holds(shadow))
    assert found["policies"]["digest"] != found["shadow"]["hash"]
    decide(shadowed, count=2)
    compared(shadowed, 4)
    status, answer = post(shadowed, "/promote", {"decisions": 100})
    assert (status, answer["code"], answer["error"]) == (
        409, "not-enough", "4 decisions were compared so far, 0 of them differ; 100 are wanted")
    wanted = shadowed("GET", "/status")[1]["shadow"]["hash"]
    assert post(shadowed, "/promote", {"decisions": 4, "hash": wanted}) == (
        200, {"promoted": True, "generation": 2, "hash": wanted, "path": str(policies)})
    assert (policies / "policy.yaml").read_text() == (shadow / "policy.yaml").read_text()
    assert sorted(each.name for each in policies.iterdir()) == ["policy.yaml", "second.yaml"]
    status = shadowed("GET", "/status")[1]
    assert (status["policies"]["digest"], status["policies"]["healthy"]) == (wanted, True)
    assert post(shadowed, "/promote", {"decisions": 4})[1]["code"] == "in-force"


def test_a_shadow_that_differs_too_often_is_not_promoted(shadowed, shadow, policies):
    before = (policies / "policy.yaml").read_text()
    edit(shadow / "policy.yaml", document(1500))
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    decide(shadowed, count=2)
    compared(shadowed, 4)
    status, answer = post(shadowed, "/promote", {"decisions": 4, "maxDifferences": 0.1})
    assert (
        status, answer["code"], answer["comparison"]["differs"], len(answer["comparison"]["examples"]),
    ) == (409, "differs", 2, 2)
    assert answer["error"] == "2 of 4 decisions differ, and at most 10 % may"
    assert (policies / "policy.yaml").read_text() == before
    assert post(shadowed, "/promote", {"decisions": 4, "maxDifferences": 0.5})[0] == 200


@pytest.mark.parametrize(("body", "reason"), [
    ({"decisions": 0}, "`decisions` must be a whole number from 1 to 1000000000"),
    ({"decisions": True}, "`decisions` must be a whole number from 1 to 1000000000"),
    ({"decisions": 10**400}, "`decisions` must be a whole number from 1 to 1000000000"),
    ({"maxDifferences": float("nan")}, "`maxDifferences` must be a number from 0 to 1"),
    ({"maxDifferences": 2}, "`maxDifferences` must be a number from 0 to 1"),
    ({"maxDifferences": "1%"}, "`maxDifferences` must be a number from 0 to 1"),
    ({"hash": 1}, "`hash` must be a string"),
    ({"hash": "abc"}, "`hash` must be a hash, or at least its first 6 digits"),
    ([], "the body must be an object"),
    ({"active": 1}, "`active` must be a string"),
    ({"dryRun": "yes"}, "`dryRun` must be true or false"),
    ({"force": True}, "`force` is not a field: there are `decisions`, `maxDifferences`, `hash`, `active`, `dryRun`"),
])
def test_a_malformed_promotion_is_refused(shadowed, body, reason):
    assert post(shadowed, "/promote", body) == (400, {"error": reason})


def test_a_dry_run_shows_what_a_promotion_would_change_and_changes_nothing(shadowed, shadow, policies):
    before = (policies / "policy.yaml").read_text()
    edit(shadow / "policy.yaml", document(4001))
    edit(shadow / "second.yaml", document(9000, name="second"))
    status = shadowed.until(shadow_holds(shadow))
    hashes = {"hash": status["shadow"]["hash"], "directoryHash": status["shadow"]["policies"]["sources"][0]["digest"],
              "active": status["policies"]["digest"]}
    changes = [{"file": "policy.yaml", "before": before, "after": document(4001)},
               {"file": "second.yaml", "before": None, "after": document(9000, name="second")}]
    status, refused = post(shadowed, "/promote", {"dryRun": True})
    assert (status, refused["code"], refused["comparison"]["decisions"]) == (409, "not-enough", 0)
    assert {key: refused[key] for key in (*hashes, "changes")} == {**hashes, "changes": changes}
    decide(shadowed)
    compared(shadowed, 2)
    status, answer = post(shadowed, "/promote", {"dryRun": True, "decisions": 2, "maxDifferences": 1})
    comparison = answer.pop("comparison")
    assert (status, answer) == (
        200, {"dryRun": True, "path": str(policies), "changes": changes, **hashes})
    assert comparison["decisions"] == 2
    assert sorted(each.name for each in policies.iterdir()) == ["policy.yaml"]
    assert shadowed("GET", "/status")[1]["policies"]["generation"] == 1


def test_a_change_is_refused_if_something_else_is_active_by_then(shadowed, shadow, policies):
    edit(policies / "policy.yaml", document(4001))
    status = shadowed.until(lambda status: status["policies"]["generation"] == 2)
    [first] = [each["digest"] for each in status["policies"]["history"] if each["generation"] == 1]
    second = status["policies"]["digest"]
    decide(shadowed)
    compared(shadowed, 2)
    for path, body in (("/promote", {"decisions": 2, "maxDifferences": 1}), ("/rollback", {"to": first})):
        for dry_run in (True, False):
            status, answer = post(shadowed, path, {**body, "active": first, "dryRun": dry_run})
            assert (status, answer["code"]) == (409, "other-active"), path
            assert answer["error"].startswith(f"`{second}` is active, not `{first}`")
    assert shadowed("GET", "/status")[1]["policies"]["generation"] == 2
    assert post(shadowed, "/rollback", {"to": first, "active": second})[0] == 200


def test_a_dry_run_shows_what_a_rollback_would_change_and_changes_nothing(shadowed, policies):
    before = (policies / "policy.yaml").read_text()
    assert post(shadowed, "/rollback", {"dryRun": True})[1]["code"] == "no-such-generation"
    edit(policies / "policy.yaml", document(9000))
    status = shadowed.until(lambda status: status["policies"]["generation"] == 2)
    now, then = (each["digest"] for each in status["policies"]["history"])
    assert post(shadowed, "/rollback", {"dryRun": True}) == (200, {
        "dryRun": True, "restored": 1, "hash": then, "active": now,
        "changes": [{"file": "policy.yaml", "before": document(9000), "after": before}]})
    assert shadowed("GET", "/status")[1]["policies"]["generation"] == 2
    for body in ({"dryRun": 1}, {"active": None}, {"to": 1}, {"force": True}):
        assert post(shadowed, "/rollback", body)[0] == 400


@pytest.mark.parametrize("path", ["/promote", "/rollback"])
def test_nobody_changes_anything_without_the_token(shadowed, path):
    for wrong in (None, "", TOKEN[:-1], TOKEN + "x", "\u00e4"):
        assert post(shadowed, path, token=wrong) == (
            401, {"error": "show the token of `--admin-token-file` as `Authorization: Bearer TOKEN`"})
    assert shadowed("GET", "/status")[1]["policies"]["generation"] == 1


def test_a_token_may_be_replaced_and_taken_away(shadowed, token):
    token.write_text("another token that is long")
    assert post(shadowed, "/rollback")[0] == 401
    assert post(shadowed, "/rollback", token="another token that is long")[0] == 409
    token.unlink()
    assert post(shadowed, "/rollback", token="another token that is long")[0] == 401


def test_without_a_token_file_nothing_can_be_changed(client):
    assert post(client, "/promote") == (
        403, {"error": "nothing can be changed over HTTP: start the server with `--admin-token-file`"})


def test_a_large_body_is_refused(shadowed):
    shadowed.connection.request("POST", "/rollback", b" " * 70_000, {"Authorization": f"Bearer {TOKEN}"})
    response = shadowed.connection.getresponse()
    assert (response.status, json.loads(response.read())) == (
        413, {"error": "the body has 70000 bytes, at most 65536 are taken"},
    )


def test_a_rollback_holds_until_the_directory_changes(shadowed, policies):
    edit(policies / "policy.yaml", document(9000))
    shadowed.until(lambda status: status["policies"]["generation"] == 2)
    status, answer = post(shadowed, "/rollback")
    assert (status, answer["restored"], answer["generation"]) == (200, 1, 3)
    assert shadowed("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one"]
    held = shadowed("GET", "/status")[1]["policies"]
    assert (held["healthy"], held["restored"], held["sources"][0]["problems"][0]["code"]) == (False, 1, "held")
    assert [each["generation"] for each in held["history"]] == [3, 2, 1]
    assert shadowed.metric("koord_policy_restored_generation") == 1
    edit(policies / "policy.yaml", document(8500))
    shadowed.until(lambda status: status["policies"]["healthy"])
    assert shadowed("POST", "/filter", question("one", "eight"))[1]["NodeNames"] == ["one", "eight"]
    assert post(shadowed, "/rollback", {"to": "nothing"})[1]["code"] == "no-such-generation"
    assert post(shadowed, "/rollback", ["1"])[0] == 400


def test_status_counts_what_each_expression_was_asked_and_costs(client):
    decide(client)
    found = client("GET", "/status")[1]["expressions"]
    assert [{key: value for key, value in each.items() if key != "cost"} for each in found] == [
        {
            "profile": "default-scheduler", "plugin": "small-enough", "point": "filter", "rule": "cores",
            "evaluations": 3, "errors": 0,
        },
        {
            "profile": "default-scheduler", "plugin": "small-enough", "point": "score", "rule": "cores",
            "evaluations": 2, "errors": 0,
        },
    ]
    assert all(each["cost"] > 0 for each in found)
    assert client.metric("koord_policy_expression_evaluations_total", plugin="small-enough", point="filter") == 3


def test_what_only_audits_is_compared_as_if_it_was_enforced(policies, dump):
    audit = document(1500, name="stricter").replace("spec:\n", "spec:\n  enforcement: Audit\n")
    (policies / "audit.yaml").write_text(audit)
    with serving("--policies", policies, "--cluster", dump) as client:
        decide(client)
        decide(client, "one")
        found = client.until(lambda status: sum(each["decisions"] for each in status["audits"]) == 4)["audits"]
        assert [
            (each["plugin"], each["verb"], each["enforcement"], each["same"], each["differs"]) for each in found
        ] == [
            ("stricter", "filter", "Audit", 1, 1), ("stricter", "prioritize", "Audit", 2, 0)]
        assert found[0]["examples"][0]["why"] == ["would be refused by stricter: 2000m is too much"]
        assert client.metric(
            "koord_policy_audit_decisions_total", plugin="stricter", verb="filter", result="differs",
        ) == 1


def test_a_directory_that_cannot_be_written_is_told_and_nothing_changes(shadowed, shadow, policies):
    edit(shadow / "policy.yaml", document(4001))
    (shadow / "deep").mkdir()
    (shadow / "deep" / "more.yaml").write_text("# nothing\n")
    shadowed.until(shadow_holds(shadow))
    (policies / "deep").write_text("in the way")
    decide(shadowed)
    compared(shadowed, 2)
    status, answer = post(shadowed, "/promote", {"decisions": 2})
    assert (status, answer["code"]) == (409, "not-publishable")
    assert answer["error"] == f"`{policies}` cannot be written: file exists"
    assert (policies / "policy.yaml").read_text() == document(4000)
    assert stat.S_ISREG((policies / "deep").stat().st_mode)


def test_metrics_keep_the_conventions_and_are_all_documented(shadowed, policies):
    edit(policies / "audit.yaml",
         document(1500, name="stricter").replace("spec:\n", "spec:\n  enforcement: Audit\n"))
    shadowed.until(lambda status: status["policies"]["generation"] == 2)
    decide(shadowed)
    text = shadowed("GET", "/metrics")[1]
    page = (Path(__file__).parents[4] / "docs" / "metrics.md").read_text(encoding="utf-8")
    # The others have the names of kube-scheduler's.
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("koord_policy_")]
    assert len(families) > 20
    for family in families:
        # The parser takes `_total` off counters; the text of an info looks like a gauge's.
        shown = f"{family.name}_total" if family.type == "counter" else family.name
        assert re.fullmatch("koord_policy_[a-z_]+[a-z]", family.name)
        assert family.documentation, shown
        assert family.documentation[-1] != "."
        assert f"`{shown}`" in page, shown
        assert not re.search("_(milliseconds|ms|minutes|count|sum|bucket|counter|gauge)$", family.name), shown
        assert family.type != "gauge" or not family.name.endswith("_total"), shown
        assert ("timestamp" not in family.name) or family.name.endswith("_timestamp_seconds"), shown
        for sample in family.samples:
            assert sample.labels.keys() <= {
                "verb", "result", "plugin", "enforcement", "point", "rule", "hash", "path", "kind", "le",
            }


def test_a_shadow_within_what_is_in_force_is_refused(run, policies):
    for path in (policies, policies / "next", policies.parent):
        done = run("scheduler", "--extender", "--policies", policies, "--shadow", path)
        assert done.exit == 2
        assert done.err == (
            f"koord-policy: `--shadow {path}` and `--policies {policies}` are one within the other: what "
            "is in the shadow must not be active, so keep them apart\n"
        )


def test_a_version_that_is_refused_is_not_overwritten(shadowed, shadow, policies):
    edit(shadow / "policy.yaml", document(4001))
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    edit(policies / "policy.yaml", "kind: [")
    shadowed.until(lambda status: not status["policies"]["healthy"])
    decide(shadowed)
    compared(shadowed, 2)
    status, answer = post(shadowed, "/promote", {"decisions": 2})
    assert (status, answer["code"]) == (409, "policies-invalid")
    assert answer["error"].startswith(f"`{policies}` holds a version that is not active, which would be lost: ")
    assert (policies / "policy.yaml").read_text() == "kind: ["


def test_an_empty_shadow_is_not_promoted(shadowed, shadow, policies):
    (shadow / "policy.yaml").unlink()
    shadowed.until(lambda status: status["shadow"]["policies"]["generation"] == 2)
    decide(shadowed, "one")
    compared(shadowed, 2)
    status, answer = post(shadowed, "/promote", {"decisions": 1, "maxDifferences": 1})
    assert (status, answer["error"]) == (409, "there is no valid set in the shadow: its directory holds no policies")
    assert (policies / "policy.yaml").exists()


@pytest.mark.parametrize("body", [b"{", b"[" * 50_000, b"\xff", b"9" * 5_000])
def test_what_is_no_json_is_refused(shadowed, body):
    shadowed.connection.request("POST", "/promote", body, {"Authorization": f"Bearer {TOKEN}"})
    response = shadowed.connection.getresponse()
    assert (response.status, json.loads(response.read())) == (400, {"error": "the body is not JSON"})


def test_a_rollback_to_something_endless_is_told_shortly(shadowed):
    status, answer = post(shadowed, "/rollback", {"to": "\ud800" * 10_000})
    assert (status, answer["code"], len(answer["error"]) < 400) == (409, "no-such-generation", True)
