from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent


def decide(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict]:
    """Return the decisions about the example's pending pods by name."""
    arguments = ["scheduler", "--cluster", str(HERE / "cluster.yaml"), *options, "--output", "json"]
    assert cli.main(arguments, builtins) == 0
    return {each["pod"].removeprefix("shop/"): each for each in json.loads(capsys.readouterr().out)["decisions"]}


def test_each_pod_goes_to_the_zone_that_has_the_fewest_by_then(capsys: pytest.CaptureFixture[str]):
    decisions = decide(capsys, "--policies", str(HERE / "policy.yaml"))
    assert {name: each["node"] for name, each in decisions.items()} == {"new-1": "c1", "new-2": "b1", "new-3": "c1"}
    assert {each["node"]: each["plugins"]["balance-zones"] for each in decisions["new-1"]["scores"]} == {
        "a1": 0, "a2": 0, "b1": 50, "c1": 100,
    }
