from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from koordpolicy.engine.client.lease_thread import LeaseThread


def test_a_lease_that_is_not_released_in_time_is_logged_once(caplog: pytest.LogCaptureFixture):
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)

    transport: Any = contextlib.AsyncExitStack()
    keeper, unused = LeaseThread("keeper", transport, slow), LeaseThread("unused", transport, slow)
    keeper.start()
    for each in (keeper, keeper, unused):
        each.release(0.0)
    assert caplog.messages == ["the keeper has not released its Lease in time"]
    assert keeper.stop(60)
