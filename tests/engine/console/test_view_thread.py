"""Views of several clients: whose turn it is, on which thread, and who is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console.fair_thread import UsedTime
from koordpolicy.engine.console.guard import NotPermitted
from koordpolicy.engine.console.models.search import SearchView
from koordpolicy.engine.console.routes import CLIENT
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.console.view_thread import ViewThread
from tests.waiting import PATIENCE_S

from .conftest import HOT, NOW, OBJECTS, node

NOTHING = SearchView(found=[], left_out=0)


@pytest.fixture
def used() -> UsedTime:
    return UsedTime(drain=0.5, clock=lambda: 0.0)


@pytest.fixture
def state(policies_of: Callable[..., Any]) -> ConsoleState:
    cluster = Cluster()
    assert not cluster.upsert_all(OBJECTS)
    return ConsoleState(cluster, policies_of(HOT), now=NOW, name="dump.yaml")


@pytest.fixture
def views(state: ConsoleState, used: UsedTime) -> Iterator[ViewThread]:
    found = ViewThread(state, used=used)
    yield found
    found.close()


class Looked:
    """A view that notes thread and state."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.states: list[ConsoleState] = []

    def __call__(self, state: ConsoleState) -> SearchView:
        self.threads.append(threading.current_thread().name)
        self.states.append(state)
        return NOTHING


def ask(views: ViewThread, client: str, view: Callable[[ConsoleState], Any], **more: Any) -> Awaitable[Any]:
    CLIENT.set(client)
    return asyncio.ensure_future(views.answer(view, **more))


def test_a_view_of_a_whole_cycle_does_not_hold_up_others(views: ViewThread, state: ConsoleState):
    begun, end, short = threading.Event(), threading.Event(), Looked()

    def cycle(fork: ConsoleState) -> SearchView:
        assert fork is not state
        begun.set()
        assert end.wait(PATIENCE_S)
        return NOTHING

    async def scenario() -> None:
        slow = ask(views, "ana", cycle, times=4.0, movable=True)
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        await ask(views, "ben", short, movable=True)
        assert not slow.done()  # type: ignore[attr-defined]
        end.set()
        await slow

    asyncio.run(scenario())
    assert (short.threads, short.states) == (["console"], [state])


def test_the_second_thread_has_a_fork_of_its_own_until_the_state_changes(views: ViewThread, state: ConsoleState):
    looked = Looked()

    def grow(before: ConsoleState) -> ConsoleState:
        before.cluster.upsert(node("new", "a"))
        before.renew(NOW)
        return before

    async def scenario() -> None:
        for _ in range(2):
            await ask(views, "ana", looked, times=4.0, movable=True)
        await asyncio.wrap_future(views.change(grow))
        await ask(views, "ana", looked, times=4.0, movable=True)

    asyncio.run(scenario())
    first, second, third = looked.states
    assert first is second
    assert [len(each.cluster.names) for each in (first, third, state)] == [3, 4, 4]
    assert state not in looked.states
    assert looked.threads == ["console-aside"] * 3


def test_views_of_a_client_who_used_much_time_make_room_for_others_if_there_are_any(
    views: ViewThread, state: ConsoleState, used: UsedTime,
):
    looked = Looked()

    async def scenario() -> None:
        used.charge("ana", 10.0)
        await ask(views, "ana", looked, movable=True)
        await ask(views, "ben", looked, movable=True)
        await ask(views, "ana", looked, movable=True)
        await ask(views, "ana", looked)  # reads more than its state

    asyncio.run(scenario())
    assert looked.threads == ["console", "console", "console-aside", "console"]
    assert [each is state for each in looked.states] == [True, True, False, True]


def test_what_a_client_types_makes_room_for_its_other_views_once_it_took_much_time(
    state: ConsoleState, used: UsedTime,
):
    looked, worked = Looked(), [0.0]
    views = ViewThread(state, used=used, timer=lambda: worked[0])

    def typed(of: ConsoleState) -> SearchView:
        worked[0] += 4.0
        return looked(of)

    async def scenario() -> None:
        for _ in range(2):
            await ask(views, "ana", typed, kind="colour", movable=True, typed=True)
        await ask(views, "ana", looked, kind="map", movable=True)

    asyncio.run(scenario())
    views.close()
    assert looked.threads == ["console", "console-aside", "console"]


def test_a_view_may_wait_for_longer_than_it_may_work(state: ConsoleState):
    views, waiting = ViewThread(state, seconds=0.1), threading.Event()

    def wait(_: ConsoleState) -> SearchView:
        waiting.wait(0.3)
        Deadline.poll()
        return NOTHING

    async def scenario() -> None:
        assert (await ask(views, "ana", wait)).status == 200

    asyncio.run(scenario())
    views.close()


def test_a_client_who_used_too_much_time_is_refused_while_there_are_others(views: ViewThread, used: UsedTime):
    async def scenario() -> None:
        used.charge("ana", 40.0)
        await ask(views, "ana", Looked())
        await ask(views, "ben", Looked())
        with pytest.raises(NotPermitted, match="try again in 20 s") as refused:
            await ask(views, "ana", Looked())
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "20"})
        await ask(views, "ben", Looked())

    asyncio.run(scenario())


def test_a_client_has_so_many_views_at_once_and_the_console_does_its_own_work_meanwhile(views: ViewThread):
    begun, end, short = threading.Event(), threading.Event(), Looked()

    def wait(_: ConsoleState) -> SearchView:
        begun.set()
        assert end.wait(PATIENCE_S)
        return NOTHING

    async def scenario() -> None:
        sent = [ask(views, "ana", wait)]
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        sent += [ask(views, "ana", short) for _ in range(24)]
        with pytest.raises(NotPermitted, match="too many of your views") as refused:
            await ask(views, "ana", short)
        assert refused.value.status == 429
        other = ask(views, "ben", short)
        await asyncio.sleep(0)  # it is sent
        changing = asyncio.wrap_future(views.change(lambda _: short.threads.append("change")))  # type: ignore[func-returns-value]
        end.set()
        await asyncio.gather(*sent, other, changing)

    asyncio.run(scenario())
    assert short.threads.index("change") < 3
    assert len(short.threads) == 26


def test_a_fork_has_the_findings_that_are_known_and_the_state_of_watches(state: ConsoleState):
    known = state.faults
    twin = state.fork()()
    assert twin.faults is known
    assert twin.watches() == state.watches()
    assert twin.number != state.number
    twin.close()
