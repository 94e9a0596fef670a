"""Events are written once, then as a series, whose note follows; a slow server loses nothing of what repeats."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from koordpolicy.engine.client.event_recorder import EventRecorder, RecorderView, end_recording
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.transport import Transport

from .fake_api_server import api_server, json_answer, refused

POD = pod_reference("team", "a", "uid-a")
NODE = ObjectReference(BY_KIND["Node"], "", "one", "uid-one")
NAME = "a.38d7ea4c68000"
EVENTS = "/apis/events.k8s.io/v1/namespaces/team/events"
CORE_EVENTS = "/api/v1/namespaces/team/events"
FINE = json_answer({"kind": "Event"})


@dataclass
class Scene:
    """A recorder with a clock, and the requests that it sent: method, path and body."""

    time: float = 1e6
    sent: list[tuple[str, str, Any]] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    recorder: EventRecorder = field(init=False)

    def record(self, note: str = "0/2 nodes are available", regarding: ObjectReference = POD, **more: Any) -> bool:
        return self.recorder.record(regarding, **{  # type: ignore[arg-type]
            "type": "Warning", "reason": "FailedScheduling", "action": "Scheduling", "controller": "koord-scheduler",
            "note": note, **more})

    async def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0)

    async def flush(self, after: float = 0.0) -> list[tuple[str, str, Any]]:
        """The requests that are sent now, `after` seconds later."""
        self.time += after
        self.sent.clear()
        await self.recorder.flush()
        return list(self.sent)


def play(script: Callable[[Scene], Awaitable[None]], *answers: Any, **options: Any) -> Scene:
    scene = Scene()

    def recording(answer: Any) -> Any:
        async def record(request: web.Request) -> web.StreamResponse:
            scene.sent.append((request.method, request.path, await request.json()))
            result: web.StreamResponse = await answer(request)
            return result

        return record

    async def run() -> None:
        async with (api_server(*map(recording, answers or [FINE])) as fake,
                    Transport(fake.connection, rate=0, sleep=scene.sleep) as transport):
            scene.recorder = EventRecorder(
                transport, host="host", now=lambda: scene.time, sleep=scene.sleep, jitter=lambda: 0.75, **options)
            await script(scene)

    asyncio.run(run())
    return scene


def series(count: int, time: str) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": f"1970-01-12T{time}.000000Z"}


async def reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


FIRST = {
    "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"namespace": "team", "name": NAME},
    "eventTime": "1970-01-12T13:46:40.000000Z", "type": "Warning", "reason": "FailedScheduling", "action": "Scheduling",
    "note": "0/2 nodes are available", "reportingController": "koord-scheduler",
    "reportingInstance": "koord-scheduler-host",
    "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "a", "uid": "uid-a"}}


def test_an_event_is_created_in_the_namespace_of_its_object():
    async def script(scene: Scene) -> None:
        assert scene.record()
        assert await scene.flush() == [("POST", EVENTS, FIRST)]
        assert await scene.flush() == []

    assert play(script).recorder.view == RecorderView(recorded=1, written=1)


def test_the_event_of_an_object_without_a_namespace_is_in_default():
    async def script(scene: Scene) -> None:
        scene.record(regarding=NODE, related=POD)
        ((_, path, event),) = await scene.flush()
        assert path == "/apis/events.k8s.io/v1/namespaces/default/events"
        assert (event["metadata"]["namespace"], event["regarding"], event["related"]) == (
            "default", {"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "uid-one"}, FIRST["regarding"])

    play(script)


def test_l27_the_first_repeat_begins_a_series_and_others_count_in_memory():
    async def script(scene: Scene) -> None:
        scene.record()
        await scene.flush()
        scene.time += 10
        scene.record()
        assert await scene.flush() == [("PATCH", f"{EVENTS}/{NAME}", {"series": series(2, "13:46:50")})]
        for _ in range(5):
            scene.time += 10
            scene.record()
        assert await scene.flush() == []
        # 6 minutes after the last, its series is written for the last time.
        assert await scene.flush(after=420) == [("PATCH", f"{EVENTS}/{NAME}", {"series": series(7, "13:47:40")})]
        scene.record()
        ((method, _, event),) = await scene.flush()
        assert (method, event["metadata"]["name"] == NAME, "series" in event) == ("POST", False, False)

    assert play(script).recorder.view == RecorderView(recorded=8, written=4)


def test_a_series_is_refreshed_every_half_an_hour_while_it_goes_on():
    async def script(scene: Scene) -> None:
        scene.record()
        scene.record()
        await scene.flush()
        for _ in range(5):
            scene.record()
            assert await scene.flush(after=300) == []
        scene.record()
        ((_, _, patch),) = await scene.flush(after=300)
        assert patch["series"]["count"] == 8
        assert await scene.flush() == []

    play(script)


def test_a_single_event_is_forgotten_without_a_write():
    async def script(scene: Scene) -> None:
        scene.record()
        await scene.flush()
        assert await scene.flush(after=361) == []
        scene.record()
        assert [method for method, _, _ in await scene.flush()] == ["POST"]

    play(script)


def test_the_note_of_a_series_follows():
    async def script(scene: Scene) -> None:
        for note in ("first", "first", "%s and {other}", "%s and {other}", "third"):
            scene.record(note)
            scene.sent.clear()
            await scene.flush()
            notes.append(scene.sent[:])

    notes: list[Any] = []
    play(script)
    path = f"{CORE_EVENTS}/{NAME}"
    assert notes[1:] == [
        [("PATCH", f"{EVENTS}/{NAME}", {"series": series(2, "13:46:40")})],
        [("PATCH", path, {"message": "%s and {other}", "series": series(3, "13:46:40")})],
        [],
        [("PATCH", path, {"message": "third", "series": series(5, "13:46:40")})]]


def test_what_repeats_before_it_is_written_is_written_once():
    async def script(scene: Scene) -> None:
        scene.record("first")
        scene.record("second")
        assert await scene.flush() == [("POST", EVENTS, {**FIRST, "note": "second", "series": series(2, "13:46:40")})]

    play(script)


def test_what_repeats_during_its_write_is_written_after_it():
    async def script(scene: Scene) -> None:
        async def slow(request: web.Request) -> web.StreamResponse:
            scene.record()
            result: web.StreamResponse = await FINE(request)
            return result

        answers.append(slow)
        scene.record()
        assert [method for method, _, _ in await scene.flush()] == ["POST", "PATCH"]

    answers: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        result: web.StreamResponse = await (answers.pop() if answers else FINE)(request)
        return result

    play(script, answer)


@pytest.mark.parametrize("other", [
    {"type": "Normal"}, {"reason": "Other"}, {"action": "Binding"}, {"controller": "other"}, {"related": NODE},
    {"regarding": NODE}, {"regarding": pod_reference("team", "a", "uid-b")},
])
def test_events_that_differ_in_more_than_the_note_are_two(other: dict[str, Any]):
    async def script(scene: Scene) -> None:
        scene.record()
        scene.record(**other)
        sent = await scene.flush()
        assert [method for method, _, _ in sent] == ["POST", "POST"]
        assert len({event["metadata"]["name"].partition(".")[2] for _, _, event in sent}) == 2

    play(script)


@pytest.mark.parametrize(("note", "written"), [
    ("x" * 1024, "x" * 1024),
    ("x" * 3000, "x" * 1020 + " ..."),
    ("ä" * 3000, "ä" * 510 + " ..."),
    ("x" + "ä" * 3000, "x" + "ä" * 509 + " ..."),
])
def test_l29_a_long_note_is_cut_to_1024_bytes(note: str, written: str):
    async def script(scene: Scene) -> None:
        scene.record(note)
        ((_, _, event),) = await scene.flush()
        assert event["note"] == written

    play(script)


def test_a_long_name_and_a_long_host_are_cut():
    async def script(scene: Scene) -> None:
        scene.record(regarding=pod_reference("team", "a" * 238 + "-" + "b" * 14, "uid"), controller="c" * 125)
        ((_, _, event),) = await scene.flush()
        assert event["metadata"]["name"] == "a" * 238 + ".38d7ea4c68000"
        assert event["reportingInstance"] == "c" * 125 + "-ho"

    play(script)


def test_a_full_buffer_drops_and_counts_new_events_and_counts_repeats():
    async def script(scene: Scene) -> None:
        assert [scene.record(reason=reason) for reason in ("A", "B", "C", "A")] == [True, True, False, True]
        assert [event["reason"] for _, _, event in await scene.flush()] == ["A", "B"]
        assert scene.record(reason="C")

    assert play(script, buffer=2).recorder.view == RecorderView(recorded=4, dropped=1, written=2)


def test_a_repeat_that_finds_the_buffer_full_is_written_with_the_next_one():
    async def script(scene: Scene) -> None:
        scene.record(reason="A")
        await scene.flush()
        scene.record(reason="B")
        assert scene.record(reason="A")
        assert [method for method, _, _ in await scene.flush()] == ["POST"]
        scene.record(reason="A")
        ((_, _, patch),) = await scene.flush()
        assert patch == {"series": series(3, "13:46:40")}

    assert play(script, buffer=1).recorder.view == RecorderView(recorded=4, written=3)


def test_a_lost_connection_is_tried_12_times_10_seconds_apart():
    async def script(scene: Scene) -> None:
        scene.record()
        await scene.flush()
        assert len(scene.sent) == 12
        assert scene.delays == [11.25] * 11
        assert scene.recorder.view == RecorderView(recorded=1, failed=1)

    play(script, reset)


def test_an_event_whose_answer_was_lost_is_there_and_goes_on_as_a_series():
    async def script(scene: Scene) -> None:
        scene.record()
        await scene.flush()
        scene.record()
        assert [method for method, _, _ in await scene.flush()] == ["PATCH"]

    assert play(script, reset, refused(409, "AlreadyExists"), FINE).recorder.view == RecorderView(recorded=2, written=2)


@pytest.mark.parametrize("code", [403, 404, 422])
def test_a_refused_event_is_not_repeated(code: int):
    async def script(scene: Scene) -> None:
        scene.record()
        assert len(await scene.flush()) == 1
        assert await scene.flush(after=60) == []
        scene.record()
        ((method, _, event),) = await scene.flush()
        assert (method, "series" in event) == ("POST", False)

    assert play(script, refused(code)).recorder.view == RecorderView(recorded=2, refused=2)


def test_a_refused_update_is_not_repeated_until_the_next_change():
    async def script(scene: Scene) -> None:
        for note in ("first", "second", "second", "third"):
            scene.record(note)
            sent.append([method for method, _, _ in await scene.flush()])

    sent: list[list[str]] = []
    view = play(script, FINE, refused(403), FINE).recorder.view
    assert (sent, view) == ([["POST"], ["PATCH"], [], ["PATCH"]], RecorderView(recorded=4, written=2, refused=1))


def test_an_event_that_expired_is_created_again():
    async def script(scene: Scene) -> None:
        scene.record()
        await scene.flush()
        scene.record()
        assert await scene.flush() == [
            ("PATCH", f"{EVENTS}/{NAME}", {"series": series(2, "13:46:40")}),
            ("POST", EVENTS, {**FIRST, "series": series(2, "13:46:40")})]

    play(script, FINE, refused(404, "NotFound"), FINE)


def test_an_unexpected_error_costs_one_event_only(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    async def script(scene: Scene) -> None:
        own = scene.recorder._event

        def fail_for_pods(key: Any, state: Any) -> Any:
            if key.regarding == POD:
                raise LookupError("no")
            return own(key, state)

        monkeypatch.setattr(scene.recorder, "_event", fail_for_pods)
        scene.record()
        scene.record(regarding=NODE)
        assert [body["regarding"]["kind"] for _, _, body in await scene.flush()] == ["Node"]
        monkeypatch.setattr(scene.recorder, "_event", own)
        scene.record()
        assert [body["regarding"]["kind"] for _, _, body in await scene.flush()] == ["Pod"]

    scene = play(script)
    assert scene.recorder.view == RecorderView(recorded=3, written=2, failed=1)
    assert [record.message for record in caplog.records] == ["an event about team/a is lost"]


def test_an_event_whose_write_was_cut_off_is_written_by_the_last_flush():
    async def script(scene: Scene) -> None:
        async def hang(_request: web.Request) -> web.StreamResponse:
            task.cancel()
            await asyncio.sleep(3600)
            raise AssertionError

        answers.append(hang)
        scene.record()
        task = asyncio.create_task(scene.recorder.run())
        await asyncio.gather(task, return_exceptions=True)
        assert [method for method, _, _ in await scene.flush()] == ["POST"]

    answers: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        result: web.StreamResponse = await (answers.pop() if answers else FINE)(request)
        return result

    assert play(script, answer).recorder.view == RecorderView(recorded=1, written=1)


def test_other_threads_record_while_the_loop_writes():
    async def script(scene: Scene) -> None:
        task = asyncio.create_task(scene.recorder.run())
        threads = [threading.Thread(target=lambda name=name: [scene.record(reason=name) for _ in range(50)])
                   for name in "abcd"]
        await asyncio.sleep(0)
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        async with asyncio.timeout(60):
            while len({body["reason"] for method, _, body in scene.sent if method == "POST"}) < 4:
                await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        scene.time += 420
        await scene.recorder.flush()

    scene = play(script)
    counts: dict[str, int] = {}
    for method, path, body in scene.sent:
        name = body["metadata"]["name"] if method == "POST" else path.rpartition("/")[2]
        counts[name] = body.get("series", {}).get("count", 1)
    assert sorted(counts.values()) == [50, 50, 50, 50]
    assert scene.recorder.view.recorded == 200
    assert json.dumps(scene.sent)


def test_events_about_several_objects_are_written_at_the_same_time():
    together = asyncio.Event()
    waiting = 0

    async def hold(_: web.Request) -> web.StreamResponse:
        nonlocal waiting
        waiting += 1
        if waiting == 3:
            together.set()
        async with asyncio.timeout(60):
            await together.wait()
        return web.json_response({"kind": "Event"})

    async def script(scene: Scene) -> None:
        for name in ("a", "b", "c", "d"):
            scene.record(regarding=pod_reference("team", name, f"uid-{name}"))
        await scene.flush()

    assert play(script, hold, at_once=3).recorder.view == RecorderView(recorded=4, written=4)


def lines_of_look(recorder: EventRecorder) -> int:
    """The number of lines that a look at the series executes."""
    count = 0

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code is EventRecorder._look.__code__:
            count += event == "line"
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        recorder._look()
    finally:
        sys.settrace(before)
    return count


def test_a_look_takes_only_as_long_as_there_are_series_to_write_or_to_forget():
    async def script(scene: Scene) -> None:
        for number in range(10_000):
            scene.record(regarding=pod_reference("team", f"pod-{number}", "u"))
            scene.record(regarding=pod_reference("team", f"pod-{number}", "u"))
        for _, series in scene.recorder._queue:  # as if each was written, repeated, and written again
            series.queued, series.written_count = False, series.count
            series.written_note, series.written_at = series.note, scene.time
        scene.recorder._queue.clear()
        scene.time += 60
        assert lines_of_look(scene.recorder) < 20
        for number in range(9_990):
            scene.record(regarding=pod_reference("team", f"pod-{number}", "u"))
        scene.time += 301
        assert 10 < lines_of_look(scene.recorder) < 100
        assert len(scene.recorder._series) == 9_990
        scene.time += 60
        assert lines_of_look(scene.recorder) > 9_990  # all have ended

    play(script, buffer=20_000)


def test_a_series_that_ends_while_it_is_written_is_written_once_more():
    async def script(scene: Scene) -> None:
        async def slow(method: str, path: str, **more: Any) -> bytes:
            if not repeated:
                repeated.append(scene.record())
                repeated.append(scene.record())
                scene.time += 361
                scene.recorder._look()
                assert scene.recorder._series == {}
            return await request(method, path, **more)

        repeated: list[bool] = []
        request = scene.recorder._transport.request
        scene.recorder._transport.request = slow  # type: ignore[method-assign]
        scene.record()
        sent = await scene.flush()
        assert [(method, (body.get("series") or {}).get("count")) for method, _, body in sent] == [
            ("POST", None), ("PATCH", 3)]

    play(script)


def test_the_last_events_do_not_wait_for_the_limit_of_requests():
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async def flush() -> RecorderView:
        limited: Any = {"rate": 1, "burst": 1, "sleep": sleep}
        async with api_server(*[FINE] * 40) as fake, Transport(fake.connection, **limited) as transport:
            recorder = EventRecorder(transport)
            for number in range(40):
                recorder.record(pod_reference("team", f"pod-{number}", f"uid-{number}"), type="Normal",
                                reason="Scheduled", action="Binding", note="assigned", controller="koord-scheduler")
            await recorder.flush()
            return recorder.view

    assert (asyncio.run(flush()), waits) == (RecorderView(recorded=40, written=40), [])


class Flushed(EventRecorder):
    """A recorder whose `flush` ends, fails or hangs."""

    def __init__(self, end: Awaitable[object] | Exception | None) -> None:
        self.end = end
        self.steps: list[str] = []

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.steps.append("run ended")

    async def flush(self) -> None:
        self.steps.append("flush")
        if isinstance(self.end, Exception):
            raise self.end
        if self.end is not None:
            await self.end


@pytest.mark.parametrize(("end", "logged"), [
    (None, []),
    (ValueError("odd"), ["the last events were not written"]),
    (asyncio.Event().wait(), ["not all events were written"]),
])
def test_the_last_events_are_written_for_a_short_time(end: Any, logged: list[str], caplog: pytest.LogCaptureFixture):
    recorder = Flushed(end)
    with IoThread() as io:
        running = io.submit(recorder.run())
        io.submit(asyncio.sleep(0)).result()  # it runs
        end_recording(io, recorder, running, seconds=0.01 if logged else 60)
    assert recorder.steps == ["run ended", "flush"]
    assert [record.getMessage() for record in caplog.records] == logged


def test_nothing_is_written_after_the_loop_has_ended():
    recorder = Flushed(None)
    io = IoThread()
    with io:
        running = io.submit(recorder.run())
    end_recording(io, recorder, running)
    assert "flush" not in recorder.steps
