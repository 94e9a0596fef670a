"""The queue of nodes to reconcile."""

from __future__ import annotations

import asyncio

from koordpolicy.engine.manager.work_queue import WorkQueue


def test_a_key_waits_once_and_is_worked_on_again_if_it_was_added_meanwhile():
    async def scenario() -> list[str]:
        queue = WorkQueue()
        for key in ("a", "b", "a"):
            queue.add(key)
        taken = [await queue.take(), await queue.take()]
        queue.add("a")
        assert len(queue) == 0  # it is worked on
        queue.done("a")
        return [*taken, await queue.take()]

    assert asyncio.run(scenario()) == ["a", "b", "a"]


def test_a_failed_key_comes_again_after_growing_delays():
    delays: list[float] = []

    async def scenario() -> None:
        queue = WorkQueue(jitter=lambda: 0.0)
        loop = asyncio.get_running_loop()

        def call_later(delay: float, callback: object, *arguments: object) -> asyncio.TimerHandle:
            delays.append(delay)
            loop.call_soon(callback, *arguments)  # type: ignore[arg-type]
            return asyncio.TimerHandle(0, lambda: None, (), loop)

        loop.call_later = call_later  # type: ignore[method-assign,assignment]
        queue.add("a")
        for _ in range(9):
            queue.failed(await queue.take())
        queue.done(await queue.take())
        queue.add("a")
        queue.failed(await queue.take())

    asyncio.run(scenario())
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 0.5]
