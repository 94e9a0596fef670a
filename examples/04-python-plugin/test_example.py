from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the plugin look installed: a distribution with its entry point, and the module on the path."""
    metadata = tmp_path / "spread_owners-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: spread-owners\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[koordpolicy.plugins]\nspread-owners = spread_owners\n")
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.syspath_prepend(tmp_path)


def decide(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, dict]:
    """Return the decisions about the example's pending pods by name."""
    arguments = ["scheduler", "--cluster", str(HERE / "cluster.yaml"), *options, "--output", "json"]
    assert cli.main(arguments, builtins) == 0
    return {each["pod"].removeprefix("shop/"): each for each in json.loads(capsys.readouterr().out)["decisions"]}


@pytest.mark.usefixtures("installed")
def test_the_command_finds_the_plugin_and_asks_it(capsys: pytest.CaptureFixture[str]):
    decision = decide(capsys)["web-3"]
    assert (decision["node"], {each["node"]: each["plugins"]["SpreadOwners"] for each in decision["scores"]}) == (
        "b", {"a": 0, "b": 100},
    )


@pytest.mark.usefixtures("installed")
def test_the_command_says_where_the_plugin_comes_from(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["plugins", "--framework", "scheduler", "--output", "json"], builtins) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["plugins"]}
    assert (found["SpreadOwners"]["origin"], found["SpreadOwners"]["points"]) == ("spread-owners 0.1.0", ["score"])


def test_without_it_the_first_node_by_name_is_taken(capsys: pytest.CaptureFixture[str]):
    assert decide(capsys)["web-3"]["node"] == "a"
