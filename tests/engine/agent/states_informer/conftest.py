from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.agent.states_informer.kubelet import KubeletSettings
from koordpolicy.engine.agent.states_informer.settings import StatesSettings
from koordpolicy.engine.agent.states_informer.state_store import StateStore
from koordpolicy.engine.agent.states_informer.states_informer import StatesInformer
from koordpolicy.engine.client.connection import Connection, FixedCredentials
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.transport import Transport
from tests.engine.client.object_server import ObjectServer

from .fake_kubelet import FakeKubelet


def merged(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """An overlay of a spec over defaults, for tests: one that is malformed raises."""
    if not isinstance(spec.get("systemStrategy", {}), dict):
        raise ValueError("`systemStrategy` is not an object")  # noqa: TRY004 - as merging does
    return {"resourceUsedThresholdWithBE": {"enable": False}, **copy.deepcopy(dict(spec))}


def node(**status: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node", "labels": {"zone": "a"}}, "status": {
        "addresses": [{"type": "Hostname", "address": "node"}, {"type": "InternalIP", "address": "127.0.0.1"}],
        "allocatable": {"cpu": "8"}, "capacity": {"cpu": "8"}, "images": [{"names": ["big"]}], **status}}


def of_kind(kind: str, **more: Any) -> dict[str, Any]:
    group = "topology.node.k8s.io" if kind == "NodeResourceTopology" else "slo.koordinator.sh"
    return {"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": {"name": "node"}, **more}


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.start, self.ahead = time.monotonic(), 0.0

    def __call__(self) -> float:
        return self.start + self.ahead


@pytest.fixture
def api() -> Iterator[ObjectServer]:
    with ObjectServer() as server:
        yield server


@pytest.fixture
def kubelet() -> Iterator[FakeKubelet]:
    with FakeKubelet() as server:
        yield server


@contextmanager
def informed(
    api: ObjectServer, server: FakeKubelet | None = None, *, directory: Path | None = None,
    clock: Callable[[], float] = time.monotonic, started: bool = True, **settings: Any,
) -> Iterator[StatesInformer]:
    """States of the node `node`; the kubelet is listed twenty times a second."""
    reached = KubeletSettings(read_only_port=server.port if server else 1, interval=0.05, timeout=5.0)
    settings = {"kubelet": reached, "pods_from": "kubelet" if server else "api", **settings}
    with IoThread() as io:
        transport = Transport(Connection(api.server, FixedCredentials("Bearer token")), rate=0)
        io.on_close(transport.close)
        states = StatesInformer(
            io, transport, StatesSettings("node", **settings), effective_spec=merged, clock=clock,
            store=StateStore(directory, "node", boot="boot") if directory is not None else None)
        if started:
            states.start()
        yield states
