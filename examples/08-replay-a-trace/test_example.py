from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent
BEST_FIT = HERE.parents[1] / "policies" / "trace" / "best-fit"


def replay(capsys: pytest.CaptureFixture[str], *options: str) -> dict:
    arguments = ["simulate", "--trace", str(HERE / "pods.csv"), "--nodes", str(HERE / "nodes.csv"), "--output", "json"]
    assert cli.main([*arguments, *options], builtins) == 0
    found = json.loads(capsys.readouterr().out)
    return {"arrivals": found["arrivals"], "failed": found["failed"], "gpu": round(found["final"]["gpu"])}


def test_best_fit_leaves_less_gpu_idle_than_a_random_choice(capsys: pytest.CaptureFixture[str]):
    assert replay(capsys, "--policies", str(BEST_FIT)) == {"arrivals": 209, "failed": 43, "gpu": 99}
    assert replay(capsys, "--enable", "RandomScore") == {"arrivals": 209, "failed": 13, "gpu": 95}


def test_the_lists_are_what_the_generator_writes():
    written = runpy.run_path(str(HERE / "generate.py"))["files"]()
    assert {name: (HERE / name).read_text() for name in written} == written
