from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.metric_cache.series import STATISTICS, MetricSeries, WindowStatistics, last, percentile

VALUES = st.lists(st.floats(0, 1e15), min_size=1, max_size=200)


@given(VALUES, st.integers(1, 1000))
def test_a_percentile_is_at_the_rounded_product_of_32_bit_numbers(values: list[float], thousandths: int):
    fraction = thousandths / 1000
    index = int(np.float32(len(values)) * np.float32(fraction)) - 1
    assert percentile(values, fraction) == sorted(values)[max(index, 0)]


@pytest.mark.parametrize("fraction", [0, -0.5, 1.001, 0.9999])
def test_a_fraction_that_is_no_percentile_is_refused(fraction: float):
    with pytest.raises(ValueError, match="is not a percentile"):
        percentile([1.0], fraction)


def test_without_values_there_is_neither_a_percentile_nor_a_last_one():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)
    with pytest.raises(ValueError, match="no values"):
        last([])
    assert WindowStatistics.of([], []) is None


@given(VALUES)
def test_an_aggregate_has_the_value_of_each_statistic(values: list[float]):
    found = WindowStatistics.of([1000 * number for number in range(len(values))], values)
    assert found is not None
    assert {name: getattr(found, name) for name in STATISTICS} == {name: of(values) for name, of in STATISTICS.items()}
    assert (found.count, found.span) == (len(values), 1000 * (len(values) - 1))


def test_a_late_value_takes_its_place_in_time():
    series = MetricSeries()
    for time, value in ((1, 10.0), (3, 30.0), (2, 20.0)):
        series.add(time, value)
    assert (series.between(1, 2), series.between(2, 9), series.newest(2), series.newest(0)) == (
        [10, 20], [20, 30], 2, None,
    )


def test_the_metric_cache_needs_no_numpy():
    code = """if True:
        import sys
        from koordpolicy.engine.agent.metric_cache.cache import MetricCache
        cache = MetricCache('n')
        cache.append('node', 'n', 'cpu', 1, 1)
        assert cache.at(1).measured('node', 'n', 'p90', 5) == {'cpu': 1}
        assert 'numpy' not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
