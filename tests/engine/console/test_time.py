"""Time: the timeline of a recording, the cluster at its moments, and replays under other policies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.console.guard import Guard, NotPermitted, RateLimit
from koordpolicy.engine.console.past import Past
from koordpolicy.engine.console.replays import ReplayJobs
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.time_views import replay_result
from koordpolicy.engine.documents import load
from koordpolicy.engine.flight_recorder.figures import Eviction, RecordedReplay, Span
from koordpolicy.engine.flight_recorder.recorder import FlightRecorder, RecorderSettings
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.source import PolicyError, Source
from tests.waiting import PATIENCE_S, until

from .asking import AskApi as Ask
from .asking import asking, ended, of_api
from .conftest import HOT, NOW, OBJECTS, pod

SECOND = 1_000_000_000
START, END = "2026-01-02T12:00:00Z", "2026-01-02T12:01:00Z"
COOL_ONLY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: only-hot}
spec:
  filter:
  - {name: hot, expression: "node.metadata.name == 'hot'", message: not hot}
"""
READS_MORE = COOL_ONLY.replace("node.metadata.name == 'hot'", "node.spec.?providerID.orValue('') == ''")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute of the cluster of `conftest` under its policy: at 10 s a pod comes and is placed, at 60 s it ends."""
    directory = tmp_path_factory.mktemp("flight")
    now = NOW
    plugins = compile_documents(load([Source("0.yaml", HOT)]))
    live = Live(Registry.of((*builtins(), *plugins), generation=1))
    cluster = Cluster(OBJECTS)
    recorder = FlightRecorder(directory, RecorderSettings("test", Settings()), live, clock=lambda: now)
    loop = SchedulingLoop(cluster, live, Settings(), clock=lambda: now, cycle_observers=[recorder])
    recorder.start(cluster)
    list(loop.schedule_all())
    now = NOW + 10 * SECOND
    cluster.upsert(pod("late", "1"))
    list(loop.schedule_all())
    now = NOW + 60 * SECOND
    cluster.delete("Pod", "shop/late")
    recorder.close()
    loop.close()
    return directory


@pytest.fixture
def serve(state, tmp_path) -> Callable[..., None]:
    (tmp_path / "index.html").write_text("", encoding="utf-8")

    def run(scenario: Callable[[Ask], Awaitable[None]], past: Past | None, **more: Any) -> None:
        console = ConsoleServer(state, Guard(rate=RateLimit(1e9, 1e9)), Static(tmp_path), past=past, seconds=60, **more)
        console.start()

        async def main() -> None:
            async with asking(console) as ask:
                await scenario(of_api(ask))

        asyncio.run(main())

    return run


async def finished(ask: Ask, number: int) -> dict[str, Any]:
    """Wait until a replay has ended."""
    return await ended(ask, f"replay/state?number={number}")


async def complete(ask: Ask, query: str = "") -> dict[str, Any]:
    """Wait until the timeline is that of all that was written."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            status, view = await ask(f"timeline{query}")
            assert status == 200, view
            if view["complete"] and view["segmentsRead"]:
                return view
            await asyncio.sleep(0.01)


def test_without_a_recording_the_timeline_says_so_and_the_rest_how_to_show_one(serve):
    async def scenario(ask: Ask) -> None:
        assert (await ask("timeline"))[1]["recorded"] is False
        for path, body in (("moment?at=2026-01-02T12:00:00Z", None), ("map?at=2026-01-02T12:00:00Z", None),
                           ("replay/start", {"start": START, "end": END}), ("replay/state?number=1", None)):
            status, view = await ask(path, body)
            assert (status, view["status"], view["error"]) == (
                200, 404, "the console shows no flight recording: start it with `--recorded DIR`"), path

    serve(scenario, None)


def test_the_timeline_has_what_happened_in_the_time_that_is_shown(serve, recording):
    async def scenario(ask: Ask) -> None:
        view = await complete(ask)
        assert (view["start"], view["end"], view["segments"]) == (NOW / SECOND, NOW / SECOND + 60, 1)
        assert (view["bound"][0], view["bound"][9], view["bound"][10], view["bound"][60]) == (2, 2, 3, 2)
        assert (view["placed"][0], view["refused"][0], view["placed"][10]) == (1, 1, 1)
        assert [each["generation"] for each in view["policies"]] == [1]
        part = await complete(ask, "?start=2026-01-02T12:00:05Z&end=2026-01-02T12:00:15Z")
        assert (part["times"][0], len(part["times"]), sum(part["placed"])) == (NOW / SECOND + 5, 11, 1)
        assert (await ask("timeline?start=yesterday"))[1]["status"] == 400

    serve(scenario, Past(recording))


def test_a_moment_names_pods_that_found_no_node_before_those_that_nobody_decided_about(serve, tmp_path):
    live = Live(Registry.of(builtins(), generation=1))
    cluster = Cluster(OBJECTS)
    recorder = FlightRecorder(tmp_path / "flight", RecorderSettings("test", Settings()), live, clock=lambda: NOW)
    loop = SchedulingLoop(cluster, live, Settings(), clock=lambda: NOW, cycle_observers=[recorder])
    recorder.start(cluster)
    list(loop.schedule_all())
    cluster.upsert(pod("a", "1"))
    recorder.close()
    loop.close()

    async def scenario(ask: Ask) -> None:
        _, view = await ask("moment?at=2026-01-02T12:00:00Z")
        assert [(each["key"], [reason["reason"] for reason in each["reasons"]]) for each in view["waiting"]] == [
            ("shop/web-3", ["Insufficient cpu"]), ("shop/a", [])]

    serve(scenario, Past(tmp_path / "flight"))


def test_a_moment_shows_the_decisions_before_it_and_the_policies_then(serve, recording):
    async def scenario(ask: Ask) -> None:
        _, view = await ask("moment?at=2026-01-02T12:00:30Z")
        assert (view["nodes"], view["bound"], [each["key"] for each in view["waiting"]]) == (3, 3, ["shop/web-3"])
        assert [(each["pod"], each["node"]) for each in view["decisions"]] == [
            ("shop/late", "cool"), ("shop/web-2", "cool"), ("shop/web-3", None)]
        assert [each["reason"] for each in view["waiting"][0]["reasons"]] == ["Insufficient cpu"]
        assert view["policies"] == [{"name": "keep-off-hot-nodes", "state": "same"}]
        assert view["refused"] == ""

    serve(scenario, Past(recording))


@pytest.mark.parametrize("at", ["2020-01-01T00:00:00Z", "2026-01-02T11:59:59Z", "2026-01-02T13:00:00Z",
                                "2030-01-01T00:00:00Z"])
def test_a_time_outside_of_the_recording_is_refused_with_its_range(serve, recording, at: str):
    async def scenario(ask: Ask) -> None:
        for path in (f"moment?at={at}", f"overview?at={at}", f"node-policies?name=cool&at={at}",
                     f"recorded-decision?key=shop/late&at={at}"):
            _, found = await ask(path)
            assert (found["status"], found["error"]) == (
                422, f"nothing is recorded of this time: the recording is of {START} to {END}"), path

    serve(scenario, Past(recording))


def test_the_end_of_a_recording_and_the_quiet_after_it_are_part_of_it(serve, recording):
    async def scenario(ask: Ask) -> None:
        for at in (START, END, "2026-01-02T12:01:30Z"):
            assert (await ask(f"overview?at={at}"))[1]["now"] == at

    serve(scenario, Past(recording))


def test_every_view_can_be_of_a_moment(serve, recording):
    async def scenario(ask: Ask) -> None:
        _, then = await ask("node?name=cool&at=2026-01-02T12:00:30Z")
        _, now = await ask("node?name=cool")
        assert ([each["key"] for each in then["pods"]], [each["key"] for each in now["pods"]]) == (
            ["shop/web-1", "shop/web-2", "shop/late"], ["shop/web-1"])
        _, view = await ask("pod?key=shop/late&at=2026-01-02T12:00:30Z")
        assert (view["node"], view["chosen"]) == ("cool", "cool")
        assert (await ask("pod?key=shop/late&at=2026-01-02T12:00:05Z"))[1]["status"] == 404
        _, recorded = await ask("recorded-decision?key=shop/late&at=2026-01-02T12:00:30Z")
        assert (recorded["node"], recorded["decision"]["node"], recorded["decision"]["time"]) == (
            "cool", "cool", NOW / SECOND + 10)
        _, view = await ask("map?at=2026-01-02T12:00:30Z")
        assert view["now"] == "2026-01-02T12:00:30Z"
        assert (await ask("map?at=noon"))[1]["status"] == 400

    serve(scenario, Past(recording))


def test_what_was_not_recorded_is_refused_by_its_name(serve, recording):
    async def scenario(ask: Ask) -> None:
        status, view = await ask("colour?expression=node.spec.podCIDR&at=2026-01-02T12:00:30Z")
        assert (status, view["error"], view["faults"][0]["help"]) == (
            200, "the recording does not contain Node.spec.podCIDR", "record with `--record-fields Node.spec.podCIDR`")
        _, view = await ask("colour?expression=requested.cpu&at=2026-01-02T12:00:30Z")
        assert view["numbers"] == [4000, 0, 0]
        _, view = await ask("replay/start", {"start": START, "end": END, "text": READS_MORE})
        view = await finished(ask, view["number"])
        assert (view["phase"], view["failure"]) == (
            "failed", "the recording does not contain Node.spec.providerID (read by `only-hot`)")

    serve(scenario, Past(recording))


def test_the_policies_that_decided_decide_the_same_and_a_draft_otherwise(serve, recording):
    async def scenario(ask: Ask) -> None:
        for text, counts, differences in (
            ("", {"same": 2, "neither": 1}, []),
            (COOL_ONLY, {"never": 2, "neither": 1}, [("shop/late", ["never"]), ("shop/web-2", ["never"])]),
        ):
            _, view = await ask("replay/start", {"start": START, "end": END, "text": text})
            view = await finished(ask, view["number"])
            assert (view["phase"], view["done"], view["of"], view["draft"]) == ("done", 3, 3, bool(text)), view
            result = view["result"]
            assert {name: number for name, number in result["counts"].items() if number} == counts
            assert sorted((each["pod"], each["changes"]) for each in result["differences"]) == differences
            assert result["samePolicies"] is not bool(text)
            assert len(result["series"]) == len(result["recordedSeries"]) == len(result["times"]) == 60
        _, view = await ask("replay/start", {"start": "2026-01-02T12:00:05Z", "end": "2026-01-02T12:00:20Z"})
        view = await finished(ask, view["number"])
        assert (view["of"], view["result"]["counts"]["same"]) == (1, 1)

    serve(scenario, Past(recording))


def test_a_replay_that_cannot_be_is_refused(serve, recording):
    async def scenario(ask: Ask) -> None:
        assert await ask("replay/start", {"start": END, "end": START}) == (
            200, {"error": "the start of a replay is after its end", "status": 400, "faults": []})
        assert (await ask("replay/start", {"start": START, "end": "soon"}))[1]["status"] == 400
        assert (await ask("replay/start", {"start": START}))[0] == 400
        assert (await ask("replay/state?number=7"))[1]["status"] == 404
        assert (await ask("replay/state?number=-1"))[1]["status"] == 400
        _, view = await ask("replay/start", {"start": START, "end": END, "text": "kind: SchedulerPlugin"})
        view = await finished(ask, view["number"])
        assert (view["phase"], view["faults"][0]["severity"]) == ("failed", "error")

    serve(scenario, Past(recording))


def test_a_replay_ends_at_its_deadline_and_when_it_is_cancelled(state, recording, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    original = ReplayJobs._compute

    def slow(self: ReplayJobs, job: Any, **part: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        original(self, job, **part)

    monkeypatch.setattr(ReplayJobs, "_compute", slow)
    replays = ReplayJobs(Past(recording))
    try:
        numbers = [replays.start(state.policies, NOW, NOW + 60 * SECOND).number for _ in range(4)]
        assert begun.wait(60)
        with pytest.raises(NotPermitted):
            replays.start(state.policies, NOW, NOW)
        for number in numbers:
            replays.jobs.cancel(number)
        go_on.set()
        until(lambda: all(replays.jobs.state(each).phase == "cancelled" for each in numbers))
        hasty = ReplayJobs(Past(recording), limit=0.0)
        number = hasty.start(state.policies, NOW, NOW + 60 * SECOND).number
        until(lambda: hasty.jobs.state(number).phase == "failed")
        assert hasty.jobs.state(number).failure == "it takes more than 0 s: choose a shorter time"
        hasty.close()
    finally:
        go_on.set()
        replays.close()


def test_the_last_state_is_the_end_of_the_recording(state, recording):
    past = Past(recording)
    last = past.last_state(state.policies)
    assert (last.now, sorted(last.cluster.objects("Pod"))) == (NOW + 60 * SECOND, [
        "shop/web-1", "shop/web-2", "shop/web-3"])
    assert past.last_state(state.policies, NOW + 30 * SECOND).cluster.pod("shop/late").node_name == "cool"


def test_a_time_that_is_still_recorded_is_read_again(state, recording, tmp_path):
    [whole] = recording.glob("*.segment")
    path = tmp_path / whole.name
    path.write_bytes(whole.read_bytes()[:100])  # its first block is cut off; how many there are is a matter of time
    past = Past(tmp_path)
    later = NOW + 30 * SECOND
    with pytest.raises(PolicyError):
        past.state_at(later, state.policies)
    path.write_bytes(whole.read_bytes())
    found = past.state_at(later, state.policies)
    assert past.state_at(later, state.policies) is found
    path.write_bytes(whole.read_bytes() + b"\0" * 100)
    assert past.state_at(later, state.policies) is not found


def test_evictions_are_counted_by_who_made_them_and_all_of_them():
    """Evictions by others are not compared, and lists that are cut do not cut the counts."""
    def evictions(by: str, number: int) -> list[Eviction]:
        return [Eviction(place, f"default/{by}-{place}", "a", by, "") for place in range(number)]

    use = Span(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)
    view = replay_result(RecordedReplay(
        start=0, end=0, segments=1, gaps=(), notes=(), pods=(), waiting=0,
        recorded_evictions=(*evictions("preemption", 3), *evictions("EvictionByEvictionAPI", 300)),
        evictions=(*evictions("preemption", 250), *evictions("", 2), *evictions("eviction", 1)),
        recorded_use=use, use=use, recorded_series=(), series=(), errors=(), problems=(), problems_left_out=0,
        recorded_decisions=0, decisions=0, seconds=0.0), same_policies=True)
    assert (view.recorded_preemptions, view.preemptions) == (3, 250)
    assert (view.others_evictions, view.other_losses) == (300, 3)
    assert len(view.recorded_evictions) + view.recorded_evictions_left_out == 303
    assert len(view.evictions) + view.evictions_left_out == 253
