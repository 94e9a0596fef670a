from __future__ import annotations

import json
import sys

import pytest

from .__main__ import main, row
from .figure import Figure


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "benchmarks"
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def write(folder, name, body):
    (folder / f"bench_{name}.py").write_text(
        f"from tests.bench.figure import Figure, Missing\ndef main():\n    {body}\n",
    )


def test_figures_are_printed_and_written(folder, capsys):
    write(folder, "two", "yield Figure('two: time', 2.5, 'ms', 1)")
    write(folder, "one", "yield Figure('one: rate', 3000, 'pods/s', 2000, more_is_better=True)")
    assert main(["--json", str(folder / "out.json")], folder, "benchmarks") == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "one: rate                                             3,000 pods/s     at least 2,000",
        "two: time                                               2.5 ms         at most 1  NOT KEPT",
    ]
    assert [figure["kept"] for figure in json.loads((folder / "out.json").read_text())["figures"]] == [True, False]
    assert main(["--strict"], folder, "benchmarks") == 1
    assert main(["--strict", "one"], folder, "benchmarks") == 0


def test_missing_data_is_said_and_a_broken_benchmark_fails_alone(folder, capsys):
    write(folder, "a", "raise Missing('set KOORD_POLICY_DATA')")
    write(folder, "b", "raise KeyError('x')")
    write(folder, "c", "return [Figure('c', 1, 's')]")
    assert main(["a"], folder, "benchmarks") == 0
    assert main([], folder, "benchmarks") == 1
    out = capsys.readouterr().out
    assert "not measured: set KOORD_POLICY_DATA" in out
    assert "KeyError: 'x'" in out
    assert out.endswith(row(Figure("c", 1, "s")) + "\n")
