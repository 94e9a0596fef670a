"""Placements that no listing shows yet, among a simulated kube-scheduler, API server and listings."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.sources.changes import apply, key_of
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.decision_record import Verb
from koordpolicy.engine.scheduler.extender.placements import MOST_BYTES, Placements
from koordpolicy.engine.scheduler.extender.protocol import Extender
from koordpolicy.engine.source import Source

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: emptiest}
spec:
  filter:
  - {name: cpu, expression: allocatable.cpu - requested.cpu >= requests.cpu}
  score:
  - {name: free, expression: (allocatable.cpu - requested.cpu) * 100 / allocatable.cpu}
"""
PLUGINS = compile_documents(load([Source("policy.yaml", POLICY)]))


class Timer:
    now = 0.0

    def __call__(self):
        return self.now


def node(name, cpu="16"):
    return {
        "kind": "Node", "metadata": {"name": name}, "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "pods": "110"}},
    }


def pod(name, cpu="100m", where="", uid=None, version="1", phase="Pending"):
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]} | (
        {"nodeName": where} if where else {}
    )
    return {
        "kind": "Pod",
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "namespace": "default", "resourceVersion": version},
        "spec": spec, "status": {"phase": phase},
    }


class World:
    """An API server's objects, an extender that lists them now and then, and a kube-scheduler that asks it."""

    def __init__(self, *objects, seconds=60.0, seed=0, most_bytes=MOST_BYTES):
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in objects}
        self.timer, self.random = Timer(), random.Random(seed)
        self.cluster, self.listed = Cluster(objects), {key_of(each): each for each in objects}
        scheduler = Scheduler(self.cluster, Live(Registry.of(PLUGINS, generation=1)))
        self.placements = Placements(self.cluster, self.timer, seconds=seconds, most_bytes=most_bytes)
        self.extender = Extender(scheduler, clock=lambda: 0, timer=self.timer, placements=self.placements)
        self.nodes = [name for kind, name in self.objects if kind == "Node"]

    def ask(self, verb, item, names):
        body = json.dumps({"Pod": {key: each for key, each in item.items() if key != "kind"}, "NodeNames": names})
        answer = json.loads(self.extender.answer(verb, body.encode()).body)
        self.extender.review()
        return answer

    def choose(self, item, weight=5):
        """Ask as kube-scheduler does, and return the node that it chooses."""
        passed = self.ask(Verb.FILTER, item, self.nodes)["NodeNames"]
        if len(passed) < 2:
            return passed[0] if passed else None
        scores = {each["Host"]: each["Score"] * weight * 10 for each in self.ask(Verb.PRIORITIZE, item, passed)}
        best = max(scores[name] + self.own_score(name) for name in passed)
        return self.random.choice([name for name in passed if scores[name] + self.own_score(name) == best])

    def own_score(self, name):
        """Return the score of a node by kube-scheduler's own plugins, which see every placement: 0..200."""
        return max(
            0,
            200 - 4 * sum(
                1 for each in self.objects.values() if each["kind"] == "Pod" and each["spec"].get("nodeName") == name
            ),
        )

    def bind(self, item, where):
        metadata = {**item["metadata"], "resourceVersion": "2"}
        self.objects["Pod", metadata["name"]] = {
            **item, "metadata": metadata, "spec": {**item["spec"], "nodeName": where},
        }

    def list(self):
        since = self.timer()
        before, self.listed = self.listed, {key_of(each): each for each in self.objects.values()}
        changes = [(key, each) for key, each in self.listed.items() if before.get(key) is not each]
        assert apply(self.cluster, [*changes, *((key, None) for key in before if key not in self.listed)]) == []
        self.placements.listed(since)

    def place(self, count, listed_every=None):
        for number in range(count):
            item = pod(f"p{number}")
            self.objects["Pod", f"p{number}"] = item
            self.bind(item, self.choose(item))
            self.timer.now += 0.01
            if listed_every and number % listed_every == listed_every - 1:
                self.list()
        return Counter(
            each["spec"]["nodeName"] for each in self.objects.values() if each["metadata"]["name"].startswith("p")
        )

    def requested(self):
        return self.cluster.snapshot().requested("cpu").tolist()


def half_full(**options):
    """Return ten nodes of which one is empty."""
    return World(*(node(f"n{number}") for number in range(10)),
                 *(pod(f"old{number}", cpu="8", where=f"n{number}") for number in range(1, 10)), **options)


@pytest.mark.parametrize("seed", range(5))
def test_pods_that_come_between_two_listings_spread_as_if_each_placement_were_seen(seed):
    seen = half_full(seconds=0, seed=seed).place(100, listed_every=1)
    unseen = half_full(seconds=0, seed=seed).place(100)
    assumed = half_full(seed=seed).place(100)
    assert unseen["n0"] == 100, "each pod meets the cluster as it was"
    assert abs(assumed["n0"] - seen["n0"]) <= 10
    assert max(assumed.values()) <= max(seen.values()) + 10


def test_equal_nodes_share_pods_that_come_between_two_listings():
    counts = World(*(node(f"n{number}", "4") for number in range(10))).place(100)
    assert max(counts.values()) <= 20
    assert len(counts) == 10


def test_a_listing_replaces_what_was_assumed_and_counts_no_pod_twice():
    world = half_full()
    world.place(40)
    world.timer.now += 1
    world.list()
    fresh = Cluster(list(world.objects.values()))
    assert world.requested() == fresh.snapshot().requested("cpu").tolist()
    assert len(world.placements) == 0
    assert sum(world.placements.dropped.values()) == 40


@given(
    st.lists(st.sampled_from(["place", "elsewhere", "fail", "delete", "recreate", "list", "time"]), max_size=30),
    st.integers(0, 99),
)
def test_once_a_listing_has_come_after_all_only_the_listing_counts(course, seed):
    world = half_full(seed=seed)
    for number, step in enumerate(course):
        item = pod(f"p{number}")
        match step:
            case "list":
                world.list()
            case "time":
                world.timer.now += 7
            case "delete" | "recreate":
                placed = [name for kind, name in world.objects if kind == "Pod" and name.startswith("p")]
                if placed:
                    name = world.random.choice(placed)
                    del world.objects["Pod", name]
                    if step == "recreate":
                        world.objects["Pod", name] = pod(name, uid=f"other-{number}", version="9")
            case _:
                world.objects["Pod", f"p{number}"] = item
                chosen = world.choose(item)
                if step != "fail":
                    world.bind(item, chosen if step == "place" else world.random.choice(world.nodes))
        world.timer.now += 0.01
    world.timer.now += 20
    world.list()
    fresh = Cluster(list(world.objects.values()))
    assert world.requested() == fresh.snapshot().requested("cpu").tolist()
    assert world.cluster.snapshot().pod_count.tolist() == fresh.snapshot().pod_count.tolist()
    assert len(world.placements) == 0


def test_a_pod_that_is_asked_about_again_was_not_bound():
    world = half_full()
    item = pod("again", cpu="4")
    assert world.choose(item) == "n0"
    assert world.requested()[0] == 4000
    assert world.ask(Verb.FILTER, item, world.nodes)["NodeNames"] == world.nodes
    assert world.requested()[0] == 0
    assert world.placements.dropped == {"asked": 1}


def test_a_single_node_that_passes_is_where_the_pod_goes():
    world = half_full()
    assert world.ask(Verb.FILTER, pod("big", cpu="12"), world.nodes)["NodeNames"] == ["n0"]
    assert world.requested()[0] == 12_000
    assert world.ask(Verb.FILTER, pod("other", cpu="12"), world.nodes)["NodeNames"] == []


def test_an_answer_without_a_preference_says_nothing_of_where_the_pod_goes():
    world = World(node("a"), node("b"))
    world.ask(Verb.PRIORITIZE, pod("p"), ["a", "b"])
    assert (world.requested(), len(world.placements)) == ([0, 0], 0)


def test_an_assumption_expires_where_no_listing_comes():
    world = half_full()
    world.choose(pod("p", cpu="4"))
    world.timer.now = 59
    world.ask(Verb.FILTER, pod("q", cpu="15"), ["n1"])
    assert world.requested()[0] == 4000
    world.timer.now = 61
    world.ask(Verb.FILTER, pod("q", cpu="15"), ["n1"])
    assert (world.requested()[0], world.placements.dropped) == (0, {"expired": 1})


def test_a_pod_that_still_waits_in_a_listing_that_began_later_was_not_placed():
    world = half_full()
    item = pod("p", cpu="4")
    world.objects["Pod", "p"] = item
    world.choose(item)
    world.timer.now = 5
    world.list()
    assert world.requested()[0] == 4000, "binding takes its time"
    world.timer.now = 11
    world.list()
    assert (world.requested()[0], world.placements.dropped) == (0, {"waiting": 1})


def test_a_listing_that_began_before_says_nothing_of_a_pod():
    world = half_full()
    world.timer.now = 5
    world.choose(pod("p", cpu="4"))
    world.placements.listed(4)
    assert world.requested()[0] == 4000
    world.placements.listed(6)
    assert (world.requested()[0], world.placements.dropped) == (0, {"gone": 1})


def test_a_pod_that_is_bound_here_is_known_to_be_there():
    world = half_full(seconds=0)
    item = pod("p", cpu="4")
    world.objects["Pod", "p"] = item
    world.list()
    world.choose(item)
    assert world.requested()[3] == 8000, "without guesses nothing is assumed"
    world.placements.bound("default", "p", "uid-p", "n3")
    assert world.requested()[3] == 12_000
    world.bind(item, "n3")
    world.timer.now = 1
    world.list()
    assert (world.requested()[3], world.placements.dropped) == (12_000, {"confirmed": 1})


def test_a_pod_that_no_listing_has_shown_is_known_once_it_is_bound_here():
    world = World(node("a"), node("b"), seconds=0)
    world.choose(pod("p", cpu="4"))
    world.placements.bound("default", "p", "uid-p", "b")
    assert world.requested() == [0, 4000]
    world.placements.bound("default", "unheard", "uid-unheard", "b")
    assert world.requested() == [0, 4000]


def test_binding_elsewhere_moves_what_was_assumed():
    world = half_full()
    world.choose(pod("p", cpu="4"))
    world.placements.bound("default", "p", "uid-p", "n3")
    assert (world.requested()[0], world.requested()[3], len(world.placements)) == (0, 12_000, 1)
    world.placements.refused("uid-p")
    assert (world.requested()[3], len(world.placements)) == (8000, 0)


@pytest.mark.parametrize("other", ["uid-old1", "another"])
def test_a_pod_that_is_known_to_be_on_a_node_stays_there(other):
    world = half_full()
    before = world.requested()
    world.choose(pod("old1", cpu="8", uid=other))
    assert (world.requested(), len(world.placements)) == (before, 0)


def test_only_so_many_placements_are_assumed():
    cluster, timer = Cluster([node("a")]), Timer()
    placements = Placements(cluster, timer, most=3)
    for number in range(5):
        placements.assume(PodInfo.of(pod(f"p{number}", cpu="1")), "a")
    assert (len(placements), cluster.snapshot().requested("cpu").tolist()) == (3, [3000])


def test_pods_that_are_asked_about_and_assumed_take_a_bounded_amount_of_memory():
    world = World(node("a"), node("b"), pod("old", cpu="15", where="b"), most_bytes=100_000)
    for number in range(5):
        large = pod(f"p{number}", cpu="1")
        large["metadata"]["annotations"] = {"notes": "x" * 20_000}  # at most 40,000 bytes and what its elements take
        world.choose(large)
    assert (len(world.placements), world.requested()) == (2, [2000, 15_000])
    for number in range(5):
        world.placements.bound("default", f"p{number}", f"uid-p{number}", "b")
    assert (len(world.placements), world.requested()) == (2, [0, 17_000]), "only the last ones are remembered"


def test_a_pod_that_alone_takes_more_memory_than_there_is_is_decided_about_and_not_assumed():
    world = World(node("a"), node("b"), pod("old", cpu="8", where="b"), most_bytes=10_000)
    large = pod("p", cpu="1")
    large["metadata"]["annotations"] = {"notes": "x" * 20_000}
    assert world.choose(large) == "a"
    assert (len(world.placements), world.requested()) == (0, [0, 8000])
    assert world.choose(pod("q", cpu="1")) == "a"
    assert (len(world.placements), world.requested()) == (1, [1000, 8000])
