from __future__ import annotations

from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent


def limits(policy: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    arguments = ["qos", "--replay", str(HERE / "metrics.jsonl"), "--policies", str(policy)]
    assert cli.main(arguments, builtins) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "9 actions and 0 errors in 13 rounds"
    return [int(line.rpartition("=")[2]) for line in lines if "cfs_quota_us=" in line]


def test_best_effort_pods_give_way_to_the_busy_pod_and_get_back_what_it_leaves(capsys: pytest.CaptureFixture[str]):
    found = limits(HERE / "policy.yaml", capsys)
    assert found == [130000, 123900, 114400, 106700, 101700, 104400, 115600, 125500, 130000]


def test_the_edited_policy_leaves_half_a_cpu_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    edited = tmp_path / "policy.yaml"
    edited.write_text((HERE / "policy.yaml").read_text().replace("percent: 65", "percent: 90"))
    before = limits(HERE / "policy.yaml", capsys)
    assert limits(edited, capsys) == [each + 50000 for each in before]
