"""The proxy passes requests and watches on, and injects the faults that it is set to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport

from .control_plane import ControlPlane
from .proxy import FaultProxy, Faults

NAMESPACE = "/api/v1/namespaces/default"


async def _end_of(frames: AsyncIterator[bytes]) -> None:
    async for _ in frames:
        pass


def test_a_proxy_injects_each_fault_that_it_is_set_to(cluster: ControlPlane, tmp_path: Path):
    async def outcome(proxy: FaultProxy, faults: Faults, method: str = "POST") -> str:
        """Of a request that no client repeats."""
        proxy.faults = faults
        kubeconfig = cluster.kubeconfig(url=proxy.url, authority=proxy.certificate_authority)
        async with Transport(load_connection(configuration_file=kubeconfig)) as transport:
            try:
                await transport.request(method, f"{NAMESPACE}/configmaps", body=b'{"metadata":{"generateName":"x-"}}',
                                        retries=0)
            except ApiError as error:
                return str(error.code)
            except ConnectionFailed as error:
                return "reset" if error.broken else "refused"
            return "done"

    async def made() -> int:
        answer = await asyncio.to_thread(cluster.admin.get, f"{NAMESPACE}/configmaps")
        return len(answer["items"])

    async def run(proxy: FaultProxy) -> None:
        before = await made()
        assert await outcome(proxy, Faults()) == "done"
        assert await outcome(proxy, Faults(delay_s=0.01)) == "done"
        assert await outcome(proxy, Faults(throttled=1)) == "429"
        assert await outcome(proxy, Faults(unavailable=1)) == "503"
        assert await outcome(proxy, Faults(reset_before=1)) == "reset"
        assert await made() == before + 2
        assert await outcome(proxy, Faults(reset_after=1)) == "reset"
        assert await made() == before + 3
        assert await outcome(proxy, Faults(down=True)) == "reset"
        assert dict(proxy.counts) == {"throttled": 1, "unavailable": 1, "reset before": 2, "reset after": 1}

    with FaultProxy(cluster.url, cluster.certificate_authority, tmp_path) as proxy:
        asyncio.run(run(proxy))


def test_watches_through_a_proxy_run_until_they_are_cut_or_expire(cluster: ControlPlane, tmp_path: Path):
    async def run(proxy: FaultProxy) -> None:
        kubeconfig = cluster.kubeconfig(url=proxy.url, authority=proxy.certificate_authority)
        async with Transport(load_connection(configuration_file=kubeconfig)) as transport:
            frames = transport.stream("/api/v1/namespaces", query={"watch": "1"})
            assert b'"ADDED"' in (await anext(frames))[0]
            proxy.cut_watches()
            with pytest.raises(ConnectionFailed):
                await _end_of(frames)
            proxy.faults = Faults(expired=1)
            with pytest.raises(ApiError) as refused:
                await anext(transport.stream("/api/v1/namespaces", query={"watch": "1"}))
            assert refused.value.expired

    with FaultProxy(cluster.url, cluster.certificate_authority, tmp_path) as proxy:
        asyncio.run(run(proxy))
