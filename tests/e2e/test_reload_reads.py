"""New policies that cannot work in the cluster: those that read what the scheduler may not list, and failing ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .control_plane import ControlPlane
from .custom_resources import NODE_METRIC, define
from .nodes import add_node, add_pod
from .roles import scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until

ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/koord-policy-scheduler"
NAME = "koord-policy"
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: %s}
spec:
  filter:
  - {name: it, expression: "%s"}
"""


def without_metrics(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [left for rule in rules if (left := {
        **rule, "resources": [each for each in rule.get("resources", ()) if each != "nodemetrics"]})["resources"]]


def test_policies_that_read_what_may_not_be_listed_are_refused_until_it_may(
    own_control_plane: ControlPlane, tmp_path: Path,
):
    admin = own_control_plane.admin
    define(admin, NODE_METRIC)
    add_node(admin, "one")
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "a.yaml").write_text(POLICY % ("first", "node.metadata.name != 'x'"))
    kubeconfig = scheduler_kubeconfig(own_control_plane, tmp_path)
    rules = admin.get(ROLE)["rules"]
    admin.merge(ROLE, {"rules": without_metrics(rules)})
    scheduler = SchedulerProcess(kubeconfig, tmp_path, "--policies", str(policies), name=NAME)
    scheduler.start()
    try:
        scheduler.until_ready()
        beside = tmp_path / "b.yaml"
        beside.write_text(POLICY % ("second", "has(nodeMetric.status) || true"))
        beside.rename(policies / "b.yaml")
        until(lambda: "the new policies read nodemetrics, which cannot be listed: " in scheduler.log.read_text())
        assert "generation 2" not in scheduler.log.read_text()
        add_pod(admin, "apps", "a", scheduler=NAME)  # the first set decides
        until(lambda: admin.get("/api/v1/namespaces/apps/pods/a")["spec"].get("nodeName"))
        admin.merge(ROLE, {"rules": rules})
        until(lambda: "generation 2" in scheduler.log.read_text())
        assert scheduler.stop() == 0
    finally:
        scheduler.process.kill()
        scheduler.process.wait()


def test_policies_whose_expressions_fail_are_rolled_back_and_good_ones_are_stored(
    own_control_plane: ControlPlane, tmp_path: Path,
):
    admin = own_control_plane.admin
    for name in ("one", "two"):
        add_node(admin, name, pods=200)
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    policies, state = tmp_path / "policies", tmp_path / "state"
    policies.mkdir()

    def publish(expression: str) -> None:
        beside = tmp_path / "a.yaml"
        beside.write_text(POLICY % ("first", expression))
        beside.rename(policies / "a.yaml")

    def place(prefix: str) -> None:
        for number in range(110):
            add_pod(admin, "apps", f"{prefix}-{number}", scheduler=NAME, cpu="1m")

    publish("node.metadata.name != 'x'")
    scheduler = SchedulerProcess(scheduler_kubeconfig(own_control_plane, tmp_path), tmp_path, "--policies",
                                 str(policies), "--state-dir", str(state), "--max-error-rate", "0.1",
                                 "--kube-api-qps", "0", name=NAME)
    scheduler.start()
    try:
        scheduler.until_ready()
        publish("node.metadata.name != 'y'")
        until(lambda: "generation 2" in scheduler.log.read_text())
        place("good")
        until(lambda: "!= 'y'" in (state / "last-good.json").read_text())
        publish("int(node.metadata.name) == 1")
        until(lambda: "generation 3" in scheduler.log.read_text())
        place("bad")
        until(lambda: "had failing expressions" in scheduler.log.read_text())
        until(lambda: all(each["spec"].get("nodeName") for each in admin.get("/api/v1/namespaces/apps/pods")["items"]))
        assert "int(" not in (state / "last-good.json").read_text()
        assert scheduler.stop() == 0
    finally:
        scheduler.process.kill()
        scheduler.process.wait()
