from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from koordpolicy.engine.agent.states_informer import kubelet as kubelet_module
from koordpolicy.engine.agent.states_informer.kubelet import Kubelet, KubeletError, KubeletSettings
from koordpolicy.engine.client.connection import Connection, FixedCredentials

from .fake_kubelet import FakeKubelet, pod, pod_list, text

API = Connection("https://api:6443", FixedCredentials("Bearer token"))


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[FakeKubelet]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("node-1").configure_cert(context)
    with FakeKubelet(context) as server:
        server.answer = lambda: pod_list(pod())
        yield server


def listed(settings: KubeletSettings, node: Any = None, api: Connection = API) -> int:
    async def run() -> int:
        kubelet = Kubelet(settings, api)
        try:
            return len(await kubelet.pods(node))
        finally:
            await kubelet.close()

    return asyncio.run(run())


def configuration(settings: KubeletSettings) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        kubelet = Kubelet(settings, API)
        try:
            return await kubelet.configuration(None)
        finally:
            await kubelet.close()

    return asyncio.run(run())


def certificate(authority: trustme.CA, path: Path) -> str:
    authority.cert_pem.write_to_path(path / "ca.pem")
    return str(path / "ca.pem")


def test_the_certificate_of_the_kubelet_is_verified_and_the_token_is_not_sent_to_others(
    secure: FakeKubelet, authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture,
):
    known = {"address": "127.0.0.1", "port": secure.port, "timeout": 20}
    file = certificate(authority, tmp_path)
    with pytest.raises(KubeletError, match="authority that is not known here: name its authority"):
        listed(KubeletSettings(**known))
    with pytest.raises(KubeletError, match="its certificate is for other addresses"):
        listed(KubeletSettings(**known, certificate_authority=file))
    assert secure.requests == []
    assert listed(KubeletSettings(**known, certificate_authority=file, server_name="node-1")) == 1
    by_authority_of_the_api = Connection("https://api", FixedCredentials("Bearer token"), file)
    assert listed(KubeletSettings(**known, server_name="node-1"), api=by_authority_of_the_api) == 1
    assert [(path, headers["Authorization"]) for path, headers in secure.requests] == [("/pods/", "Bearer token")] * 2
    assert caplog.text == ""


def test_a_kubelet_that_is_not_verified_is_said_in_the_log(secure: FakeKubelet, caplog: pytest.LogCaptureFixture):
    assert listed(KubeletSettings(address="127.0.0.1", port=secure.port, timeout=20, verify=False)) == 1
    assert "the kubelet's certificate is not verified: the agent's token is sent to whatever answers" in caplog.text


def test_the_read_only_port_gets_no_credentials(caplog: pytest.LogCaptureFixture):
    with FakeKubelet() as server:
        assert listed(KubeletSettings(address="127.0.0.1", read_only_port=server.port, timeout=20)) == 0
        assert ["Authorization" in headers for _, headers in server.requests] == [False]
    assert "is not authenticated" in caplog.text


@pytest.mark.parametrize(("settings", "node", "server"), [
    ({}, None, None), ({}, {"status": {}}, None), ({}, {"status": {"addresses": [3, {"type": "InternalIP"}]}}, None),
    ({}, {"status": {"addresses": [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.1"}],
                     "daemonEndpoints": {"kubeletEndpoint": {"Port": 10260}}}}, "https://10.0.0.1:10260"),
    ({"address_type": "Hostname"}, {"status": {"addresses": [{"type": "Hostname", "address": "h"}],
                                               "daemonEndpoints": {"kubeletEndpoint": {"Port": "x"}}}},
     "https://h:10250"),
    ({"address": "fd00::1", "port": 1}, None, "https://[fd00::1]:1"),
    ({"address": "10.0.0.2", "read_only_port": 10255}, None, "http://10.0.0.2:10255"),
])
def test_address_and_port_are_those_of_the_node_unless_they_are_set(settings: Any, node: Any, server: str | None):
    found = KubeletSettings(**settings).connection(node, API)
    assert (found.server if found is not None else None) == server


def test_without_an_address_there_are_no_pods():
    with pytest.raises(KubeletError, match="the Node has none of the type InternalIP"):
        listed(KubeletSettings(), {})


def test_a_huge_answer_and_one_that_does_not_come_are_refused(monkeypatch: pytest.MonkeyPatch):
    async def late() -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    with FakeKubelet() as server:
        monkeypatch.setattr(kubelet_module, "_LARGEST", 1 << 20)
        server.answer = text('{"metadata": {}, "items": [{"metadata": {"name": "' + "x" * (2 << 20) + '"}}]}')
        with pytest.raises(KubeletError, match="longer than 1 MiB"):
            listed(KubeletSettings(address="127.0.0.1", read_only_port=server.port, timeout=60))
        server.answer = late
        with pytest.raises(KubeletError, match=r"does not answer within 0\.2 s|does not answer in time"):
            listed(KubeletSettings(address="127.0.0.1", read_only_port=server.port, timeout=0.2))


def test_nobody_listens():
    with pytest.raises(KubeletError, match="nobody listens there: is the kubelet running"):
        listed(KubeletSettings(address="127.0.0.1", read_only_port=1))


@pytest.mark.parametrize(("answer", "message"), [
    ({"kubeletconfig": {"cpuManagerPolicy": "none"}}, None), ({"kubeletconfig": 3}, "no object `kubeletconfig`"),
    ([], "no object `kubeletconfig`"),
])
def test_the_configuration_is_an_object(answer: Any, message: str | None):
    with FakeKubelet() as server:
        server.configuration = answer
        settings = KubeletSettings(address="127.0.0.1", read_only_port=server.port, timeout=20)
        if message is None:
            assert configuration(settings) == {"cpuManagerPolicy": "none"}
            return
        with pytest.raises(KubeletError, match=message):
            configuration(settings)


@pytest.mark.parametrize(("settings", "message"), [
    ({"address_type": "IP"}, "there is no address type `IP`"), ({"interval": 0}, "must be above 0 seconds"),
    ({"timeout": -1}, "must be above 0 seconds"), ({"port": 70_000}, "a port is a number up to 65535"),
])
def test_wrong_settings_are_refused(settings: Any, message: str):
    with pytest.raises(ValueError, match=message):
        KubeletSettings(**settings)
