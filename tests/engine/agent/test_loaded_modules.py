"""The modules that the process of an agent does without, as they would take memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bench.agent_process import ALL_GATES, running

HEAVY = ("celpy", "jsonschema", "kubernetes", "numpy", "prometheus_client", "rich")


@pytest.mark.parametrize("options", [
    ("--enable", "*", "--feature-gates", ALL_GATES),
    ("--policies", "{root}/policies"),
], ids=["strategies", "documents"])
def test_an_agent_loads_nothing_that_schedules(tmp_path: Path, options: tuple[str, ...]):
    # A copy: an agent follows its policies, and jsonschema explains the faults of one that is being rewritten.
    shutil.copytree("policies/qos", tmp_path / "policies")
    options = tuple(each.format(root=tmp_path) for each in options)
    loaded = tmp_path / "loaded"
    program = (
        "import atexit, sys, pathlib\n"
        f"atexit.register(lambda: pathlib.Path({str(loaded)!r}).write_text(' '.join(sys.modules)))")
    with running(tmp_path, "--for", "3s", *options, pods=3, program=program) as agent:
        assert agent.process.wait(120) == 0, agent.log.read_text()
    modules = loaded.read_text().split()
    assert [name for name in (*HEAVY, "koordpolicy.engine.cluster.snapshot") if name in modules] == [], (
        tmp_path / "agent.log").read_text()
    assert "koordpolicy.engine.agent.daemon" in modules
