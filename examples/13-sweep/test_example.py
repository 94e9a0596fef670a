from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent
COMMANDS = re.findall(r"^koord-policy (sweep .*)$", (HERE / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


def figures(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    monkeypatch.chdir(HERE.parents[1])
    assert cli.main([*shlex.split(command), "--processes", "1", "--output", "json"], builtins) == 0
    return [each | each["figures"] for each in json.loads(capsys.readouterr().out)["experiments"]]


def test_a_higher_watermark_leaves_fewer_pods_on_nodes_that_would_refuse_them(capsys, monkeypatch):
    steps = figures(COMMANDS[0], capsys, monkeypatch)
    assert {each["params.cpuPercent"]: each["misfits"] for each in steps} == {
        55: 23, 60: 23, 65: 23, 70: 23, 75: 9, 80: 9, 85: 3, 90: 0}
    assert len({(each["pending"], each["hot"], each["cpu_usage_spread"]) for each in steps}) == 1


def test_policies_that_look_at_what_is_left_make_more_of_the_gpus_than_chance_does(capsys, monkeypatch):
    runs = figures(COMMANDS[1], capsys, monkeypatch)
    assert len(runs) == 9
    least = {
        policy: min(each["gpu_alloc_pct"] for each in runs if each["policy"] == policy) for policy in ("DotProd", "FGD")
    }
    most = max(each["gpu_alloc_pct"] for each in runs if each["policy"] == "Random")
    assert all(each > most for each in least.values())
