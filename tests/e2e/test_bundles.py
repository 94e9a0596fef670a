"""Bundles of policies in CNCF's registry, with TLS and a login: pushed, pulled, and followed by a server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.ports import reserved_port

from .build import registry_binary
from .registry_process import PASSWORD, RegistryProcess
from .scheduler_process import GRACE_S, until

SHIPPED = Path(__file__).parents[2] / "policies" / "scheduler"
FIRST, SECOND, THIRD = (
    "keep-off-hot-nodes.yaml", "best-fit-packing.yaml", "image-locality.yaml")
ADMIN = "a token of the administrators"


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcess]:
    with reserved_port() as port, RegistryProcess(registry_binary(), tmp_path / "registry", port) as running:
        yield running


class Shell:
    """Runs commands as a user who is logged in."""

    def __init__(self, registry: RegistryProcess, directory: Path) -> None:
        self.registry = registry
        self.directory = directory
        self.environment = {**os.environ, "DOCKER_CONFIG": str(registry.docker)}
        for name in ("sign", "other"):
            self.write_keys(name)

    def write_keys(self, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        (self.directory / f"{name}.pem").write_bytes(key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        (self.directory / f"{name}.pub").write_bytes(key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))

    def command(self, *arguments: object) -> list[str]:
        return [sys.executable, "-m", "koordpolicy", *map(str, arguments)]

    def run(self, *arguments: object, code: int = 0) -> Any:
        """Run a command that ends with `code`, and return its output."""
        ended = subprocess.run(self.command(*arguments, "-o", "json"), cwd=self.directory, env=self.environment,
                               capture_output=True, text=True, check=False)
        assert ended.returncode == code, ended.stderr
        return json.loads(ended.stdout)

    def push(self, *files: str, key: str = "sign") -> dict[str, Any]:
        """Push shipped policies to the tag `prod`."""
        directory = self.directory / "policies"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for file in files:
            shutil.copy(SHIPPED / file, directory)
        return dict(self.run("push", self.reference, "policies", "--sign-key", f"{key}.pem", "--registry-ca",
                             self.registry.ca))

    @property
    def reference(self) -> str:
        return f"{self.registry.host}/team/policies:prod"


@pytest.fixture
def shell(registry: RegistryProcess, tmp_path: Path) -> Shell:
    return Shell(registry, tmp_path)


def test_a_bundle_comes_back_from_a_registry_with_tls_and_a_login(shell: Shell, registry: RegistryProcess):
    pushed = shell.push(FIRST, SECOND)
    trusted = ("--verify-key", "sign.pub", "--registry-ca", registry.ca)
    pulled = shell.run("pull", shell.reference, "--out", "out", *trusted)
    assert {key: pulled[key] for key in ("digest", "hash", "files", "annotations")} == {
        key: pushed[key] for key in ("digest", "hash", "files", "annotations")}
    assert shell.run("hash", "out")["hash"] == pushed["hash"]
    assert shell.push(FIRST, SECOND)["before"] == pushed["digest"] == shell.push(SECOND, FIRST)["digest"]

    def refused(*arguments: object) -> str:
        (error,) = shell.run("pull", shell.reference, "--out", "refused", *arguments, code=3)["errors"]
        assert not (shell.directory / "refused").exists()
        return str(error["message"])

    assert "no signature of" in refused("--verify-key", "other.pub", "--registry-ca", registry.ca)
    registry.log_in("wrong")
    assert "it does not permit this user to pull from `team/policies` (401" in refused(*trusted)
    registry.log_in(PASSWORD)
    shell.environment["DOCKER_CONFIG"] = "/nowhere"
    assert "it does not permit this user to pull from `team/policies` (401" in refused(*trusted)
    registry.stop()
    assert "it cannot be reached: connection refused" in refused(*trusted)


class Server:
    """An extender that follows the tag `prod`."""

    def __init__(self, shell: Shell) -> None:
        (shell.directory / "token").write_text(ADMIN)
        self._out = shell.directory / "out.log"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                shell.command("scheduler", "--extender", "--bind", "127.0.0.1:0", "--policies",
                              f"oci:{shell.reference}", "--verify-key", "sign.pub", "--registry-ca", shell.registry.ca,
                              "--registry-interval", "1", "--admin-token-file", "token", "--state-dir", "state",
                              "--invalid-at-start", "last-good"),
                cwd=shell.directory, env=shell.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        until(lambda: "ready: generation" in self._text())
        self.url = self._text().partition("listening on ")[2].split()[0]

    def _text(self) -> str:
        assert self.process.poll() is None, self._out.read_text()
        return self._out.read_text()

    def source(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/status", timeout=60) as response:
            (source,) = json.load(response)["policies"]["sources"]
        return dict(source)

    def until_active(self, pushed: dict[str, Any]) -> None:
        until(lambda: (self.source().get("bundle"), self.source()["problems"]) == (pushed["digest"], []))
        assert self.source()["digest"] == pushed["hash"]

    def until_problem(self, text: str) -> None:
        """Wait for a problem with this code, or with this text in its message."""
        until(lambda: any(text == each["code"] or text in each["message"]
                          for each in self.source()["problems"]))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(GRACE_S)


@pytest.fixture
def first(shell: Shell) -> dict[str, Any]:
    return shell.push(FIRST)


@pytest.fixture
def server(shell: Shell, first: dict[str, Any]) -> Iterator[Server]:
    running = Server(shell)
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait()


def test_a_server_follows_the_tag_forth_and_back(shell: Shell, first: dict[str, Any], server: Server):
    server.until_active(first)
    second = shell.push(FIRST, SECOND)
    shell.run("reload", "--wait", second["hash"], "--endpoints", server.url, "--timeout", "60s")
    server.until_active(second)
    server.until_active(shell.push(FIRST))
    server.until_active(shell.push(FIRST, SECOND))
    # By hand: the tag's bundle is blocked until the tag moves.
    shell.run("rollback", "--endpoints", server.url, "--token-file", "token")
    server.until_problem("held")
    assert server.source()["bundle"] == first["digest"]
    server.until_active(shell.push(FIRST, SECOND, THIRD))


def test_the_last_good_bundle_outlives_another_signer_the_registry_and_a_restart(
    shell: Shell, first: dict[str, Any], server: Server, registry: RegistryProcess,
):
    server.until_active(first)
    shell.push(FIRST, SECOND, key="other")
    server.until_problem("no signature of")
    assert (server.source()["digest"], server.source()["bundle"]) == (first["hash"], first["digest"])
    registry.stop()
    until(lambda: any("connection refused" in each for each in server.source()["warnings"]))
    server.until_problem("no signature of")
    server.stop()
    again = Server(shell)
    try:
        assert (again.source()["digest"], again.source()["lastGood"]) == (first["hash"], True)
        registry.start()
        again.until_active(shell.push(FIRST, THIRD))
    finally:
        again.process.kill()
        again.process.wait()
