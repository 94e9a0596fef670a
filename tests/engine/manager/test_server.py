from __future__ import annotations

from typing import NoReturn

import pytest

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.leader_election import Ended
from koordpolicy.engine.manager.server import ManagerServer, ManagerSettings

from ..client.lease_server import LEASE, assert_the_lease_gets_events


@pytest.fixture
def server() -> ManagerServer:
    return ManagerServer(lambda: Connection("http://127.0.0.1:9"), ManagerSettings())


def test_an_error_that_ends_the_work_ends_the_process(server: ManagerServer, monkeypatch: pytest.MonkeyPatch):
    async def run() -> NoReturn:
        raise KeyError("odd")

    monkeypatch.setattr(server.informers["Node"], "run", run)
    with pytest.raises(ExceptionGroup) as raised:
        server.run()
    assert [repr(error) for error in raised.value.exceptions] == ["KeyError('odd')"]
    assert not server.leads()


def test_a_manager_that_is_stopped_ends(server: ManagerServer):
    server.stop()
    assert server.run() is Ended.STOPPED


def test_the_lease_gets_an_event_when_this_process_becomes_the_leader_and_when_it_stops():
    assert_the_lease_gets_events(
        lambda api: ManagerServer(lambda: api.connection, ManagerSettings(lease=LEASE)), "koord-policy-manager")
