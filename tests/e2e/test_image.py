"""The image of all servers: what is in it, and that its servers run as the manifests of deploy/ say."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from koordpolicy import __version__
from tests.ports import reserved_port
from tools.build_image import revision

from .build import CannotBuild, binary
from .control_plane import ControlPlane
from .custom_resources import ALL, COLOCATION_PROFILE, define
from .image import Image, built, lacking
from .nodes import add_node
from .roles import NAMESPACE, account_kubeconfig, create_definitions, create_roles, manifests, pod_spec
from .scheduler_process import until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "05-extender"
WITH_A_LEASE = ("scheduler", "descheduler", "manager")
PLACE = "/opt/koord-policy/lib/python3.11/site-packages/koordpolicy"
CONTENTS = """
import importlib.util, json, os, pathlib, sys
sources = {path for path in pathlib.Path("/opt/koord-policy/lib").rglob("*.py")}
compiled = {path for path in sources if pathlib.Path(importlib.util.cache_from_source(path)).exists()}
print(json.dumps({
    "user": os.getuid(), "sources": len(sources) > 1000, "without byte code": sorted(map(str, sources - compiled)),
    "tools": list(filter(importlib.util.find_spec, ("pip", "setuptools", "hatchling", "pytest", "mypy", "ruff"))),
    "writable": [path for path in ("/", "/tmp", "/opt/koord-policy", "/var/lib", "/run") if os.access(path, os.W_OK)],
}))
"""


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image, built once for all workers; KOORD_POLICY_E2E_IMAGE=required says that this machine must be able to."""
    required = os.environ.get("KOORD_POLICY_E2E_IMAGE") == "required"
    reason = lacking()
    if reason:
        (pytest.fail if required else pytest.skip)(reason)
    folder = tmp_path_factory.getbasetemp()
    try:
        with built(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) as found:
            yield found
    except CannotBuild as error:
        pytest.fail(str(error))


def test_the_image_names_its_version_its_user_and_its_command(image: Image):
    found = image.configuration()
    assert {key: found[key] for key in ("User", "Entrypoint", "ExposedPorts")} == {
        "User": "65532:65532", "Entrypoint": ["/opt/koord-policy/bin/koord-policy"],
        "ExposedPorts": {"8080/tcp": {}, "8443/tcp": {}}}
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in found["Labels"].items()
              if not name.startswith("io.buildah")}
    assert labels.pop("description").startswith("Policy as config for Kubernetes scheduling: ")
    assert labels == {
        "title": "koord-policy", "licenses": "Apache-2.0", "version": __version__, "revision": revision()}


def test_all_modules_are_compiled_and_no_tool_of_developers_is_there(image: Image):
    done = image.run("-c", CONTENTS, entry="/opt/koord-policy/bin/python3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "user": 65532, "sources": True, "without byte code": [], "tools": [], "writable": []}


def test_the_command_runs_and_finds_the_shipped_policies_faultless(image: Image):
    done = image.run("--version")
    assert (done.returncode, done.stdout) == (0, f"koord-policy {__version__}\n"), done.stderr
    done = image.run("lint", "--strict", f"{PLACE}/policies/scheduler")
    count = len(list((ROOT / "policies" / "scheduler").glob("*.yaml")))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0, f"0 errors, 0 warnings in {count} documents of {count} files"), done.stderr


def test_the_extender_answers_as_its_example_says_and_ends_at_sigterm(image: Image, tmp_path: Path):
    with image.running(
            tmp_path / "log", "scheduler", "--extender", "--bind=127.0.0.1:0", "--cluster=/cluster",
            "--policies=/etc/koord-policy/policies", options=(
                "--volume", f"{ROOT / 'examples' / 'cluster'}:/cluster:ro",
                "--volume", f"{EXAMPLE / 'base' / 'policies'}:/etc/koord-policy/policies:ro")) as container:
        url = container.wait_for(lambda line: line.startswith("listening on ")).removeprefix("listening on ")
        container.wait_for(lambda line: line.startswith("ready: generation 1, "))
        assert answer(f"{url}/healthz") == "ok"
        shown = re.findall(r"^```json\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
        assert json.loads(answer(f"{url}/filter", (EXAMPLE / "question.json").read_bytes())) == json.loads(shown[0])
        assert container.stop() == 0


def answer(url: str, body: bytes | None = None, context: ssl.SSLContext | None = None, host: str | None = None) -> str:
    request = urllib.request.Request(url, body, {"Host": host} if host else {})
    with urllib.request.urlopen(request, timeout=60, context=context) as found:
        return str(found.read().decode())


class Pod:
    """A pod of a workload, as a kubelet makes it of its template on this machine: options and arguments of a container.

    What is not the template's: servers listen on free ports of 127.0.0.1, directories of the host are only read, and
    the workload's Secrets are one certificate.
    """

    def __init__(self, plane: ControlPlane, folder: str, directory: Path, ports: contextlib.ExitStack) -> None:
        spec = pod_spec(folder)
        [container] = spec["containers"]
        self._directory, self._folder = directory, folder
        self.authority = certificates(directory / "tls")
        self._ports = {port["containerPort"]: ports.enter_context(reserved_port()) for port in container["ports"]}
        self._names = {port["name"]: self._ports[port["containerPort"]] for port in container["ports"]}
        self.arguments = [self._local(word) for word in container["args"]]
        user = spec["securityContext"]["runAsUser"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert user or folder == "agent"
        volumes = {volume["name"]: self._source(volume) for volume in spec["volumes"]}
        self.options = ["--user", str(user), *account_options(plane, spec["serviceAccountName"], directory)]
        for mount in container["volumeMounts"]:
            source, writable = volumes[mount["name"]]
            mode = "rw" if writable and not mount.get("readOnly") else "ro"
            self.options += ["--volume", f"{source}:{mount['mountPath']}:{mode}"]
        for variable in container.get("env", ()):
            self.options += ["--env", f"{variable['name']}={variable.get('value', 'node-a')}"]
        # Whether the agent is ready depends on a kubelet.
        self._probe = container["startupProbe" if folder == "agent" else "readinessProbe"]["httpGet"]

    def is_ready(self) -> bool:
        """Ask as the kubelet would."""
        scheme = self._probe.get("scheme", "HTTP").lower()
        context = ssl.create_default_context(cafile=str(self.authority)) if scheme == "https" else None
        host = next((header["value"] for header in self._probe.get("httpHeaders", ())), None)
        try:
            answer(f"{scheme}://127.0.0.1:{self._names[self._probe['port']]}{self._probe['path']}", None, context, host)
        except OSError:
            return False
        return True

    def _local(self, word: str) -> str:
        return re.sub(r"=0\.0\.0\.0:(\d+)$", lambda found: f"=127.0.0.1:{self._ports[int(found[1])]}", word)

    def _source(self, volume: dict[str, Any]) -> tuple[Path, bool]:
        """Return the directory of a volume, and whether it may be written."""
        if "secret" in volume:
            return self._directory / "tls", False
        if "hostPath" in volume and volume["hostPath"]["type"] == "Directory":
            return Path(volume["hostPath"]["path"]), False
        source = self._directory / volume["name"]
        source.mkdir()
        source.chmod(0o777)
        if "configMap" in volume:
            if "optional" not in volume["configMap"] and volume["name"] == "policies":
                shutil.copytree(EXAMPLE / "base" / "policies", source, dirs_exist_ok=True)
            for item in manifests(self._folder):
                if item["kind"] == "ConfigMap" and item["metadata"]["name"] == volume["configMap"]["name"]:
                    for name, text in item["data"].items():
                        (source / name).write_text(text)
            return source, False
        return source, True


def certificates(directory: Path) -> Path:
    """Write a certificate for 127.0.0.1 that any user may read; returns the path of its authority."""
    directory.mkdir()
    issued = (authority := trustme.CA()).issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(directory / "tls.crt")
    issued.private_key_pem.write_to_path(directory / "tls.key")
    authority.cert_pem.write_to_path(directory / "ca.crt")
    return directory / "ca.crt"


def account_options(plane: ControlPlane, account: str, directory: Path) -> list[str]:
    """Return the options that let a container find and use the API server as a pod does."""
    place = directory / "account"
    place.mkdir()
    config = yaml.safe_load(account_kubeconfig(plane, account, directory).read_text())
    (place / "token").write_text(config["users"][0]["user"]["token"])
    (place / "ca.crt").write_bytes(plane.certificate_authority.read_bytes())
    (place / "namespace").write_text(NAMESPACE)
    host, _, port = plane.url.removeprefix("https://").partition(":")
    return ["--env", f"KUBERNETES_SERVICE_HOST={host}", "--env", f"KUBERNETES_SERVICE_PORT={port}",
            "--volume", f"{place}:/var/run/secrets/kubernetes.io/serviceaccount:ro"]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster with Koordinator's kinds and ours, and a node."""
    with ControlPlane(binary(), tmp_path_factory.mktemp("control-plane")) as running:
        define(running.admin, *ALL, COLOCATION_PROFILE)
        add_node(running.admin, "node-a", cpu="8", memory="16Gi")
        create_definitions(running.admin, "policies")
        yield running


@pytest.mark.parametrize("folder", ["scheduler", "extender", "descheduler", "manager", "agent", "console"])
def test_the_pod_of_a_manifest_becomes_ready_and_ends_at_sigterm(
    image: Image, plane: ControlPlane, folder: str, tmp_path: Path,
):
    create_roles(plane.admin, folder)
    with contextlib.ExitStack() as ports:
        pod = Pod(plane, folder, tmp_path, ports)
        with image.running(tmp_path / "log", *pod.arguments, options=pod.options) as container:
            until(lambda: container.check() and pod.is_ready())
            if folder in WITH_A_LEASE:
                container.wait_for(lambda line: "leads: it holds the Lease koordinator-system/" in line)
            assert container.stop() == 0, container.log
    assert "Traceback" not in container.log, container.log
