"""A Kubernetes control plane on loopback, for one test or one worker of tests.

etcd and kube-apiserver are started with it; kube-scheduler and kube-controller-manager when a test requires them. All
listen on 127.0.0.1 at free ports, hold their data in a temporary directory and end with the control plane.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import kubernetes.client
import kubernetes.config

from tests.ports import reserved_port

READY_SECONDS = 120.0  # a start takes 5 s on an idle machine
USERS = {  # name: its groups; the roles of Kubernetes' components are bound to the names by kube-apiserver itself
    "admin": "system:masters",
    "system:kube-scheduler": "",
    # Its own role is for a manager whose controllers have service accounts, which have no tokens here.
    "system:kube-controller-manager": "system:masters",
}


class ApiError(Exception):
    """An answer of the API server other than 2xx."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status
        self.body = body


class AdminClient:
    """Calls of one user without retries: what a test itself does to the cluster, beside the client under test."""

    def __init__(self, url: str, context: ssl.SSLContext, headers: Mapping[str, str]) -> None:
        self.url = url
        self._context = context
        self._headers = headers

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json",
                timeout: float = 90.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Content-Type": content_type, "Accept": "application/json"}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self._context) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(error.code, error.read().decode(errors="replace")) from None
        try:
            return json.loads(text)
        except ValueError:
            return text

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def clears_nominations(self) -> bool:
        """Return True if the server clears `nominatedNodeName` at a binding, as since Kubernetes 1.35."""
        return int(self.get("/version")["minor"].rstrip("+")) >= 35

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.request("POST", path, body)

    def create_priority_class(self, name: str, value: int) -> None:
        """Create a PriorityClass and wait until pods of it are admitted: the server reads the classes of a watch."""
        self.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": value})
        pod = {"metadata": {"name": "tried"}, "spec": {
            "priorityClassName": name, "containers": [{"name": "main", "image": "example/main"}]}}
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.create("/api/v1/namespaces/default/pods?dryRun=All", pod)
            except ApiError as error:
                if "no PriorityClass" not in error.body or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        return self.request("PATCH", path, body, content_type="application/merge-patch+json")

    def delete(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self.request("DELETE", path, body)

    def delete_pods(self, namespace: str) -> None:
        """Delete all pods of a namespace, some at a time: a request for thousands may exceed the server's time."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        while self.get(f"{path}?limit=1")["items"]:
            self.delete(f"{path}?gracePeriodSeconds=0&limit=500")


class Component:
    """A process of the control plane, with its log in a file."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def check(self) -> None:
        """Raises RuntimeError with the end of the log if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            log = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}:\n{log}")

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def stop(self, *, kill: bool = False) -> None:
        if self._process is None:
            return
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class ControlPlane:
    """Use as a context manager: ready inside, ended and removed outside. Attributes: `url`, `admin`, `components`,
    `etcd_data`."""

    def __init__(self, binary: Path, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._tokens = {user: secrets.token_hex(16) for user in USERS}
        self._ports = contextlib.ExitStack()
        self._etcd_port, self._peer_port, self._port = (self._reserve_port() for _ in range(3))
        self.url = f"https://127.0.0.1:{self._port}"
        self.certificate_authority = directory / "certificates" / "apiserver.crt"
        self.etcd_data = directory / "etcd"
        self.components: dict[str, Component] = {}
        self.admin: AdminClient

    def __enter__(self) -> Self:
        try:
            self._prepare()
            self._start("etcd", "--data-dir", str(self.etcd_data), "--listen-client-url",
                        f"http://127.0.0.1:{self._etcd_port}", "--listen-peer-url", f"http://127.0.0.1:{self._peer_port}")
            self._start("kube-apiserver", *self._apiserver_flags())
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        for component in reversed(self.components.values()):
            component.stop()
        self._ports.close()

    def wait_until_ready(self) -> None:
        """Blocks until /readyz answers ok and the namespace `default` exists; 120 s at most."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            for component in self.components.values():
                component.check()
            try:
                self.admin = self.client("admin")
                if self.admin.get("/readyz") == "ok" and self.admin.get("/api/v1/namespaces/default"):
                    return
            except (OSError, ApiError, ssl.SSLError) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"kube-apiserver is not ready after {READY_SECONDS:g} s: {error}") from error
            time.sleep(0.1)

    def client(self, user: str) -> AdminClient:
        context = ssl.create_default_context(cafile=str(self.certificate_authority))
        return AdminClient(self.url, context, {"Authorization": f"Bearer {self._tokens[user]}"})

    def kubeconfig(self, user: str = "admin", *, url: str | None = None, authority: Path | None = None) -> Path:
        """Writes and returns the kubeconfig of a user.

        `url` names a proxy in front of the API server, `authority` the certificate that the proxy is verified with.
        """
        path = self._directory / f"kubeconfig-{user.replace(':', '-')}-{secrets.token_hex(4)}.json"
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": {
                "server": url or self.url, "certificate-authority": str(authority or self.certificate_authority)}}],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
        }))
        return path

    def start_kube_scheduler(self, *flags: str) -> Component:
        """Starts an unchanged kube-scheduler without leader election; `flags` follow ours."""
        kubeconfig = str(self.kubeconfig("system:kube-scheduler"))
        port = self._reserve_port()
        return self._start(
            "kube-scheduler", "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig,
            "--authorization-kubeconfig", kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={port}", *flags)

    def start_controller_manager(self, *controllers: str) -> Component:
        """Starts kube-controller-manager with these controllers (disruption and replicaset by default)."""
        kubeconfig = str(self.kubeconfig("system:kube-controller-manager"))
        port = self._reserve_port()
        enabled = controllers or ("disruption-controller", "replicaset-controller")
        return self._start(
            "kube-controller-manager", "--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig,
            "--authorization-kubeconfig", kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1",
            f"--secure-port={port}", "--use-service-account-credentials=false", f"--controllers={','.join(enabled)}")

    def _reserve_port(self) -> int:
        """Return a port that stays ours, also while what listens there is restarted."""
        return self._ports.enter_context(reserved_port())

    def _prepare(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        subprocess.run([str(self._binary), "keys", str(self._directory / "service-accounts.key")], check=True)
        lines = [
            f'{self._tokens[user]},{user},{number},"{groups}"' for number, (user, groups) in enumerate(USERS.items())]
        (self._directory / "tokens.csv").write_text("\n".join(lines) + "\n")

    def _apiserver_flags(self) -> list[str]:
        key = self._directory / "service-accounts.key"
        return [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}", f"--secure-port={self._port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
            f"--cert-dir={self.certificate_authority.parent}",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", f"--token-auth-file={self._directory / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true",
            # No controller makes the service accounts that its admission plugin wants in each namespace.
            "--disable-admission-plugins=ServiceAccount", "--profiling=false", "--v=0",
        ]

    def _start(self, name: str, *flags: str) -> Component:
        component = Component(name, [str(self._binary), name, *flags], self._directory / f"{name}.log")
        self.components[name] = component
        component.start()
        return component


class NamedCluster:
    """The cluster of `KOORD_POLICY_E2E_KUBECONFIG`: its components are not ours to start or stop."""

    def __init__(self, path: Path) -> None:
        """Raises ForeignPods if pods run there outside of the namespaces kube-*."""
        configuration = kubernetes.client.Configuration()
        kubernetes.config.load_kube_config(str(path), client_configuration=configuration, persist_config=False)
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            context.load_cert_chain(configuration.cert_file, configuration.key_file)
        headers = {setting["key"]: setting["value"] for setting in configuration.auth_settings().values()}
        self._path = path
        self.url: str = configuration.host
        self.admin = AdminClient(self.url, context, headers)
        pods = [pod["metadata"] for pod in self.admin.get("/api/v1/pods")["items"]]
        foreign = sorted(
            f"{pod['namespace']}/{pod['name']}" for pod in pods if not pod["namespace"].startswith("kube-"))
        if foreign:
            raise ForeignPods(
                f"the cluster of {path} has {len(foreign)} pods outside of the namespaces kube-*, {foreign[0]} first: "
                "the tests change nodes and evict pods, so they need a cluster without other pods")

    def kubeconfig(self) -> Path:
        return self._path


class ForeignPods(Exception):
    """The cluster has pods that the tests could harm."""


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
