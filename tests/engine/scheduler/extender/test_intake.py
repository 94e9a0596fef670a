"""Bodies that arrive: bounded each in bytes and time, and all together, at the cost of the slowest."""

from __future__ import annotations

import asyncio

import pytest

from koordpolicy.engine.scheduler.extender.intake import DeclinedError, Intake


class Request:
    """A request whose body arrives when the test says so; an empty chunk ends it."""

    def __init__(self, length=None, **headers):
        self.content_length, self.content = length, self
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.chunks = asyncio.Queue()

    def send(self, *chunks):
        for chunk in chunks:
            self.chunks.put_nowait(chunk)

    async def readany(self):
        return await self.chunks.get()


async def taken(intake, request, **options):
    """Return the body, or status and reason."""
    try:
        async with intake.body(request, **options) as body:
            return bytes(body)
    except DeclinedError as error:
        return error.status, str(error)


async def settle():
    for _ in range(10):
        await asyncio.sleep(0)


def run(course):
    return asyncio.run(course())


def test_a_body_is_held_until_its_block_ends():
    async def course():
        intake, request = Intake(100, most=200), Request()
        request.send(b"abc", b"de", b"")
        async with intake.body(request) as body:
            held = intake.bytes
        return bytes(body), held, intake.bytes

    assert run(course) == (b"abcde", 5, 0)


@pytest.mark.parametrize(("request_of", "chunks", "status", "reason"), [
    (lambda: Request(101), [], 413, "the body has 101 bytes, at most 100 are taken (`--max-body`)"),
    (
        Request, [b"x" * 60, b"x" * 41], 413,
        "the body has more than 100 bytes, which is all that is taken (`--max-body`)",
    ),
    (
        lambda: Request(Content_Encoding="gzip"), [], 415,
        "the body is encoded as `gzip`: send it as it is, since a few bytes may decompress to any number",
    ),
    (
        lambda: Request(Content_Encoding="br"), [], 415,
        "the body is encoded as `br`: send it as it is, since a few bytes may decompress to any number",
    ),
])
def test_a_body_that_is_not_taken_is_declined_with_a_reason(request_of, chunks, status, reason):
    async def course():
        intake, request = Intake(100, most=200), request_of()
        request.send(*chunks)
        return await taken(intake, request, option="--max-body"), intake.bytes

    assert run(course) == ((status, reason), 0)


def test_a_body_that_does_not_arrive_in_time_is_declined_and_nothing_of_it_is_held():
    async def course():
        intake, request = Intake(100, most=200, seconds=0), Request()
        return await taken(intake, request), intake.bytes

    assert run(course) == ((408, "the body did not arrive within 0 s"), 0)


def test_a_body_whose_sender_goes_away_is_not_held():
    async def course():
        intake, request = Intake(100, most=200), Request()
        request.send(b"x" * 50)
        task = asyncio.create_task(taken(intake, request))
        await settle()
        held = intake.bytes
        task.cancel()
        await settle()
        return held, intake.bytes, task.cancelled()

    assert run(course) == (50, 0, True)


def test_a_body_whose_connection_ends_early_is_declined_without_an_error_in_the_log_and_not_held():
    async def course():
        intake, request = Intake(100, most=200), Request()
        chunks = [b"x" * 50]

        async def readany():
            if not chunks:
                raise ConnectionResetError("Connection lost")
            return chunks.pop()

        request.readany = readany
        return await taken(intake, request), intake.bytes

    assert run(course) == ((400, "the connection ended within the body"), 0)


def test_when_all_together_are_too_much_the_slowest_makes_room():
    async def course():
        passed = [0.0]
        intake = Intake(100, most=150, timer=lambda: passed[0])
        slow, slower, quick = Request(), Request(), Request()
        slow.send(b"x" * 70)
        slower.send(b"x" * 60)
        tasks = [asyncio.create_task(taken(intake, each)) for each in (slow, slower)]
        await settle()
        passed[0] = 5.0
        quick.send(b"y" * 50, b"")
        got = await taken(intake, quick)
        held = intake.bytes
        slow.send(b"")
        return got, held, [await task for task in tasks][1], len(await tasks[0]), intake.bytes

    assert run(course) == (
        b"y" * 50, 70, (503, "too many bodies arrive at the same time, and this one is the slowest"), 70, 0,
    )


def test_bodies_that_wait_for_a_decision_are_not_dropped():
    async def course():
        intake, waiting, late = Intake(100, most=150), Request(), Request()
        waiting.send(b"x" * 100, b"")
        late.send(b"y" * 60, b"")
        async with intake.body(waiting) as body:
            refused = await taken(intake, late)
            return len(body), refused[0], intake.bytes

    assert run(course) == (100, 503, 100)


def test_no_more_than_so_many_bodies_are_under_way():
    async def course():
        passed = [0.0]
        intake = Intake(100, most=1000, most_arriving=3, timer=lambda: passed[0])
        requests = [Request() for _ in range(6)]
        tasks = []
        for request in requests:
            tasks.append(asyncio.create_task(taken(intake, request)))
            await settle()
            passed[0] += 1
        done = [task.done() for task in tasks]
        for request in requests[3:]:
            request.send(b"x", b"")
        return done, [await task for task in tasks[3:]]

    assert run(course) == ([True, True, True, False, False, False], [b"x", b"x", b"x"])
