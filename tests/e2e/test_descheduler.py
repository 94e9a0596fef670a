"""`koord-policy descheduler` on a real API server, with the shipped role: evictions and their answers, cycles, its end.

Nothing controls pods or PodDisruptionBudgets there: a test writes the status of both. The pods of deleted nodes would
stay, so each test has a namespace of its own, and the configuration names it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from .build import binary
from .control_plane import AdminClient, ApiError, ControlPlane
from .custom_resources import ALL, Custom, define
from .nodes import add_node
from .proxy import FaultProxy
from .roles import NAMESPACE, account_kubeconfig, create_roles
from .scheduler_process import until

OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "controller": True}


class DeschedulerProcess:
    """One process; use as a context manager. It fails if it lacked a right."""

    def __init__(self, kubeconfig: Path, directory: Path, *options: str, leader_elect: bool = False) -> None:
        self.log = directory / f"descheduler-{time.monotonic_ns()}.log"
        self.out = self.log.with_suffix(".out")
        self.lacks_rights = False
        lease = () if leader_elect else ("--leader-elect=false",)
        self._command = [sys.executable, "-m", "koordpolicy", "descheduler", "--cluster", "kube", "--health-bind",
                         "127.0.0.1:0", *lease, *options]
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.process: subprocess.Popen[bytes]

    def __enter__(self) -> Self:
        with self.log.open("ab") as log, self.out.open("ab") as out:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=self._environment)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if not any(_exception):
            log = self.log.read_text()
            assert "Traceback" not in log, log[-3000:]
            assert self.lacks_rights or " is forbidden: " not in log, log[-3000:]

    def until_ready(self) -> None:
        until(lambda: self.alive() and "ready: " in self.out.read_text(), 60)

    def alive(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return True

    def get(self, path: str) -> str:
        lines = self.out.read_text().splitlines()
        url = next(line.removeprefix("listening on ") for line in lines if "listening" in line)
        with urllib.request.urlopen(f"{url}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/status"))
        return found

    def until_cycle(self, number: int) -> dict[str, Any]:
        """Wait for the cycle of this number or a later one; return the status then."""
        return until(lambda: self.alive() and (found := self.status())["cycles"] >= number and found, 60)  # type: ignore[return-value]

    def evictions(self) -> dict[tuple[str, str], float]:
        """The metric of evictions by pod's namespace and result."""
        found: dict[tuple[str, str], float] = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("descheduler_pods_evicted{"):
                labels = dict(each.split("=") for each in line[line.index("{") + 1:line.index("}")].split(","))
                key = labels["namespace"].strip('"'), labels["result"].strip('"')
                found[key] = found.get(key, 0) + float(line.rpartition(" ")[2])
        return found

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if os.environ.get("KOORD_POLICY_E2E_KUBECONFIG"):
        pytest.skip("evicts pods of a whole cluster")
    with ControlPlane(binary(), tmp_path_factory.mktemp("descheduler-plane")) as running:
        define(running.admin, *ALL)
        create_roles(running.admin, "descheduler")
        for name in ("one", "two"):
            add_node(running.admin, name)
        yield running


@pytest.fixture
def admin(plane: ControlPlane) -> AdminClient:
    return plane.admin


@pytest.fixture
def kubeconfig(plane: ControlPlane, tmp_path: Path) -> Path:
    return account_kubeconfig(plane, "koord-policy-descheduler", tmp_path)


def pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def add_pod(admin: AdminClient, namespace: str, name: str, *, phase: str = "Running", ready: bool = True,
            app: str = "web", node: str = "one", grace: int = 0) -> dict[str, Any]:
    """Creates a pod on a node; without a kubelet a deleted one is gone at once if its grace period is 0."""
    item: dict[str, Any] = admin.create(f"/api/v1/namespaces/{namespace}/pods", {
        "metadata": {"name": name, "labels": {"app": app},
                     "ownerReferences": [{**OWNER, "name": app, "uid": f"owner-of-{app}"}]},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": grace,
                 "containers": [{"name": "main", "image": "example/main"}]}})
    admin.merge(f"{pod_path(namespace, name)}/status", {"status": {"phase": phase, "conditions": [
        {"type": "Ready", "status": str(ready)}]}})
    return item


def add_budget(admin: AdminClient, namespace: str, name: str, *, allowed: int, app: str = "web",
               observed: int | None = None) -> None:
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    made = admin.create(path, {"metadata": {"name": name}, "spec": {
        "minAvailable": 1, "selector": {"matchLabels": {"app": app}}}})
    set_budget(admin, namespace, name, allowed, made["metadata"]["generation"] if observed is None else observed)


def set_budget(admin: AdminClient, namespace: str, name: str, allowed: int, observed: int = 1) -> None:
    admin.merge(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}/status", {"status": {
        "observedGeneration": observed, "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed,
        "desiredHealthy": 1, "expectedPods": 1 + allowed}})


def budget(admin: AdminClient, namespace: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = admin.get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}")["status"]
    return found


def configuration(directory: Path, namespace: str, *, states: tuple[str, ...] = ("Running",), interval: str = "500ms",
                  **top: Any) -> Path:
    """Writes a configuration that evicts the pods of a namespace in these states."""
    points = {point: {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]}
              for point in ("evict", "filter")}
    path = directory / "descheduler.yaml"
    text = yaml.safe_dump({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "deschedulingInterval": interval,
        "profiles": [{"name": "e2e", "plugins": {"deschedule": {"enabled": [{"name": "PodLifeTime"}]}, **points},
                      "pluginConfig": [{"name": "PodLifeTime", "args": {
                          "states": list(states), "namespaces": {"include": [namespace]}}}]}], **top})
    (directory / "new.yaml").write_text(text)
    (directory / "new.yaml").replace(path)
    return path


def is_gone(admin: AdminClient, namespace: str, name: str) -> bool:
    try:
        admin.get(pod_path(namespace, name))
    except ApiError as error:
        if error.status == 404:
            return True
        raise
    return False


def least_pause(status: dict[str, Any], result: str) -> float:
    """The shortest time between two requests with that result, in seconds."""
    times = [each["time"] for each in status["evictions"] if each["result"] == result]
    return min((later - earlier for earlier, later in pairwise(times)), default=math.inf)


def events(admin: AdminClient, namespace: str) -> list[tuple[str, str, str, str, str]]:
    found = admin.get(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")["items"]
    return sorted((each["regarding"]["name"], each["reason"], each["action"], each["note"],
                   each["reportingController"]) for each in found)


def test_pods_are_evicted_once_with_their_events_and_metrics_until_sigterm(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    add_pod(admin, namespace, "web-1")
    add_pod(admin, namespace, "slow", app="slow", grace=3600)  # stays as terminating
    add_pod(admin, namespace, "done", phase="Succeeded")
    config = configuration(tmp_path, namespace)
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config)) as process:
        process.until_ready()
        until(lambda: is_gone(admin, namespace, "web-1"))
        until(lambda: admin.get(pod_path(namespace, "slow"))["metadata"].get("deletionTimestamp"))
        seen = process.status()["cycles"]
        status = process.until_cycle(seen + 3)
        assert {(each["name"], each["result"]) for each in status["evictions"]} == {
            ("web-1", "success"), ("slow", "success")}
        assert process.evictions() == {(namespace, "success"): 2.0}
        assert 'koord_policy_descheduler_cycles_total{result="completed"}' in process.get("/metrics")
        assert (process.get("/healthz"), process.get("/readyz")) == ("ok", "ok")
        assert json.loads(process.get("/configz"))["componentconfig"]["profiles"][0]["name"] == "e2e"
        assert process.stop() == 0
    assert not is_gone(admin, namespace, "done")
    assert [each[:3] + each[4:] for each in events(admin, namespace)] == [
        ("slow", "Descheduled", "Evicting", "e2e"), ("web-1", "Descheduled", "Evicting", "e2e")]


def test_l49_an_exhausted_budget_is_not_tried_again_before_its_back_off_nor_for_its_other_pods(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    add_budget(admin, namespace, "web", allowed=0)
    for name in ("web-1", "web-2"):
        add_pod(admin, namespace, name)
    add_pod(admin, namespace, "other", app="other")
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(configuration(tmp_path, namespace))) as process:
        process.until_ready()
        status = process.until_cycle(4)
        sent = {(each["name"], each["result"]) for each in status["evictions"]}
        assert sent - {("web-2", "pdb-blocked")} == {("other", "success"), ("web-1", "pdb-blocked")}
        assert least_pause(status, "pdb-blocked") >= 9.5
        kept = {each["pod"]: each for each in status["lastCycle"]["kept"]}
        assert {name: each["stoppedRule"] for name, each in kept.items()} == {
            f"{namespace}/web-1": "pdb-blocked", f"{namespace}/web-2": "pdb-blocked"}
        assert "would violate the pod's disruption budget" in kept[f"{namespace}/web-2"]["message"]
        assert status["held"].keys() <= {f"{namespace}/web"}
        set_budget(admin, namespace, "web", 2)
        until(lambda: is_gone(admin, namespace, "web-1") and is_gone(admin, namespace, "web-2"), 60)
        until(lambda: process.evictions()[namespace, "success"] == 3)


def test_l50_a_budget_whose_status_is_behind_is_left_alone_for_as_long_as_the_server_says(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    add_budget(admin, namespace, "web", allowed=5, observed=0)
    add_pod(admin, namespace, "web-1")
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(configuration(tmp_path, namespace))) as process:
        process.until_ready()
        status = process.until_cycle(3)
        assert {(each["name"], each["result"]) for each in status["evictions"]} == {("web-1", "pdb-stale")}
        assert least_pause(status, "pdb-stale") >= 9.5
        assert "is still being processed by the server" in status["evictions"][0]["message"]
    assert not is_gone(admin, namespace, "web-1")


def test_l51_two_budgets_of_a_pod_are_a_failure_though_the_server_answers_201(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    for name in ("first", "second"):
        add_budget(admin, namespace, name, allowed=1)
    add_pod(admin, namespace, "web-1")
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(configuration(tmp_path, namespace))) as process:
        process.until_ready()
        status = process.until_cycle(3)
        assert [(each["name"], each["result"]) for each in status["evictions"]] == [("web-1", "multi-pdb")]
        assert process.evictions()[namespace, "multi-pdb"] >= 2  # in later cycles nothing was sent
    pod = admin.get(pod_path(namespace, "web-1"))
    assert (pod["status"]["phase"], pod["metadata"].get("deletionTimestamp")) == ("Running", None)
    assert [budget(admin, namespace, name)["disruptionsAllowed"] for name in ("first", "second")] == [1, 1]


def test_l52_a_pending_pod_is_evicted_whatever_its_budget_says(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    add_budget(admin, namespace, "web", allowed=0)
    add_pod(admin, namespace, "web-1", phase="Pending")
    config = configuration(tmp_path, namespace, states=("Pending",))
    command = [sys.executable, "-m", "koordpolicy", "descheduler", "--cluster", "kube", "--leader-elect=false",
               "--config", str(config), "--once"]
    ended = subprocess.run(command, env={**os.environ, "KUBECONFIG": str(kubeconfig)}, capture_output=True, text=True,
                           timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert is_gone(admin, namespace, "web-1")
    assert budget(admin, namespace, "web")["disruptionsAllowed"] == 0


@pytest.mark.parametrize(("top", "options"), [({"dryRun": True}, ()), ({}, ("--dry-run",))])
def test_l53_a_dry_run_deletes_no_pod_and_counts(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path, top: dict[str, Any], options: tuple[str, ...],
):
    add_budget(admin, namespace, "web", allowed=1)
    before = admin.get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/web")
    pods = [add_pod(admin, namespace, name) for name in ("web-1", "web-2", "web-3")]
    config = configuration(tmp_path, namespace, maxNoOfPodsToEvictTotal=2, **top)
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config), *options) as process:
        process.until_ready()
        status = process.until_cycle(2)
        assert (status["lastCycle"]["dryRun"], len(status["lastCycle"]["evicted"])) == (True, 2)
        assert [each["stoppedBy"] for each in status["lastCycle"]["kept"]] == ["limits"]
        assert process.evictions().keys() == {(namespace, "dry-run")}
        assert process.stop() == 0
    for pod in pods:
        now = admin.get(pod_path(namespace, pod["metadata"]["name"]))["metadata"]
        assert (now["uid"], now.get("deletionTimestamp")) == (pod["metadata"]["uid"], None)
    assert admin.get(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/web") == before
    assert events(admin, namespace) == []


def test_another_configuration_becomes_active_and_a_broken_one_is_refused_with_its_place(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    add_pod(admin, namespace, "web-1")
    config = configuration(tmp_path, namespace, states=("Pending",), interval="24h")
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config)) as process:
        process.until_ready()
        process.until_cycle(1)
        good = config.read_text()
        config.write_text(good.replace("deschedulingInterval: 24h", "deschedulingInterval: often"))
        refused = until(lambda: process.status()["configuration"]["file"]["problems"])
        assert "descheduler.yaml:2:" in refused[0]
        assert "koord_policy_descheduler_configuration_refused 1.0" in process.get("/metrics")
        assert process.status()["cycles"] == 1
        configuration(tmp_path, namespace)
        until(lambda: is_gone(admin, namespace, "web-1"))
        until(lambda: not process.status()["configuration"]["file"]["problems"])


def test_policies_become_active_without_a_restart(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    policies = tmp_path / "policies"
    policies.mkdir()
    add_pod(admin, namespace, "web-1")
    config = configuration(tmp_path, namespace, states=("Pending",))
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config), "--policies", str(policies),
                            "--allow-empty") as process:
        process.until_ready()
        process.until_cycle(1)
        (policies / "policy.yaml").write_text(POLICY.format(namespace=namespace))
        until(lambda: is_gone(admin, namespace, "web-1"))
        found = until(lambda: process.status()["evictions"])  # the answer comes after the pod is gone
        assert found[0]["strategy"] == "evict-web"


POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {{name: evict-web}}
spec:
  type: Deschedule
  criteria:
  - name: web
    expression: pod.metadata.namespace == '{namespace}' && pod.metadata.labels.app == 'web'
    message: it is a web pod
"""


def test_a_standby_takes_over_and_a_leader_without_lease_ends(
    admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    config = configuration(tmp_path, namespace)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/koord-descheduler"
    with (DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config), leader_elect=True) as first,
          DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config), leader_elect=True) as second):
        for process in (first, second):
            process.until_ready()
        until(lambda: first.status()["leading"] or second.status()["leading"], 60)
        leader, standby = (first, second) if first.status()["leading"] else (second, first)
        add_pod(admin, namespace, "web-1")
        until(lambda: is_gone(admin, namespace, "web-1"))
        assert (standby.status()["cycles"], standby.get("/readyz")) == (0, "ok")
        assert leader.stop() == 0
        add_pod(admin, namespace, "web-2")
        until(lambda: is_gone(admin, namespace, "web-2"), 60)
        assert standby.status()["leading"]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        admin.merge(lease, {"spec": {"holderIdentity": "somebody", "acquireTime": now, "renewTime": now}})
        assert standby.process.wait(60) == 1


def test_a_missing_right_is_named_at_start(
    plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path,
):
    admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "nobody"}})
    token = admin.create(f"/api/v1/namespaces/{namespace}/serviceaccounts/nobody/token",
                         {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    config = yaml.safe_load(plane.kubeconfig().read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    (tmp_path / "nobody.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "koordpolicy", "descheduler", "--cluster", "kube",
               "--config", str(configuration(tmp_path, namespace))]
    ended = subprocess.run(command, env={**os.environ, "KUBECONFIG": str(tmp_path / "nobody.yaml")},
                           capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 3
    for text in ("does not permit to `list` nodes cluster-wide", "`create` pods/eviction cluster-wide",
                 f"`get` leases.coordination.k8s.io in the namespace `{NAMESPACE}`", "deploy/descheduler"):
        assert text in ended.stderr, ended.stderr


LEAVE_ONE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: leave-one}
spec:
  type: Balance
  match: {pods: {namespaces: [NAMESPACE]}}
  nodes: {source: nodeInfo.name == 'one'}
"""


@pytest.mark.parametrize("given", [True, False], ids=["by-its-configuration", "by-the-default-plugins"])
def test_evictions_are_proved_by_the_scheduler_and_loops_are_remembered_in_a_config_map(
    plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path, given: bool,
):
    for name, node in (("back", "one"), ("away", "two")):
        admin.create(f"/api/v1/namespaces/{namespace}/pods", {
            "metadata": {"name": name, "ownerReferences": [{**OWNER, "name": name, "uid": f"owner-of-{name}"}]},
            "spec": {"nodeName": "one", "nodeSelector": {"kubernetes.io/hostname": node},
                     "terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "example/main"}]}})
    policies, scheduler = tmp_path / "policies.yaml", tmp_path / "scheduler.yaml"
    policies.write_text(LEAVE_ONE.replace("NAMESPACE", namespace))
    scheduler.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
                         "profiles: [{schedulerName: default-scheduler}]\n")
    config = configuration(tmp_path, namespace, states=("CrashLoopBackOff",))
    account = account_kubeconfig(plane, "koord-policy-descheduler", tmp_path)
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/{}"
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}]
    admin.create(role.format(namespace, "roles"), {"metadata": {"name": "memory"}, "rules": rules})
    admin.create(role.format(namespace, "rolebindings"), {
        "metadata": {"name": "memory"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "memory"},
        "subjects": [{"kind": "ServiceAccount", "name": "koord-policy-descheduler", "namespace": NAMESPACE}]})
    with DeschedulerProcess(
        account, tmp_path, "--config", str(config), "--policies", str(policies),
        *(("--scheduler-config", str(scheduler)) if given else ()), "--memory", f"configmap:{namespace}/evictions",
    ) as process:
        process.until_ready()
        until(lambda: is_gone(admin, namespace, "away"))
        process.until_cycle(process.status()["cycles"] + 2)
        assert not is_gone(admin, namespace, "back")
        assert process.stop() == 0
    data = admin.get(f"/api/v1/namespaces/{namespace}/configmaps/evictions")["data"]["eviction-memory.json"]
    useless, = json.loads(data)["useless"]
    assert (useless["workload"], useless["node"], useless["streak"]) == (f"{namespace}/ReplicaSet/back", "one", 1)
    assert "would come back to one: leave-one (nodes.source) evicts from it" in useless["message"]
    explained = subprocess.run(
        [sys.executable, "-m", "koordpolicy", "explain", f"{namespace}/back", "--eviction", "--cluster", "kube",
         "--config", str(config), "--policies", str(policies), "--memory", f"configmap:{namespace}/evictions"],
        env={**os.environ, "KUBECONFIG": str(plane.kubeconfig())}, capture_output=True, text=True, timeout=120,
        check=False)
    assert "proof: cool-down until " in explained.stdout, explained.stderr


def test_nothing_is_evicted_on_objects_that_are_older_than_the_bound(
    plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path,
):
    config = configuration(tmp_path, namespace)
    create_roles(admin, "descheduler")
    with FaultProxy(plane.url, plane.certificate_authority, tmp_path) as proxy:
        text = yaml.safe_load(account_kubeconfig(plane, "koord-policy-descheduler", tmp_path).read_text())
        behind = yaml.safe_load(plane.kubeconfig(url=proxy.url, authority=proxy.certificate_authority).read_text())
        (tmp_path / "behind.yaml").write_text(yaml.safe_dump({**behind, "users": text["users"]}))
        with DeschedulerProcess(tmp_path / "behind.yaml", tmp_path, "--config", str(config), "--max-staleness",
                                "75s") as process:
            process.until_ready()
            process.until_cycle(1)
            proxy.faults.pod_lag_s = 3600
            proxy.cut_watches()
            until(lambda: process.alive() and any(
                each.startswith("nothing was heard of Pod objects for ") and "more than 75 s" in each
                for each in process.status()["lastCycle"]["stale"]), 180)
            add_pod(admin, namespace, "web-1")
            process.until_cycle(process.status()["cycles"] + 3)
            assert not is_gone(admin, namespace, "web-1")
            assert 'koord_policy_descheduler_cycles_total{result="stale"}' in process.get("/metrics")
            proxy.faults.pod_lag_s = 0
            proxy.cut_watches()
            until(lambda: is_gone(admin, namespace, "web-1"), 120)


NODE_METRICS = Custom("NodeMetrics", "nodes", "metrics.k8s.io", "v1beta1", namespaced=False, status=False)
POD_METRICS = Custom("PodMetrics", "pods", "metrics.k8s.io", "v1beta1", namespaced=True, status=False)


def test_low_node_utilization_moves_pods_by_what_a_metrics_server_measures(
    plane: ControlPlane, admin: AdminClient, namespace: str, kubeconfig: Path, tmp_path: Path,
):
    define(admin, NODE_METRICS, POD_METRICS)

    def measure(path: str, name: str, **fields: Any) -> None:
        try:
            admin.merge(f"{path}/{name}", fields)
        except ApiError as error:
            if error.status != 404:
                raise
            admin.create(path, {"apiVersion": "metrics.k8s.io/v1beta1",
                                "kind": "NodeMetrics" if path.endswith("nodes") else "PodMetrics",
                                "metadata": {"name": name}, **fields})

    for number in range(2):
        add_pod(admin, namespace, f"web-{number}")
        measure(POD_METRICS.path(namespace), f"web-{number}", containers=[
            {"name": "main", "usage": {"cpu": "1500m", "memory": "1Gi"}}])
    for node in ("one", "two"):
        measure(NODE_METRICS.path(), node, usage={"cpu": "400m", "memory": "1Gi"})
    points = {point: {"disabled": [{"name": "*"}], "enabled": [{"name": "DefaultEvictor"}]}
              for point in ("evict", "filter")}
    config = tmp_path / "descheduler.yaml"
    config.write_text(yaml.safe_dump({
        "apiVersion": "descheduler/v1alpha2", "kind": "DeschedulerConfiguration", "deschedulingInterval": "1s",
        "profiles": [{"name": "measured",
                      "plugins": {"balance": {"enabled": [{"name": "LowNodeUtilization"}]}, **points},
                      "pluginConfig": [{"name": "LowNodeUtilization", "args": {
                          "thresholds": {"cpu": 30}, "targetThresholds": {"cpu": 50},
                          "metricsUtilization": {"source": "KubernetesMetrics"}}}]}]}))
    with DeschedulerProcess(kubeconfig, tmp_path, "--config", str(config)) as process:
        process.until_ready()
        status = process.until_cycle(2)
        assert (status["lastCycle"]["evicted"], status["lastCycle"]["failures"]) == ([], [])
        measure(NODE_METRICS.path(), "one", usage={"cpu": "3400m", "memory": "3Gi"})
        until(lambda: is_gone(admin, namespace, "web-0") or is_gone(admin, namespace, "web-1"), 60)
        assert process.stop() == 0
    # One of them relieves the node: 3400m - 1500m are less than half of its 4 cores.
    assert [is_gone(admin, namespace, f"web-{number}") for number in range(2)].count(True) == 1
