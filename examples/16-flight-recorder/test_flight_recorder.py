from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli

HERE = Path(__file__).parent
COMMANDS = re.findall(r"```bash\n(.*?)\n```", (HERE / "README.md").read_text(), re.DOTALL)


def test_the_commands_record_and_replay(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(HERE.parent)
    record, same, other = (shlex.split(line)[1:] for line in COMMANDS)
    assert cli.main(record, builtins) == 0
    capsys.readouterr()
    assert cli.main([*same, "--output", "json"], builtins) == 0
    unchanged = json.loads(capsys.readouterr().out)
    assert unchanged["differences"] == []
    assert unchanged["counts"]["same"] == 28
    assert cli.main([*other, "--output", "json"], builtins) == 0
    changed = json.loads(capsys.readouterr().out)
    assert changed["counts"]["elsewhere"] > changed["counts"]["same"]
    assert changed["counts"]["never"] == 0
    lines = [json.loads(line) for line in (tmp_path / "decisions.jsonl").read_text().splitlines()]
    assert len(lines) == 30


def test_a_morning_is_recorded_and_replayed_under_its_first_policies(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):
    directory = tmp_path / "morning"
    monkeypatch.setattr("sys.argv", ["record_morning.py", str(directory)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HERE.parent / "record_morning.py"), run_name="__main__")
    assert ended.value.code == 0
    policies = str(HERE.parents[1] / "policies" / "scheduler")
    assert cli.main(["replay", "--recorded", str(directory), "--policies", policies, "--output", "json"], builtins) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["policies"]["recorded"]) == 2  # they change in the middle
    assert result["counts"]["never"] == 0
    assert {each["replayed"]["time"] >= "2026-11-02T09:55" for each in result["differences"]} == {True}
    assert len(result["evictions"]["recorded"]) == 7
