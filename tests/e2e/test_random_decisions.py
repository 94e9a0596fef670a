"""Decisions of an unchanged kube-scheduler about random pods, compared with ours as the recorded ones are.

Every decision is about the same cluster, whatever kube-scheduler draws among equal nodes: it starts when all nodes and
running pods exist, and a decided pod is deleted before the next one is created. It sees all changes of pods in order.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.golden.kube_scheduler_runs import run
from tests.waiting import until

from .control_plane import AdminClient, Component, ControlPlane

SEED: Final = 20
NODES, RUNNING, PENDING = 12, 40, 60
CONFIGURATION: Final = {
    "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "parallelism": 1,
    "percentageOfNodesToScore": 100, "podInitialBackoffSeconds": 600, "podMaxBackoffSeconds": 600,
    "profiles": [{"schedulerName": "default-scheduler"}],
}
ZONE, HOSTNAME = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
PODS: Final = "/api/v1/namespaces/default/pods"
_SCORE: Final = re.compile(
    r'"Plugin scored node for pod" pod="default/([^"]+)" plugin="([^"]+)" node="([^"]+)" score=(\d+)')
_TOTAL: Final = re.compile(r'"Calculated node\'s final score for pod" pod="default/([^"]+)" node="([^"]+)" score=(\d+)')

Json = dict[str, Any]


class RandomCluster:
    """Nodes and pods that the same seed makes again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def nodes(self) -> Iterator[Json]:
        for number in range(NODES):
            name = f"n{number}"
            labels = {HOSTNAME: name, "disk": self._any("ssd", "hdd"), "gen": self._any("1", "3", "5")}
            if number:  # the first one is in no zone
                labels[ZONE] = f"z{number % 3}"
            taints = [{"key": "dedicated", "value": self._any("a", "b"), "effect": self._any(
                "NoSchedule", "PreferNoSchedule", "NoExecute")}] if self._chance(0.4) else []
            yield {
                "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints, "unschedulable": number == 1},
                "status": {"allocatable": {"cpu": self._any("2", "4", "6"), "memory": self._any("4Gi", "8Gi"),
                                           "pods": self._any("6", "20")}},
            }

    def running_pods(self) -> Iterator[Json]:
        for number in range(RUNNING):
            pod = self._pod(f"run-{number}")
            pod["spec"] |= {"nodeName": f"n{self._random.randrange(NODES)}"}
            yield pod

    def pending_pods(self) -> Iterator[Json]:
        for number in range(PENDING):
            yield self._pod(f"in-{number}")

    def _pod(self, name: str) -> Json:
        spec: Json = {"containers": [self._container(f"c{number}") for number in range(self._any(1, 1, 2))]}
        if self._chance(0.25):
            spec["initContainers"] = [self._container("init") | self._any({}, {"restartPolicy": "Always"})]
        if self._chance(0.5):
            spec["affinity"] = self._affinity()
        if self._chance(0.4):
            spec["tolerations"] = [{"key": "dedicated"} | self._any(
                {"operator": "Exists"}, {"value": "a"}, {"value": "b", "effect": "NoSchedule"})]
        if self._chance(0.5):
            by_key = {each["topologyKey"]: each for each in (self._spread() for _ in range(2))}
            spec["topologySpreadConstraints"] = list(by_key.values())
        labels = {"app": self._any("web", "db", "job"), "track": self._any("stable", "canary")}
        return {"metadata": {"name": name, "labels": labels}, "spec": spec}

    def _container(self, name: str) -> Json:
        requests = {"cpu": self._any("50m", "250m", "1"), "memory": self._any("64Mi", "500M", "1Gi")}
        kept = {resource: amount for resource, amount in requests.items() if self._chance(0.8)}
        port = self._any(8080, 8081)
        ports = [{"containerPort": port, "hostPort": port}] if name != "init" and self._chance(0.1) else []
        return {"name": name, "image": "example/main", "resources": {"requests": kept}, "ports": ports}

    def _affinity(self) -> Json:
        matches = {"matchExpressions": [{"key": "gen", "operator": self._any("Gt", "Lt"), "values": ["3"]}]}
        required = self._any(matches, {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]})
        found: Json = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": self._random.randint(1, 100), "preference": matches}]}}
        if self._chance(0.3):
            found["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [required]}
        kind = self._any("podAffinity", "podAntiAffinity")
        found[kind] = {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": self._random.randint(1, 100), "podAffinityTerm": self._term()}]}
        if self._chance(0.2):
            found[kind]["requiredDuringSchedulingIgnoredDuringExecution"] = [self._term()]
        return found

    def _term(self) -> Json:
        return {"topologyKey": self._any(ZONE, HOSTNAME, "disk"), "labelSelector": self._selector(),
                **self._any({}, {"namespaceSelector": {}}, {"mismatchLabelKeys": ["track"]})}

    def _spread(self) -> Json:
        action = self._any("DoNotSchedule", "ScheduleAnyway")
        return {
            "topologyKey": self._any(ZONE, HOSTNAME, "disk"), "maxSkew": self._random.randint(1, 3),
            "whenUnsatisfiable": action, "labelSelector": self._selector(),
            **({"minDomains": self._random.randint(1, 4)} if action == "DoNotSchedule" and self._chance(0.4) else {}),
            **({"nodeTaintsPolicy": "Honor"} if self._chance(0.3) else {}),
            **({"nodeAffinityPolicy": "Ignore"} if self._chance(0.3) else {}),
            **({"matchLabelKeys": ["track"]} if self._chance(0.2) else {}),
        }

    def _selector(self) -> Json:
        app = self._any("web", "db")
        return self._any({"matchLabels": {"app": app}},
                         {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [app]}]})

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _any(self, *choices: Any) -> Any:
        return self._random.choice(choices)


def test_random_pods_are_decided_as_by_kube_scheduler(own_control_plane: ControlPlane, tmp_path: Path) -> None:
    admin = own_control_plane.admin
    if admin.get("/version")["minor"].rstrip("+") != "36":
        pytest.skip("messages and scores are those of Kubernetes 1.36")
    made = RandomCluster(SEED)
    for node in made.nodes():
        _create_node(admin, node)
    for pod in made.running_pods():
        _create_running(admin, pod)
    objects = [{"kind": kind, **each} for kind in ("Namespace", "Node", "Pod")
               for each in admin.get(f"/api/v1/{kind.lower()}s")["items"]]
    configuration = tmp_path / "scheduler.json"
    configuration.write_text(json.dumps(CONFIGURATION | {
        "clientConnection": {"kubeconfig": str(own_control_plane.kubeconfig("system:kube-scheduler"))}}))
    # Batching would take over scores of the pod before.
    scheduler = own_control_plane.start_kube_scheduler(
        f"--config={configuration}", "-v=10", "--feature-gates=OpportunisticBatching=false")

    cases = []
    for pod in made.pending_pods():
        cases.append(_decided(admin, scheduler, pod))
        admin.delete(f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0")
    recorded = tmp_path / "runs.json"
    recorded.write_text(json.dumps({"cases": cases, "clusters": [
        {"id": "random", "config": CONFIGURATION, "objects": objects, "later": {}}]}))
    results = list(run(recorded))

    outcomes = {case["expect"]["outcome"] for case in cases}
    assert (len(results), outcomes) == (PENDING, {"bound", "Unschedulable"})
    assert {result.id: result.detail for result in results if not result.passed} == {}


def _create_node(admin: AdminClient, node: Json) -> None:
    admin.create("/api/v1/nodes", {"metadata": node["metadata"]})
    path = f"/api/v1/nodes/{node['metadata']['name']}"
    admin.merge(path, {"spec": node["spec"]})  # instead of the taint of TaintNodesByCondition
    admin.merge(f"{path}/status", {"status": node["status"] | {
        "capacity": node["status"]["allocatable"], "conditions": [{"type": "Ready", "status": "True"}]}})


def _create_running(admin: AdminClient, pod: Json) -> None:
    admin.create(PODS, pod)
    admin.merge(f"{PODS}/{pod['metadata']['name']}/status", {"status": {"phase": "Running"}})


def _decided(admin: AdminClient, scheduler: Component, pod: Json) -> Json:
    """Create a pod and return its decision as a case of the recorded runs; the log has all of it by then."""
    name = pod["metadata"]["name"]
    created = admin.create(PODS, pod)
    outcome: Json = {}

    def is_decided() -> bool:
        scheduler.check()
        outcome.update(admin.get(f"{PODS}/{name}"))
        return bool(outcome["spec"].get("nodeName") or _condition(outcome))

    until(is_decided)
    node, log = outcome["spec"].get("nodeName"), scheduler.log.read_text()
    scores: Json = {}
    for _, plugin, scored, score in (found for found in _SCORE.findall(log) if found[0] == name):
        scores.setdefault(plugin, {})[scored] = int(score)
    totals = {scored: int(score) for found, scored, score in _TOTAL.findall(log) if found == name}
    condition = {} if node else _condition(outcome)
    expect = {
        "outcome": "bound" if node else condition["reason"], "feasible": sorted(totals) or ([node] if node else []),
        "scores": scores, "totals": totals, "message": condition.get("message"), "nominated": None, "victims": [],
    }
    now = created["metadata"]["creationTimestamp"]
    return {"id": name, "cluster": "random", "now": now, "pod": created, "expect": expect}


def _condition(pod: Json) -> Json:
    conditions = pod["status"].get("conditions") or ()
    return next((each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False"), {})
