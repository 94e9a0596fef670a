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


def scores(decision: dict) -> dict[str, int]:
    return {each["node"]: each["plugins"]["pack-tightly"] for each in decision["scores"]}


def test_the_shared_params_say_what_counts(capsys: pytest.CaptureFixture[str]):
    decision = decide(capsys, "--policies", str(HERE / "policy.yaml"))["newcomer"]
    assert (decision["node"], scores(decision)) == ("cpu-full", {"cpu-full": 59, "memory-full": 51, "empty": 20})


def test_other_params_decide_otherwise(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text((HERE / "policy.yaml").read_text().replace("cpu: 3, memory: 1", "cpu: 0, memory: 1"))
    decision = decide(capsys, "--policies", str(policy))["newcomer"]
    assert (decision["node"], scores(decision)) == ("memory-full", {"cpu-full": 12, "memory-full": 56, "empty": 6})
