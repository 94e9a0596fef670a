"""One dump with odd objects, given to all commands that read a cluster: they say the same of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

POLICY: Final = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: a, annotations: {policy.koordinator.sh/description: About.}}
spec:
  params: {p: 1}
  match: {pods: {namespaceSelector: {matchExpressions: [{key: x, operator: NotIn, values: [y]}]}}}
  filter: [{name: r, expression: "nodeInfo.pods < 5 + params.p"}]
  score: [{name: s, expression: "nodeInfo.pods > 0 ? 0 : 100"}]
"""
LINES: Final = {
    "scheduler": "--dry-run --cluster dump.json --policies policy.yaml",
    "explain": "shop/waits --cluster dump.json --policies policy.yaml",
    "diff": "policy.yaml policy.yaml --cluster dump.json",
    "audit": "policy.yaml --cluster dump.json",
    "eval": "1+1 --cluster dump.json --node n0",
    "descheduler": "--once --dry-run --cluster dump.json --policies policy.yaml",
    "sweep": "params.p=1,2 --cluster dump.json --policies policy.yaml",
}
LEFT_OUT: Final = (
    "warning: more than once and with unlike contents the dump has Node `n1`: the last one of each counts\n"
    "warning: Node `bad`: `status.allocatable.cpu`: `much` is not a quantity: write a number and a suffix, like `500m`"
    " or `1.5Gi`\n"
    "  = this object is left out\n"
    "warning: Pod `shop/odd`: `spec.containers[0].resources.requests.cpu` must be a quantity, not a list\n"
    "  = this object is left out\n"
    "warning: Pod: `metadata.name` is missing\n"
    "  = this object is left out\n"
)
LACKING: Final = (
    "warning: the source of the cluster does not contain Namespace (read by `a`): add them to it, or do not rely on"
    " what these plugins say\n"
)
READING_NO_POLICY: Final = ("eval", "descheduler")
"""Commands in which the scheduling policy is not evaluated."""


def _node(name: str, cpu: object = "4", **metadata: object) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": "8Gi", "pods": "10"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **metadata},
            "status": {"allocatable": amounts, "capacity": amounts}}


def _pod(name: str | None, cpu: object = "1", **spec: object) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "namespace": "shop", **({} if name is None else {"name": name, "uid": name})},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}], **spec}}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Enter a directory with the dump and the policy."""
    items = [_node("n0"), _node("n1"), _node("bad", "much"), _pod("waits"), _pod("runs", nodeName="n0"),
             _pod("gone", nodeName="nowhere"), _pod("odd", []), _pod(None), _node("n1", labels={"a": "b"})]
    (tmp_path / "dump.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    (tmp_path / "policy.yaml").write_text(POLICY)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("name", LINES)
def test_every_command_leaves_out_the_same_objects_and_misses_the_same_kinds(
    name: str, capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main([name, *LINES[name].split(), "-o", "json"], builtins) == 0
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines(keepends=True) if "plugin" not in line or line == LACKING]
    assert "".join(lines) == LEFT_OUT + ("" if name in READING_NO_POLICY else LACKING)


@pytest.mark.usefixtures("place")
def test_commands_that_decide_about_a_pod_agree_on_its_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["scheduler", *LINES["scheduler"].split(), "-o", "json"], builtins) == 0
    decided = json.loads(capsys.readouterr().out)["decisions"]
    assert cli.main(["explain", *LINES["explain"].split()], builtins) == 0
    explained = capsys.readouterr().out.splitlines()[1]
    assert cli.main(["diff", *LINES["diff"].split(), "-o", "json"], builtins) == 0
    moved = json.loads(capsys.readouterr().out)
    assert [(each["pod"], each["node"]) for each in decided] == [("shop/waits", "n1")]
    assert explained == "shop/waits would run on n1: 2 of 2 nodes pass"
    old = moved["difference"]["old"]
    assert ({name: old[name] for name in ("nodes", "running", "placed", "pending")}, moved["difference"]["moved"]) == (
        {"nodes": 2, "running": 1, "placed": 1, "pending": 0}, [])
