"""CNCF's registry as a process, with TLS and a login."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Self

import trustme

from .scheduler_process import GRACE_S, until

USER, PASSWORD = "ann", "secret"
_HTPASSWD = "ann:$2b$05$Nt.GqeCM9iHng10TPBWWGO82Xcc5/Y0TXJW5JvjTDod5LB1OQvJja\n"
"""As `htpasswd -nbB ann secret` prints it: the registry takes bcrypt only."""


class RegistryProcess:
    """One registry on a port of its own, whose content survives `stop` and `start`; use as a context manager."""

    def __init__(self, binary: Path, directory: Path, port: int) -> None:
        """`directory` holds its files, the authority `ca.pem`, and `docker/config.json` with the login."""
        self.host = f"localhost:{port}"
        self.ca = directory / "ca.pem"
        self.docker = directory / "docker"
        self._binary = binary
        self._log = directory / "registry.log"
        self._configuration = directory / "registry.json"
        self._process: subprocess.Popen[bytes] | None = None
        self.docker.mkdir(parents=True)
        authority = trustme.CA()
        certificate = authority.issue_cert("localhost")
        authority.cert_pem.write_to_path(self.ca)
        certificate.private_key_pem.write_to_path(directory / "tls.key")
        certificate.cert_chain_pems[0].write_to_path(directory / "tls.crt")
        (directory / "htpasswd").write_text(_HTPASSWD)
        self._configuration.write_text(json.dumps({
            "version": "0.1", "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(directory / "content")}},
            "auth": {"htpasswd": {"realm": "tests", "path": str(directory / "htpasswd")}},
            "http": {"addr": f"127.0.0.1:{port}", "secret": "tests", "tls": {
                "certificate": str(directory / "tls.crt"), "key": str(directory / "tls.key")}}}))
        self.log_in(PASSWORD)

    def log_in(self, password: str) -> None:
        """Write the login as `docker login` does."""
        auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
        (self.docker / "config.json").write_text(json.dumps({"auths": {self.host: {"auth": auth}}}))

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._log.write_bytes(b"")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._binary, "serve", self._configuration], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "OTEL_TRACES_EXPORTER": "none"})
        until(lambda: "listening on" in self._log.read_text())

    def stop(self) -> None:
        """End it; its content stays."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
