from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent
POLICIES = HERE.parents[1] / "policies" / "qos" / "suppress-best-effort.yaml"


def test_best_effort_pods_lose_cpus_under_load_and_get_them_back_step_by_step(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["qos", "--replay", str(HERE / "metrics.yaml"), "--policies", str(POLICIES)], builtins) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = [line.split("besteffort/cpuset.cpus=")[1].split(" ")[0] for line in lines if "cpuset.cpus=" in line]
    assert counts == [
        "0-4,8-11", "0-3,8-11", "0-3,8-10", "0-3,8-9", "0-2,8-9", "0-1,8-9", "0-1,8", "0-1",
        "0-1,8", "0-1,8-9", "0-2,8-9", "0-3,8-9", "0-3,8-10", "0-3,8-11", "0-4,8-11",
    ]
    assert lines[-1] == "15 actions and 14 errors in 91 rounds"


def test_while_nobody_measures_nothing_is_done(capsys: pytest.CaptureFixture[str]):
    arguments = ["qos", "--replay", str(HERE / "metrics.yaml"), "--policies", str(POLICIES), "--output", "json"]
    assert cli.main(arguments, builtins) == 0
    text = capsys.readouterr().out
    assert json.loads(text)
    assert text.count("NoMetric") == 14
