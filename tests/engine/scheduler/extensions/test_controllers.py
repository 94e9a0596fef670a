from __future__ import annotations

import logging
from types import SimpleNamespace

from koordpolicy.engine.scheduler.extensions.controllers import ControllerRuns


class Counting:
    name = "counting"
    period = 10

    def __init__(self, fails=False):
        self.runs = []
        self._fails = fails

    def run(self, now):
        self.runs.append(now)
        if self._fails:
            raise ValueError("broken")


class Plugin:
    def __init__(self, *controllers):
        self._controllers = controllers
        self.asked = 0

    def controllers(self):
        self.asked += 1
        return self._controllers


def profile(*plugins):
    return SimpleNamespace(having=lambda capability: [SimpleNamespace(instance=each) for each in plugins])


def test_controllers_run_when_they_are_due_and_are_asked_for_once():
    counting, runs = Counting(), ControllerRuns()
    plugin = Plugin(counting)
    ran = [runs.run([profile(plugin), profile(plugin)], now) for now in (0, 5, 10, 30)]
    assert (ran, counting.runs, plugin.asked, runs.next_time()) == ([1, 0, 1, 1], [0, 10, 30], 1, 40)


def test_one_that_fails_keeps_no_other_one_from_running(caplog):
    broken, counting, runs = Counting(fails=True), Counting(), ControllerRuns()
    with caplog.at_level(logging.ERROR):
        runs.run([profile(Plugin(broken, counting))], 0)
    assert (broken.runs, counting.runs, "`counting` failed" in caplog.text) == ([0], [0], True)


def test_those_of_plugins_that_are_no_longer_in_force_do_not_run():
    counting, runs = Counting(), ControllerRuns()
    runs.run([profile(Plugin(counting))], 0)
    assert (runs.run([profile()], 50), counting.runs, runs.next_time()) == (0, [0], None)
