"""The client understands the answers of each supported version of Kubernetes, as they were recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from koordpolicy.engine.client.transport import Transport

from .api_scenario import EXPECTED, Answers, read_recording, replayed, run

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("kubernetes-*.json"))


def test_there_is_a_recording_of_each_supported_version():
    assert [path.stem.rpartition(".")[0] for path in RECORDINGS] == [
        "kubernetes-1.34", "kubernetes-1.35", "kubernetes-1.36"]


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_answers_are_understood_alike(recording: Path):
    async def replay() -> Answers:
        async with replayed(read_recording(recording.read_bytes())) as connection, \
                Transport(connection, rate=0) as transport:
            return await run(transport)

    assert asyncio.run(replay()) == EXPECTED
