"""The status of objects: a pure function of the object and its source, and patches only where it differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.client.informer import Change
from koordpolicy.engine.client.writes import WriteResult, WriteStatus
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Builder, Reloader
from koordpolicy.engine.reload.api_source import ObjectSource
from koordpolicy.engine.reload.object_status import StatusWriter
from koordpolicy.engine.reload.source_state import SourceState

from .conftest import Time, begun, report_overdue
from .test_api_source import followed, gone, plugin

STARTED = 1_769_860_800_000_000_000
DONE = WriteResult(WriteStatus.DONE)
FIRST, SECOND = "2026-01-31T12:00:00Z", "2026-01-31T12:00:10Z"


@dataclass
class Server:
    """An API server that merges patches of status, and delivers what it has."""

    source: ObjectSource
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    sent: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    result: WriteResult | Exception = DONE
    answers: bool = True
    leading: bool = True
    now: int = STARTED

    def apply(self, *changes: Change) -> None:
        for change in changes:
            before = self.stored.get(change.name, {})
            body = msgspec.json.decode(change.raw) if change.raw is not None else {}
            self.stored[change.name] = body | {"status": before.get("status", {})}
            self.echo(change.name)

    def delete(self, name: str) -> None:
        body = self.stored.pop(name)
        self.source.deliver([gone(Change(body["kind"], "", name, f"u-{name}", None))])

    def echo(self, name: str) -> None:
        body = self.stored[name]
        raw = msgspec.Raw(json.dumps(body).encode())
        self.source.deliver([Change(body["kind"], "", name, f"u-{name}", raw)])

    def write(self, kind: str, name: str, uid: str, patch: Mapping[str, Any]) -> Future[WriteResult]:
        assert (kind, uid) == (self.stored[name]["kind"], f"u-{name}")
        self.sent.append((name, patch))
        future: Future[WriteResult] = Future()
        if isinstance(self.result, Exception):
            future.set_exception(self.result)
            return future
        if not self.answers:
            return future
        if self.result.done:
            status = self.stored[name]["status"] | patch
            self.stored[name]["status"] = {key: value for key, value in status.items() if value is not None}
            self.echo(name)
        future.set_result(self.result)
        return future

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.stored[name]["status"])

    def active(self, name: str) -> tuple[str, str, str, int | None]:
        (condition,) = self.status(name)["conditions"]
        return condition["status"], condition["reason"], condition["message"], self.status(name).get("activeGeneration")


@pytest.fixture
def server() -> Server:
    source = ObjectSource()
    followed(source)
    return Server(source)


OBSERVED: list[Sequence[SourceState]] = []
"""The states after the last pass."""


class Observer(StatusWriter):
    """A writer that is an observer of a reloader by itself."""

    def started(self) -> None:
        pass

    def published(self, states: Sequence[SourceState]) -> None:
        OBSERVED[:] = [states]
        super().published(states)

    def closed(self) -> None:
        pass


def served(server: Server, time: Time, live: Live, **settings: Any) -> Reloader:
    writer = Observer(server.source, server.write, lambda: server.leading, clock=lambda: time.now,
                      now=lambda: server.now)
    return begun(live, time, server.source, builder=Builder(), observers=[writer], **settings)


def test_a_valid_object_is_active_in_its_generation(server: Server, time: Time, live: Live):
    server.apply(plugin("a", generation=4))
    served(server, time, live)
    (digest,) = {each.digest for each in server.source.objects.values()}
    assert server.status("a") == {
        "observedGeneration": 4, "activeGeneration": 4, "hash": digest, "activeHash": digest, "conditions": [{
            "type": "Active", "status": "True", "reason": "Active", "message": "generation 4 decides",
            "observedGeneration": 4, "lastTransitionTime": FIRST}]}


def test_a_broken_object_names_its_fields_and_the_generation_that_stays_active(server: Server, time: Time, live: Live):
    server.apply(plugin("a"), plugin("b"))
    reloader = served(server, time, live)
    before = server.status("a")["hash"]
    server.now += 10 * 10**9
    server.apply(plugin("a", generation=2, spec={"weight": "x", "filter": [{"name": "f"}]}))
    time.run(reloader, 2)
    status = server.status("a")
    assert status["conditions"] == [{
        "type": "Active", "status": "False", "reason": "Invalid", "observedGeneration": 2, "lastTransitionTime": SECOND,
        "message": f"{status['errors'][0]['field']}: {status['errors'][0]['message']} (and 1 more); "
                   "generation 1 stays active"}]
    assert {each["field"] for each in status["errors"]} == {"spec.weight", "spec.filter[0]"}
    assert (status["activeGeneration"], status["activeHash"], status["hash"] == before) == (1, before, False)
    assert server.active("b") == ("True", "Active", "generation 1 decides", 1)
    server.apply(plugin("a", "1 < 2", generation=3))
    time.run(reloader, 2)
    assert (server.active("a")[3], "errors" in server.status("a")) == (3, False)


def test_an_edit_that_is_undone_is_active_in_its_own_generation(server: Server, time: Time, live: Live):
    server.apply(plugin("a"))
    reloader = served(server, time, live)
    server.apply(plugin("a", "true &&", generation=2))
    time.run(reloader, 2)
    server.apply(plugin("a", generation=3))
    time.run(reloader, 2)
    assert server.active("a") == ("True", "Active", "generation 3 decides", 3)


def test_params_that_an_object_does_not_take_name_the_object(server: Server, time: Time, live: Live):
    server.apply(
        plugin("p", kind="PolicyParams", spec={"params": {"x": 1}}),
        plugin("a", spec={"paramsFrom": [{"name": "p"}], "filter": [{"name": "f", "expression": "params.x > 0"}]}))
    reloader = served(server, time, live)
    server.apply(plugin("p", kind="PolicyParams", spec={"params": {"x": "one"}}, generation=2))
    time.run(reloader, 2)
    (error,) = server.status("p")["errors"]
    assert (error["object"], error["field"]) == ("SchedulerPlugin/a", "spec.filter[0].expression")
    assert (server.active("p")[3], server.active("a")[:2]) == (1, ("True", "Active"))


def test_in_a_quiet_minute_nothing_is_written(server: Server, time: Time, live: Live):
    server.apply(plugin("a"), plugin("b", "true &&"))
    reloader = served(server, time, live)
    time.run(reloader, 2)
    written = len(server.sent)
    server.now += 60 * 10**9
    time.run(reloader, 60)
    assert (written, len(server.sent)) == (2, 2)


def test_only_the_leader_writes_and_a_new_one_writes_what_differs(server: Server, time: Time, live: Live):
    server.leading = False
    server.apply(plugin("a"), plugin("b"))
    reloader = served(server, time, live)
    time.run(reloader, 5)
    assert server.sent == []
    server.stored["b"]["status"] = {"observedGeneration": 1}
    server.leading = True
    time.run(reloader, 2)
    assert sorted(name for name, _ in server.sent) == ["a", "b"]


def test_a_restart_writes_nothing_and_knows_the_active_generation(server: Server, time: Time, live: Live, tmp_path):
    server.apply(plugin("a"))
    reloader = served(server, time, live, state_dir=tmp_path)
    server.apply(plugin("a", "true &&", generation=2))
    time.run(reloader, 2)
    written = len(server.sent)
    again = served(server, time, Live(), state_dir=tmp_path)
    time.run(again, 5)
    assert (len(server.sent), server.active("a")[3]) == (written, 1)


def test_a_status_that_someone_else_wrote_is_corrected(server: Server, time: Time, live: Live):
    server.apply(plugin("a"))
    reloader = served(server, time, live)
    server.stored["a"]["status"]["activeGeneration"] = 7
    server.echo("a")
    time.run(reloader, 2)
    assert server.active("a")[3] == 1


@pytest.mark.parametrize("failure", [
    WriteResult(WriteStatus.FORBIDDEN, "403 Forbidden: no"), RuntimeError("broken"),
])
def test_a_write_that_fails_is_tried_again_after_a_while(server: Server, time: Time, live: Live, failure, caplog):
    server.result = failure
    server.apply(plugin("a"))
    reloader = served(server, time, live)
    time.run(reloader, 9)
    assert (len(server.sent), caplog.text.count("cannot be written")) == (1, 1)
    server.result = WriteResult(WriteStatus.DONE)
    time.run(reloader, 5)
    assert (len(server.sent), server.active("a")[3]) == (2, 1)


def test_a_write_under_way_is_not_sent_again(server: Server, time: Time, live: Live):
    server.answers = False
    server.apply(plugin("a"))
    reloader = served(server, time, live)
    time.run(reloader, 30)
    assert len(server.sent) == 1


def test_a_written_status_is_not_sent_again_before_it_is_delivered(server: Server, time: Time, live: Live):
    server.echo = lambda name: None  # type: ignore[method-assign]
    server.stored["a"] = msgspec.json.decode(plugin("a").raw or b"{}") | {"status": {}}
    server.source.deliver([plugin("a")])
    reloader = served(server, time, live)
    server.now += 10**9
    time.run(reloader, 30)
    assert len(server.sent) == 1


def test_an_object_that_was_rolled_back_says_so(server: Server, time: Time, live: Live):
    server.apply(plugin("a"), plugin("b"))
    reloader = served(server, time, live)
    server.apply(plugin("a", "1 < 2", generation=2), plugin("b", "1 < 2", generation=2))
    time.run(reloader, 2)
    report_overdue(reloader, live, "a")
    time.run(reloader, 2)
    assert server.active("a") == (
        "False", "RolledBack",
        "metadata.name: `a` does not return, so it was rolled back; generation 1 stays active", 1)
    assert server.active("b")[:2] == ("True", "Active")


def test_a_deleted_object_is_forgotten(server: Server, time: Time, live: Live):
    server.apply(plugin("a"), plugin("b"))
    reloader = served(server, time, live)
    server.delete("a")
    time.run(reloader, 2)
    server.apply(plugin("a", "true &&", generation=1))
    time.run(reloader, 2)
    assert server.active("a")[3] is None
    assert "activeHash" not in server.status("a")


def test_a_rollback_by_hand_is_said_of_the_objects_that_it_changes(server: Server, time: Time, live: Live):
    server.apply(plugin("a"), plugin("b"))
    reloader = served(server, time, live)
    server.apply(plugin("a", "1 < 2", generation=2))
    time.run(reloader, 2)
    future = reloader.restore()
    time.run(reloader, 2)
    assert (future.result().restored, server.active("a")[:2], server.active("a")[3], server.active("b")[:2]) == (
        1, ("False", "RolledBack"), 1, ("True", "Active"))
    server.apply(plugin("a", "2 < 3", generation=3))
    time.run(reloader, 2)
    assert server.active("a")[3] == 3


EDITS = st.lists(st.tuples(
    st.sampled_from(["a", "b", "c"]), st.integers(0, 2),
    st.sampled_from(["true", "1 < 2", "params.x > 0", "params.x == ''", "nonsense", ""])), min_size=1, max_size=8)


@settings(max_examples=30)
@given(EDITS, st.sampled_from([1, "one"]), st.sampled_from([1, "one"]))
def test_after_any_edits_each_status_says_what_decides_and_nothing_more_is_written(edits, before, after) -> None:
    """Edits of objects (deleted where the expression is empty), each followed by a pause; params change between."""
    source, live, time = ObjectSource(), Live(), Time()
    followed(source)
    server = Server(source)
    written: dict[str, dict[int, Any]] = {"p": {}, "a": {}, "b": {}, "c": {}}

    def apply(name: str, spec: Mapping[str, Any], kind: str = "SchedulerPlugin") -> None:
        generation = len(written[name]) + 1
        written[name][generation] = spec
        server.apply(plugin(name, kind=kind, spec=spec, generation=generation))

    apply("p", {"params": {"x": before}}, "PolicyParams")
    reloader = served(server, time, live)
    for number, (name, tenths, expression) in enumerate(edits):
        if number == len(edits) // 2:
            apply("p", {"params": {"x": after}}, "PolicyParams")
        if expression:
            apply(name, {"paramsFrom": [{"name": "p"}], "filter": [{"name": "f", "expression": expression}]})
        elif name in server.stored:
            server.delete(name)
        time.run(reloader, tenths / 10)
    time.run(reloader, 3)
    count = len(server.sent)
    time.run(reloader, 10)
    assert len(server.sent) == count
    for name, body in server.stored.items():
        relative = f"{body['kind']}/{name}"
        (state,) = OBSERVED[-1]
        active = state.active.files.get(relative)
        generation = server.status(name).get("activeGeneration")
        assert server.status(name)["observedGeneration"] == max(written[name])
        assert (generation is None) == (active is None)
        assert generation is None or written[name][generation] == json.loads(active.text)["spec"]
        assert server.active(name)[0] == str(generation == max(written[name]))
        assert ("errors" in server.status(name)) == (server.active(name)[0] == "False")
