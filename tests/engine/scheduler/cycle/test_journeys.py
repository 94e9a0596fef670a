"""Whatever happens to pods, nodes and policies: every pod is in one place, and what was reserved is given back."""

from __future__ import annotations

from random import Random

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Code, Framework, Point, Refusal
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.plugin import Nomination, Wait

from .manual_executor import ManualExecutor

SECOND = 1_000_000_000


def node(name):
    return {
        "kind": "Node", "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    }


def pod(name, uid, **spec):
    return {"kind": "Pod", "metadata": {"name": name, "uid": uid}, "spec": {"containers": [{"name": "m"}], **spec}}


class Moody:
    """Says yes, no, later, or raises, at every point; takes down what pods hold."""

    thread_safe = True

    def __init__(self, random, handle):
        self.random, self.handle, self.held, self.closed = random, handle, {}, False

    def _mood(self, *answers):
        assert not self.closed
        answer = self.random.choice(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def pre_enqueue(self, pod, snapshot):
        return self._mood(None, None, None, Refusal("", "not yet"), RuntimeError("broken"))

    def filter_node(self, state, pod, snapshot, row):
        return self._mood(None, None, Refusal("", "no"), RuntimeError("broken"))

    def post_filter(self, state, pod, snapshot, refused):
        if snapshot.size and self.random.random() < 0.3:
            return Nomination(snapshot.names[0], snapshot.pods(0)[:1])
        return self._mood(None, Refusal("", "nobody"), RuntimeError("broken"), 7)

    def reserve(self, state, pod, snapshot, row):
        answer = self._mood(None, None, None, Refusal("", "taken"), 7)
        self.held[pod.key, pod.uid] = True
        return answer

    def unreserve(self, state, pod, snapshot, row):
        self.held.pop((pod.key, pod.uid), None)

    def permit(self, state, pod, snapshot, row):
        waiting = self.handle.waiting.keys()
        for key in waiting:
            if self.random.random() < 0.2:
                self.handle.waiting.allow(key, "Moody")
            elif self.random.random() < 0.1:
                self.handle.waiting.reject(key, "Moody", "no more")
        return self._mood(None, Wait(20 * SECOND), Wait(20 * SECOND), Refusal("", "no"), "odd")

    def bind(self, state, pod, node):
        return self._mood(None, None, Refusal("", "conflict", Code.ERROR), OSError("gone"))

    def post_bind(self, state, pod, node):
        self.held.pop((pod.key, pod.uid), None)

    def may_help(self, event, pod):
        return self._mood(True, False, RuntimeError("broken"))

    def close(self):
        self.closed = True


POINTS = (Point.PRE_ENQUEUE, Point.FILTER, Point.POST_FILTER, Point.RESERVE, Point.PERMIT, Point.BIND, Point.POST_BIND)


class Api:
    """An API server that takes everything, and says nothing of it."""

    def bind(self, pod, node):
        raise AssertionError("the plugin binds")

    def patch(self, original, modified):
        return modified

    def evict(self, pod, reason):
        """The pod is gone some time later, or never."""

    preempt = evict


@pytest.mark.parametrize("workers", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_no_pod_is_lost_or_doubled_whatever_happens(seed, workers):
    random, time, made = Random(seed), [1000 * SECOND], []

    def moody(version):
        def make(args, handle):
            made.append(Moody(random, handle))
            return made[-1]

        return Plugin("Moody", Framework.SCHEDULER, POINTS, make, "here", version)

    cluster, live = Cluster([node("a"), node("b")]), Live(Registry.of([moody("1")], generation=1))
    executor = ManualExecutor() if workers else None
    loop = SchedulingLoop(cluster, live, clock=lambda: time[0], executor=executor, client=Api() if workers else None)
    for step in range(80):
        name = f"p{random.randrange(6)}"
        while workers and executor.jobs and random.random() < 0.5:
            executor.finish(random.randrange(len(executor.jobs)))
        match random.randrange(9):
            case 0 | 1 | 2:
                if cluster.pod(f"default/{name}") is None or random.random() < 0.2:
                    cluster.upsert(pod(name, str(step)))
            case 3:
                cluster.delete("Pod", f"default/{name}")
            case 4:
                known = cluster.pod(f"default/{name}")
                if known is not None:
                    cluster.upsert(pod(name, known.uid, nodeName=random.choice("ab")))
            case 5:
                if len(cluster.names) > 1 or random.random() < 0.2:
                    cluster.delete("Node", random.choice("ab"))
            case 6:
                cluster.upsert(node(random.choice("ab")))
            case 7:
                live.replace(lambda version=str(step): [moody(version)])
            case _:
                time[0] += random.choice([1, 5, 30]) * SECOND
        for _ in range(random.randrange(4)):
            loop.schedule_one()
        loop.scheduler.process_bindings()
        queued = [each.key for each in loop.queue.pods()]
        waiting = set(loop.scheduler.waiting.keys())
        pending = {each.key for each in cluster.pending}
        assert sorted(queued) == sorted(pending), (step, waiting)
        assert all((cluster.pod(key) and cluster.pod(key).node_name) for key in waiting)
        under_way = {(each.binding.pod.key, each.binding.pod.uid) for each in map(loop.scheduler.waiting.get, waiting)}
        under_way |= {(each.pod.key, each.pod.uid) for each in loop.scheduler.in_flight}
        assert {each for plugin in made for each in plugin.held} == under_way
        assert all(not plugin.closed for plugin in made if plugin.held)
        assert set(loop.gated) <= set(queued)
        assert set(loop.queue._early) == under_way
    while workers and executor.jobs:
        executor.finish()
        loop.scheduler.process_bindings()
    assert not loop.scheduler.in_flight
    assert {key for plugin in made for key, _ in plugin.held} == set(loop.scheduler.waiting.keys())
