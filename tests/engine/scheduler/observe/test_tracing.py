from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.framework.points import CacheKey, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, decide
from koordpolicy.engine.scheduler.observe.tracing import PluginCall, traced
from koordpolicy.plugin import SKIP, Wait


class Timer:
    """Each look is a microsecond later."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now


def of(profile, pod, snapshot):
    found = []
    decide(traced(profile, found.append, timer=Timer()), pod, snapshot)
    return [(each.plugin, each.method, each.result) for each in found], found


def test_questions_are_told_in_their_order_with_what_they_came_to(kit):
    class Skips:
        def pre_filter(self, state, pod, snapshot):
            return SKIP

        def filter(self, state, pod, snapshot, rows):
            raise AssertionError("it was skipped")

    cluster = kit.cluster("a", "b", "c")
    plugins = [
        Plugin("Skips", Framework.SCHEDULER, (Point.PRE_FILTER, Point.FILTER), lambda args, handle: Skips(), "", "1"),
        kit.plugin("Refuses", kit.refuses("c")), kit.plugin("Gives", kit.gives(a=5, b=70)),
    ]
    scheduler = Scheduler(cluster, kit.live(*plugins))
    told, found = of(scheduler.profile_of(kit.pod()), kit.pod(), cluster.snapshot(0))
    assert told == [
        ("Skips", "pre_filter", "skipped"), ("Refuses", "filter", "2 of 3 nodes pass"),
        ("Gives", "score", "5 to 70 over 2 nodes"),
    ]
    assert found[0].to_json() == {"plugin": "Skips", "method": "pre_filter", "result": "skipped", "microseconds": 1.0}


def test_kept_answers_are_not_used_where_plugins_are_traced(kit):
    class Keeps(kit.refuses):
        def cache_key(self, point, pod, snapshot):
            return CacheKey("same", frozenset())

    cluster = kit.cluster(*(f"n{number:03}" for number in range(100)))
    scheduler = Scheduler(cluster, kit.live(kit.plugin("Keeps", Keeps())))
    profile = scheduler.profile_of(kit.pod())
    for _ in range(2):
        assert of(profile, kit.pod(), cluster.snapshot(0))[0] == [("Keeps", "filter", "100 of 100 nodes pass")]


def test_what_a_plugin_raises_is_told_and_stays_its_failure(kit):
    class Breaks:
        def filter(self, state, pod, snapshot, rows):
            raise RuntimeError("broken")

    cluster = kit.cluster("a")
    scheduler = Scheduler(cluster, kit.live(kit.plugin("Breaks", Breaks())))
    told, _ = of(scheduler.profile_of(kit.pod()), kit.pod(), cluster.snapshot(0))
    assert told == [("Breaks", "filter", "raised RuntimeError: broken")]


@pytest.mark.parametrize(("answer", "words"), [
    (None, "ok"), (Refusal("", "no"), "Unschedulable: no"), (Wait(2_500_000_000), "waits for up to 2.5 s"),
])
def test_answers_are_told_in_a_few_words(kit, answer, words):
    class Permits:
        def permit(self, state, pod, snapshot, row):
            return answer

    cluster, found = kit.cluster("a"), []
    scheduler = Scheduler(
        cluster, kit.live(Plugin("P", Framework.SCHEDULER, (Point.PERMIT,), lambda args, handle: Permits(), "", "1")),
    )
    profile = traced(scheduler.profile_of(kit.pod()), found.append, timer=Timer())
    assert profile.at[Point.PERMIT][0].instance.permit(None, None, None, 0) == answer
    assert found == [PluginCall("P", "permit", words, pytest.approx(1e-6))]


def test_a_traced_plugin_has_the_methods_of_the_plugin_and_no_others(kit):
    scheduler = Scheduler(kit.cluster("a"), kit.live(kit.plugin("F", kit.refuses())))
    plugin = traced(scheduler.profile_of(kit.pod()), lambda _: None).filters[0].instance
    assert (hasattr(plugin, "filter"), hasattr(plugin, "score"), plugin.message) == (True, False, "no")


def test_the_scheduler_writes_the_trace_to_its_log_where_that_is_switched_on(kit, caplog):
    scheduler = Scheduler(kit.cluster("a"), kit.live(kit.plugin("F", kit.refuses())))
    scheduler.debug.trace = True
    with caplog.at_level("INFO", "koordpolicy.scheduler"):
        scheduler.schedule(kit.pod("p"))
    assert [message.split(" us=")[0] for message in caplog.messages] == ["trace: pod=default/p plugin=F method=filter"]


def test_columns_of_another_shape_do_not_break_the_trace(kit):
    class Odd:
        def score(self, state, pod, snapshot, rows):
            return np.zeros(1)

    cluster = kit.cluster("a", "b")
    scheduler = Scheduler(cluster, kit.live(kit.plugin("Odd", Odd())))
    assert of(scheduler.profile_of(kit.pod()), kit.pod(), cluster.snapshot(0))[0] == [("Odd", "score", "ndarray")]
