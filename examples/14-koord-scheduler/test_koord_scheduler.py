from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent


def test_the_shipped_profile_places_what_fits_and_says_what_does_not(capsys: pytest.CaptureFixture[str]):
    arguments = [
        "scheduler", "--cluster", str(HERE / "cluster.yaml"), "--config", str(HERE / "scheduler.yaml"), "--output",
        "json",
    ]
    assert cli.main(arguments, builtins) == 0
    found = {each["pod"]: each for each in json.loads(capsys.readouterr().out)["decisions"]}
    assert {pod: each["node"] for pod, each in found.items()} == {
        "shop/web": "b", "ml/train-0": "a", "ml/train-1": "a", "ml/large-0": None, "batch/job": None,
    }
    assert {
        pod: (each["refusal"]["plugin"], each["refusal"]["point"]) for pod, each in found.items() if "refusal" in each
    } == {
        "ml/large-0": ("Coscheduling", "preEnqueue"), "batch/job": ("ElasticQuota", "preFilter"),
    }


def test_a_document_decides_beside_them(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    policy = tmp_path / "not-on-a.yaml"
    policy.write_text("""
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: not-on-a}
spec: {filter: [{name: not-a, expression: node.metadata.name != 'a'}]}
""")
    arguments = [
        "scheduler", "--cluster", str(HERE / "cluster.yaml"), "--config", str(HERE / "scheduler.yaml"), "--policies",
        str(policy), "--output", "json",
    ]
    assert cli.main(arguments, builtins) == 0
    found = {each["pod"]: each["node"] for each in json.loads(capsys.readouterr().out)["decisions"]}
    # One of the gang fits beside the reservation; it is held for the other one, which fits nowhere.
    assert (found["shop/web"], found["ml/train-1"]) == ("b", None)
