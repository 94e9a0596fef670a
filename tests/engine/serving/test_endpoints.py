"""Long answers are sent block by block."""

from __future__ import annotations

import asyncio
from typing import Any

from koordpolicy.engine.serving.endpoints import in_turns


class _Reader:
    """Takes what is written as fast as it comes, so that a writer never has to wait."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    async def write(self, block: bytes) -> None:
        self.taken.append(bytes(block))


def test_others_have_their_turn_after_each_block_even_if_the_client_never_lags_behind():
    blocks, reader, seen = [b"one", b"two", b"three"], _Reader(), []

    async def other() -> None:
        while len(reader.taken) < len(blocks):
            seen.append(len(reader.taken))
            await asyncio.sleep(0)

    async def main() -> None:
        answer = in_turns(blocks, "text/plain")
        assert answer.headers["Content-Length"] == "11"
        body: Any = answer.body
        beside = asyncio.create_task(other())
        await asyncio.sleep(0)
        await body.write(reader)
        await beside

    asyncio.run(main())
    assert (reader.taken, sorted(set(seen))) == (blocks, [0, 1, 2])
