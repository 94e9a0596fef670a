from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.scheduler.extender.decider import Decider, Task
from koordpolicy.engine.scheduler.extender.watchdog import Watchdog, blamed, document_of
from koordpolicy.engine.scheduler.profiles.profile import Active, Profile
from koordpolicy.engine.source import Source

FILE = Source("zone.yaml", "one: 1\n---\ntwo: 2\n")


def plugin(name, span=None):
    return Plugin(name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: None, "zone.yaml:1", name, span=span)


def a_pod(name):
    return PodInfo.of({"metadata": {"namespace": "shop", "name": name}, "spec": {"containers": [{"name": "c"}]}})


def frame(**values):
    return SimpleNamespace(f_locals=values, f_lineno=7, f_code=SimpleNamespace(co_filename="x.py", co_name="ask"))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def at_work():
    """A decider at work on a task of 3 seconds, its clock, and what lets it go on."""
    clock, begun, go_on = Clock(), threading.Event(), threading.Event()
    decider = Decider(clock=clock)
    decider.assign("filter", 3.0, lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    yield decider, clock, go_on
    go_on.set()
    decider.shutdown()


def test_a_task_is_overdue_once_its_budget_is_used_up_and_is_reported_once(at_work):
    decider, clock, _ = at_work
    reported = []
    watchdog = Watchdog(decider, last=10.0, report=reported.append)
    assert watchdog.look() is None
    clock.now = 103.0
    assert watchdog.look() is None
    clock.now = 103.1
    overdue = watchdog.look()
    assert overdue.describe(clock.now) == "filter has been under way for 3.1 s, of 3 s at most"
    clock.now = 110.0
    assert (watchdog.look(), reported) == (overdue, [overdue])
    assert decider.task.deadline.passed, "what can be stopped is stopped"


def test_a_task_that_returns_is_overdue_no_more(at_work):
    decider, clock, go_on = at_work
    watchdog = Watchdog(decider, last=10.0)
    clock.now = 200.0
    assert (watchdog.look() is None, watchdog.lost is None) == (False, False)
    go_on.set()
    decider.submit(lambda: None).result(60)
    assert (watchdog.look(), watchdog.lost) == (None, None)


def test_a_process_is_lost_only_some_time_after_a_task_became_overdue(at_work):
    decider, clock, _ = at_work
    watchdog = Watchdog(decider, last=10.0)
    clock.now = 113.0
    assert watchdog.lost is None
    clock.now = 113.1
    assert watchdog.lost is watchdog.look()


def test_what_may_take_any_time_is_never_overdue():
    clock, begun, go_on = Clock(), threading.Event(), threading.Event()
    decider = Decider(clock=clock)
    decider.submit(lambda: (begun.set(), go_on.wait(60)))
    assert begun.wait(60)
    clock.now = 1e9
    assert Watchdog(decider, last=1.0).look() is None
    go_on.set()
    decider.shutdown()


def test_the_innermost_plugin_is_blamed_on_behalf_of_the_outermost_pod():
    profile = Profile("p", 7, dict.fromkeys(Point, ()), ())
    inner, outer = Active(plugin("inner"), 1, None), Active(plugin("outer"), 1, None)
    ours, other = a_pod("ours"), a_pod("other")
    task = Task("filter", 1.0, 3.0, Deadline())
    found = blamed(
        task,
        [
            frame(other=other), frame(active=inner, point=Point.SCORE), frame(active=outer, point=Point.FILTER),
            frame(pod=ours, profile=profile),
        ],
    )
    assert (found.plugin.name, found.point, found.pod, found.profile, found.shadow, found.document) == (
        "inner", Point.SCORE, ours, profile, False, "")
    assert found.describe(5.0) == (
        "filter about `shop/ours` has been under way for 4.0 s, of 3 s at most: the plugin `inner` (zone.yaml:1) at "
        "`score` does not return")
    assert found.to_json(5.0) == {
        "task": "filter", "seconds": 4.0, "budget": 3.0, "pod": "shop/ours", "plugin": "inner", "origin": "zone.yaml:1",
        "point": "score", "generation": 7, "shadow": False, "message": found.describe(5.0)}
    assert found.trace == "; ".join(["x.py:7 ask"] * 4)


def test_nobody_is_blamed_for_a_stack_without_plugins():
    found = blamed(Task("explain", 1.0, 3.0, Deadline()), [frame(), frame(row=1)])
    assert (found.plugin, found.pod, found.point, found.document) == (None, None, None, "")


def test_the_document_that_an_expression_stands_in_is_found_by_its_place():
    registry = Registry.of([plugin("one", FILE.span(0)), plugin("two", FILE.span(11)), plugin("python"),
                            plugin("other", Source("other.yaml", "x").span(0))], generation=1)
    inside = FILE.part("2", [16, 17])
    assert [found and found.name for found in (
        document_of(registry, inside), document_of(registry, FILE.part("1", [5, 6])),
        document_of(registry, Source("gone.yaml", "x")))] == ["two", "one", None]
