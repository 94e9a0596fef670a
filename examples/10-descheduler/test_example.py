from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]


def test_the_two_hot_nodes_each_lose_the_pod_that_relieves_them(capsys: pytest.CaptureFixture[str]):
    assert cli.main([
        "descheduler", "--once", "--dry-run", "--cluster", str(PROJECT / "examples" / "cluster"),
        "--config", str(HERE / "config.yaml"), "--policies", str(PROJECT / "policies" / "descheduler"), "--output",
        "json",
    ], builtins) == 0
    evicted = json.loads(capsys.readouterr().out)["evicted"]
    assert [(each["pod"], each["node"], each["plugin"]) for each in evicted] == [
        ("shop/ledger-6", "general-03", "LowNodeLoad"), ("shop/ledger-4", "general-07", "LowNodeLoad"),
    ]


def test_a_policy_of_kubernetes_runs_as_it_is(capsys: pytest.CaptureFixture[str]):
    assert cli.main([
        "descheduler", "--once", "--dry-run", "--cluster", str(PROJECT / "examples" / "cluster"),
        "--config", str(HERE / "kubernetes.yaml"), "--output", "json",
    ], builtins) == 0
    evicted = json.loads(capsys.readouterr().out)["evicted"]
    assert [(each["pod"], each["node"], each["profile"]) for each in evicted] == [
        ("shop/web-4", "memory-02", "hygiene"), ("shop/web-6", "memory-02", "hygiene"),
        ("shop/web-5", "general-07", "hygiene"), ("shop/web-12", "general-07", "hygiene"),
        ("shop/web-7", "general-12", "hygiene"), ("shop/web-9", "general-12", "hygiene"),
    ]


def test_pods_that_would_come_back_stay(capsys: pytest.CaptureFixture[str]):
    loop = HERE / "loop"
    assert cli.main([
        "descheduler", "--once", "--dry-run", "--cluster", str(loop / "cluster.yaml"),
        "--policies", str(loop / "policies.yaml"), "--output", "json",
    ], builtins) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["pod"], each["stoppedBy"], each["stoppedRule"]) for each in found["kept"]] == [
        (f"shop/web-{number}", "proof", "loop") for number in (3, 1, 2)]
    assert found["evicted"] == []
    assert found["kept"][0]["message"] in (HERE / "README.md").read_text(encoding="utf-8")
