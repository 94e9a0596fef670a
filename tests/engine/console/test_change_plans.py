"""The effects of promotions and rollbacks, from the answers of servers."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.console.change_plans import changes_view, follows, outcome_of, plan_of, result_of
from koordpolicy.engine.console.models.changes import (
    ChangeableServer,
    DiffLine,
    EarlierGeneration,
    FileDiff,
    PlannedServer,
    ServerResult,
    ShadowCounts,
    ShadowExample,
)

COUNTS = {"decisions": 10, "same": 9, "differs": 1, "error": 0, "skipped": 2, "examples": [
    {"verb": "filter", "pod": "shop/p", "nodes": 1, "gained": [], "lost": ["two"], "why": ["too large"], "at": 0}]}
COUNTED = ShadowCounts(decisions=10, same=9, differs=1, error=0, skipped=2, examples_left_out=0, examples=[
    ShadowExample(pod="shop/p", verb="filter", nodes=1, gained=[], lost=["two"], why=["too large"])])
DRY_RUN = {"dryRun": True, "path": "/etc/policies", "hash": "bbbbbb", "directoryHash": "dddddd", "active": "aaaaaa",
           "comparison": COUNTS, "changes": [
               {"file": "a.yaml", "before": "one\ntwo\n", "after": "one\nthree\n"},
               {"file": "b.yaml", "before": None, "after": "new"}, {"file": "c.yaml", "before": "old", "after": None}]}


def answer(data: dict[str, Any], code: int = 200, error: str = "", endpoint: str = "http://one") -> EndpointAnswer:
    return EndpointAnswer(endpoint, code, data, error)


def test_the_plan_of_a_promotion_has_hashes_counts_and_differences():
    plan = plan_of("promote", "", [answer(DRY_RUN)])
    assert plan.servers == [PlannedServer(
        endpoint="http://one", state="changes", before="aaaaaa", after="bbbbbb", path="/etc/policies",
        comparison=COUNTED, files=[
            FileDiff(file="a.yaml", state="replaced", lines=[
                DiffLine(kind="place", text="@@ -1,2 +1,2 @@"), DiffLine(kind="same", text="one"),
                DiffLine(kind="removed", text="two"), DiffLine(kind="added", text="three")]),
            FileDiff(file="b.yaml", state="added", lines=[
                DiffLine(kind="place", text="@@ -0,0 +1 @@"), DiffLine(kind="added", text="new")]),
            FileDiff(file="c.yaml", state="removed", lines=[
                DiffLine(kind="place", text="@@ -1 +0,0 @@"), DiffLine(kind="removed", text="old")]),
        ])]
    assert len(plan.confirm) == 64


@pytest.mark.parametrize(("found", "state", "message"), [
    (answer({"error": "few", "code": "not-enough", "active": "a", "hash": "b"}, 409, "few"), "refused", "few"),
    (answer({"error": "x", "code": "in-force", "active": "a", "hash": "a"}, 409, "x"), "unchanged", "x"),
    (answer({"error": "x", "code": "no-shadow"}, 409, "x"), "unconcerned", "x"),
    (answer({}, 404, "it has no /promote"), "unconcerned", "it has no /promote"),
    (answer({}, 0, "cannot be reached: refused"), "refused", "cannot be reached: refused"),
    (answer({"error": "show it"}, 401, "it has another token: name the file"), "refused",
     "it has another token: name the file"),
    (answer({"error": "no"}, 403, "no"), "refused", "no"),
    (answer({"hash": 7}), "refused", "what it answers is not understood"),
    (answer({"promoted": True}), "refused", "what it answers is not understood"),
    (answer({**DRY_RUN, "changes": "all"}), "refused", "what it answers is not understood"),
])
def test_a_server_that_is_not_changed_says_why(found: EndpointAnswer, state: str, message: str):
    plan = plan_of("promote", "", [found])
    assert ([(each.state, each.message) for each in plan.servers], plan.confirm) == ([(state, message)], "")


def test_a_confirmation_is_of_all_that_is_changed_and_of_nothing_else():
    def confirmed(action: str = "promote", to: str = "", **change: Any) -> str:
        answers = answer({**DRY_RUN, **change}), answer({}, 404, "it has no /promote", "two")
        return plan_of(action, to, answers).confirm

    same = confirmed()
    assert confirmed(comparison={**COUNTS, "decisions": 11}) == same
    others = [confirmed(hash="cccccc"), confirmed(active="cccccc"), confirmed("rollback"), confirmed(to="x"),
              plan_of("promote", "", [answer(DRY_RUN)]).confirm]
    assert len({same, *others}) == 6


def test_long_and_hostile_texts_are_bounded():
    files = [{"file": "a\u202e.yaml", "before": "\x1b[31m" + "x" * 600, "after": ""},
             {"file": "b.yaml", "before": "1\n" * 6000, "after": "2\n" * 6000},
             {"file": "c.yaml", "before": "1", "after": "1\n"}]
    [server] = plan_of("rollback", "", [answer({**DRY_RUN, "changes": files, "changesLeftOut": ["d.yaml"]})]).servers
    assert server.files == [
        FileDiff(file="a\ufffd.yaml", state="replaced", lines=[
            DiffLine(kind="place", text="@@ -1 +0,0 @@"),
            DiffLine(kind="removed", text="\ufffd[31m" + "x" * 495 + "…")]),
        FileDiff(file="b.yaml", state="replaced", lines=[], note="too long to be shown: 6000 lines before, 6000 after"),
        FileDiff(file="c.yaml", state="replaced", lines=[], note="it differs by the end of its last line only"),
        FileDiff(file="d.yaml", state="replaced", lines=[], note="too long to be shown"),
    ]


@pytest.mark.parametrize(("found", "state", "message"), [
    (answer({"promoted": True, "generation": 2, "hash": "bbbbbb"}), "changed", ""),
    (answer({"code": "in-force", "active": "bbbbbb"}, 409, "x"), "changed",
     "it has read the directory that another server wrote"),
    (answer({"code": "other-active", "active": "bbbbbb"}, 409, "x"), "changed",
     "it has read the directory that another server wrote"),
    (answer({"code": "other-active", "active": "cccccc"}, 409, "x"), "failed", "x"),
    (answer({"code": "read-only"}, 409, "read-only file system"), "failed", "read-only file system"),
    (answer({}, 0, "no answer within 70 s"), "unknown", "no answer within 70 s"),
    (answer({"generation": "2"}), "failed", "what it answers is not understood"),
])
def test_a_result_is_changed_failed_or_not_known(found: EndpointAnswer, state: str, message: str):
    result = result_of(found, "bbbbbb")
    assert (result.state, result.message) == (state, message)


def test_an_outcome_is_partial_where_one_server_was_changed_and_another_not():
    def outcome(*states: str) -> str:
        return outcome_of([ServerResult(endpoint="", state=each) for each in states])

    assert [outcome("changed", "changed"), outcome("changed", "failed"), outcome("failed", "skipped"),
            outcome("unknown"), outcome()] == ["complete", "partial", "none", "none", "none"]


def status(generation: int, *digests: str, **more: Any) -> dict[str, Any]:
    """The status of a server whose generations have these hashes, newest first, a second apart."""
    return {"policies": {"generation": generation, "digest": digests[0], "restored": None, "history": [
        {"generation": generation - age, "digest": digest, "since": 100.0 - age, "sources": {}}
        for age, digest in enumerate(digests)]}, **more}


def test_servers_and_their_generations_are_listed_newest_first():
    shadow = {**COUNTS, "ready": True, "hash": "ffffff"}
    view = changes_view([
        answer(status(2, "bbbbbb", "aaaaaa", shadow=shadow)), answer(status(3, "aaaaaa", "cccccc", "aaaaaa"),
                                                                     endpoint="http://two"),
        answer({"ready": False}, endpoint="http://three"), answer({}, 0, "cannot be reached", endpoint="http://four")])
    assert view.servers == [
        ChangeableServer(endpoint="http://one", generation=2, hash="bbbbbb", shadow="ffffff", comparison=COUNTED),
        ChangeableServer(endpoint="http://two", generation=3, hash="aaaaaa"),
        ChangeableServer(endpoint="http://three",
                         error="its policies are not loaded yet, or it is no koord-policy that has any"),
        ChangeableServer(endpoint="http://four", error="cannot be reached")]
    assert view.generations == [
        EarlierGeneration(hash="aaaaaa", since=100.0, servers=2, active=1),
        EarlierGeneration(hash="bbbbbb", since=100.0, servers=1, active=1),
        EarlierGeneration(hash="cccccc", since=99.0, servers=1, active=0)]
    assert (view.decisions, view.max_differences) == (1000, 0.001)


def test_a_server_follows_once_its_status_has_the_hash():
    assert follows(answer(status(2, "bbbbbb")), "bbbbbb") == ServerResult(
        endpoint="http://one", state="changed", generation=2, hash="bbbbbb",
        message="it has read the directory that another server wrote")
    assert [follows(each, "bbbbbb") for each in (answer(status(2, "aaaaaa")), answer({}), answer({}, 0, "x"))] == [
        None] * 3
