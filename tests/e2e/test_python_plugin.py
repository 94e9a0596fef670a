"""A Python plugin that follows namespaces and patches them, with the rights that follow from what it declares."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import yaml

from .control_plane import AdminClient, ControlPlane, NamedCluster
from .custom_resources import Custom, define
from .nodes import add_node, add_pod
from .roles import NAMESPACE, create, scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until

DOCUMENT = Path(__file__).parents[2] / "docs" / "plugins.md"
ACCOUNT = "koord-policy-scheduler"


FREEZE = Custom("Freeze", "freezes", "example.com", "v1", namespaced=False, status=True)


def install(directory: Path, name: str, end: str) -> Path:
    """Install the plugin of the documentation with this class, without the lines from `end` on."""
    text, = re.findall(
        rf"```python\n((?:(?!```).)*class {name}.*?)\n{end} = ", DOCUMENT.read_text(), re.DOTALL)
    metadata = directory / "documented-1.0.dist-info"
    metadata.mkdir(parents=True)
    (directory / "documented.py").write_text(text)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: documented\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[koordpolicy.plugins]\ndocumented = documented\n")
    return directory


def grant_declared(admin: AdminClient, installed: Path, *rules: dict[str, list[str]]) -> None:
    """Creates the role that `plugins --role` prints, and binds it to the scheduler's account."""
    done = subprocess.run([sys.executable, "-m", "koordpolicy", "plugins", "--role"], check=True, text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(installed)})
    role = yaml.safe_load(done.stdout)
    assert role["rules"] == list(rules)
    role["metadata"]["name"] = f"plugins-{secrets.token_hex(4)}"
    create(admin, role)
    create(admin, {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": role["metadata"],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}]})


def test_a_plugin_follows_and_patches_what_it_declares(
    admin: AdminClient, namespace: str, cluster: ControlPlane | NamedCluster, tmp_path: Path,
):
    installed = install(tmp_path / "installed", "FrozenNamespaces", "namespace")
    name = f"koord-policy-{secrets.token_hex(4)}"
    add_node(admin, f"node-{name}")
    kubeconfig = scheduler_kubeconfig(cluster, tmp_path)
    grant_declared(admin, installed, {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["patch"]})
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


def test_a_plugin_follows_and_patches_a_kind_of_its_own(own_control_plane: ControlPlane, tmp_path: Path):
    admin = own_control_plane.admin
    define(admin, FREEZE)
    installed = install(tmp_path / "installed", "Freezes", "freeze")
    add_node(admin, "node")
    kubeconfig = scheduler_kubeconfig(own_control_plane, tmp_path)
    grant_declared(
        admin, installed,
        {"apiGroups": ["example.com"], "resources": ["freezes"], "verbs": ["list", "watch"]},
        {"apiGroups": ["example.com"], "resources": ["freezes/status"], "verbs": ["patch"]})
    freezes, pods = FREEZE.path(), "/api/v1/namespaces/default/pods"

    def node_of(pod: str) -> str:
        return str(admin.get(f"{pods}/{pod}")["spec"].get("nodeName") or "")

    with SchedulerProcess(kubeconfig, tmp_path, name="koord-policy", installed=installed) as scheduler:
        scheduler.until_ready()
        add_pod(admin, "default", "before", scheduler="koord-policy")
        until(lambda: node_of("before"))
        admin.create(freezes, {"apiVersion": "example.com/v1", "kind": "Freeze", "metadata": {"name": "holidays"},
                               "spec": {"namespace": "default", "reason": "nobody reads this field"}})

        def is_held_back(number: int) -> bool:  # until the scheduler has seen the Freeze
            add_pod(admin, "default", f"during-{number}", scheduler="koord-policy")
            path = f"{pods}/during-{number}"
            until(lambda: node_of(f"during-{number}") or admin.get(path)["status"].get("conditions"))
            return not node_of(f"during-{number}")

        last = next(f"during-{number}" for number in range(100) if is_held_back(number))
        until(lambda: admin.get(f"{freezes}/holidays").get("status") == {"lastPod": last})
        assert admin.get(f"{freezes}/holidays")["spec"]["reason"] == "nobody reads this field"
        condition, = admin.get(f"{pods}/{last}")["status"]["conditions"]
        assert "the Freeze holidays holds it back" in condition["message"]

        admin.delete(f"{freezes}/holidays")

        def is_bound(number: int) -> bool:
            return not is_held_back(1000 + number)

        assert any(is_bound(number) for number in range(100))
        assert scheduler.stop() == 0
