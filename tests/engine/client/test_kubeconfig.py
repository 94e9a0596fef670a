from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.engine.client.connection import Connection, FixedCredentials, TokenFile
from koordpolicy.engine.client.kubeconfig import load_connection
from koordpolicy.engine.client.official_client import PluginCredentials, connection_of_identity_provider
from koordpolicy.engine.source import PolicyError

NO_DATA = {"server": "https://a", "certificate-authority-data": "?"}
NO_CLUSTER = {"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c"}}]}
CERTIFICATE = "-----BEGIN CERTIFICATE-----\n"


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "config"


def header(connection: Connection) -> str | None:
    return asyncio.run(connection.credentials.header())  # type: ignore[arg-type]


def write(path: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path.write_text(json.dumps({
        "current-context": "here", "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}]}))
    return path


@pytest.fixture
def account(tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    assert not kubeconfig.exists()
    directory = tmp_path / "serviceaccount"
    directory.mkdir()
    (directory / "token").write_text("first\n")
    (directory / "ca.crt").write_text(CERTIFICATE)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    return directory


def test_a_pod_uses_the_files_of_its_service_account_and_a_rotated_token_after_a_refusal(account: Path):
    found = load_connection(service_account=account)
    assert (found.server, found.certificate_authority) == ("https://[fd00::1]:6443", str(account / "ca.crt"))
    assert header(found) == "Bearer first"
    (account / "token").write_text("second\n")
    assert header(found) == "Bearer first"
    found.credentials.refused("Bearer first")
    assert header(found) == "Bearer second"


def test_a_service_account_without_a_token_is_a_fault_with_its_file(account: Path):
    (account / "token").unlink()
    with pytest.raises(PolicyError, match=rf"`{account}/token` cannot be read"):
        load_connection(service_account=account)


@pytest.mark.parametrize("user", [
    {"token": "secret"}, {"username": "me", "password": "pass"}, {}, {"tokenFile": "token"},
    {"client-certificate": "crt.pem", "client-key": "key.pem"},
    {"client-certificate-data": base64.b64encode(b"crt").decode(), "client-key-data": base64.b64encode(b"k").decode()},
])
def test_a_simple_kubeconfig_is_read_as_the_official_client_reads_it(kubeconfig: Path, user: dict[str, Any]):
    (kubeconfig.parent / "token").write_text("of a file")
    for name in ("crt.pem", "key.pem", "ca.pem"):
        (kubeconfig.parent / name).write_text(name)
    write(kubeconfig, user, **{"certificate-authority": "ca.pem", "tls-server-name": "kubernetes"})
    found = load_connection(configuration_file=kubeconfig)
    official = connection_of_identity_provider("here", str(kubeconfig))

    def content(files: tuple[str, str | None] | None) -> list[bytes]:
        return [Path(name).read_bytes() for name in files or () if name]

    assert header(found) == header(official)
    assert content(found.client_certificate) == content(official.client_certificate)
    assert (found.server, found.verify, found.server_name) == (official.server, official.verify, official.server_name)
    assert Path(found.certificate_authority or "").samefile(official.certificate_authority or "")


@pytest.mark.parametrize("user", [{"tokenFile": "keys/token"}, {"exec": {
    "apiVersion": "client.authentication.k8s.io/v1", "command": "keys/login", "interactiveMode": "Never"}}])
def test_several_files_are_one_kubeconfig_with_paths_relative_to_the_file_that_names_them(
    tmp_path: Path, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, user: dict[str, Any],
):
    users, clusters = tmp_path / "users", tmp_path / "clusters"
    for directory in (users / "keys", clusters):
        directory.mkdir(parents=True)
    (users / "keys" / "token").write_text("of a file")
    login = users / "keys" / "login"
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
              "status": {"token": "of a file"}}
    login.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    login.chmod(0o755)
    (clusters / "ca.pem").write_text(CERTIFICATE)
    parts = {
        kubeconfig: {
            "current-context": "here", "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}]},
        users / "config": {"current-context": "there", "users": [{"name": "u", "user": user}]},
        clusters / "config": {
            "clusters": [{"name": "c", "cluster": {"server": "https://a", "certificate-authority": "ca.pem"}}],
            "users": [{"name": "u", "user": {"token": "of the later file, which does not count"}}]}}
    for path, content in parts.items():
        path.write_text(json.dumps(content))
    monkeypatch.setenv("KUBECONFIG", ":".join([str(tmp_path / "absent"), "", *map(str, parts)]))
    found = load_connection()
    assert (found.server, header(found)) == ("https://a", "Bearer of a file")
    assert Path(found.certificate_authority or "").samefile(clusters / "ca.pem")
    assert isinstance(found.credentials, TokenFile if "tokenFile" in user else PluginCredentials)

    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/absent:{tmp_path}/gone")
    with pytest.raises(PolicyError, match=f"there is no kubeconfig `{tmp_path}/absent:{tmp_path}/gone`"):
        load_connection()


def test_a_certificate_that_is_not_there_is_a_fault_with_its_path(kubeconfig: Path):
    write(kubeconfig, {"client-certificate": "gone.pem", "client-key": "gone.pem"})
    with pytest.raises(PolicyError, match=rf"names `{kubeconfig.parent}/gone.pem`, which cannot be read: No such file"):
        load_connection(configuration_file=kubeconfig)


def test_files_of_keys_are_private(kubeconfig: Path):
    write(kubeconfig, {"client-certificate-data": "YQ==", "client-key-data": "Yg=="})
    found = load_connection(configuration_file=kubeconfig)
    assert found.client_certificate is not None
    assert [Path(name or "").stat().st_mode & 0o777 for name in found.client_certificate] == [0o600, 0o600]


@pytest.mark.parametrize(("text", "message"), [
    (None, "there is no kubeconfig"), ("a: [", "is not YAML"), ("[1]", "is not an object"),
    ("{}", "names no current context"), ('{"current-context": "x"}', "has no context `x`"),
    ('{"current-context": 3}', "names no current context"),
    (json.dumps(NO_CLUSTER), "has no cluster `c`"),
    (json.dumps({**NO_CLUSTER, "clusters": [{"name": "c", "cluster": {"server": "10.0.0.1"}}]}), "has no `server`"),
    (json.dumps({**NO_CLUSTER, "clusters": [{"name": "c", "cluster": NO_DATA}]}), "`certificate-authority-data` is no"),
])
def test_a_wrong_kubeconfig_is_a_fault_with_what_to_do(kubeconfig: Path, text: str | None, message: str):
    if text is not None:
        kubeconfig.write_text(text)
    with pytest.raises(PolicyError, match=message):
        load_connection(configuration_file=kubeconfig)


def test_exec_plugins_are_left_to_the_official_client(kubeconfig: Path, caplog: pytest.LogCaptureFixture):
    write(kubeconfig, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-command"}})
    with pytest.raises(PolicyError, match="`no-such-command`, which is not installed"):
        load_connection(configuration_file=kubeconfig)
    assert "official client" not in caplog.text
    write(kubeconfig, {"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}})
    with caplog.at_level("INFO"), pytest.raises(PolicyError, match=r"the command `false`, by which .* no credentials"):
        load_connection(configuration_file=kubeconfig)
    assert "has `exec`: the official client reads it" in caplog.text


def test_the_official_client_is_not_imported(kubeconfig: Path):
    write(kubeconfig, {"token": "secret"})
    code = ("import sys\nfrom koordpolicy.engine.client.kubeconfig import load_connection\n"
            f"load_connection(configuration_file={str(kubeconfig)!r})\n"
            "print('kubernetes' in sys.modules, 'numpy' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_the_types_of_credentials_are_those_of_the_configuration(kubeconfig: Path):
    assert isinstance(load_connection(configuration_file=write(kubeconfig, {})).credentials, FixedCredentials)
    write(kubeconfig, {"tokenFile": "t"})
    assert isinstance(load_connection(configuration_file=kubeconfig).credentials, TokenFile)
