"""A Python plugin that follows namespaces and patches them, with the rights that follow from what it declares."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from .control_plane import AdminClient, ControlPlane, NamedCluster
from .nodes import add_node, add_pod
from .roles import NAMESPACE, create, scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until

DOCUMENT = Path(__file__).parents[2] / "docs" / "plugins.md"
ACCOUNT = "koord-policy-scheduler"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The plugin of the documentation as an installed distribution."""
    text, = re.findall(
        r"```python\n((?:(?!```).)*class FrozenNamespaces.*?)\nnamespace = ", DOCUMENT.read_text(), re.DOTALL)
    directory = tmp_path / "installed"
    metadata = directory / "frozen_namespaces-1.0.dist-info"
    metadata.mkdir(parents=True)
    (directory / "frozen_namespaces.py").write_text(text)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: frozen-namespaces\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[koordpolicy.plugins]\nfrozen = frozen_namespaces\n")
    return directory


def grant_declared(admin: AdminClient, installed: Path) -> None:
    """Creates the role that `plugins --role` prints, and binds it to the scheduler's account."""
    done = subprocess.run([sys.executable, "-m", "koordpolicy", "plugins", "--role"], check=True, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(installed)})
    role = yaml.safe_load(done.stdout)
    assert role["rules"] == [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["patch"]}]
    create(admin, role)
    create(admin, {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": role["metadata"],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]})


def test_a_plugin_follows_and_patches_what_it_declares(
    admin: AdminClient, namespace: str, cluster: ControlPlane | NamedCluster, installed: Path, tmp_path: Path,
):
    name = f"koord-policy-{secrets.token_hex(4)}"
    add_node(admin, f"node-{name}")
    kubeconfig = scheduler_kubeconfig(cluster, tmp_path)
    grant_declared(admin, installed)
    path = f"/api/v1/namespaces/{namespace}"
    admin.merge(path, {"metadata": {"labels": {"frozen": ""}, "annotations": {"other": "1"}}})

    def node_of(pod: str) -> str:
        return str(admin.get(f"{path}/pods/{pod}")["spec"].get("nodeName") or "")

    with SchedulerProcess(kubeconfig, tmp_path, name=name, installed=installed) as scheduler:
        scheduler.until_ready()
        add_pod(admin, namespace, "early", scheduler=name)
        until(lambda: "example.com/kept-back" in admin.get(path)["metadata"]["annotations"])
        annotations = admin.get(path)["metadata"]["annotations"]
        assert (annotations["example.com/kept-back"], annotations["other"]) == ("early", "1")
        conditions = until(lambda: admin.get(f"{path}/pods/early")["status"].get("conditions"))
        assert f"the namespace {namespace} is frozen" in conditions[0]["message"]
        assert node_of("early") == ""

        admin.merge(path, {"metadata": {"labels": {"frozen": None}}})
        until(lambda: "frozen" not in admin.get(path)["metadata"]["labels"])
        add_pod(admin, namespace, "late", scheduler=name)
        until(lambda: node_of("late"))
        assert scheduler.stop() == 0
