import numpy as np

from koordpolicy.engine.scheduler.result_cache import store
from koordpolicy.engine.scheduler.result_cache.columns import ResultColumn
from koordpolicy.engine.scheduler.result_cache.combined_result import CombinedResult


def test_a_column_that_groups_share_counts_once_against_the_memory_bound(monkeypatch):
    monkeypatch.setattr(store, "_FEWEST", 1)
    shared, other = ResultColumn(1_000, np.int8), ResultColumn(1_000, np.int8)
    groups = store.CombinedResults()

    def add(key, column):
        group = CombinedResult(np.zeros(10, np.int64), [], [], [])
        group.columns.append(column)
        groups.add(key, group)
        return list(groups)

    of_group = CombinedResult(np.zeros(10, np.int64), [], [], []).bytes
    monkeypatch.setattr(store, "_MOST_BYTES", shared.bytes + 3 * of_group)
    assert [add(key, shared) for key in "abcd"] == [["a"], ["a", "b"], ["a", "b", "c"], ["b", "c", "d"]]
    # With the last group that has it, the shared column goes, and its memory is free again.
    assert [add(key, other) for key in "efgh"] == [["e"], ["e", "f"], ["e", "f", "g"], ["f", "g", "h"]]


def test_the_number_of_combined_results_is_bounded_however_little_memory_they_take(monkeypatch):
    monkeypatch.setattr(store, "_MOST_RESULTS", 2)
    groups = store.CombinedResults()
    for key in "abc":
        groups.add(key, CombinedResult(np.zeros(10, np.int64), [], [], []))
        groups.find("a")
    assert list(groups) == ["c", "a"]
