"""An informer delivers each change of a kind once and in order, whatever breaks between it and the server."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.informer import Change, Informer
from koordpolicy.engine.client.pacing import Backoff
from koordpolicy.engine.client.projection import PartPool, Projection
from koordpolicy.engine.client.resources import BY_KIND, ApiResource
from koordpolicy.engine.client.transport import WATCH_SILENCE_S, Transport

from .fake_api_server import (
    FakeApiServer,
    api_server,
    bookmark,
    json_answer,
    pod,
    pods,
    refusal,
    refused,
    skip,
    watched,
)

PODS = BY_KIND["Pod"]
POLLED = replace(PODS, poll_s=15.0)


class Seen(list[tuple[Any, ...]]):
    """The delivered changes, as (name, version or None, deleted, replaced UID)."""

    def deliver(self, changes: Sequence[Change]) -> None:
        for change in changes:
            metadata = {} if change.raw is None else msgspec.json.decode(change.raw)["metadata"]
            version = None if change.raw is None else metadata.get("resourceVersion", "")
            self.append((change.name, version, change.deleted, change.replaced_uid))


@asynccontextmanager
async def informer(fake: FakeApiServer, seen: Seen, *, streaming: bool | None = False,
                   delays: list[float] | None = None, resource: ApiResource = PODS,
                   clock: Callable[[], float] = lambda: 0.0, **more: Any) -> AsyncIterator[Informer]:
    """Run an informer; by the default clock each watch ends in the instant in which it began."""
    waits = [] if delays is None else delays

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async with Transport(fake.connection, rate=0, sleep=sleep) as transport:
        backoff = Backoff(clock=lambda: 0.0, jitter=lambda: 0.0)
        made = Informer(transport, resource, seen.deliver, streaming=streaming, backoff=backoff, sleep=sleep,
                        clock=clock, **more)
        task = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def test_l1_the_first_list_takes_any_version_and_a_later_one_none_older_than_the_last_without_pages():
    async def run() -> None:
        seen = Seen()
        async with api_server(pods(10, pod("a", 5)), watched(("ADDED", pod("b", 12)), then="close", after=0.01),
                              refused(500), pods(20, pod("b", 12)), watched()) as fake, informer(fake, seen):
            await fake.until(5)
        first, _, _, second, _ = fake.queries
        assert first == {"resourceVersion": "0", "limit": "500"}
        assert second == {"resourceVersion": "12"}
        assert seen == [("a", "5", False, None), ("b", "12", False, None), ("a", None, True, None)]

    asyncio.run(run())


def test_l2_watches_take_bookmarks_and_live_for_different_times():
    async def run() -> None:
        async with api_server(pods(10), *[watched(bookmark(10), then="close")] * 20, watched()) as fake, \
                informer(fake, Seen()):
            await fake.until(21)
        lives = {int(query["timeoutSeconds"]) for query in fake.queries[1:]}
        assert {query["allowWatchBookmarks"] for query in fake.queries[1:]} == {"true"}
        assert len(lives) > 5
        assert all(300 <= life <= 600 for life in lives)

    asyncio.run(run())


@pytest.mark.parametrize("end", ["close", "reset"])
def test_l3_a_broken_watch_goes_on_at_the_last_bookmark_without_a_list(end: str):
    async def run() -> None:
        async with api_server(pods(10), watched(bookmark(44), then=end, after=0.05), watched()) as fake, \
                informer(fake, Seen()):
            await fake.until(3)
        assert [query["resourceVersion"] for query in fake.queries] == ["0", "10", "44"]
        assert ["watch" in query for query in fake.queries] == [False, True, True]

    asyncio.run(run())


@pytest.mark.parametrize("expired", [
    watched(("ERROR", refusal(410, "Expired"))), refused(410, "Expired"), refused(410, "Gone"),
], ids=["in the stream (L4)", "as the answer (L5)", "as older servers say it"])
def test_l4_l5_an_expired_version_leads_to_a_list_and_the_difference_is_delivered(expired: Any):
    async def run() -> None:
        seen = Seen()
        async with api_server(pods(10, pod("a", 5), pod("b", 6)), expired, refused(410, "Expired"),
                              pods(90, pod("b", 80), pod("c", 81)), watched()) as fake, informer(fake, seen):
            await fake.until(5)
        assert [query["resourceVersion"] for query in fake.queries] == ["0", "10", "10", "", "90"]
        assert seen[2:] == [("b", "80", False, None), ("c", "81", False, None), ("a", None, True, None)]

    asyncio.run(run())


def test_l6_watches_that_end_at_once_are_started_ever_more_slowly():
    async def run() -> None:
        delays: list[float] = []
        async with api_server(pods(10), *[watched(then="close")] * 8, watched()) as fake, \
                informer(fake, Seen(), delays=delays):
            await fake.until(10)
        assert delays == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
        assert [query["resourceVersion"] for query in fake.queries[1:]] == ["10"] * 9

    asyncio.run(run())


def test_l7_a_watch_that_is_refused_the_connection_starts_again_without_a_list():
    async def run() -> None:
        delays: list[float] = []
        seen = Seen()
        cut = asyncio.Event()

        async def until_cut(request: web.Request) -> web.StreamResponse:
            await cut.wait()
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        async with api_server(pods(10), until_cut, watched(("ADDED", pod("a", 11)))) as fake, \
                informer(fake, seen, delays=delays):
            await fake.until(2)
            await fake.refuse_connections()
            cut.set()
            await until(lambda: len(delays) > 3)
            assert len(fake.queries) == 2
            await fake.take_connections()
            await until(lambda: seen)
        assert [("watch" in query, query["resourceVersion"]) for query in fake.queries] == [
            (False, "0"), (True, "10"), (True, "10")]

    asyncio.run(run())


def test_l7_a_watch_whose_connection_breaks_at_once_starts_again_without_a_list():
    async def run() -> None:
        delays: list[float] = []
        seen = Seen()
        async with api_server(pods(10), watched(then="reset", after=0.0), watched(("ADDED", pod("a", 11)))) as fake, \
                informer(fake, seen, delays=delays):
            await until(lambda: seen)
        assert ["watch" in query for query in fake.queries] == [False, True, True]
        assert delays == [0.8]

    asyncio.run(run())


def test_a_watch_that_is_answered_429_starts_again_without_a_list():
    async def run() -> None:
        async with api_server(pods(10), refused(429, "TooManyRequests"), watched()) as fake, informer(fake, Seen()):
            await fake.until(3)
        assert [query["resourceVersion"] for query in fake.queries] == ["0", "10", "10"]

    asyncio.run(run())


def test_l10_a_streamed_list_is_one_watch_and_no_list():
    async def run() -> None:
        seen = Seen()
        frames = [("ADDED", pod("b", 7)), ("ADDED", pod("a", 5)), ("DELETED", pod("b", 8)),
                  bookmark(10, initial_end=True), ("MODIFIED", pod("a", 11))]
        async with api_server(watched(*frames)) as fake, informer(fake, seen, streaming=True) as made:
            await until(lambda: len(seen) == 4)
            assert made.view.synced
            assert (made.view.lists, made.view.watches) == (1, 1)
        [query] = fake.queries
        query.pop("timeoutSeconds")
        assert query == {
            "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": "", "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan"}
        assert seen == [("b", "7", False, None), ("a", "5", False, None), ("b", "8", True, None),
                        ("a", "11", False, None)]

    asyncio.run(run())


@pytest.mark.parametrize("code", [400, 422])
def test_l10_where_streamed_lists_are_refused_pages_are_listed_within_one_attempt(code: int):
    async def run() -> None:
        delays: list[float] = []
        seen = Seen()
        async with api_server(refused(code, "Invalid"), pods(10, pod("a", 5), more="next"), pods(10, pod("b", 6)),
                              watched()) as fake, informer(fake, seen, streaming=True, delays=delays):
            await fake.until(4)
        assert delays == []
        assert fake.queries[2] == {"limit": "500", "continue": "next"}
        assert [name for name, *_ in seen] == ["a", "b"]

    asyncio.run(run())


def test_after_a_streamed_list_that_breaks_the_next_is_none_older_than_what_was_delivered():
    async def run() -> None:
        seen = Seen()
        async with api_server(watched(("ADDED", pod("a", 5)), then="close", after=0.01),
                              watched(("ADDED", pod("b", 6)), bookmark(9, initial_end=True))) as fake, \
                informer(fake, seen, streaming=True) as made:
            await until(lambda: made.view.lists == 1)
        assert [query["resourceVersion"] for query in fake.queries] == ["", "5"]
        assert seen == [("a", "5", False, None), ("b", "6", False, None), ("a", None, True, None)]

    asyncio.run(run())


def _cut_off(version: int, item: Mapping[str, Any]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return an answer that is the beginning of a list, with one object, before the connection ends."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(json.dumps(
            {"metadata": {"resourceVersion": str(version)}, "items": [item, {}]}).encode().removesuffix(b", {}]}"))
        await response.write(b",")
        assert request.transport is not None
        request.transport.close()
        return response

    return answer


@pytest.mark.parametrize(("streaming", "streamed"), [(None, True), (False, False)])
def test_a_list_that_breaks_while_it_arrives_is_streamed_where_that_is_permitted(
    streaming: bool | None, streamed: bool,
):
    async def run() -> None:
        seen = Seen()
        again = watched(("ADDED", pod("b", 6)), bookmark(9, initial_end=True)) if streamed else pods(9, pod("b", 6))
        async with api_server(_cut_off(9, pod("a", 5)), again, watched()) as fake, \
                informer(fake, seen, streaming=streaming) as made:
            await until(lambda: made.view.lists == 1)
        first, second, *_ = fake.queries
        assert first == {"resourceVersion": "0", "limit": "500"}
        assert ("sendInitialEvents" in second, second["resourceVersion"]) == (streamed, "5")
        assert seen == [("a", "5", False, None), ("b", "6", False, None), ("a", None, True, None)]

    asyncio.run(run())


def test_a_list_that_no_connection_was_made_for_is_not_streamed():
    async def run() -> None:
        seen = Seen()
        async with api_server(refused(500), pods(9, pod("a", 5)), watched()) as fake, \
                informer(fake, seen, streaming=None) as made:
            await until(lambda: made.view.lists == 1)
        assert all("sendInitialEvents" not in query for query in fake.queries)

    asyncio.run(run())


class _Chunks(Transport):
    """A transport whose first watch is answered with these bytes, and each later one never."""

    def __init__(self, *chunks: bytes) -> None:
        super().__init__(Connection("https://127.0.0.1:1"))
        self._answer: Sequence[bytes] = chunks

    async def _chunks(self, path: str, query: Mapping[str, str], silence: float) -> AsyncGenerator[bytes, None]:
        answer, self._answer = self._answer, ()
        for chunk in answer:
            yield chunk
        await asyncio.Event().wait()


def _frame(kind: str, each: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": each}).encode() + b"\n"


def test_new_objects_that_arrive_together_are_delivered_together_and_in_order_with_all_else():
    a, b, c, d, odd = (_frame("ADDED", each) for each in (
        pod("a", 1), pod("b", 2), pod("c", 4), pod("d", 7), {"metadata": 7}))
    gone, end = _frame("DELETED", pod("a", 3)), _frame(*bookmark(5, initial_end=True))
    changed = _frame("MODIFIED", pod("b", 6))

    async def run() -> None:
        delivered: list[list[str]] = []
        transport = _Chunks(a + odd + b[:20], b[20:] + gone, b"\n", c + end + changed + d)
        made = Informer(transport, PODS, lambda changes: delivered.append([each.name for each in changes]),
                        streaming=True)
        task = asyncio.create_task(made.run())
        await until(lambda: delivered and delivered[-1] == ["d"])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert delivered == [["a"], ["b"], ["a"], ["c"], ["b"], ["d"]]
        assert (made.view.lists, made.view.fault) == (1, "")

    asyncio.run(run())


@pytest.mark.parametrize(("last", "fault"), [
    (b'{"type": 7}\n', "Expected `str`, got `int`"),
    (_frame("ERROR", {"code": 429, "message": "too many requests"}), "too many requests"),
])
def test_a_frame_that_breaks_a_streamed_list_takes_nothing_from_those_before_it(last: bytes, fault: str):
    async def run() -> None:
        delivered: list[list[str]] = []
        made = Informer(_Chunks(_frame("ADDED", pod("a", 1)) + _frame("ADDED", pod("b", 2)) + last), PODS,
                        lambda changes: delivered.append([each.name for each in changes]), streaming=True)
        task = asyncio.create_task(made.run())
        await until(lambda: made.view.fault)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert delivered == [["a", "b"]]
        assert fault in made.view.fault

    asyncio.run(run())


def test_an_object_of_a_plain_list_is_delivered_as_read_and_one_that_cannot_be_read_without():
    async def run() -> None:
        found: list[Change] = []
        pool = PartPool()
        read = Projection(frozenset({("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid"),
                                     ("metadata", "resourceVersion"), ("spec", "nodeName")}))
        odd, watched_pod = pod("b", 6), pod("c", 12)
        odd["spec"] = [[]]
        async with api_server(pods(10, pod("a", 5), odd), watched(("ADDED", watched_pod))) as fake, \
                Transport(fake.connection, rate=0) as transport:
            made = Informer(transport, PODS, found.extend, streaming=False,
                            read=lambda text: pool.decode(text, read, "Pod"))
            task = asyncio.create_task(made.run())
            await until(lambda: len(found) == 3)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert [(each.name, each.uid) for each in found] == [
            (each["metadata"]["name"], each["metadata"]["uid"]) for each in (pod("a", 5), odd, watched_pod)]
        assert [each.read for each in found] == [
            (read.decode(json.dumps(pod("a", 5)).encode()), True), None, None]

    asyncio.run(run())


def test_an_object_of_a_list_that_has_no_identity_costs_itself():
    async def run() -> None:
        seen = Seen()
        odd = [{"metadata": 7}, {"metadata": {"name": ["x"]}}]
        async with api_server(pods(10, pod("a", 5), *odd, pod("b", 6)), watched()) as fake, \
                informer(fake, seen) as made:
            await fake.until(2)
            assert made.view.fault == ""
        assert seen == [("a", "5", False, None), ("b", "6", False, None)]

    asyncio.run(run())


@pytest.mark.parametrize("streaming", [False, True])
def test_a_relist_delivers_all_objects_again_and_what_is_gone(streaming: bool):
    async def run() -> None:
        seen = Seen()
        lists = ([watched(("ADDED", pod("a", 5)), ("ADDED", pod("b", 6)), bookmark(10, initial_end=True)),
                  watched(("ADDED", pod("a", 5)), bookmark(12, initial_end=True))] if streaming else
                 [pods(10, pod("a", 5), pod("b", 6)), watched(), pods(12, pod("a", 5)), watched()])
        async with api_server(*lists) as fake, informer(fake, seen, streaming=streaming) as made:
            await until(lambda: made.view.lists == 1)
            made.relist()
            await until(lambda: made.view.lists == 2)
            assert made.known() == {("default", "a"): ("uid-a", "5")}
        assert seen == [("a", "5", False, None), ("b", "6", False, None), ("a", "5", False, None),
                        ("b", None, True, None)]

    asyncio.run(run())


def test_after_an_error_of_the_consumer_all_objects_are_delivered_again(caplog: pytest.LogCaptureFixture):
    class Failing(Seen):
        def deliver(self, changes: Sequence[Change]) -> None:
            super().deliver(changes)
            if len(self) == 2:
                raise KeyError("odd")

    async def run() -> None:
        seen = Failing()
        async with api_server(pods(10, pod("a", 5)), watched(("ADDED", pod("b", 12))),
                              pods(20, pod("a", 5), pod("b", 12)), watched()) as fake, informer(fake, seen):
            await fake.until(4)
        assert [name for name, *_ in seen] == ["a", "b", "a", "b"]

    asyncio.run(run())
    assert [record.message for record in caplog.records if record.exc_info] == [
        "pods cannot be followed, trying again"]


def test_a_version_is_reached_by_the_bookmark_of_a_short_watch_without_a_list():
    async def run() -> None:
        seen = Seen()
        async with api_server(pods(10), watched(), watched(("ADDED", pod("a", 15)), bookmark(17)), watched()) as fake, \
                informer(fake, seen) as made:
            await fake.until(2)
            async with asyncio.timeout(10):
                await made.reach(16)
                assert seen == [("a", "15", False, None)]
                await made.reach(17)
        first, _, second = fake.queries
        assert "watch" not in first
        assert (second["resourceVersion"], second["timeoutSeconds"]) == ("10", "3")

    asyncio.run(run())


def test_a_kind_that_cannot_be_watched_is_listed_again_and_again_and_all_of_it_delivered():
    async def run() -> None:
        seen: Seen = Seen()
        delays: list[float] = []
        measured = {"metadata": {"name": "a", "namespace": "default"}}
        async with api_server(*(json_answer({"metadata": {}, "items": items}) for items in (
                [measured], [measured], [])), refused(503)) as fake, \
                informer(fake, seen, streaming=True, resource=POLLED, delays=delays) as made:
            await until(lambda: made.view.fault)
            assert (made.view.synced, made.view.absent, bool(made.view.heard)) == (True, False, True)
        assert seen == [("a", "", False, None)] * 2 + [("a", None, True, None)]
        assert (delays[:3], {"watch" in query for query in fake.queries}) == ([15.0] * 3, {False})

    asyncio.run(run())


def test_a_polled_kind_whose_server_is_down_at_first_is_absent_until_it_is_there():
    async def run() -> None:
        seen: Seen = Seen()
        listed: list[int] = []
        async with api_server(refused(503), json_answer({"metadata": {}, "items": [
                {"metadata": {"name": "a", "namespace": "default"}}]})) as fake, \
                informer(fake, seen, resource=POLLED, listed=lambda: listed.append(len(seen))) as made:
            await until(lambda: made.view.synced)
            assert not made.view.absent
        assert (listed[:2], seen[0]) == ([0, 1], ("a", "", False, None))

    asyncio.run(run())


def test_a_kind_that_the_server_does_not_have_is_absent_and_gone_when_that_is_said_twice():
    async def run() -> None:
        delays: list[float] = []
        seen = Seen()
        lists: list[int] = []
        async with api_server(refused(404), refused(404), pods(10, pod("a", 5)), refused(410, "Expired"), refused(404),
                              refused(404), pods(20), watched()) as fake, \
                informer(fake, seen, delays=delays, listed=lambda: lists.append(len(seen)), absent_s=30.0) as made:
            await fake.until(8)
            assert not made.view.absent
        assert delays[:2] == [30.0, 30.0]
        assert seen == [("a", "5", False, None), ("a", None, True, None)]
        assert lists == [0, 0, 1, 1, 2, 2]  # the changes that had been delivered at the end of each list

    asyncio.run(run())


def test_a_list_that_is_requested_during_a_pause_does_not_wait_for_its_end():
    async def run() -> None:
        async def sleep(seconds: float) -> None:
            await asyncio.sleep(3600 if seconds == 30.0 else 0)

        listed: list[int] = []
        async with api_server(refused(404)) as fake, Transport(fake.connection, rate=0) as transport:
            made = Informer(transport, BY_KIND["Pod"], Seen().deliver, streaming=False, sleep=sleep, absent_s=30.0,
                            listed=lambda: listed.append(1))
            task = asyncio.create_task(made.run())
            await until(lambda: listed)
            made.relist()
            await until(lambda: len(listed) == 2)
            assert made.view.absent
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_a_version_that_is_awaited_does_not_replace_a_list_that_was_requested_just_before():
    async def run() -> None:
        seen = Seen()
        async with api_server(pods(10, pod("a", 5)), watched(bookmark(10)), pods(20, pod("a", 5)),
                              watched(bookmark(30))) as fake, informer(fake, seen) as made:
            await fake.until(2)
            await until(lambda: made._watching)
            made.relist()
            await made.reach(30)
        assert seen == [("a", "5", False, None), ("a", "5", False, None)]

    asyncio.run(run())


def test_a_version_that_is_awaited_during_a_streamed_list_is_awaited_by_a_short_watch():
    async def run() -> None:
        seen, awaited = Seen(), asyncio.Event()
        listed = watched(("ADDED", pod("a", 5)), bookmark(10, initial_end=True), last_waits_for=awaited)
        async with api_server(watched(bookmark(10, initial_end=True), ("ERROR", refusal(410, "Expired"))), listed,
                              watched(bookmark(30))) as fake, informer(fake, seen, streaming=True) as made:
            await until(lambda: seen)
            reached = asyncio.create_task(made.reach(30))
            await asyncio.sleep(0)
            awaited.set()
            await reached
        assert [int(query["timeoutSeconds"]) < 10 for query in fake.queries[-1:]] == [True]
        assert len(fake.queries) == 3

    asyncio.run(run())


def test_a_list_that_expires_between_its_pages_is_listed_once_more_as_a_whole():
    async def run() -> None:
        seen = Seen()
        async with api_server(pods(10, pod("a", 5), more="next"), refused(410, "Expired"),
                              pods(11, pod("a", 5), pod("b", 6)), watched()) as fake, informer(fake, seen):
            await fake.until(4)
        assert fake.queries[2] == {"resourceVersion": ""}
        assert [name for name, *_ in seen] == ["a", "b"]

    asyncio.run(run())


@pytest.mark.parametrize("streaming", [False, True])
def test_l11_a_deletion_and_a_creation_that_were_missed_are_one_change_with_two_uids(streaming: bool):
    async def run() -> None:
        seen = Seen()
        lists = ([watched(("ADDED", pod("a", 5)), bookmark(10, initial_end=True), ("ERROR", refusal(410, "Expired"))),
                  watched(("ADDED", pod("a", 15, uid="other")), bookmark(20, initial_end=True))] if streaming else
                 [pods(10, pod("a", 5)), refused(410, "Expired"), pods(20, pod("a", 15, uid="other")), watched()])
        async with api_server(*lists) as fake, informer(fake, seen, streaming=streaming):
            await until(lambda: len(seen) == 2)
        assert seen == [("a", "5", False, None), ("a", "15", False, "uid-a")]

    asyncio.run(run())


def test_l15_a_watch_on_which_nothing_arrives_is_started_again():
    async def run() -> None:
        async with api_server(pods(10), watched(bookmark(12)), watched()) as fake, informer(fake, Seen()) as made:
            await until(lambda: made._version == "12")
            skip(WATCH_SILENCE_S)
            await fake.until(3)
        assert [query["resourceVersion"] for query in fake.queries] == ["0", "10", "12"]

    asyncio.run(run())


def test_l16_a_server_that_lags_behind_is_not_followed_backwards():
    async def run() -> None:
        seen = Seen()
        too_large = json_answer({
            **refusal(504, "Timeout", "Too large resource version: 1010, current: 10"),
            "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}}, 504)
        async with api_server(pods(1010, pod("a", 1005)), watched(("ERROR", refusal(500, "InternalError"))),
                              too_large, pods(1011, pod("a", 1005)), watched()) as fake, informer(fake, seen):
            await fake.until(5)
        assert [query["resourceVersion"] for query in fake.queries] == ["0", "1010", "1010", "", "1011"]
        assert seen == [("a", "1005", False, None)]

    asyncio.run(run())


def test_after_etcd_was_restored_from_a_backup_all_objects_are_listed_and_delivered_again(
        caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        seen = Seen()
        clock = itertools.count(0.0, 2.0)
        async with api_server(
            pods(1010, pod("a", 5), pod("b", 1005)), watched(then="reset"), watched(then="close"),
            pods(700, pod("a", 5)), pods(701, pod("a", 5)), watched(("ADDED", pod("c", 702))),
        ) as fake, informer(fake, seen, clock=lambda: next(clock), field_selector="spec.nodeName=n") as made:
            await until(lambda: len(seen) == 5)
            assert made.view.fault == ""
        list_, first, short, check, again, last = fake.queries
        assert [each["resourceVersion"] for each in (list_, first, short, again, last)] == [
            "0", "1010", "1010", "", "701"]
        assert check == {"limit": "1", "resourceVersion": ""}
        assert short["timeoutSeconds"] == "3"
        assert min(int(each["timeoutSeconds"]) for each in (first, last)) >= 300
        assert seen == [("a", "5", False, None), ("b", "1005", False, None),
                        ("a", "5", False, None), ("b", None, True, None), ("c", "702", False, None)]

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records][-1] == (
        "the resourceVersion of the server's pods went back from 1010 to 700, as after a restore of etcd: "
        "all are listed again")


@pytest.mark.parametrize("check", [pods(1010), pods(2000), refused(403, "Forbidden"), json_answer([])],
                         ids=["no later version", "a later version", "forbidden", "odd"])
def test_a_watch_without_a_frame_goes_on_if_the_server_has_not_gone_back(check: Any):
    async def run() -> None:
        seen = Seen()
        clock = itertools.count(0.0, 2.0)
        async with api_server(
            pods(1010, pod("a", 5)), watched(then="close"), check, watched(("ADDED", pod("b", 1011))),
        ) as fake, informer(fake, seen, clock=lambda: next(clock)):
            await until(lambda: len(seen) == 2)
        assert [each["resourceVersion"] for each in fake.queries] == ["0", "1010", "", "1010"]
        assert int(fake.queries[-1]["timeoutSeconds"]) >= 300
        assert seen == [("a", "5", False, None), ("b", "1011", False, None)]

    asyncio.run(run())


def test_after_a_broken_connection_a_bookmark_confirms_the_version():
    async def run() -> None:
        clock = itertools.count(0.0, 2.0)
        async with api_server(
            pods(1010, pod("a", 5)), watched(then="reset"), watched(bookmark(1010), then="close"),
            watched(),
        ) as fake, informer(fake, Seen(), clock=lambda: next(clock)):
            await fake.until(4)
        assert [each["resourceVersion"] for each in fake.queries] == ["0", "1010", "1010", "1010"]
        assert [int(each["timeoutSeconds"]) >= 300 for each in fake.queries[1:]] == [True, False, True]

    asyncio.run(run())


@pytest.mark.parametrize("odd", [
    json_answer([]), json_answer({"metadata": 7}), json_answer("x" * 100), refused(403, "Forbidden"), refused(500),
], ids=["an array", "odd metadata", "a string", "forbidden", "failing"])
def test_an_odd_answer_is_reported_once_and_listed_again_later(odd: Any, caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        delays: list[float] = []
        seen = Seen()
        async with api_server(odd, odd, pods(10, pod("a", 5)), watched()) as fake, \
                informer(fake, seen, delays=delays) as made:
            await until(lambda: made.view.synced)
        assert made.view.fault == ""
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            "pods cannot be followed, trying again"]
        assert delays == [0.8, 1.6]
        assert seen == [("a", "5", False, None)]

    asyncio.run(run())


def test_a_missing_right_is_reported_once_with_the_right_to_grant(caplog: pytest.LogCaptureFixture):
    async def run() -> None:
        delays: list[float] = []
        forbidden = refused(403, "Forbidden")
        async with api_server(forbidden, forbidden, forbidden, pods(10, pod("a", 5)), watched()) as fake, \
                informer(fake, Seen(), delays=delays, streaming=True) as made:
            await until(lambda: made.view.synced)

    caplog.set_level("INFO", "koordpolicy.engine.client.informer")
    asyncio.run(run())
    (message,) = [record.getMessage() for record in caplog.records if record.name.startswith("koordpolicy.")]
    assert message.startswith("pods cannot be followed, trying again: 403 Forbidden: ")
    assert message.endswith(": grant `list` and `watch` on `pods`")


def test_frames_of_unknown_types_are_skipped():
    async def run() -> None:
        seen = Seen()
        async with api_server(pods(10), watched(("TABLE", {}), ("ADDED", pod("a", 11)))) as fake, informer(fake, seen):
            await until(lambda: seen)
        assert seen == [("a", "11", False, None)]
        assert len(fake.requests) == 2

    asyncio.run(run())


def test_frames_may_arrive_in_pieces_and_several_at_once():
    async def run() -> None:
        text = b"".join(json.dumps({"type": "ADDED", "object": pod(name, 11)}).encode() + b"\n" for name in "abc")

        async def in_pieces(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            for start in range(0, len(text), 50):
                await response.write(text[start:start + 50])
                await asyncio.sleep(0.002)
            await asyncio.sleep(3600)
            return response

        seen = Seen()
        async with api_server(pods(10), in_pieces) as fake, informer(fake, seen):
            await until(lambda: len(seen) == 3)
        assert [name for name, *_ in seen] == ["a", "b", "c"]

    asyncio.run(run())
