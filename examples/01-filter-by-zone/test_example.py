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


def test_a_pod_with_a_zone_runs_there_and_the_others_anywhere(capsys: pytest.CaptureFixture[str]):
    decisions = decide(capsys, "--policies", str(HERE / "policy.yaml"))
    assert {name: each["node"] for name, each in decisions.items()} == {"picky": "west", "free": "east", "lost": None}
    assert [(each["reason"], each["nodes"], each["code"]) for each in decisions["lost"]["refusals"]] == [
        ("the node is in eu-1a", ["east"], "UnschedulableAndUnresolvable"),
        ("the node is in eu-1b", ["west"], "UnschedulableAndUnresolvable"),
        ("the node is in no zone", ["nowhere"], "UnschedulableAndUnresolvable"),
    ]
