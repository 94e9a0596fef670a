"""The demo runs, and its output says what it promises."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_the_demo_shows_placements_refusals_load_and_an_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(HERE / "demo.py"))["main"]() == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "shop/web-101 would run on " in out
    assert "keep-off-hot-nodes (cpu-below-watermark)" in out
    assert "shop/ledger-201  koord-prod LS  cpu 40, memory 64Gi" in out
    assert "no metric" in out
    assert "cordoned" in out
    assert "█" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_example_cluster_is_what_its_generator_writes(tmp_path: Path) -> None:
    script = tmp_path / "generate.py"
    script.write_text((HERE / "cluster" / "generate.py").read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run([sys.executable, script], check=True)
    assert (tmp_path / "cluster.yaml").read_text() == (HERE / "cluster" / "cluster.yaml").read_text(encoding="utf-8")
