"""Decisions with the result cache are equal to those without it, whatever happened before."""

from __future__ import annotations

import json
from contextlib import ExitStack
from random import Random
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster import change_log
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload.build import Builder
from koordpolicy.engine.scheduler.cycle import plugin_runner
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings, decide, filter_only, score_only
from koordpolicy.engine.scheduler.result_cache import combined_result, result_cache, store
from koordpolicy.engine.source import PolicyError, Source

from . import worlds
from .worlds import SECOND, START

NEVER = 10**9
NODES = 10
EXPLORES = settings.get_current_profile_name() == "explore"
SEEDS = st.integers(0, 2**16)
SHAPES = st.integers(0, worlds.SHAPES - 1)
NAMES = st.sampled_from([f"n{number}" for number in range(NODES + 2)])
"""Of which the cluster may lack some."""
SOME_NAMES = st.sets(NAMES, min_size=1, max_size=2)
"""So few that not all nodes are asked about again."""
STATEFUL = frozenset({"LoadAwareScheduling", "ElasticQuota", "Coscheduling", "RandomScore", "Reservation"})
"""Plugins that remember more than the objects of a cluster say: when a pod was placed, what was drawn before."""


def told(verdict):
    """Return everything that a verdict says, in an order that does not depend on how it was found."""
    said = verdict.to_json()
    said["errors"] = sorted(map(json.dumps, said["errors"]))
    said["reasons"] = verdict.reasons()
    said["passed"] = [verdict.names[row] for row in verdict.passed]
    said["why"] = {
        name: [(plugin, refusal.rule, refusal.message, refusal.code) for plugin, refusal in verdict.why_not(name)]
        for name in verdict.names
    }
    if verdict.totals is not None:
        said["totals"] = verdict.totals.tolist()
    return said


def scores_of(verdict):
    """Return the scores of a verdict, by node and plugin, and their totals."""
    if verdict.totals is None:
        return None
    return {verdict.names[row]: verdict.score_of(verdict.names[row]) for row in verdict.passed}, verdict.totals.tolist()


def differences(one, *others):
    """Return the differences of verdicts from the first one."""
    said = told(one)
    return {key: values for other in others for key, values in _differences(said, told(other)).items()}


def _differences(one, other):
    return {key: (one.get(key), other.get(key)) for key in {**one, **other} if one.get(key) != other.get(key)}


class Journey(RuleBasedStateMachine):
    """Two schedulers live through the same; one caches results, and they must agree on every pod."""

    build = Builder()  # of all journeys: most reload the same documents

    @initialize(data=st.data(), seed=SEEDS, following_from=st.sampled_from((0, 2048)), small=st.booleans(),
                carries_out=st.booleans(), shapes=st.lists(SHAPES, min_size=2, max_size=2))
    def begin(self, data, seed, following_from, small, carries_out, shapes):
        profile = data.draw(worlds.profiles(frozenset() if carries_out else STATEFUL))
        documents = [data.draw(worlds.documents(f"d{number}")) for number in range(data.draw(st.integers(0, 3)))]
        self.set_up(profile, documents, seed, following_from, small, carries_out, shapes)

    def set_up(self, profile, documents, seed, following_from, small, carries_out, shapes):
        self.shapes = shapes
        self.before = []
        """The last verdicts with their scores, which later decisions must not change."""
        self.now, self.count, self.steps, self.carries_out = START, 0, 0, carries_out
        self.profile, self.documents = profile, documents
        self.readers = {reads: worlds.reader(reads, 50) for reads in worlds.READERS}
        self.params = worlds.params("general", 10)
        self.live = Live()
        self.reload()
        self.objects = list(worlds.objects([f"n{number}" for number in range(NODES)], Random(seed), self.now))
        self.nominated = {}
        self.cached = self.scheduler(Cluster(self.objects, cache_results_from=0, following_from=following_from))
        self.plain = self.scheduler(Cluster(self.objects, cache_results_from=NEVER))
        for module, name, least in (
            (result_cache, "_MOST_SHAPES", 2), (store, "_MOST_KEYS", 3), (result_cache, "CHEAP", 2),
            (combined_result, "CHEAP", 2), (store, "_FEWEST", 1), (store, "_MOST_BYTES", 1),
        ):
            if small:
                self.patches.enter_context(mock.patch.object(change_log, "_LONGEST", 4))
                self.patches.enter_context(mock.patch.object(module, name, least))

    def __init__(self):
        super().__init__()
        self.patches = ExitStack()
        # Fewer nodes than are cached by themselves: a failure is made small sooner.
        self.patches.enter_context(mock.patch.object(plugin_runner, "_FEW", 2))

    def teardown(self):
        self.patches.close()

    def scheduler(self, cluster):
        return Scheduler(cluster, self.live, Settings((self.profile,)), clock=lambda: self.now)

    @property
    def both(self):
        return self.cached, self.plain

    def reload(self):
        texts = [json.dumps(each) for each in (self.params, *self.readers.values(), *self.documents)]
        sources = [Source(f"{number}.yaml", text) for number, text in enumerate(texts)]
        try:
            self.live.replace(lambda: [*PLUGINS, *self.build(sources)])
        except PolicyError as error:
            raise AssertionError(f"the documents are wrong: {error}") from error

    def upsert(self, item):
        for each in self.both:
            each.cluster.upsert(item)

    def running(self):
        found = (self.plain.cluster.pod(key) for key in self.plain.cluster.objects("Pod"))
        return [each for each in found if each is not None and each.node_name]

    def fresh(self):
        """Return a scheduler without a cache or a past, of a cluster with the same objects; None where there is none.

        Where pods do not say which devices they hold, the order of events decided that.
        """
        of = self.plain.cluster
        cluster = Cluster(
            (item for kind in of._objects for item in of.objects(kind).values()), cache_results_from=NEVER,
        )
        for row in of.rows:
            for key, minors in row.taken.items():
                if key in cluster._bound:
                    cluster.assume(cluster.pod(key), row.name, minors)
        if [row.taken for row in cluster.rows] != [row.taken for row in of.rows]:
            return None
        scheduler = self.scheduler(cluster)
        for pod, node in self.nominated.values():
            scheduler.nominations.nominate(pod, node)
        # Of equal candidates preemption takes the first one after a row that it draws for every pod without a node.
        drawn, before = ({each.name: each.instance
                          for profile in some.refresh().profiles.values() for each in profile.made}
                         for some in (scheduler, self.plain))
        if "DefaultPreemption" in drawn:
            drawn["DefaultPreemption"]._random.setstate(before["DefaultPreemption"]._random.getstate())
        return scheduler

    def agree(self, shape, name="probe", *, exhaustive=False, anew=False):
        """Decide about a pod of a shape on all sides, and compare what is said."""
        self.agree_about(PodInfo.of(worlds.pod(name, shape)), self.fresh() if anew else None, exhaustive=exhaustive)

    def agree_about(self, pod, fresh, *, exhaustive=False):
        self.plain.cluster.cross_version_cache.clear()  # derived columns too follow changes
        cached, plain = (each.decide(pod, exhaustive=exhaustive) for each in self.both)
        assert [scores_of(verdict) for verdict, _ in self.before] == [scores for _, scores in self.before]
        self.before = [*self.before[-2:], (cached, scores_of(cached))]
        anew = () if fresh is None else (fresh.decide(pod, exhaustive=exhaustive),)
        assert differences(cached, plain, *anew) == {}

    def after(self):
        """Compare pods of the same shapes after every step: what is cached of them is out of date in part."""
        self.steps += 1
        fresh = None if self.carries_out else self.fresh()
        # Of one shape, with names of several lengths.
        self.agree_about(PodInfo.of(worlds.easy_pod("easy" + self.steps % 3 * "y")), fresh)
        first, *others = (PodInfo.of(worlds.pod("probe", shape)) for shape in self.shapes)
        self.agree_about(first, fresh)
        for pod in others:
            self.agree_about(pod, None)

    # What happens to pods

    @rule(shape=SHAPES)
    def place(self, shape):
        """Place a pod: by its whole cycle, or as somebody else would who tells of it afterwards."""
        self.count += 1
        item = worlds.pod(f"p{self.count}", shape)
        self.upsert(item)
        self.agree(shape, f"p{self.count}")
        if self.carries_out:
            # Why nodes were refused must be read before the pod is placed: that was compared.
            carried_out = ("node", "devices", "refusal", "nomination", "waiting")
            cached, plain = (each.schedule(PodInfo.of(item)).to_json() for each in self.both)
            assert [cached.get(key) for key in carried_out] == [plain.get(key) for key in carried_out]
        else:
            # Both sides decide, as what preemption draws for a pod is the start of the next draw.
            node, _ = (each.decide(PodInfo.of(item)).node for each in self.both)
            if node is not None:
                self.upsert({**item, "spec": {**item["spec"], "nodeName": node}})
        self.after()

    @rule(number=SEEDS)
    def delete(self, number):
        keys = sorted(self.plain.cluster.objects("Pod"))
        if keys:
            for each in self.both:
                each.cluster.delete("Pod", keys[number % len(keys)])
        self.after()

    @rule(number=SEEDS)
    def relabel(self, number):
        running = self.running()
        if running:
            pod = running[number % len(running)]
            labels = {**pod.object["metadata"]["labels"], "app": worlds.APPS[number % 2]}
            item = pod.object
            self.upsert({**item, "metadata": {**item["metadata"], "labels": labels},
                         "spec": {**item["spec"], "nodeName": pod.node_name}})
        self.after()

    @rule(shape=SHAPES, name=NAMES, clears=st.booleans())
    def nominate(self, shape, name, clears):
        pod = PodInfo.of(worlds.pod("nominated", shape))
        for each in self.both:
            each.nominations.nominate(pod, "" if clears else name)
        self.nominated[pod.key] = pod, "" if clears else name
        self.after()

    # What happens to the cluster

    @rule(name=NAMES, seed=SEEDS, make=st.sampled_from((worlds.node, worlds.node, worlds.device, worlds.topology,
                                                        worlds.csi_node)))
    def update(self, name, seed, make):
        self.upsert(make(name, Random(seed)))
        self.after()

    @rule(names=SOME_NAMES)
    def cordon(self, names):
        self.edit(names, lambda item: item["spec"].update(unschedulable=not item["spec"].get("unschedulable")))

    @rule(names=SOME_NAMES, effect=st.sampled_from(("NoSchedule", "NoSchedule", "PreferNoSchedule")))
    def taint(self, names, effect):
        def toggle(item):
            # Of different numbers: the scores of some nodes depend on those of others.
            keys = ("dedicated", "dear")[:1 + int(item["metadata"]["name"][1:]) % 2]
            taints = [{"key": key, "value": "gpu", "effect": effect} for key in keys]
            item["spec"]["taints"] = [] if item["spec"].get("taints") else taints

        self.edit(names, toggle)

    @rule(names=SOME_NAMES)
    def move(self, names):
        def toggle(item):
            labels = item["metadata"]["labels"]
            labels["pool"] = "general" if labels["pool"] == "batch" else "batch"
            labels["topology.kubernetes.io/zone"] = "z0" if labels.get("topology.kubernetes.io/zone") != "z0" else "z1"

        self.edit(names, toggle)

    @rule(names=SOME_NAMES, cpu=st.sampled_from(("0", "500m", "2", "8")))
    def resize(self, names, cpu):
        self.edit(names, lambda item: item["status"]["allocatable"].update(cpu=cpu))

    @rule(names=SOME_NAMES)
    def pull_or_drop_images(self, names):
        all_of_them = [{"names": [image], "sizeBytes": 700 * 2**20} for image in worlds.IMAGES]
        self.edit(names, lambda item: item["status"].update(images=[] if item["status"]["images"] else all_of_them))

    def edit(self, names, change):
        for name in sorted(names):
            known = self.plain.cluster.object("Node", name)
            if known is not None:
                item = json.loads(json.dumps(known))
                change(item)
                self.upsert(item)
        self.after()

    @rule(name=NAMES, seed=SEEDS)
    def measure(self, name, seed):
        pods = [each for each in self.running() if each.node_name == name]
        self.upsert(worlds.metric(name, Random(seed), self.now, pods))
        self.after()

    @rule(kind=st.sampled_from(("Node", "NodeMetric", "NodeMetric", "Device", "NodeResourceTopology", "CSINode")),
          name=NAMES)
    def remove(self, kind, name):
        for each in self.both:
            each.cluster.delete(kind, name)
        self.after()

    @rule(seed=SEEDS, make=st.sampled_from((
        worlds.namespace, lambda random: worlds.volume("v0", random),
        lambda random: worlds.quota("q0", random), lambda random: worlds.gang("g0", random))))
    def change(self, seed, make):
        self.upsert(make(Random(seed)))
        self.after()

    @precondition(lambda self: self.carries_out)
    @rule(seed=SEEDS)
    def reserve(self, seed):
        self.upsert(worlds.reservation(f"r{seed % 3}", Random(seed), sorted(self.plain.cluster.names)))
        self.after()

    @rule(seconds=st.sampled_from((1, 20, 60, 200, -30)))
    def wait(self, seconds):
        self.now += seconds * SECOND
        for each in self.both:
            each.process_bindings()
        self.after()

    # Reloads

    @rule(pool=st.sampled_from(("general", "batch")), limit=st.integers(0, 50))
    def set_params(self, pool, limit):
        self.params = worlds.params(pool, limit)
        self.reload()
        self.after()

    @rule(reads=st.sampled_from(tuple(worlds.READERS)), threshold=st.integers(1, 100))
    def edit_reader(self, reads, threshold):
        self.readers[reads] = worlds.reader(reads, threshold)
        self.reload()
        self.after()

    @rule(data=st.data(), number=st.integers(0, 2))
    def edit_document(self, data, number):
        number = min(number, len(self.documents))
        self.documents[number:number + 1] = [data.draw(worlds.documents(f"d{number}"))]
        self.reload()
        self.after()

    # Other ways to ask, which must leave nothing behind

    @rule(name=NAMES, seed=SEEDS, shape=SHAPES, other=SHAPES)
    def look_at_an_overlay(self, name, seed, shape, other):
        if name in self.plain.cluster.index:
            random = Random(seed)
            change = NodeChange(
                node=worlds.node(name, random) if random.random() < 0.5 else None,
                add=[PodInfo.of(worlds.pod("added", other))],
                metric=worlds.metric(name, random, self.now) if random.random() < 0.5 else None,
            )
            pod, found = PodInfo.of(worlds.pod("probe", shape)), []
            for each in self.both:
                snapshot = each.cluster.snapshot(self.now)
                found.append(decide(each.profile_of(pod), pod, snapshot.overlay({name: change})))
            assert differences(*found) == {}
        self.after()

    @rule(name=NAMES, seed=SEEDS)
    def overlay_what_happens(self, name, seed):
        """Decide about an overlay as about a cluster in which the same has happened."""
        # A plugin with a state decides otherwise in a scheduler without a past.
        fresh = None if self.carries_out else self.fresh()
        before = self.plain.cluster.object("NodeMetric", name)
        if fresh is not None and name in self.plain.cluster.index:
            random = Random(seed)
            node = worlds.node(name, random) if random.random() < 0.6 else None
            metric = None
            if before is not None and random.random() < 0.6:
                metric = {**before, "status": {**worlds.metric(name, random, self.now)["status"],
                                               "updateTime": before["status"]["updateTime"]}}
            added = {**worlds.easy_pod("added"), "spec": {
                "containers": [worlds.container("1", "1Gi", random)], "nodeName": name}}
            change = NodeChange(node=node, add=[PodInfo.of(added)], metric=metric)
            pod = PodInfo.of(worlds.easy_pod("easy"))
            overlaid = [decide(each.profile_of(pod), pod, each.cluster.snapshot(self.now).overlay({name: change}))
                        for each in self.both]
            for item in (node, metric, added):
                if item is not None:
                    fresh.cluster.upsert(item)
            happened = decide(fresh.profile_of(pod), pod, fresh.cluster.snapshot(self.now))
            assert differences(happened, *overlaid) == {}
        self.after()

    @rule(rows=st.sets(st.integers(0, NODES - 1), min_size=3), shape=SHAPES)
    def ask_about_some_nodes(self, rows, shape):
        among = np.array([row for row in sorted(rows) if row < len(self.plain.cluster.names)], np.intp)
        pod = PodInfo.of(worlds.pod("probe", shape))
        for ask in (filter_only, score_only):
            cached, plain = (
                ask(each.profile_of(pod), pod, each.cluster.snapshot(self.now), among=among) for each in self.both
            )
            assert differences(cached, plain) == {}
        self.after()

    @rule(shape=SHAPES)
    def explain(self, shape):
        self.agree(shape, exhaustive=True, anew=not self.carries_out)
        self.after()


TestAgreement = Journey.TestCase
TestAgreement.settings = settings(
    max_examples=400 if EXPLORES else 18, stateful_step_count=30 if EXPLORES else 12, deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


CHANGES = {
    "measure": lambda random: {"name": a_node(random), "seed": random.randrange(2**16)},
    "wait": lambda random: {"seconds": random.choice((1, 20, 60, -30))},
    "resize": lambda random: {"names": {a_node(random)}, "cpu": random.choice(("500m", "2", "8"))},
    "move": lambda random: {"names": {a_node(random)}},
    "taint": lambda random: {"names": {a_node(random)}, "effect": "PreferNoSchedule"},
    "update": lambda random: {"name": a_node(random), "seed": random.randrange(2**16),
                              "make": random.choice((worlds.node, worlds.device))},
    "place": lambda random: {"shape": random.randrange(worlds.SHAPES)},
    "delete": lambda random: {"number": random.randrange(2**16)},
    "nominate": lambda random: {"shape": random.randrange(worlds.SHAPES), "name": a_node(random), "clears": False},
    "remove": lambda random: {"kind": "NodeMetric", "name": a_node(random)},
    "change": lambda random: {"seed": random.randrange(2**16), "make": worlds.namespace},
    "set_params": lambda random: {"pool": random.choice(("general", "batch")), "limit": random.randrange(50)},
    "edit_reader": lambda random: {"reads": random.choice(tuple(worlds.READERS)),
                                   "threshold": random.randrange(1, 100)},
    "overlay_what_happens": lambda random: {"name": a_node(random), "seed": random.randrange(2**16)},
}
"""The rules of which each is as frequent as the others, with their arguments."""


def a_node(random):
    return f"n{random.randrange(NODES)}"


@pytest.mark.parametrize(("seed", "following_from", "small"), [(1, 0, False), (2, 0, True), (3, 2048, False)])
def test_every_kind_of_change_is_seen_in_single_documents(seed, following_from, small):
    random, journey = Random(seed), Journey()
    journey.set_up(worlds.PLAIN, worlds.SINGLE, seed, following_from, small, False, [seed, seed + 20])
    try:
        for _ in range(4):
            for name in random.sample(sorted(CHANGES), len(CHANGES)):
                getattr(journey, name)(**CHANGES[name](random))
    finally:
        journey.teardown()


def test_scores_follow_changes_of_nodes_that_come_and_go_among_those_that_pass():
    """First other nodes pass than before, and then only scores change: those of nodes that pass or do not."""
    random, journey = Random(4), Journey()
    journey.set_up(worlds.PLAIN, worlds.SINGLE, 4, 0, False, False, [4, 24])
    try:
        for reads in worlds.READERS:
            journey.edit_reader(reads=reads, threshold=100)
        journey.set_params(pool="general", limit=0)
        for number in range(8):
            journey.resize(names={f"n{number}"}, cpu="500m")
            if number:
                journey.resize(names={f"n{number - 1}"}, cpu="8")
            for name in (f"n{number}", f"n{max(0, number - 1)}", a_node(random)):
                journey.count += 1
                item = worlds.easy_pod(f"more{journey.count}")
                containers = [worlds.container("100m", "64Mi", random)]
                journey.upsert({**item, "spec": {**item["spec"], "nodeName": name, "containers": containers}})
                journey.agree_about(PodInfo.of(worlds.easy_pod("easy")), None)
    finally:
        journey.teardown()
