"""The example of the live scheduler: from its manifests to a pod that says by event why it waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .control_plane import AdminClient, ControlPlane
from .nodes import FakeKubelet, add_node
from .roles import NAMESPACE, account_kubeconfig, create, manifests
from .scheduler_process import SchedulerProcess, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "17-live-scheduler"
CONFIG_MAP = f"/api/v1/namespaces/{NAMESPACE}/configmaps/koord-policies"


def kustomized() -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` creates: the manifests of the scheduler, and the generated ConfigMap."""
    kustomization = yaml.safe_load((EXAMPLE / "kustomization.yaml").read_text())
    assert kustomization["resources"] == ["../../deploy/scheduler"]
    (generated,) = kustomization["configMapGenerator"]
    files = {Path(name).name: (EXAMPLE / name).read_text() for name in generated["files"]}
    return [*manifests("scheduler"), {"apiVersion": "v1", "kind": "ConfigMap", "data": files, "metadata": {
        "name": generated["name"], "namespace": kustomization["namespace"]}}]


def mount(admin: AdminClient, directory: Path) -> None:
    """Do what kubelet does for the Deployment's volume."""
    directory.mkdir(exist_ok=True)
    for name, text in admin.get(CONFIG_MAP)["data"].items():
        (directory / f"..{name}").write_text(text)
        (directory / f"..{name}").rename(directory / name)


def arguments(admin: AdminClient, directory: Path) -> list[str]:
    """The Deployment's arguments that `SchedulerProcess` does not set, with the paths of this machine."""
    deployment = admin.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/koord-policy-scheduler")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found = []
    for argument in container["args"]:
        name, _, value = argument.partition("=")
        if name in {"--policies", "--state-dir"}:
            found += [name, str(directory / Path(value).name)]
        elif name not in {"scheduler", "--cluster", "--scheduler-name", "--bind", "--tls-cert", "--tls-key"}:
            found.append(argument)
    return found


def waiting_for(admin: AdminClient, pod: str) -> str:
    conditions = admin.get(f"/api/v1/namespaces/default/pods/{pod}")["status"].get("conditions") or ()
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "PodScheduled"), "")


def notes(admin: AdminClient, pod: str) -> set[tuple[str, str]]:
    events = admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return {(event["reason"], event["note"]) for event in events if event["regarding"]["name"] == pod}


def test_the_readme_is_what_happens(own_control_plane: ControlPlane, tmp_path: Path):
    admin = own_control_plane.admin
    for item in kustomized():
        create(admin, item)
    mount(admin, tmp_path / "policies")
    (tmp_path / "koord-policy").mkdir()
    add_node(admin, "node-1", labels={"example.com/team": "shop"})
    add_node(admin, "node-2", labels={"example.com/team": "shop"})
    with FakeKubelet(admin), SchedulerProcess(
            account_kubeconfig(own_control_plane, "koord-policy-scheduler", tmp_path), tmp_path,
            *arguments(admin, tmp_path), leader_elect=True) as process:
        process.until_ready()
        for pod in yaml.safe_load_all((EXAMPLE / "pods.yaml").read_text()):
            admin.create("/api/v1/namespaces/default/pods", pod)
        readme = (EXAMPLE / "README.md").read_text()
        message = until(lambda: waiting_for(admin, "crawler"))
        assert message in readme
        until(lambda: ("FailedScheduling", message) in notes(admin, "crawler"))
        assert until(lambda: admin.get("/api/v1/namespaces/default/pods/checkout")["spec"].get("nodeName"))
        edited = (EXAMPLE / "policies" / "team-nodes.yaml").read_text().replace("example.com/team", "example.com/squad")
        admin.merge(CONFIG_MAP, {"data": {"team-nodes.yaml": edited}})
        mount(admin, tmp_path / "policies")
        assert until(lambda: admin.get("/api/v1/namespaces/default/pods/crawler")["spec"].get("nodeName"))
        assert process.stop() == 0
