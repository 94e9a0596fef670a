from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
POLICY = HERE / "policy.yaml"


def explain(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = cli.main(["explain", *map(str, arguments)], builtins)
    return code, capsys.readouterr().out


def test_the_readme_shows_what_is_printed(capsys: pytest.CaptureFixture[str]):
    shown = (HERE / "README.md").read_text(encoding="utf-8").split("```\n")[2]
    assert explain(capsys, "shop/web", "--cluster", HERE / "cluster.yaml", "--policies", POLICY) == (5, shown)


def test_a_change_that_is_printed_and_made_lets_the_pod_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = (HERE / "cluster.yaml").read_text(encoding="utf-8")
    changes = {"cpu: 5700m": ("cpu: 5199m", "hot"), "cpu: '3'": ("cpu: '2'", "small"),
               "  taints: [{key: gpu, value: a100, effect: NoSchedule}]\n": ("  taints: []\n", "gpu")}
    for before, (after, node) in changes.items():
        cluster = tmp_path / f"{node}.yaml"
        cluster.write_text(text.replace(before, after), encoding="utf-8")
        code, out = explain(capsys, "shop/web", "--cluster", cluster, "--policies", POLICY, "-o", "json")
        assert (code, json.loads(out)["node"]) == (0, node)


def test_a_threshold_that_is_true_and_does_not_hold_yet_says_so(capsys: pytest.CaptureFixture[str]):
    code, out = explain(
        capsys, "--qos", "worker-1", "--replay", PROJECT / "examples" / "09-qos-replay" / "metrics.yaml", "--at", "25s",
        "--policies", PROJECT / "policies" / "qos",
    )
    assert code == 0
    assert "  waits       pressed: the node uses 10920m of 16000m (true for 1s of 5s)\n" in out


def test_a_pod_that_stays_has_a_reason(capsys: pytest.CaptureFixture[str]):
    code, out = explain(capsys, "shop/web-16", "--eviction", "--cluster", PROJECT / "examples" / "cluster",
                        "--policies", PROJECT / "policies" / "descheduler")
    assert code == 5
    assert "waits       drain-hot-nodes: general-03 is a source in 1 of 5 cycles in a row\n" in out
