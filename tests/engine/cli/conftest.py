"""A cluster of three nodes and four pods as a dump, policies over it, and a way to run commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

SPREAD = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata:
  name: keep-off-hot-nodes
  annotations: {policy.koordinator.sh/description: Pods avoid hot nodes.}
spec:
  variables:
  - {name: cpu, expression: usage.cpu * 100 / allocatable.cpu}
  filter:
  - name: below-watermark
    expression: variables.cpu < 65
    messageExpression: "'cpu at ' + string(variables.cpu) + '%'"
  score:
  - {name: coolest-first, expression: "math.greatest(0, 100 - variables.cpu)"}
"""


@dataclass(frozen=True)
class Outcome:
    """The result of a command."""

    exit: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process; usage errors are outcomes too."""

    def command(*arguments: object) -> Outcome:
        try:
            code = cli.main([str(each) for each in arguments], builtins)
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return command


def node(name: str, cpu: str = "4", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name, "labels": {"kubernetes.io/hostname": name}, "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": more,
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}},
    }


def pod(name: str, cpu: str, node_name: str = "", **more: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **more}
    if node_name:
        spec["nodeName"] = node_name
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "shop", "creationTimestamp": "2026-01-02T00:00:00Z"}, "spec": spec,
    }


def metric(name: str, cpu: str) -> dict[str, Any]:
    return {
        "apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
        "status": {"updateTime": "2026-01-02T12:00:00Z", "nodeMetric": {"nodeUsage": {"resources": {"cpu": cpu}}}},
    }


def objects() -> list[dict[str, Any]]:
    return [
        node("cool"), node("hot"), node("small", cpu="1"),
        metric("cool", "1"), metric("hot", "3"), metric("small", "100m"),
        pod("web-1", "1", "cool"), pod("web-2", "2"), pod("web-3", "3", priority=100), pod("web-4", "64"),
    ]


def write_dump(path: Path, items: list[dict[str, Any]]) -> Path:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}), encoding="utf-8")
    return path


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    return write_dump(tmp_path / "cluster.json", objects())


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    directory = tmp_path / "policies"
    directory.mkdir()
    (directory / "hot.yaml").write_text(SPREAD, encoding="utf-8")
    return directory
