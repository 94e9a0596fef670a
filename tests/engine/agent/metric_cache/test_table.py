from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.agent.metric_cache.series import STATISTICS
from koordpolicy.engine.agent.metric_cache.table import SeriesTable

NAMES = "abc"
ROWS = st.lists(st.tuples(
    st.integers(1, 5), st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e12), max_size=3)), max_size=80)
"""The distance to the row before, and its values."""


Row = tuple[int, dict[str, float]]


def filled(rows, size: int = 10, exact_rows: int | None = None) -> tuple[SeriesTable, list[Row]]:
    table, model, time = SeriesTable(size, exact_rows=exact_rows), [], 0
    for distance, values in rows:
        time += distance
        table.append_all(time, values)
        model.append((time, values))
    return table, model


def samples(table: SeriesTable, name: str, end: int = 99, start: int = 0) -> tuple[list[int], list[float]]:
    times, values = table.samples(name, start, end)
    return list(times), list(values)


@given(ROWS, st.integers(0, 9))
def test_a_window_within_the_rows_has_exactly_the_values_that_were_appended(rows, reach: int):
    table, model = filled(rows)
    end = model[-1][0] if model else 0
    start = model[max(len(model) - 1 - reach, 0)][0] if model else 0
    for name in NAMES:
        expected = [values[name] for time, values in model if name in values and start <= time <= end]
        assert list(table.between(name, start, end)) == expected
        assert samples(table, name, end, start) == (
            [time for time, values in model if name in values and start <= time <= end], expected)


@given(ROWS)
def test_the_newest_value_within_the_rows_is_found(rows):
    table, model = filled(rows)
    for name in NAMES:
        # A series without a value for longer than the rows reach may be dropped, or not yet.
        recent = [time for time, values in model[-10:] if name in values]
        if recent:
            assert table.newest(name, model[-1][0]) == recent[-1]
            assert table.newest(name, recent[-1] - 1) != recent[-1]
        elif not any(name in values for _, values in model):
            assert table.newest(name, 10**9) is None


@given(ROWS)
def test_memory_does_not_depend_on_the_number_of_rows(rows):
    table, _ = filled(rows)
    bare = SeriesTable(10)
    bare.append_all(1, dict.fromkeys(table.names(), 1.0))
    assert (table.size, table.capacity) == (bare.size, 12)


@given(ROWS)
def test_averages_equal_recomputed_ones(rows):
    table, model = filled(rows)
    for name in NAMES:
        kept = [values[name] for _, values in model[-10:] if name in values]
        if kept:
            found = STATISTICS["avg"](table.between(name, model[-10:][0][0], model[-1][0]))
            assert math.isclose(found, math.fsum(kept) / len(kept), rel_tol=1e-9)


@given(ROWS)
def test_single_precision_is_off_by_less_than_one_in_ten_million(rows):
    table, model = filled(rows, exact_rows=9)
    for name in NAMES:
        exact = [values[name] for _, values in model[-10:] if name in values]
        found = list(table.between(name, model[-10:][0][0] if model else 0, 10**9))
        assert all(math.isclose(one, other, rel_tol=1e-7, abs_tol=1e-37)
                   for one, other in zip(found, exact, strict=True))


def test_a_clock_that_is_set_back_drops_what_is_later():
    table, _ = filled([(1, {"a": float(number), "b": 1.0}) for number in range(8)])
    table.append(4, "a", 40.0)
    assert (list(table.between("a", 0, 99)), list(table.between("b", 0, 99))) == ([0, 1, 2, 40], [1, 1, 1, 1])
    table.append_all(2, {"a": 20.0})
    table.append(3, "b", 30.0)
    assert (samples(table, "a"), samples(table, "b")) == (([1, 2], [0, 20]), ([1, 2, 3], [1, 1, 30]))
    table.append(0, "a", 5.0)
    assert (samples(table, "a", start=-9), samples(table, "b", start=-9)) == (([0], [5]), ([], []))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value: float):
    table = SeriesTable(3)
    with pytest.raises(ValueError, match="is not a measurement"):
        table.append(1, "a", value)
    assert samples(table, "a") == ([], [])


def test_a_series_without_values_is_dropped_once_its_last_one_is_beyond_the_rows():
    table = SeriesTable(4)
    table.append_all(0, {"gone": 1.0, "stays": 1.0})
    for time in range(1, 12):
        table.append_all(time, {"stays": 1.0})
    assert (list(table.names()), len(table), "gone" in table) == (["stays"], 1, False)


@given(ROWS, st.integers(1, 30), st.booleans())
def test_other_rows_keep_the_newest_values(rows, size: int, rounds: bool):
    table, model = filled(rows, exact_rows=10 if rounds else None)
    table.resize(size)
    for name in NAMES:
        kept = [values[name] for _, values in model[-min(size, 10):] if name in values]
        start = model[-min(size, 10):][0][0] if model else 0
        assert list(table.between(name, start, 10**9)) == (pytest.approx(kept, rel=1e-7, abs=1e-37) if rounds else kept)
    table.append(10**6, "a", 7.0)
    assert (table.newest("a", 10**9), table.rows) == (10**6, size)


def test_a_table_has_rows():
    with pytest.raises(ValueError, match="at least one row"):
        SeriesTable(0)


def test_readers_in_other_threads_see_whole_rows():
    table, ended = SeriesTable(20), threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not ended.is_set():
            times, values = samples(table, "a", end=10**9)
            latest = table.latest(0, 10**9)
            # Each value is its time, and both columns of a row are written together.
            if times != values or latest.get("a") != latest.get("b"):
                wrong.append((times, values, latest))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for time in range(1, 3000):
        table.append_all(time, {"a": float(time), "b": float(time)})
        if time % 500 == 0:
            table.resize(10 + time % 40)
    ended.set()
    for each in readers:
        each.join()
    assert wrong == []


def test_names_without_a_column_change_nothing_for_the_names_before_them():
    table, before = SeriesTable(10), ("b", "a")
    table.append_row(0, ("a", "b"), [1.0, 2.0])
    table.append_row(1, before, [2.0, 1.0])
    table.append_row(2, ("c", "a"), [math.nan, 10.0])  # c has no value, and so no column
    table.append_row(3, before, [4.0, 3.0])
    assert [table.statistic(name, "last", 3, 3) for name in before] == [4.0, 3.0]


@given(st.lists(st.tuples(
    st.sampled_from(["forget", "a", "ab", "ba", "abc", "cab", ""]), st.lists(st.one_of(st.none(), st.floats(0, 1e9)),
                                                                         min_size=3, max_size=3)), max_size=60))
def test_rows_of_values_are_like_single_values_whatever_the_order_of_their_names(steps):
    rows, singles = SeriesTable(10), SeriesTable(10)
    names_of = {text: tuple(text) for text in ("a", "ab", "ba", "abc", "cab", "")}  # the same objects each time
    for time, (names, values) in enumerate(steps):
        if names == "forget":
            rows.forget("b")
            singles.forget("b")
            continue
        present = dict(zip(names, values, strict=False))
        rows.append_row(time, names_of[names], [math.nan if each is None else each for each in present.values()])
        singles.append_all(time, {name: each for name, each in present.items() if each is not None})
    assert sorted(rows.names()) == sorted(singles.names())
    for name in NAMES:
        for reach in (3, 9):
            window = name, len(steps) - reach, len(steps)
            assert samples(rows, *window[:1], end=window[2], start=window[1]) == samples(
                singles, *window[:1], end=window[2], start=window[1])


@given(ROWS, st.sampled_from(["avg", "last", "count", "p90"]), st.integers(0, 9))
def test_what_all_subjects_are_queried_for_equals_single_queries(rows, statistic: str, reach: int):
    table, model = filled(rows)
    end = model[-1][0] if model else 0
    start = model[max(len(model) - 1 - reach, 0)][0] if model else 0
    once = {name: filled(rows)[0].statistic(name, statistic, start, end) for name in NAMES}
    often = [{name: table.statistic(name, statistic, start, end) for name in NAMES} for _ in range(4)]
    table.append(end + 1, "a", 7.0)
    assert (often, table.statistic("a", "last", start, end + 1)) == ([once] * 4, 7.0)


def test_a_row_without_a_value_for_each_name_is_refused():
    table, names = SeriesTable(3), ("a", "b")
    table.append_row(1, names, [1.0, 2.0])
    with pytest.raises(ValueError, match="one value"):
        table.append_row(2, names, [1.0])


def test_queries_of_a_table_that_gets_no_more_rows_are_forgotten():
    table = SeriesTable(3)
    table.append(1, "a", 7.0)
    found = [table.statistic("a", "avg", now, now + 5) for now in range(-5, 5_000)]
    assert found == [None] + [7.0] * 6 + [None] * 4_998
    assert len(table._queries) + len(table._results) <= 128
