from __future__ import annotations

import pytest

from .paired import compared, main


def test_a_figure_is_the_median_of_its_paired_ratios_between_the_lowest_and_the_highest():
    here = [{"time": 1.0, "rate": 10.0}, {"time": 1.2, "rate": 20.0}, {"time": 3.0, "rate": 30.0, "new": 1.0}]
    other = [{"time": 1.0, "rate": 10.0}, {"time": 1.0, "rate": 10.0}, {"time": 2.0, "rate": 10.0}]
    assert compared(here, other) == ["time   1.200  [1.000, 1.500]", "rate   2.000  [1.000, 3.000]"]


def test_a_benchmark_that_does_not_exist_ends_it_with_its_name(tmp_path, capsys):
    assert main([str(tmp_path), "no-such-benchmark", "--pairs", "1"]) == 1
    assert "bench_no-such-benchmark" in capsys.readouterr().err


def test_without_a_name_it_says_what_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "NAME" in capsys.readouterr().err
