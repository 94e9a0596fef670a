from __future__ import annotations

import asyncio
import json
from typing import ClassVar

from koordpolicy.engine.scheduler.extender import Verb
from koordpolicy.engine.scheduler.server import Loaded, Server


class Arriving:
    """A request whose body comes when the server has just begun to end."""

    content_length = 2
    headers: ClassVar = {}

    def __init__(self, server):
        self.server, self.content, self.chunks = server, self, [b"", b"{}"]

    async def readany(self):
        self.server._loaded = None
        return self.chunks.pop()


def test_a_call_whose_body_comes_while_the_server_ends_is_told_so():
    class Extender:
        def answer(self, verb, body):
            raise AssertionError("what was closed must not decide")

    server = Server(lambda: None)
    server._loaded = Loaded(Extender(), None)
    answer = asyncio.run(server._answer(Verb.FILTER, Arriving(server)))
    assert (answer.status, json.loads(answer.body)) == (503, {"error": "the server ends"})
