"""The flight recorder, the decision log and the dump on a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .control_plane import ControlPlane
from .nodes import add_node, add_pod
from .scheduler_process import SchedulerProcess, until

PACK = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: fullest}
spec:
  weight: 100
  score:
  - {name: fullest, expression: "requested.cpu * 100 / allocatable.cpu"}
"""


def command(kubeconfig: Path, *arguments: object) -> Any:
    """Run a command and return its JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "koordpolicy", *map(str, arguments), "--output", "json"], capture_output=True, text=True,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)}, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_scheduler_saw_and_decided_can_be_replayed_and_dumped(own_control_plane: ControlPlane, tmp_path: Path):
    admin = own_control_plane.admin
    kubeconfig = own_control_plane.kubeconfig()
    namespace = "/api/v1/namespaces/default/pods"
    flight, log = tmp_path / "flight", tmp_path / "decisions.jsonl"
    for name in ("a", "b"):
        add_node(admin, name, cpu="4")
    with SchedulerProcess(kubeconfig, tmp_path, "--record", str(flight), "--decision-log", str(log)) as process:
        process.until_ready()

        def node_of(name: str) -> str:
            return str(admin.get(f"{namespace}/{name}")["spec"].get("nodeName") or "")

        for number in range(4):
            add_pod(admin, "default", f"p{number}", cpu="500m")
            until(lambda number=number: node_of(f"p{number}"))
        add_pod(admin, "default", "large", cpu="40")
        until(lambda: admin.get(f"{namespace}/large")["status"].get("conditions"))
        placed = {f"default/p{number}": node_of(f"p{number}") for number in range(4)}
        admin.delete(f"{namespace}/p0?gracePeriodSeconds=0")
        assert process.stop() == 0
    assert sorted(set(placed.values())) == ["a", "b"]

    same = command(kubeconfig, "replay", "--recorded", flight)
    assert (same["counts"]["same"], same["counts"]["neither"], same["differences"]) == (4, 1, [])
    assert (same["gaps"], same["notes"], same["problems"]) == ([], [], [])
    (tmp_path / "pack.yaml").write_text(PACK)
    other = command(kubeconfig, "replay", "--recorded", flight, "--policies", tmp_path / "pack.yaml")
    first = placed["default/p0"]
    assert {each["pod"]: each["changes"] for each in other["differences"]} == {
        pod: ["elsewhere"] for pod, node in placed.items() if node != first}

    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["pod"]: line["node"] for line in lines if line["node"]} == placed
    assert next(line for line in lines if line["pod"] == "default/large")["refusals"]

    dump = tmp_path / "cluster.json"
    written = command(kubeconfig, "dump", "--cluster", "kube", "--out", dump)
    assert (written["objects"]["Node"], written["objects"]["Pod"]) == (2, 4)
    assert written["objects"]["Namespace"] >= 1
    found = command(kubeconfig, "scheduler", "--cluster", dump)
    assert [each["pod"] for each in found["decisions"]] == ["default/large"]
