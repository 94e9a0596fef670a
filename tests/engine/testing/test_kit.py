from __future__ import annotations

import numpy as np
import pytest

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Answer, Framework, Refusal, Scores
from koordpolicy.plugin import (
    Client,
    Events,
    Evictor,
    ForgetPod,
    Nominator,
    Queue,
    Readings,
    WaitingPods,
    python_plugin,
)
from koordpolicy.testing import (
    NOW,
    SECOND,
    FakeClock,
    FakeEvictor,
    FakeFramework,
    FakeReadings,
    assert_placed,
    assert_refused,
    assert_scored,
    node,
    node_metric,
    pod,
    schedule,
)

pytest_plugins = ["koordpolicy.testing.fixtures"]


class NotOnA:
    """Refuses node `a`, and likes `c`."""

    name = "NotOnA"

    def __init__(self, args, handle):
        self.handle, self.heard = handle, []
        handle.events.on(["Node", "Pod"], lambda event: self.heard.append(event.key))
        handle.count("made")

    def filter(self, state, pod, snapshot, rows):
        return Answer(np.array([name != "a" for name in snapshot.names]), lambda _: Refusal("not-a", "not on a"))

    def score(self, state, pod, snapshot, rows):
        return Scores(np.array([100 * (name == "c") for name in snapshot.names], np.int64))

    def forget_pod(self, pod):
        pass


PLUGINS = [python_plugin("NotOnA", Framework.SCHEDULER, NotOnA, enabled=True)]


def test_a_whole_decision_and_what_is_said_of_it():
    verdict = schedule(pod(), node("a"), node("b"), node("c"), plugins=PLUGINS)
    assert_placed(verdict)
    assert_placed(verdict, "b", "c")
    assert_refused(verdict, "a", by="NotOnA", rule="not-a", message="not on a")
    assert_scored(verdict, "NotOnA", b=0, c=100)


@pytest.mark.parametrize(("check", "message"), [
    (lambda verdict: assert_placed(verdict, "b"), "default/pod is placed on c, not on b"),
    (lambda verdict: assert_refused(verdict, "b"), "b was refused by nobody"),
    (
        lambda verdict: assert_refused(verdict, "a", by="Other"),
        r"a was refused by \[\('NotOnA', 'not-a', 'not on a'\)\]",
    ),
    (lambda verdict: assert_scored(verdict, "NotOnA", c=5), r"`NotOnA` gave {'c': 100}, not {'c': 5}"),
    (lambda verdict: assert_scored(verdict, "NotOnA"), "no node is named that `NotOnA` should have scored"),
])
def test_an_assertion_that_fails_says_what_there_was(check, message):
    verdict = schedule(pod(), node("a"), node("b"), node("c"), plugins=PLUGINS)
    with pytest.raises(AssertionError, match=message):
        check(verdict)


def test_a_plugin_that_waits_to_be_named_is_at_work_all_the_same():
    verdict = schedule(pod(), node("a"), node("b"), plugins=[python_plugin("NotOnA", Framework.SCHEDULER, NotOnA)])
    assert_refused(verdict, "a", by="NotOnA")


def test_policies_decide_beside_plugins(tmp_path):
    policy = tmp_path / "policy.yaml"
    policy.write_text("""
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: cool}
spec: {filter: [{name: cool, expression: usage.cpu < 2000}]}
""")
    verdict = schedule(
        pod(), node("b"), node("c"), node_metric("b"), node_metric("c", cpu="3"), plugins=PLUGINS, policies=[policy],
    )
    assert_placed(verdict, "b")
    assert_refused(verdict, "c", by="cool")


def test_a_fake_framework_tells_plugins_what_happens(framework):
    fake = framework(node("a"), pod("p"))
    plugin = fake.make(NotOnA)
    fake.upsert(node("b"))
    fake.assume(fake.pod("p"), "b")
    fake.delete("Pod", "default/p")
    assert plugin.heard == ["a", "default/p", "b", "default/p", "default/p"]
    assert (fake.counted, plugin.handle.peers(ForgetPod), fake.snapshot().names, fake.row("b")) == (
        {"made": 1}, (plugin,), ["a", "b"], 1,
    )


def test_time_stands_still_until_it_is_moved(clock, framework):
    fake = framework(node("a"))
    assert fake.snapshot().now == NOW
    clock.advance(1.5)
    assert fake.snapshot().now == NOW + 3 * SECOND // 2
    assert FakeClock(5)() == 5


def test_the_fakes_are_what_plugins_are_given():
    fake = FakeFramework(node("a"))
    for part, protocol in (
        (fake, Events), (fake.waiting, WaitingPods), (fake.queue, Queue), (fake.nominator, Nominator),
        (fake.client, Client), (FakeEvictor(), Evictor), (FakeReadings(node()), Readings),
    ):
        missing = [name for name in dir(protocol) if not name.startswith("_") and not hasattr(part, name)]
        assert missing == [], protocol


def test_the_client_notes_what_is_written_and_fails_as_often_as_it_is_told():
    fake = FakeFramework(node("a"), pod("p"))
    fake.client.failures.append(OSError("conflict"))
    with pytest.raises(OSError, match="conflict"):
        fake.client.bind(fake.pod("p"), "a")
    fake.client.bind(fake.pod("p"), "a")
    fake.client.evict(fake.pod("p"), "why")
    assert (fake.client.bound, fake.client.evicted) == ({"default/p": "a"}, {"default/p": "why"})


def test_what_nobody_measured_is_an_error_and_not_zero():
    readings = FakeReadings(node(), usage={"cpu": "1500m"}, pod_usage={"d/p": {"memory": "1Ki"}})
    assert (readings.node_usage("cpu"), readings.pod_usage("d/p", "memory")) == (1500, 1024)
    for ask in (
        lambda: readings.node_usage("memory"), lambda: readings.pod_usage("d/q", "cpu"),
        lambda: readings.application_usage("nginx", "cpu"),
    ):
        with pytest.raises(EvaluationError, match="nobody measured"):
            ask()


def test_an_evictor_notes_everything():
    evictor = FakeEvictor({"default/a": "stays"}, limit=1)
    first, second = PodInfo.of(pod("a")), PodInfo.of(pod("b"))
    assert (evictor.filter(first).message, evictor.filter(second)) == ("stays", None)
    assert (
        evictor.evict(second, "why"), evictor.evict(first, "why"), evictor.is_leaving(second),
        evictor.node_limit_exceeded("n"),
    ) == (True, False, True, True)
    assert evictor.evicted == {"default/b": "why"}
