from __future__ import annotations

from koordpolicy.engine.recorded.figures import Amounts, RecordedEviction, RecordingResult, Step, TimeSpan, Use, Waits

S = 1_000_000_000
NOBODY = Waits.of([])


def result(*steps, end, evictions=()):
    return RecordingResult(Amounts(4000, 1000, 0), 2, NOBODY, NOBODY, (), evictions, 0, steps, end * S, (), (), 0, 0.0)


STEPS = (Step(10 * S, Amounts(4000, 100), 1, 0), Step(20 * S, Amounts(2000, 500), 2, 3), Step(50 * S, Amounts(), 0, 0))


def test_percentiles_are_by_nearest_rank():
    assert Waits.of([each * S for each in range(100, 0, -1)]) == Waits(100, 50.5, 50, 90, 95, 99, 100)
    assert Waits.of([S // 2, 3 * S]) == Waits(2, 1.75, 0.5, 3, 3, 3, 3)
    assert Waits(0, 0, 0, 0, 0, 0, 0) == NOBODY


def test_means_are_weighed_by_time():
    found = result(*STEPS, end=50)
    assert found.use() == Use(62.5, 40.0, 0.0)
    assert found.most() == Use(100.0, 50.0, 0.0)


def test_a_series_is_cut_anywhere_between_the_steps():
    evictions = (
        RecordedEviction(30.0, "p", "n", "x", "", "", None),
        RecordedEviction(50.0, "p", "n", "x", "", "", None),
    )
    found = result(*STEPS, end=50, evictions=evictions)
    assert found.series(4) == (
        TimeSpan(10, 20, 100.0, 10.0, 0.0, 1.0, 0.0, 0, 0), TimeSpan(20, 30, 50.0, 50.0, 0.0, 2.0, 3.0, 3, 0),
        TimeSpan(30, 40, 50.0, 50.0, 0.0, 2.0, 3.0, 3, 1), TimeSpan(40, 50, 50.0, 50.0, 0.0, 2.0, 3.0, 3, 1),
    )
    halves = found.series(2)
    assert [(each.start, each.cpu, each.pending, each.most_pending) for each in halves] == [
        (10, 75.0, 1.5, 3), (30, 50.0, 3.0, 3),
    ]


def test_after_the_last_step_everything_stays_as_it_is():
    assert result(Step(0, Amounts(4000), 1, 2), end=10).series(1) == (TimeSpan(0, 10, 100.0, 0.0, 0.0, 1.0, 2.0, 2, 0),)


def test_more_points_than_nanoseconds_are_as_many_as_there_are():
    assert len(result(Step(0, Amounts(), 0, 0), end=0).series(5)) == 0
    short = RecordingResult(Amounts(), 0, NOBODY, NOBODY, (), (), 0, (Step(0, Amounts(), 0, 0),), 3, (), (), 0, 0.0)
    assert len(short.series(10)) == 3


def test_the_figures_as_plain_data():
    found = result(*STEPS, end=50, evictions=(RecordedEviction(30.0, "p", "n", "x", "r", "why", 2.5),)).to_json(1)
    assert found == {
        "arrivals": 2, "ran": 0, "start": 10.0, "end": 50.0,
        "waits": {"pods": 0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p95": 0.0, "p99": 0.0, "most": 0.0},
        "waitsAgain": {"pods": 0, "mean": 0.0, "p50": 0.0, "p90": 0.0, "p95": 0.0, "p99": 0.0, "most": 0.0},
        "neverRan": [],
        "use": {"mean": {"cpu": 62.5, "memory": 40.0, "gpu": 0.0}, "most": {"cpu": 100.0, "memory": 50.0, "gpu": 0.0}},
        "mostPending": 3, "cycles": 0,
        "evictions": [
            {"time": 30.0, "pod": "p", "node": "n", "plugin": "x", "rule": "r", "reason": "why", "again": 2.5},
        ],
        "useless": [],
        "series": [
            {
                "start": 10.0, "end": 50.0, "cpu": 62.5, "memory": 40.0, "gpu": 0.0, "running": 1.75, "pending": 2.25,
                "mostPending": 3, "evicted": 1,
            },
        ],
        "errors": [], "deschedulerErrors": [], "decisions": 0, "seconds": 0.0,
    }
