from __future__ import annotations

import math

import pytest

from koordpolicy.engine.monitoring.exposition import MOST_SERIES, Exposition, increase, quantile, read_exposition

TEXT = r"""# HELP a_total Something
# TYPE a_total counter
a_total{plugin="x",rule="a \"b\", c=\"d\"\\n"} 3
a_total{rule="",plugin="y"} 4.5 1700000000
b 7
other{plugin="x"} 1
b_bucket{le="+Inf"} 2
c NaN
c{broken 1
"""


def test_only_the_series_of_chosen_names_are_read_and_labels_are_sorted():
    found = read_exposition(TEXT, {"a_total", "b", "c"})
    assert found == Exposition({
        "a_total": {(("plugin", "x"), ("rule", 'a "b", c="d"\\n')): 3.0, (("plugin", "y"), ("rule", "")): 4.5},
        "b": {(): 7.0},
    }, left_out=1)
    assert (found.total("a_total"), found.total("a_total", plugin="y"), found.total("d")) == (7.5, 4.5, None)


def test_hostile_texts_are_bounded():
    many = "\n".join(f'a{{n="{number}"}} 1' for number in range(MOST_SERIES + 7))
    found = read_exposition(f'a{{n="{"x" * 10_000}"}} 1\n{many}', {"a"})
    assert (len(found.of("a")), found.left_out) == (MOST_SERIES, 8)


@pytest.mark.parametrize("labels", ["n", 'n="1"m="2"', 'n="1",,', '7="1"', 'n="1" ', "n=1", 'n="1', 'n="1}', "x" * 999])
def test_a_line_with_malformed_labels_is_left_out_as_a_whole(labels: str):
    assert read_exposition(f'a{{{labels}}} 1\na{{n="}} {{",}} 2', {"a"}) == Exposition(
        {"a": {(("n", "} {"),): 2.0}}, left_out=1)


@pytest.mark.parametrize(("amounts", "grown"), [
    ([], 0), ([5], 0), ([5, 7, 7], 2), ([5, 7, 1, 2], 4), ([3, 0], 0),
])
def test_a_counter_begins_at_zero_after_a_restart(amounts: list[float], grown: float):
    assert increase(amounts) == grown


@pytest.mark.parametrize(("buckets", "found"), [
    ({}, None), ({1.0: 0, math.inf: 0}, None), ({1.0: 100, math.inf: 100}, 0.99),
    ({1.0: 50, 2.0: 100, math.inf: 100}, 1.98),
    ({1.0: 0, math.inf: 10}, 1.0),
])
def test_a_quantile_is_interpolated_as_prometheus_does(buckets: dict[float, float], found: float | None):
    assert quantile(buckets, 0.99) == pytest.approx(found)
