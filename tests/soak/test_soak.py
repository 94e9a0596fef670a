"""The soak run in small: virtual time, so that minutes of faults take seconds and happen the same way each time."""

from __future__ import annotations

import gc

import pytest

from .attacks import run
from .course import Course


class Virtual:
    """Time that passes when somebody says so; whoever looks is stepped through it."""

    def __init__(self):
        self.time = 1_000_000.0
        self.reloader = None
        self.due = 0.0

    def now(self):
        return self.time

    def begin(self, live, reloader):
        reloader.begin(self.time)
        self.reloader, self.due = reloader, self.time

    def end(self, reloader):
        self.reloader = None

    def pass_time(self, seconds):
        end = self.time + seconds
        while self.reloader is not None and self.due <= end:
            self.time = max(self.time, self.due)
            self.due = self.reloader.step(self.time)
            assert self.due > self.time
        self.time = end


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_happens_to_the_sources_what_is_in_force_is_whole_and_newest(tmp_path, seed):
    course = Course(tmp_path, Virtual(), seed, crowd=5_001, bulk=20, bulk_bytes=200_000)
    for phase in (*course.phases(), course.bulk):
        course.run(phase)
    course.close()
    assert course.live.faults == []
    assert max(course.waits.values()) < 12


def test_old_generations_are_forgotten(tmp_path):
    course = Course(tmp_path, Virtual(), 3)
    for _ in range(40):
        course.publish_mount(10)
        course.until_active("mount")
    gc.collect()
    assert course.generations.builds > 40
    assert course.generations.alive < 15 * 10
    course.close()


def test_attacks_cost_neither_memory_nor_health():
    costs = list(run(size=8 * 1024 * 1024))
    assert [cost for cost in costs if not cost.fine] == []
    assert len(costs) > 20
