from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.scheduler.queue.scheduling_queue import SECOND, PathHint, SchedulingQueue, any_change
from koordpolicy.testing import FakeClock


def pod(name, priority=0, node="", **metadata):
    spec = {"containers": [{"name": "main"}], "priority": priority, **({"nodeName": node} if node else {})}
    return PodInfo.of({"kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec})


@pytest.fixture
def clock():
    return FakeClock(1000 * SECOND)


@pytest.fixture
def queue(clock):
    return SchedulingQueue(clock)


def popped(queue):
    found = queue.pop()
    return None if found is None else found.pod.name


LABELS = PathHint(frozenset({("node", "metadata", "labels", "zone")}))


def node(name="n", zone="a", image="x"):
    return {"kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}}, "status": {"images": [image]}}


def test_pods_come_by_priority_and_then_by_time(queue, clock):
    for name, priority in (("low", 1), ("high", 9), ("high-later", 9)):
        queue.add(pod(name, priority))
        clock.advance(1)
    assert [popped(queue) for _ in range(4)] == ["high", "high-later", "low", None]


def test_a_profile_may_sort_in_its_own_way_also_the_pods_that_wait_already(queue):
    queue.add(pod("b"))
    queue.add(pod("c"))
    queue.sort_by(lambda queued: queued.pod.name)
    queue.add(pod("a"))
    assert [popped(queue) for _ in range(3)] == ["a", "b", "c"]


def test_attempts_and_the_first_of_them_are_counted(queue, clock):
    queue.add(pod("p"))
    first = queue.pop()
    queue.failed(first, None)
    clock.advance(1)
    second = queue.pop()
    assert (first.attempts, second.attempts, second.first_attempt) == (1, 2, first.first_attempt)


def test_l32_an_error_backs_off_from_one_second_up_to_ten(queue, clock):
    queue.add(pod("p"))
    waits = []
    for _ in range(6):
        queue.failed(queue.pop(), None)
        waits.append((queue.next_time() - clock.now) // SECOND)
        clock.now = queue.next_time()
    assert waits == [1, 2, 4, 8, 10, 10]


def test_l32_a_pod_that_events_wake_up_at_once_is_not_tried_again_before_its_backoff_ends(queue, clock):
    queue.add(pod("p"))
    waits, tried = [], queue.pop()
    for _ in range(6):
        queue.failed(tried, [LABELS])
        failed, tried = clock.now, None
        while tried is None:
            queue.note(Event("Node", "n", node(zone="before"), node(zone=f"{clock.now}")))
            clock.advance(0.5)
            queue.add(pod("busy", 9))  # there is always another pod to try
            assert popped(queue) == "busy"
            tried = queue.pop()
        waits.append((clock.now - failed) / SECOND)
    assert waits == [1, 2, 4, 8, 10, 10]


def test_what_a_pod_was_refused_for_wakes_it_and_nothing_else_does(queue, clock):
    queue.add(pod("p"))
    queue.failed(queue.pop(), [LABELS])
    clock.advance(20)
    queue.note(Event("Node", "n", node(), node(image="y")))
    queue.note(Event("NodeMetric", "n", None, {}))
    queue.note(Event("Pod", "default/q", None, {}, None, pod("q", node="n")))
    assert (popped(queue), queue.counts()) == (None, {"active": 0, "backoff": 0, "unschedulable": 1, "gated": 0})
    queue.note(Event("Node", "n", node(), node(zone="b")))
    assert popped(queue) == "p"


@pytest.mark.parametrize(("path", "event", "helps"), [
    (("usage", "cpu"), Event("NodeMetric", "n", {}, {"status": {}}), True),
    (("usage", "cpu"), Event("Node", "n", node(), node(zone="b")), False),
    (("requested", "cpu"), Event("Pod", "default/q", {}, None, pod("q", node="n"), None), True),
    (("requested", "cpu"), Event("Pod", "default/q", {}, {}, pod("q"), pod("q")), False),
    (("allocatable", "cpu"), Event("Node", "n", node(), node(image="y")), True),
    (("allocatable", "cpu"), Event("Node", "n", node(), node(zone="b")), False),
    (("nodeInfo", "zone"), Event("Node", "n", node(), node(zone="b")), True),
    (("nodeInfo", "pods"), Event("Pod", "default/q", None, {}, None, pod("q", node="n")), True),
    (("devices",), Event("Device", "n", None, {}), True),
    (("node", "spec"), Event("Node", "new", None, node("new")), True),
    (("params", "x"), Event("Node", "n", node(), node(zone="b")), False),
])
def test_events_are_held_against_the_paths_that_were_read(path, event, helps):
    assert PathHint(frozenset({path}))(event, pod("p")) is helps


def test_another_version_of_the_pod_itself_wakes_it(queue, clock):
    queue.add(pod("p"))
    queue.failed(queue.pop(), [LABELS])
    clock.advance(20)
    queue.note(Event("Pod", "default/p", {"v": 1}, {"v": 1}, pod("p"), pod("p")))
    assert popped(queue) is None
    queue.update(pod("p", labels={"zone": "a"}))
    queue.note(Event("Pod", "default/p", {"v": 1}, {"v": 2}, pod("p"), pod("p")))
    assert queue.pop().pod.object["metadata"]["labels"] == {"zone": "a"}


def test_a_wake_within_the_backoff_waits_for_its_end(queue, clock):
    queue.add(pod("p"))
    queue.failed(queue.pop(), [any_change])
    queue.note(Event("NodeMetric", "n", None, {}))
    assert (popped(queue), queue.counts()["backoff"]) == (None, 1)
    clock.advance(1)
    assert popped(queue) == "p"


def test_what_happens_while_a_pod_is_decided_about_is_not_missed(queue, clock):
    queue.add(pod("p"))
    taken = queue.pop()
    queue.note(Event("Node", "n", node(), node(zone="b")))
    queue.failed(taken, [LABELS])
    clock.advance(1)
    assert popped(queue) == "p"


def test_nobody_waits_for_longer_than_five_minutes(queue, clock):
    queue.add(pod("p"))
    queue.failed(queue.pop(), [LABELS])
    clock.advance(299)
    assert popped(queue) is None
    clock.advance(1)
    assert popped(queue) == "p"


def test_what_depends_on_the_time_is_tried_again_after_ten_seconds(queue, clock):
    queue.add(pod("p"))
    queue.failed(queue.pop(), [PathHint(frozenset({("now",)}))])
    clock.advance(10)
    assert popped(queue) == "p"


def test_gated_pods_wait_outside_until_an_event_may_help_them(queue):
    queue.gate(pod("p"), [LABELS])
    assert (queue.note(Event("Node", "n", node(), node(image="y"))), popped(queue)) == ((), None)
    helped = queue.note(Event("Node", "n", node(), node(zone="b")))
    assert ([each.name for each in helped], queue.counts()["gated"]) == (["p"], 1)


def test_plugins_may_activate_pods_wherever_they_wait(queue):
    queue.gate(pod("gated"), [LABELS])
    queue.add(pod("refused"))
    queue.failed(queue.pop(), [LABELS])
    queue.activate(["default/gated", "default/refused", "default/unknown"])
    assert (popped(queue), popped(queue)) == ("refused", None)
    assert (
        [each.name for each in queue.reconsidered()], queue.reconsidered(), queue.counts()["gated"],
    ) == (["gated"], (), 1)


def test_a_hint_that_many_pods_share_is_asked_once_per_event(queue):
    asked = []

    class Counting(PathHint):
        def __call__(self, event, pod):
            asked.append(pod.name)
            return super().__call__(event, pod)

    hint = Counting(frozenset({("node", "spec")}))
    for number in range(50):
        queue.gate(pod(f"p{number}"), [hint])
    assert queue.note(Event("NodeMetric", "n", None, {})) == ()
    assert len(asked) == 1


def test_a_pod_may_be_taken_out_of_turn(queue):
    queue.add(pod("a", 9))
    queue.add(pod("b", 1))
    assert (queue.pop("default/b").pod.name, popped(queue), popped(queue)) == ("b", "a", None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "pop", "fail", "wake", "gate", "remove", "time"]), st.integers(0, 3)),
        max_size=40,
    ),
)
def test_no_pod_is_lost_or_doubled_whatever_happens(steps):
    clock = FakeClock(1000 * SECOND)
    queue = SchedulingQueue(clock)
    inside, taken = set(), {}
    for what, number in steps:
        name = f"default/p{number}"
        if what == "add" and name not in taken:
            queue.add(pod(f"p{number}"))
            inside.add(name)
        elif what == "pop":
            found = queue.pop()
            if found is not None:
                inside.remove(found.pod.key)
                taken[found.pod.key] = found
        elif what == "fail" and name in taken:
            queue.failed(taken.pop(name), [LABELS] if number % 2 else None)
            inside.add(name)
        elif what == "wake":
            queue.note(Event("Node", "n", node(), node(zone="b")))
        elif what == "gate" and name not in taken:
            queue.gate(pod(f"p{number}"), [LABELS])
            inside.add(name)
        elif what == "remove" and name not in taken:
            queue.remove(name)
            inside.discard(name)
        elif what == "time":
            clock.advance(number * 100)
        assert sorted(each.key for each in queue.pods()) == sorted(inside)
        assert len(queue) == len(inside) == sum(queue.counts().values())
