from __future__ import annotations

import pytest

from koordpolicy.engine.experiments.journal import ExperimentOutcome
from koordpolicy.engine.experiments.sweep import Finished
from koordpolicy.engine.experiments.tables import (
    grouped,
    mean_and_deviation,
    rows_of,
    without_constant,
    write_table,
    write_whole,
)


def finished(policy, seed, gpu=1.0, curve=(0.0, 0.5, 1.0, None, 2.0)):
    return Finished(
        {"policy": policy, "seed": seed, "tune": 1.3},
        ExperimentOutcome({"failed": seed, "gpu": gpu}, {"gpu": curve}, 0.25),
    )


ROWS = rows_of([finished("a", 1), finished("b", 2, None)], step=2)


def test_a_row_holds_the_point_the_figures_and_the_curve_at_every_step():
    assert ROWS == [
        {"policy": "a", "seed": 1, "tune": 1.3, "failed": 1, "gpu": 1.0, "gpu_2": 1.0, "gpu_4": 2.0, "seconds": 0.25},
        {"policy": "b", "seed": 2, "tune": 1.3, "failed": 2, "gpu": None, "gpu_2": 1.0, "gpu_4": 2.0, "seconds": 0.25},
    ]


def test_csv_leaves_a_figure_empty_that_there_is_not(tmp_path):
    write_table(tmp_path / "t.csv", ROWS)
    assert (tmp_path / "t.csv").read_text() == (
        "policy,seed,tune,failed,gpu,gpu_2,gpu_4,seconds\na,1,1.3,1,1.0,1.0,2.0,0.25\nb,2,1.3,2,,1.0,2.0,0.25\n")


def test_parquet_keeps_types_and_makes_texts_of_mixed_columns(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_table(tmp_path / "t.parquet", [*ROWS, {"policy": 3, "seed": 1.5, "late": True}])
    table = parquet.read_table(tmp_path / "t.parquet")
    assert {name: str(table.schema.field(name).type) for name in ("policy", "seed", "gpu", "failed", "late")} == {
        "policy": "string", "seed": "double", "gpu": "double", "failed": "int64", "late": "bool"}
    assert table.column("policy").to_pylist() == ["a", "b", "3"]
    assert table.column("gpu").to_pylist() == [1.0, None, None]


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^a table ends with \.csv or \.parquet, not `\.xls`$"):
        write_table(tmp_path / "t.xls", ROWS)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "t.csv"
    write_whole(path, b"old")
    with pytest.raises(TypeError):
        write_whole(path, "no bytes")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("t.csv", b"old")]


def test_means_are_taken_over_the_axis_that_repeats():
    groups = grouped([finished("a", 1, 1.0), finished("b", 1, 5.0), finished("a", 2, 3.0)], "seed")
    assert {dict(key)["policy"]: [each.outcome.figures["gpu"] for each in group] for key, group in groups.items()} == {
        "a": [1.0, 3.0], "b": [5.0]}
    assert mean_and_deviation([1.0, None, 3.0]) == (2.0, pytest.approx(2**0.5))
    assert mean_and_deviation([5.0]) == (5.0, 0.0)
    assert mean_and_deviation([None]) is None


def test_axes_on_which_nothing_differs_are_left_out():
    assert without_constant([finished("a", 1).point, finished("b", 1).point]) == ("policy",)
    assert without_constant([{"x": True}, {"x": 1}]) == ("x",)
