"""After an outage the first kind that is answered ends the pauses of all; time is virtual."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import pytest
from aiohttp import web

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.faults import ApiFault
from koordpolicy.engine.client.informer import Informer
from koordpolicy.engine.client.pacing import Backoff
from koordpolicy.engine.client.recovery import ServerRecovery
from koordpolicy.engine.client.resources import BY_KIND, ApiResource
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Status, Transport

from .fake_api_server import api_server, pods, refused, watched

KINDS = [ApiResource(f"Kind{number}", "", "v1", f"kinds{number}") for number in range(20)]


class _Selector(selectors.DefaultSelector):
    """Lets time pass instead of waiting."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing is going to happen any more"
        self.now += max(0.0, timeout)
        return super().select(0)


def _in_virtual_time(run: Callable[[Callable[[], float]], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a loop whose time passes at once; it gets the clock."""
    selector = _Selector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(run(loop.time))
    finally:
        loop.close()


class _Server(Transport):
    """Refuses each path with a code for a while, and answers all later requests at once with a list or a watch."""

    def __init__(self, clock: Callable[[], float], random: Random, refusals: Mapping[str, tuple[int, float]]) -> None:
        super().__init__(Connection("https://127.0.0.1:1"), rate=0, clock=clock)
        self.recovery = ServerRecovery(clock=clock, jitter=random.random)
        self.refused: list[tuple[str, float]] = []
        self.answered: dict[str, float] = {}
        """The times at which the paths were answered last."""
        self._refusals = refusals
        self._cut = asyncio.Event()

    def fail(self, refusals: Mapping[str, tuple[int, float]]) -> None:
        """End all watches, and refuse these paths from now on."""
        self._refusals = refusals
        self._cut.set()
        self._cut = asyncio.Event()

    async def _chunks(self, path: str, query: Mapping[str, str], silence: float) -> AsyncGenerator[bytes, None]:
        code, until = self._refusals.get(path, (0, 0.0))
        if self._clock() < until:
            self.refused.append((path, self._clock()))
            raise ApiError(code, Status(code=code))
        self.recovery.answered(path)
        self.answered[path] = self._clock()
        if "watch" in query:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._cut.wait(), float(query["timeoutSeconds"]))
            return
        yield msgspec.json.encode({"metadata": {"resourceVersion": "10"}, "items": []})

    async def _once(self, _method: str, path: str, *, query: Mapping[str, str] | None, **_more: Any) -> bytes:
        return b"".join([chunk async for chunk in self._chunks(path, query or {}, 0.0)])


async def _listed(server: _Server, clock: Callable[[], float], random: Random, seconds: float) -> dict[str, float]:
    """Follow all kinds for so long; return when each was listed first."""
    listed: dict[str, float] = {}

    def follow(kind: ApiResource) -> asyncio.Task[None]:
        def note() -> None:
            listed.setdefault(kind.path(), clock())

        return asyncio.create_task(Informer(
            server, kind, lambda _: None, listed=note, streaming=False, clock=clock,
            backoff=Backoff(clock=clock, jitter=random.random)).run())

    tasks = [follow(kind) for kind in KINDS]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return listed


@pytest.mark.parametrize("outage", [3.0, 10.0, 30.0, 300.0])
@pytest.mark.parametrize("code", [403, 500])
def test_all_kinds_are_listed_within_a_second_of_the_first_one_after_an_outage(code: int, outage: float):
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        server = _Server(clock, random, {kind.path(): (code, outage) for kind in KINDS})
        listed = await _listed(server, clock, random, outage + 60.0)
        assert listed.keys() == {kind.path() for kind in KINDS}
        assert max(listed.values()) - min(listed.values()) < 0.8
        assert len(set(listed.values())) == len(KINDS)  # not all at the same instant

    _in_virtual_time(run)


@pytest.mark.parametrize("well", [15.0, 60.0])
@pytest.mark.parametrize("outage", [2.0, 5.0])
def test_a_short_outage_soon_after_a_long_one_is_over_as_soon_as_one_by_itself(outage: float, well: float):
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        server = _Server(clock, random, {kind.path(): (500, 300.0) for kind in KINDS})
        following = asyncio.create_task(_listed(server, clock, random, 600.0))
        while len(server.answered) < len(KINDS):
            await asyncio.sleep(1.0)
        await asyncio.sleep(well)
        began, before = clock(), len(server.refused)
        server.fail({kind.path(): (500, began + outage) for kind in KINDS})
        await asyncio.sleep(outage + 30.0)
        late = [at - began - outage for at in server.answered.values()]
        assert min(late) >= 0
        assert max(late) < outage + 4.0  # the delay in which the outage ended is at most twice as long as it
        assert len(server.refused) - before <= len(KINDS) + 4  # no path but one or two is requested in vain again
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    _in_virtual_time(run)


class _Halting(_Server):
    """Answers the lists of one kind, and fails each time before it follows it: after `seconds` of the list or watch."""

    def __init__(self, clock: Callable[[], float], random: Random, at: str, seconds: float) -> None:
        super().__init__(clock, random, {})
        self.lists: list[float] = []
        self._at, self._seconds = at, seconds

    async def _chunks(self, path: str, query: Mapping[str, str], silence: float) -> AsyncGenerator[bytes, None]:
        self.recovery.answered(path)
        if "watch" not in query:
            self.lists.append(self._clock())
            yield b'{"metadata":{"resourceVersion":"10"},"items":['
        if ("watch" in query) == (self._at == "watch"):
            await asyncio.sleep(self._seconds)
            if self._at == "watch":
                raise ApiError(500, Status(code=500))
            raise ConnectionFailed(ApiFault("the connection ended", ""), refused=False, broken=True)
        yield b"]}"


@pytest.mark.parametrize(("at", "seconds"), [("list", 0.0), ("list", 15.0), ("watch", 0.0)])
def test_a_kind_that_is_never_followed_begins_no_other_outage_with_each_answer(at: str, seconds: float):
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        server = _Halting(clock, random, at, seconds)
        following = asyncio.create_task(Informer(
            server, KINDS[0], lambda _: None, streaming=False, clock=clock,
            backoff=Backoff(clock=clock, jitter=random.random)).run())
        await asyncio.sleep(1200.0)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert len(server.lists) > 15
        # Pauses of up to 30 s are past; those after them take 30 to 60 s.
        assert min(after - before for before, after in pairwise(server.lists[7:])) >= 30.0

    _in_virtual_time(run)


def test_kinds_that_are_permitted_one_after_another_are_waited_for_with_a_back_off_together():
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        refusals = {kind.path(): (403, 20.0 + number) for number, kind in enumerate(KINDS)}
        server = _Server(clock, random, refusals)
        listed = await _listed(server, clock, random, 120.0)
        assert listed.keys() == refusals.keys()
        assert all(listed[path] >= until for path, (_, until) in refusals.items())

    _in_virtual_time(run)


def test_a_kind_that_stays_forbidden_is_requested_at_the_pace_of_its_back_off_while_others_are_answered():
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        forbidden = KINDS[0].path()
        server = _Server(clock, random, {forbidden: (403, 1e9)})
        listed = await _listed(server, clock, random, 3600.0)
        assert listed.keys() == {kind.path() for kind in KINDS[1:]}
        times = [at for path, at in server.refused if path == forbidden]
        assert 60 <= len(times) <= 126  # one in 30 to 60 seconds

    _in_virtual_time(run)


def test_a_kind_that_fails_and_recovers_all_the_time_does_not_make_others_be_requested_all_the_time():
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        recovery = ServerRecovery(clock=clock, jitter=random.random)
        ends: list[float] = []

        async def fail_on() -> None:
            while True:
                await recovery.pause("/forbidden", 1e6, asyncio.sleep, followed=False)
                ends.append(clock())

        task = asyncio.create_task(fail_on())
        while clock() < 3600.0:
            flapping = asyncio.create_task(recovery.pause("/flapping", 0.1, asyncio.sleep, followed=True))
            await flapping
            recovery.answered("/flapping")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        pauses = [later - earlier for earlier, later in pairwise(ends)]
        assert min(pauses[8:]) > 29.0
        assert len(ends) <= 126

    _in_virtual_time(run)


def test_a_kind_that_is_answered_429_waits_out_its_back_off_while_others_recover():
    async def run(clock: Callable[[], float]) -> None:
        random = Random(1)
        throttled = KINDS[0].path()
        refusals = {kind.path(): (403, 10.0) for kind in KINDS} | {throttled: (429, 10.0)}
        calm = _Server(clock, random, {throttled: (429, 10.0)})
        recovering = _Server(clock, random, refusals)
        found = []
        for server in (calm, recovering):
            start, pauses = clock(), Backoff(clock=clock, jitter=lambda: 0.0)
            server._refusals = {path: (code, start + until) for path, (code, until) in server._refusals.items()}
            made = Informer(server, KINDS[0], lambda _: None, streaming=False, clock=clock, backoff=pauses)
            others = asyncio.create_task(_listed_but_first(server, clock, random))
            task = asyncio.create_task(made.run())
            await asyncio.sleep(60.0)
            assert made.view.synced
            found.append([round(at - start, 6) for path, at in server.refused if path == throttled])
            for each in (others, task):
                each.cancel()
            await asyncio.gather(others, task, return_exceptions=True)
        assert found == [[0.0, 0.8, 2.4, 5.6]] * 2

    _in_virtual_time(run)


async def _listed_but_first(server: _Server, clock: Callable[[], float], random: Random) -> None:
    async with asyncio.TaskGroup() as group:
        for kind in KINDS[1:]:
            group.create_task(Informer(server, kind, lambda _: None, streaming=False, clock=clock,
                                       backoff=Backoff(clock=clock, jitter=random.random)).run())


def test_an_informer_in_a_long_pause_lists_as_soon_as_the_server_answers_another_one():
    async def run() -> None:
        recovered, listed = asyncio.Event(), asyncio.Event()
        pauses = [asyncio.Event().wait, recovered.wait]

        async def sleep(_seconds: float) -> None:
            if pauses:
                await pauses.pop()()

        async with api_server(refused(403)) as fake, Transport(fake.connection, rate=0) as transport:
            first = asyncio.create_task(Informer(
                transport, BY_KIND["Node"], lambda _: None, streaming=False, sleep=sleep).run())
            await _until(lambda: len(pauses) == 1)
            second = asyncio.create_task(Informer(
                transport, BY_KIND["Pod"], lambda _: None, streaming=False, sleep=sleep, listed=listed.set).run())
            await _until(lambda: not pauses)
            fake.answers[:] = [_list_or_watch]
            recovered.set()
            async with asyncio.timeout(60):
                await listed.wait()
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(run())


async def _list_or_watch(request: web.Request) -> web.StreamResponse:
    answer: web.StreamResponse = await (watched() if "watch" in request.query else pods(10))(request)
    return answer


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)
