"""The modules that the process of an agent does without, as they would take memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.agent_process import ALL_GATES, running

HEAVY = ("celpy", "jsonschema", "kubernetes", "numpy", "prometheus_client", "rich")


@pytest.mark.parametrize("options", [
    ("--enable", "*", "--feature-gates", ALL_GATES),
    ("--policies", "policies/qos"),
], ids=["strategies", "documents"])
def test_an_agent_loads_nothing_that_schedules(tmp_path: Path, options: tuple[str, ...]):
    loaded = tmp_path / "loaded"
    program = (
        "import atexit, sys, pathlib\n"
        f"atexit.register(lambda: pathlib.Path({str(loaded)!r}).write_text(' '.join(sys.modules)))")
    with running(tmp_path, "--for", "3s", *options, pods=3, program=program) as agent:
        assert agent.process.wait(120) == 0, agent.log.read_text()
    modules = loaded.read_text().split()
    assert [name for name in (*HEAVY, "koordpolicy.engine.cluster.snapshot") if name in modules] == []
    assert "koordpolicy.engine.agent.daemon" in modules
