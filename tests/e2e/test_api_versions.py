"""The scenario of the recorded versions, against the real API server of this run.

`KOORD_POLICY_E2E_KUBERNETES=1.35 KOORD_POLICY_E2E_RECORD=1` writes the recording of that version anew.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import tests.engine.client
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.transport import Transport
from tests.engine.client.api_scenario import EXPECTED, recording_proxy, run, write_recording

from .build import chosen
from .control_plane import ControlPlane

RECORDINGS = Path(next(iter(tests.engine.client.__path__))) / "recordings"


def test_the_api_server_answers_as_those_of_the_supported_versions(own_control_plane: ControlPlane) -> None:
    async def record() -> None:
        async with recording_proxy(load_connection(configuration_file=own_control_plane.kubeconfig())) as (
                connection, exchanges), Transport(connection, rate=0) as transport:
            found = await run(transport)
        assert found == EXPECTED
        if os.environ.get("KOORD_POLICY_E2E_RECORD"):
            release, _ = chosen()
            (RECORDINGS / f"kubernetes-{release}.json").write_bytes(write_recording(exchanges))

    asyncio.run(record())
