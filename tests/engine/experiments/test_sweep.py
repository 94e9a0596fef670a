from __future__ import annotations

import pytest

from koordpolicy.engine.experiments.axes import Axis, points
from koordpolicy.engine.experiments.journal import ExperimentOutcome, Journal
from koordpolicy.engine.experiments.runners import Here, Lost, NotRun
from koordpolicy.engine.experiments.sweep import sweep

AXES = (Axis("policy", ("a", "b")), Axis("seed", (1, 2)))
POINTS = list(points(AXES))


class Space:
    axes = AXES

    def __init__(self, text="x"):
        self.text = text

    def task(self, point):
        return [point, self.text]

    def inputs(self, point):
        return self.text


class Counting:
    def __init__(self, fails=None):
        self.ran, self.fails = [], fails

    def __call__(self, task):
        point = task[0]
        if point == self.fails:
            raise NotRun("its params are invalid")
        self.ran.append((point["policy"], point["seed"]))
        return ExperimentOutcome({"seed": point["seed"]})


def test_experiments_come_back_in_the_order_of_their_points_whatever_the_order_of_the_work(tmp_path):
    class Backwards(Here):
        def run(self, function, tasks):
            yield from super().run(function, list(tasks)[::-1])

    done = []
    found = sweep(POINTS, Space(), Counting(), runner=Backwards(), version="1", progress=done.append)
    assert [(each.point, each.outcome.figures) for each in found.finished] == [
        (point, {"seed": point["seed"]}) for point in POINTS
    ]
    assert (found.failed, found.finished_before, done) == ((), 0, [0, 1, 2, 3, 4])


def test_what_is_finished_is_not_run_again_and_what_is_new_is(tmp_path):
    path = tmp_path / "runs.jsonl"
    with Journal(path) as journal:
        sweep(POINTS[:3], Space(), Counting(), runner=Here(), version="1", journal=journal)
    again = Counting()
    with Journal(path) as journal:
        found = sweep(POINTS, Space(), again, runner=Here(), version="1", journal=journal)
    assert (again.ran, found.finished_before, len(found.finished)) == ([("b", 2)], 3, 4)


@pytest.mark.parametrize(("text", "version"), [("y", "1"), ("x", "2")])
def test_other_inputs_or_another_version_are_other_experiments(tmp_path, text, version):
    with Journal(tmp_path / "runs.jsonl") as journal:
        sweep(POINTS, Space(), Counting(), runner=Here(), version="1", journal=journal)
        again = Counting()
        sweep(POINTS, Space(text), again, runner=Here(), version=version, journal=journal)
    assert len(again.ran) == 4


def test_one_that_cannot_be_run_is_told_and_is_tried_again_the_next_time(tmp_path):
    with Journal(tmp_path / "runs.jsonl") as journal:
        found = sweep(POINTS, Space(), Counting(POINTS[1]), runner=Here(), version="1", journal=journal)
        assert found.failed == ((POINTS[1], "its params are invalid"),)
        assert [each.point for each in found.finished] == [POINTS[0], POINTS[2], POINTS[3]]
        again = Counting()
        sweep(POINTS, Space(), again, runner=Here(), version="1", journal=journal)
        assert again.ran == [("a", 2)]


def test_what_was_finished_before_the_workers_were_lost_stays_finished(tmp_path):
    class Dying(Here):
        def run(self, function, tasks):
            for number, each in enumerate(super().run(function, tasks)):
                if number == 2:
                    raise Lost("gone")
                yield each

    with Journal(tmp_path / "runs.jsonl") as journal:
        with pytest.raises(Lost):
            sweep(POINTS, Space(), Counting(), runner=Dying(), version="1", journal=journal)
        again = Counting()
        sweep(POINTS, Space(), again, runner=Here(), version="1", journal=journal)
        assert len(again.ran) == 2
