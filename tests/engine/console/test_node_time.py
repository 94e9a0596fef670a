"""The timeline of nodes: recordings of agents, their audit logs, and what is wrong with them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from threading import Semaphore

import pytest
from aiohttp import web

from koordpolicy.__main__ import builtins
from koordpolicy.engine.agent.audit import AuditEvent, AuditLog, AuditPages, AuditSettings
from koordpolicy.engine.client.server_calls import Caller, EndpointAnswer
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.console.node_time import NodeTimes, node_time_view, read_agent, read_recording
from koordpolicy.engine.console.state import UnknownNameError
from koordpolicy.engine.documents import load, read_file
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.serving.listeners import ListenerThread
from tests.waiting import until

ROOT = Path(__file__).parents[3]
RECORDING = ROOT / "examples" / "18-node-agent" / "metrics.jsonl"
OTHER = ROOT / "examples" / "09-qos-replay" / "metrics.yaml"
ALL = (0, 2**62)


@pytest.fixture(scope="module")
def registry() -> Registry:
    plugins = compile_documents(load([read_file(ROOT / "examples" / "18-node-agent" / "policy.yaml")]))
    return Registry.of((*builtins(), *plugins), generation=1)


def test_a_recorded_node_has_its_usage_by_class_and_what_was_changed(registry):
    view = node_time_view([read_recording(RECORDING, registry)], "", *ALL)
    assert (view.node, view.nodes, view.problems, view.cpu_allocatable) == ("node-a", ["node-a"], [], 2000.0)
    assert [(each.name, len(each.values)) for each in view.cpu] == [("node", 13), ("LS", 13)]
    first = view.changes[0]
    assert (first.plugin, first.kind, first.reason, first.source) == (
        "give-way", "suppressCPU", "best-effort pods may use 1300m of cpu", "recording")
    assert [(each.file, each.before, each.after) for each in first.files] == [
        ("besteffort/cpu.cfs_quota_us", "-1", "130000")]
    assert (len(view.changes), view.limit[:2], view.limit[4]) == (9, [1300.0, 1300.0], 1239.0)


def test_a_part_of_the_time_has_its_changes_and_the_limit_from_before_it(registry):
    source = read_recording(RECORDING, registry)
    whole = node_time_view([source], "node-a", *ALL)
    start, end = (int(whole.changes[number].time * 1e9) + shift for number, shift in ((3, 1_000_000), (4, -1_000_000)))
    part = node_time_view([source], "node-a", start, end)
    assert part.changes == []
    assert node_time_view([source], "node-a", start, 2**62).changes == whole.changes[4:]
    assert whole.changes[3].reason == f"best-effort pods may use {part.limit[0]:.0f}m of cpu"
    assert (part.start, part.end) == (whole.start, whole.end)


def test_several_recordings_have_several_nodes(registry):
    sources = [read_recording(path, registry) for path in (RECORDING, OTHER)]
    view = node_time_view(sources, "worker-1", *ALL)
    assert (view.nodes, view.node, {each.name for each in view.cpu}) == (
        ["node-a", "worker-1"], "worker-1", {"node", "BE", "LS"})
    with pytest.raises(UnknownNameError, match="no recording and no agent is of a node `worker-2`"):
        node_time_view(sources, "worker-2", *ALL)


@pytest.mark.parametrize(("content", "problem"), [
    ("", "it is no recording: this recording has no samples"),
    ("\x00\xff nothing", "it is no recording: this recording has no samples"),
    ("[]\n", "it is no recording: line 1 must be an object"),
    ('{"kind": "Node"}\n', "it is no recording: `line 1`: an object needs `kind` and `metadata.name`"),
])
def test_what_is_no_recording_is_named_and_hides_no_other(tmp_path, registry, content, problem):
    path = tmp_path / "foreign.jsonl"
    path.write_text(content, encoding="utf-8")
    view = node_time_view([read_recording(path, registry), read_recording(RECORDING, registry)], "", *ALL)
    assert (view.problems, view.node) == ([f"{path}: {problem}"], "node-a")


def test_a_truncated_recording_is_shown_as_far_as_it_goes(tmp_path, registry):
    path = tmp_path / "metrics.jsonl"
    text = RECORDING.read_text(encoding="utf-8")
    path.write_text(text[: len(text) * 2 // 3], encoding="utf-8")
    view = node_time_view([read_recording(path, registry)], "", *ALL)
    assert view.problems == []
    assert 0 < len(view.times) < 13


def test_without_sources_there_is_nothing_to_wait_for():
    view = NodeTimes((), (), Caller).view("", *ALL)
    assert (view.sources, view.complete, view.node, view.times) == (0, True, "", [])


def test_recordings_are_read_in_the_background_and_again_once_they_have_grown(tmp_path, registry):
    path = tmp_path / "metrics.jsonl"
    text = RECORDING.read_text(encoding="utf-8")
    path.write_text(text[: len(text) * 2 // 3], encoding="utf-8")
    times = NodeTimes([tmp_path], (), Caller, pause=0.01)
    times.start(lambda: registry)
    try:
        until(lambda: times.view("", *ALL).complete)
        assert len(times.view("", *ALL).times) < 13
        path.write_text(text, encoding="utf-8")
        until(lambda: len(times.view("", *ALL).times) == 13)
        path.unlink()
    finally:
        times.close()


class Agent:
    """The endpoint of an agent's audit log, in a thread."""

    def __init__(self, pages: AuditPages | None) -> None:
        self.pages = pages

        async def events(request: web.Request) -> web.Response:
            assert request.headers["Accept"] == "application/json"
            found = await asyncio.get_running_loop().run_in_executor(
                None, pages.page, request.query.get("size", ""), request.query.get("pageToken", ""))
            events = [json.loads(each) for each in found.lines]
            return web.json_response({"NextPageToken": found.token, "Events": events})

        app = web.Application()
        if pages is not None:
            app.router.add_get("/events", events)
        self.listener = ListenerThread(app, "127.0.0.1", 0)
        self.url = self.listener.start()


def test_the_audit_log_of_a_running_agent_is_read_to_its_end(tmp_path):
    log = AuditLog(AuditSettings(tmp_path), clock=lambda: 0.0)
    for number in range(5000):
        log.add(AuditEvent(1_790_000_000_000_000_000 + number * 1_000_000_000, "node", "UpdateCgroups",
                           f"give-way: reason {number} (besteffort/cpu.shares: {number} -> {number + 1})", 1,
                           name="node-b"))
    log.add(AuditEvent(1_790_000_000_500_000_000, "pod", "evictPodByMemory", "at 91%; evicted", 0, "shop", "web"))
    pages = AuditPages(log, clock=lambda: 0.0)
    agent = Agent(pages)
    try:
        for _ in range(8):  # readers that are left half-way would use up those that the agent has
            source = read_agent(Caller(), agent.url)
            assert source.problem == ""
    finally:
        agent.listener.close()
    view = node_time_view([source], "", *ALL)
    assert (view.node, view.changes_left_out, view.cpu) == ("node-b", 4501, [])
    assert [(each.kind, each.subject) for each in view.changes[:3]] == [
        ("write", "node-b"), ("evict", "shop/web"), ("write", "node-b")]
    assert (view.changes[0].files[0].before, view.changes[0].source) == ("0", "audit")


class Refusing(Caller):
    """Calls an agent that refuses."""

    def ask(self, endpoint: str, path: str, body: object = None) -> EndpointAnswer:
        return EndpointAnswer(endpoint, 403, error="you may not")


def test_agents_are_called_again_after_a_token_was_missing():
    calls, tokens = Semaphore(0), iter((None, "token"))

    def caller() -> Caller:
        calls.release()
        if next(tokens, "token") is None:
            raise FileNotFoundError("no such token")
        return Refusing()

    times = NodeTimes((), ["http://agent"], caller, pause=0.01)
    times.start(Registry)
    try:
        for _ in range(3):  # the first two are finished then
            assert calls.acquire(timeout=60)
        assert times.view("", *ALL).problems == ["http://agent: you may not"]
    finally:
        times.close()


def test_a_directory_that_cannot_be_listed_is_named_until_it_can(tmp_path, registry, monkeypatch):
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    times = NodeTimes([tmp_path], (), Caller)
    (tmp_path / "metrics.jsonl").write_text(RECORDING.read_text(encoding="utf-8"), encoding="utf-8")
    times._registry = lambda: registry
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", denied)
        times._read_all(tmp_path)
    assert times.view("", *ALL).problems == [f"{tmp_path}: it cannot be read: Permission denied"]
    times._read_all(tmp_path)
    assert times.view("", *ALL).problems == []


def test_an_agent_that_does_not_answer_is_named():
    agent = Agent(None)
    try:
        assert read_agent(Caller(), agent.url).problem == "it has no audit log: start it with `--audit-log-dir`"
    finally:
        agent.listener.close()
    assert read_agent(Caller(), agent.url).problem.startswith("cannot be reached")
