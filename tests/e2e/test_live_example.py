"""The examples of the live scheduler and descheduler: from their manifests to the events of a pod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from .control_plane import AdminClient, ControlPlane
from .nodes import FakeKubelet, add_node
from .roles import NAMESPACE, account_kubeconfig, create, manifests
from .scheduler_process import SchedulerProcess, until
from .test_descheduler import DeschedulerProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
CONFIG_MAP = f"{CONFIG_MAPS}/koord-policies"


def kustomized(example: Path) -> list[dict[str, Any]]:
    """The objects that `kubectl apply -k` creates: manifests of deploy/ with patches, and the generated ConfigMap."""
    kustomization = yaml.safe_load((example / "kustomization.yaml").read_text())
    (resources,) = kustomization["resources"]
    assert resources.startswith("../../deploy/")
    (generated,) = kustomization["configMapGenerator"]
    files = {Path(name).name: (example / name).read_text() for name in generated["files"]}
    found = manifests(Path(resources).name)
    for patch in kustomization.get("patches", ()):
        text = yaml.safe_load((example / patch["path"]).read_text())
        (patched,) = (each for each in found if (each["kind"], each["metadata"]["name"]) == (
            text["kind"], text["metadata"]["name"]))
        patched["data"] |= text["data"]
    return [*found, {"apiVersion": "v1", "kind": "ConfigMap", "data": files, "metadata": {
        "name": generated["name"], "namespace": kustomization["namespace"]}}]


def mount(admin: AdminClient, directory: Path, config_map: str = "koord-policies") -> None:
    """Do what kubelet does for a volume of the Deployment."""
    directory.mkdir(exist_ok=True)
    for name, text in admin.get(f"{CONFIG_MAPS}/{config_map}")["data"].items():
        (directory / f"..{name}").write_text(text)
        (directory / f"..{name}").rename(directory / name)


def arguments(admin: AdminClient, directory: Path, server: str) -> list[str]:
    """The arguments of a server's Deployment that its process in tests does not set, with the paths of this machine."""
    deployment = admin.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/koord-policy-{server}")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found = []
    for argument in container["args"]:
        name, _, value = argument.partition("=")
        if name in {"--policies", "--state-dir"}:
            found += [name, str(directory / Path(value).name)]
        elif name == "--config":
            found += [name, str(directory.joinpath(*Path(value).parts[-2:]))]
        elif name not in {server, "--cluster", "--scheduler-name", "--bind", "--tls-cert", "--tls-key"}:
            found.append(argument)
    return found


def waiting_for(admin: AdminClient, pod: str) -> str:
    conditions = admin.get(f"/api/v1/namespaces/default/pods/{pod}")["status"].get("conditions") or ()
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "PodScheduled"), "")


def notes(admin: AdminClient, pod: str) -> set[tuple[str, str]]:
    events = admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    return {(event["reason"], event["note"]) for event in events if event["regarding"]["name"] == pod}


def test_the_readme_of_the_scheduler_is_what_happens(own_control_plane: ControlPlane, tmp_path: Path):
    admin, example = own_control_plane.admin, EXAMPLES / "17-live-scheduler"
    for item in kustomized(example):
        create(admin, item)
    mount(admin, tmp_path / "policies")
    (tmp_path / "koord-policy").mkdir()
    add_node(admin, "node-1", labels={"example.com/team": "shop"})
    add_node(admin, "node-2", labels={"example.com/team": "shop"})
    with FakeKubelet(admin), SchedulerProcess(
            account_kubeconfig(own_control_plane, "koord-policy-scheduler", tmp_path), tmp_path,
            *arguments(admin, tmp_path, "scheduler"), leader_elect=True) as process:
        process.until_ready()
        for pod in yaml.safe_load_all((example / "pods.yaml").read_text()):
            admin.create("/api/v1/namespaces/default/pods", pod)
        readme = (example / "README.md").read_text()
        message = until(lambda: waiting_for(admin, "crawler"))
        assert message in readme
        until(lambda: ("FailedScheduling", message) in notes(admin, "crawler"))
        assert until(lambda: admin.get("/api/v1/namespaces/default/pods/checkout")["spec"].get("nodeName"))
        edited = (example / "policies" / "team-nodes.yaml").read_text().replace("example.com/team", "example.com/squad")
        admin.merge(CONFIG_MAP, {"data": {"team-nodes.yaml": edited}})
        mount(admin, tmp_path / "policies")
        assert until(lambda: admin.get("/api/v1/namespaces/default/pods/crawler")["spec"].get("nodeName"))
        assert process.stop() == 0


def test_the_readme_of_the_descheduler_is_what_happens(own_control_plane: ControlPlane, tmp_path: Path):
    admin, example = own_control_plane.admin, EXAMPLES / "20-live-descheduler"
    for item in kustomized(example):
        create(admin, item)
    mount(admin, tmp_path / "policies")
    mount(admin, tmp_path / "config", "koord-policy-descheduler")
    for name in ("node-1", "node-2"):
        add_node(admin, name)
    web, budget = yaml.safe_load_all((example / "web.yaml").read_text())
    # The Deployment's controller does not run here.
    for name in ("node-1", "node-2"):
        pod = web["spec"]["template"]
        admin.create("/api/v1/namespaces/default/pods", {
            "metadata": {"name": f"web-{name}", "labels": pod["metadata"]["labels"], "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}]},
            "spec": {**pod["spec"], "nodeName": name}})
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    admin.create(budgets, budget)

    def permit(disruptions: int) -> None:
        admin.merge(f"{budgets}/web/status", {"status": {
            "observedGeneration": 1, "disruptionsAllowed": disruptions, "currentHealthy": 2, "desiredHealthy": 1,
            "expectedPods": 2}})

    permit(0)
    with FakeKubelet(admin), DeschedulerProcess(
            account_kubeconfig(own_control_plane, "koord-policy-descheduler", tmp_path), tmp_path,
            *arguments(admin, tmp_path, "descheduler"), leader_elect=True) as process:
        process.until_ready()
        for name in ("node-1", "node-2"):
            path = f"/api/v1/namespaces/default/pods/web-{name}"
            until(lambda path=path: admin.get(path)["status"].get("phase") == "Running")
            admin.merge(f"{path}/status", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
        admin.merge("/api/v1/nodes/node-1", {"spec": {"unschedulable": True},
                                             "metadata": {"labels": {"example.com/retire": "true"}}})
        until(lambda: "default/web" in process.status()["held"], 60)
        assert admin.get("/api/v1/namespaces/default/pods/web-node-1")["metadata"].get("deletionTimestamp") is None
        permit(1)
        note = until(lambda: next((note for reason, note in notes(admin, "web-node-1") if reason == "Descheduled"), ""),
                     60)
        assert note in (example / "README.md").read_text()
        assert len(process.status()["shards"]["members"]) == 1
        assert process.stop() == 0
    assert admin.get("/api/v1/namespaces/default/pods/web-node-2")["metadata"].get("deletionTimestamp") is None
