"""The live scheduler on a real API server: it binds pods, says why it does not, preempts, and ends in order.

Tests of one process share a control plane; each has a namespace of its own, and nodes that only its pods select.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .control_plane import AdminClient, ApiError, ControlPlane, NamedCluster
from .nodes import FakeKubelet, add_node, add_pod, set_capacity
from .roles import scheduler_kubeconfig
from .scheduler_process import SchedulerProcess, until

NAME = "koord-policy"
WARNING = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: prefers-labelled}
spec:
  enforcement: Warn
  filter:
  - name: labelled
    expression: "'team' in node.metadata.labels"
    message: the node belongs to no team
"""


class Scene:
    """A namespace with nodes of its own, and what the scheduler wrote there."""

    def __init__(self, admin: AdminClient, namespace: str) -> None:
        self.admin = admin
        self.namespace = namespace
        self.nodes: list[str] = []

    def node(self, name: str, **more: Any) -> str:
        full = f"{self.namespace}-{name}"
        add_node(self.admin, full, labels={"scene": self.namespace}, **more)
        self.nodes.append(full)
        return full

    def pod(self, name: str, **more: Any) -> Any:
        return add_pod(self.admin, self.namespace, name, nodeSelector={"scene": self.namespace}, **more)

    def get(self, name: str) -> Any:
        return self.admin.get(self.path(name))

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def node_of(self, name: str) -> str:
        return str(self.get(name)["spec"].get("nodeName") or "")

    def condition(self, name: str, kind: str = "PodScheduled") -> dict[str, Any]:
        conditions = self.get(name)["status"].get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})

    def reason(self, name: str) -> str:
        return str(self.condition(name).get("reason") or "")

    def events(self, name: str, reason: str) -> list[dict[str, Any]]:
        events = self.admin.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        return [event for event in events if event["regarding"]["name"] == name and event["reason"] == reason]


@pytest.fixture(scope="module")
def running(
    cluster: ControlPlane | NamedCluster, tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SchedulerProcess]:
    directory = tmp_path_factory.mktemp("scheduler")
    with SchedulerProcess(scheduler_kubeconfig(cluster, directory), directory, "--kube-api-qps", "0") as process:
        process.until_ready()
        yield process


@pytest.fixture
def scene(admin: AdminClient, running: SchedulerProcess) -> Iterator[Scene]:
    yield from a_scene(admin)


@pytest.fixture
def own_scene(admin: AdminClient) -> Iterator[Scene]:
    """For a test that starts its own scheduler, under another name."""
    yield from a_scene(admin)


def a_scene(admin: AdminClient) -> Iterator[Scene]:
    name = f"e2e-{secrets.token_hex(4)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    made = Scene(admin, name)
    yield made
    admin.delete_pods(name)
    admin.delete(f"/api/v1/namespaces/{name}")
    for node in made.nodes:
        with contextlib.suppress(ApiError):
            admin.delete(f"/api/v1/nodes/{node}")


def test_l22_a_pod_is_bound_and_its_event_names_the_scheduler(scene: Scene):
    one = scene.node("one")
    scene.pod("a")
    assert until(lambda: scene.node_of("a")) == one
    (event,) = until(lambda: scene.events("a", "Scheduled"))
    assert (event["type"], event["action"], event["note"], event["reportingController"]) == (
        "Normal", "Binding", f"Successfully assigned {scene.namespace}/a to {one}", NAME)


def test_l26_a_pod_of_another_scheduler_is_not_bound_but_counts_when_it_is(scene: Scene):
    one = scene.node("one", cpu="1")
    scene.pod("foreign", scheduler="somebody-else", cpu="700m")
    scene.pod("first", cpu="100m")
    assert until(lambda: scene.node_of("first")) == one
    assert scene.node_of("foreign") == ""
    scene.admin.create(f"{scene.path('foreign')}/binding", {
        "metadata": {"name": "foreign"}, "target": {"kind": "Node", "name": one}})
    scene.pod("second", cpu="500m")
    assert until(lambda: scene.reason("second")) == "Unschedulable"
    assert "1 Insufficient cpu" in scene.condition("second")["message"]


def test_l27_a_pod_that_fits_nowhere_has_the_condition_and_one_event_and_no_second_patch(
    own_scene: Scene, cluster: ControlPlane, tmp_path: Path,
):
    scene = own_scene
    nodes = [scene.node("one", cpu="1"), scene.node("two", cpu="1")]
    others = len(scene.admin.get("/api/v1/nodes")["items"]) - len(nodes)
    with SchedulerProcess(cluster.kubeconfig(), tmp_path, name=scene.namespace) as process:
        process.until_ready()
        for name in ("x", "y"):
            scene.pod(name, cpu="600m", scheduler=scene.namespace)
        until(lambda: scene.node_of("x") and scene.node_of("y"))
        scene.pod("a", cpu="700m", scheduler=scene.namespace)
        assert until(lambda: scene.reason("a")) == "Unschedulable"
        condition = scene.condition("a")
        elsewhere = f"{others} node(s) didn't match Pod's node affinity/selector" if others else ""
        everything = others + len(nodes)
        reasons = ", ".join(sorted(filter(None, ("2 Insufficient cpu", elsewhere))))
        victims = ", ".join(sorted(filter(None, (
            "2 No preemption victims found for incoming pod",
            f"{others} Preemption is not helpful for scheduling" if others else ""))))
        total = f"0/{everything} nodes are available"
        assert (condition["status"], condition["message"]) == (
            "False", f"{total}: {reasons}. preemption: {total}: {victims}.")
        (event,) = until(lambda: scene.events("a", "FailedScheduling"))
        assert (event["type"], event["action"], event["note"], event.get("series")) == (
            "Warning", "Scheduling", condition["message"], None)
        version = scene.get("a")["metadata"]["resourceVersion"]
        set_capacity(scene.admin, nodes[0], {"cpu": "1200m", "memory": "8Gi", "pods": "110"})
        assert until(lambda: scene.events("a", "FailedScheduling")[0].get("series"))["count"] == 2
        assert scene.get("a")["metadata"]["resourceVersion"] == version


def test_l29_a_long_message_is_cut_in_the_event_and_complete_in_the_condition(
    own_scene: Scene, cluster: ControlPlane, tmp_path: Path,
):
    scene = own_scene
    scene.node("one")
    policy = tmp_path / "policies" / "long.yaml"
    policy.parent.mkdir()
    policy.write_text(WARNING.replace("enforcement: Warn", "enforcement: Enforce").replace(
        "the node belongs to no team", "x" * 900 + "y" * 900).replace("prefers-labelled", "long"))
    with SchedulerProcess(
            cluster.kubeconfig(), tmp_path, "--policies", str(policy.parent), name=scene.namespace) as process:
        process.until_ready()
        scene.pod("a", scheduler=scene.namespace)
        assert until(lambda: scene.reason("a")) == "Unschedulable"
        (event,) = until(lambda: scene.events("a", "FailedScheduling"))
        assert (len(event["note"].encode()), event["note"][-4:]) == (1024, " ...")
        assert "y" * 900 in scene.condition("a")["message"]


def test_an_event_of_a_pod_without_a_node_leads_to_the_console(
    own_scene: Scene, cluster: ControlPlane, tmp_path: Path,
):
    scene = own_scene
    scene.node("one", cpu="1")
    with SchedulerProcess(
            cluster.kubeconfig(), tmp_path, "--console-url", "https://console.example.org/", name=scene.namespace,
    ) as process:
        process.until_ready()
        scene.pod("a", cpu="3", scheduler=scene.namespace)
        (event,) = until(lambda: scene.events("a", "FailedScheduling"))
        link = f" See https://console.example.org/#/pod?key={scene.namespace}%2Fa"
        assert event["note"] == until(lambda: scene.condition("a"))["message"] + link


def test_l31_a_gated_pod_is_left_alone_until_its_gate_is_removed(scene: Scene):
    one = scene.node("one")
    scene.pod("a", schedulingGates=[{"name": "example.com/gate"}])
    version = scene.get("a")["metadata"]["resourceVersion"]
    scene.pod("b")
    until(lambda: scene.node_of("b"))
    assert (scene.get("a")["metadata"]["resourceVersion"], scene.events("a", "FailedScheduling")) == (version, [])
    scene.admin.merge(scene.path("a"), {"spec": {"schedulingGates": None}})
    assert until(lambda: scene.node_of("a")) == one


def test_l34_only_the_pods_that_a_change_may_help_are_tried_again(scene: Scene):
    one = scene.node("one", cpu="1")
    scene.pod("big", cpu="3")
    scene.pod("tolerant", cpu="100m", affinity={"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "colour", "operator": "In", "values": ["red"]}]}]}}})
    until(lambda: scene.reason("big") and scene.reason("tolerant"))
    until(lambda: scene.events("big", "FailedScheduling") and scene.events("tolerant", "FailedScheduling"))
    set_capacity(scene.admin, one, {"cpu": "4", "memory": "8Gi", "pods": "110"})
    assert until(lambda: scene.node_of("big")) == one
    assert scene.node_of("tolerant") == ""
    scene.admin.merge(f"/api/v1/nodes/{one}", {"metadata": {"labels": {"colour": "red"}}})
    assert until(lambda: scene.node_of("tolerant")) == one


def test_l34_a_taint_that_is_removed_and_a_node_that_is_added_wake_the_pods_that_they_help(scene: Scene):
    one = scene.node("one", cpu="1")
    closed = {"key": "example.com/closed", "effect": "NoSchedule"}
    scene.admin.merge(f"/api/v1/nodes/{one}", {"spec": {"taints": [closed]}})
    time.sleep(1)  # the scheduler has seen the taint
    scene.pod("small", cpu="100m")
    scene.pod("big", cpu="3")
    until(lambda: scene.events("small", "FailedScheduling") and scene.events("big", "FailedScheduling"))
    scene.admin.merge(f"/api/v1/nodes/{one}", {"spec": {"taints": None}})
    assert until(lambda: scene.node_of("small")) == one
    assert scene.node_of("big") == ""
    two = scene.node("two", cpu="4")
    assert until(lambda: scene.node_of("big")) == two


def test_l30_without_nodes_the_condition_says_so(own_control_plane: ControlPlane, tmp_path: Path):
    admin = own_control_plane.admin
    admin.create("/api/v1/namespaces", {"metadata": {"name": "apps"}})
    scene = Scene(admin, "apps")
    with SchedulerProcess(own_control_plane.kubeconfig(), tmp_path) as process:
        process.until_ready()
        scene.pod("a")
        assert until(lambda: scene.condition("a")).get("message") == "no nodes available to schedule pods"
        one = scene.node("one")
        assert until(lambda: scene.node_of("a")) == one


def test_warn_is_an_event_on_the_pod_which_is_bound(own_scene: Scene, cluster: ControlPlane, tmp_path: Path):
    scene = own_scene
    one = scene.node("one")
    policy = tmp_path / "policies" / "warn.yaml"
    policy.parent.mkdir()
    policy.write_text(WARNING)
    with SchedulerProcess(
            cluster.kubeconfig(), tmp_path, "--policies", str(policy.parent), name=scene.namespace) as process:
        process.until_ready()
        scene.pod("a", scheduler=scene.namespace)
        assert until(lambda: scene.node_of("a")) == one
        (event,) = until(lambda: scene.events("a", "PolicyWarning"))
        assert (event["type"], event["note"]) == ("Warning", f"{one}: prefers-labelled: the node belongs to no team")


def test_a_changed_policy_decides_about_the_next_pod(own_scene: Scene, cluster: ControlPlane, tmp_path: Path):
    scene = own_scene
    one = scene.node("one")
    policy = tmp_path / "policies" / "p.yaml"
    policy.parent.mkdir()
    policy.write_text(WARNING.replace("enforcement: Warn", "enforcement: Enforce"))
    with SchedulerProcess(
            cluster.kubeconfig(), tmp_path, "--policies", str(policy.parent), name=scene.namespace) as process:
        process.until_ready()
        scene.pod("a", scheduler=scene.namespace)
        assert until(lambda: scene.reason("a")) == "Unschedulable"
        beside = tmp_path / "beside.yaml"
        beside.write_text(WARNING)
        beside.rename(policy)
        assert until(lambda: scene.node_of("a")) == one


def test_l35_a_victim_is_marked_and_deleted_once_and_its_preemptor_takes_the_node(scene: Scene):
    one = scene.node("one", cpu="1")
    scene.admin.create_priority_class(scene.namespace, 1000)
    victim = scene.pod("victim", cpu="600m", terminationGracePeriodSeconds=30)
    scene.pod("bystander", cpu="300m")
    until(lambda: scene.node_of("victim") and scene.node_of("bystander"))
    with FakeKubelet(scene.admin, ends_pods=False) as kubelet:
        until(lambda: scene.get("victim")["status"]["phase"] == "Running")
        preemptor = scene.pod("preemptor", cpu="700m", priorityClassName=scene.namespace)
        condition = until(lambda: scene.condition("victim", "DisruptionTarget"))
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "True", "PreemptionByScheduler", f"{NAME}: preempting to accommodate a higher priority pod")
        until(lambda: scene.get("victim")["metadata"].get("deletionTimestamp"))
        (event,) = until(lambda: scene.events("victim", "Preempted"))
        assert (event["type"], event["action"], event["note"], event["related"]["uid"], event["regarding"]["uid"]) == (
            "Normal", "Preempting", f"Preempted by pod {preemptor['metadata']['uid']} on node {one}",
            preemptor["metadata"]["uid"], victim["metadata"]["uid"])
        assert until(lambda: scene.get("preemptor")["status"].get("nominatedNodeName")) == one
        # While the victim terminates, no other one is chosen, whatever wakes the preemptor up.
        scene.admin.merge(f"/api/v1/nodes/{one}", {"metadata": {"labels": {"some": "change"}}})
        set_capacity(scene.admin, one, {"cpu": "1050m", "memory": "8Gi", "pods": "110"})
        until(lambda: scene.events("preemptor", "FailedScheduling")[0].get("series"))
        assert (scene.get("bystander")["metadata"].get("deletionTimestamp"), scene.node_of("preemptor")) == (None, "")
        kubelet.ends_pods = True
        assert until(lambda: scene.node_of("preemptor")) == one
    assert scene.get("preemptor")["status"].get("nominatedNodeName") == (
        None if scene.admin.clears_nominations() else one)
    assert scene.events("bystander", "Preempted") == []


def test_l63_the_process_ends_soon_after_sigterm_and_leaves_no_half_bound_pod(
    own_scene: Scene, cluster: ControlPlane, tmp_path: Path,
):
    scene = own_scene
    scene.node("one", cpu="100", pods=1000)
    # More than the limit of requests permits at once: the events are behind the bindings.
    for number in range(300):
        scene.pod(f"p{number}", scheduler=scene.namespace, cpu="10m")
    with SchedulerProcess(cluster.kubeconfig(), tmp_path, name=scene.namespace) as process:
        process.until_ready()
        until(lambda: scene.node_of("p150"))
        code = process.stop()
    assert code == 0, process.log.read_text()
    pods = scene.admin.get(f"/api/v1/namespaces/{scene.namespace}/pods")["items"]
    bound = {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}
    assert {name for name in (f"p{number}" for number in range(300)) if scene.events(name, "Scheduled")} == bound
