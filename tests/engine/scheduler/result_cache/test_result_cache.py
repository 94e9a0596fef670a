from __future__ import annotations

import json
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.points import Answer, CacheKey, Code, Framework, Point, Refusal, Scores
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings, filter_only, score_only
from koordpolicy.engine.scheduler.profiles.configuration import read
from koordpolicy.engine.scheduler.result_cache import result_cache as caching
from koordpolicy.engine.source import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
NODES = 90  # fewer than the rows from which on answers are kept would test nothing

POLICIES = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: roomy}
spec:
  match: {nodes: {labelSelector: {matchLabels: {pool: general}}}}
  filter:
  - {name: room, expression: "allocatable.cpu - requested.cpu >= requests.cpu * 2"}
  - {name: cool, expression: "usage.cpu * 100 / allocatable.cpu < 80"}
  score:
  - {name: free, expression: "math.greatest(0, (allocatable.cpu - requested.cpu) * 100 / allocatable.cpu)"}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: lenient}
spec:
  failurePolicy: Ignore
  match: {pods: {labelSelector: {matchLabels: {app: web}}}}
  filter:
  - {name: cool, expression: "usage.memory * 100 / allocatable.memory < 50"}
  - {name: zone, expression: "nodeInfo.zone != pod.metadata.labels['avoid']"}
  score:
  - {name: pods, expression: "nodeInfo.pods", normalize: MaxReverse}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: recent}
spec:
  filter: [{name: recent, expression: "metricAge < 150"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: recent-or-small}
spec:
  filter: [{name: recent, expression: "metricAge < 150 || requests.cpu < 1000"}]
  score: [{name: young, expression: "requests.cpu < 1000 ? 50 : 100 - math.least(metricAge, 100)"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: watching}
spec:
  enforcement: Audit
  filter: [{name: small, expression: "requested.cpu < 2000"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: counting}
spec:
  filter:
  - {name: room, expression: "allocatable.cpu - requested.cpu >= requests.cpu"}
  - {name: pods, expression: "nodeInfo.pods < 2 || requests.cpu < 2000"}
  score:
  - {name: free, weight: 3, expression: "(allocatable.cpu - requested.cpu - 2 * requests.cpu) * 100 / allocatable.cpu"}
  - {name: share, weight: 2, expression: "double(nodeInfo.pods) * 80.0"}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: doubling}
spec:
  match: {pods: {namespaceSelector: {matchLabels: {team: a}}}}
  score: [{name: used, expression: "double(requested.cpu) / double(allocatable.cpu) * 100.0"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: of-some-nodes}
spec:
  match: {nodes: {labelSelector: {matchLabels: {pool: general}}}}
  filter: [{name: few, expression: "nodeInfo.pods < 1"}]
  score: [{name: few, expression: "100 - nodeInfo.pods * 10"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: of-some-pods}
spec:
  matchConditions: [{name: large, expression: "requests.cpu > 1000"}]
  filter: [{name: few, expression: "nodeInfo.pods < 1"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: measured}
spec:
  match: {pods: {labelSelector: {matchLabels: {app: web}}}}
  filter: [{name: cool, expression: "usage.cpu < 5900"}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: of-one-pod}
spec:
  variables:
  - {name: odd, expression: "pod.metadata.name.endsWith('1') || podInfo.name.endsWith('3')"}
  filter: [{name: name, expression: "!variables.odd || nodeInfo.pods < 1"}]
  score:
  - name: phase
    expression: "has(pod.status.phase) && pod.status.phase == 'Pending' ? nodeInfo.pods * 10 : 50 - nodeInfo.pods"
"""
CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: LoadAwareScheduling}]}}
  pluginConfig: [{name: LoadAwareScheduling, args: {usageThresholds: {cpu: 60}, nodeMetricExpirationSeconds: 170}}]
"""


FIRST = np.array([0], np.intp)
PODS = frozenset({("nodeInfo", "pods")})


def node(number, random):
    labels = {"pool": random.choice(["general", "batch"]), "topology.kubernetes.io/zone": f"z{number % 3}"}
    spec = random.choice(
        [{}, {}, {"unschedulable": True}, {"taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]}],
    )
    allocatable = {"cpu": random.choice(["4", "8"]), "memory": "16Gi", "pods": "12"}
    return {
        "kind": "Node", "metadata": {"name": f"n{number:02}", "labels": labels}, "spec": spec,
        "status": {"allocatable": allocatable},
    }


def metric(number, random, now):
    usage = {"cpu": f"{random.randrange(6000)}m", "memory": f"{random.randrange(12)}Gi"}
    stamp = np.datetime64(now // SECOND - random.randrange(200), "s").astype(str)
    return {
        "kind": "NodeMetric", "metadata": {"name": f"n{number:02}"},
        "status": {"updateTime": f"{stamp}Z", "nodeMetric": {"nodeUsage": {"resources": usage}}},
    }


def pod(name, random):
    spec = {
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": random.choice(["100m", "1", "2"]), "memory": "1Gi"}}},
        ],
    }
    if random.random() < 0.3:
        spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
    if random.random() < 0.3:
        spec["nodeSelector"] = {"pool": "general"}
    labels = random.choice([{"app": "web", "avoid": "z1"}, {"app": "web"}, {}])
    metadata = {"name": name, "namespace": "shop", "labels": labels, "uid": name}
    status = {"phase": "Pending"} if name.endswith(("0", "2", "4")) else {}
    return PodInfo.of({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status})


def change(cluster, random, now, number):
    what = random.choice(["node", "metric", "delete", "remove", "forget", "namespace", "namespace", "none"])
    at = random.randrange(NODES)
    if what == "node":
        cluster.upsert(node(at, random))
    elif what == "remove":
        cluster.delete("Node", f"n{at:02}")
    elif what == "namespace":
        cluster.upsert({"kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": random.choice("ab")}}})
    elif what == "metric":
        cluster.upsert(metric(at, random, now))
    elif what == "delete":
        cluster.delete("NodeMetric", f"n{at:02}")
    elif what == "forget" and number:
        cluster.forget(f"shop/p{random.randrange(number)}")


def facts(verdict):
    """Everything that a verdict says."""
    refused = {
        name: [(plugin, refusal.rule, refusal.message, refusal.code) for plugin, refusal in verdict.why_not(name)]
        for name in verdict.names
    }
    errors = sorted(
        (each.plugin, each.point.value, each.rule, each.message, node)
        for each in verdict.errors()
        for node in each.nodes
    )
    return [verdict.names[row] for row in verdict.passed], refused, errors


def scores(verdict):
    """Everything that a verdict says of nodes that all have passed."""
    errors = sorted((each.plugin, each.rule, each.message, node) for each in verdict.errors() for node in each.nodes)
    return [(each.plugin, each.scores.values.tolist()) for each in verdict.scores], verdict.totals.tolist(), errors


def by_node(profile, pod, snapshot):
    """Ask about each node alone: so few rows are never cached."""
    passed, refused, errors = [], {}, []
    for row in range(snapshot.size):
        found, why, failed = facts(filter_only(profile, pod, snapshot, among=np.array([row], np.intp)))
        passed += found
        refused[snapshot.names[row]] = why[snapshot.names[row]]
        errors += failed
    return passed, refused, sorted(errors)


@pytest.mark.parametrize("seed", range(4))
def test_cached_results_are_those_that_plugins_would_return_now(seed):
    random, now = Random(seed), START
    compiled = compile_documents(load([Source("policies.yaml", POLICIES)]))
    registry = Registry.of([*PLUGINS, *compiled], generation=1)
    objects = (each for number in range(NODES) for each in (node(number, random), metric(number, random, now)))
    cluster = Cluster(objects, cache_results_from=0)
    settings = Settings(read(Source("scheduler.yaml", CONFIGURATION), registry).profiles)
    scheduler = Scheduler(cluster, Live(registry), settings, clock=lambda: now)
    kinds = [Random(kind) for kind in range(4)]
    for number in range(12):
        now += random.choice([0, SECOND, 30 * SECOND, -40 * SECOND])
        change(cluster, random, now, number)
        asked = pod(f"p{number}", Random(random.choice(kinds).getstate()[1][0]))
        snapshot = cluster.snapshot(now)
        profile = scheduler.profile_of(asked)
        verdict = filter_only(profile, asked, snapshot)
        assert facts(verdict) == by_node(profile, asked, snapshot)
        view = snapshot.overlay({cluster.names[0]: NodeChange()})  # of which no answer is kept
        assert scores(score_only(profile, asked, snapshot)) == scores(score_only(profile, asked, view))
        scheduler.schedule(asked)


def test_a_document_counts_its_evaluations_where_columns_alone_answer():
    text = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: counted}
spec:
  filter:
  - {name: large, expression: "allocatable.cpu > 4000"}
  - {name: empty, expression: "nodeInfo.pods < requests.cpu"}
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: scored}
spec:
  score: [{name: pods, expression: "nodeInfo.pods * 2"}]
"""
    compiled = compile_documents(load([Source("counted.yaml", text)]))
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0, following_from=0)
    scheduler = Scheduler(cluster, Live(Registry.of(compiled, generation=1)))
    large = sum(row.allocatable["cpu"] > 4000 for row in cluster.rows)
    for number in range(2):
        score_only(scheduler.profiles[0], pod(f"q{number}", Random(1)), cluster.snapshot())
        scheduler.schedule(pod(f"p{number}", Random(1)))
    profile = scheduler.profiles[0]
    counted = {
        each.rule: (each.evaluated, each.failed)
        for document in (profile.filters[0].instance, profile.scores[0].instance)
        for each in document.evaluations.values()
    }
    assert counted == {"large": (NODES + 1, 0), "empty": (large + 1, 0), "pods": (NODES + 1 + 2 * large, 0)}


def test_variables_that_are_read_by_several_others_are_computed_once():
    variables = [{"name": "v0", "expression": "allocatable.cpu - requested.cpu"}]
    variables += [
        {"name": f"v{number}", "expression": f"variables.v{number - 1} - variables.v{number - 1} / 2"}
        for number in range(1, 24)
    ]
    spec = {"variables": variables, "filter": [{"name": "some", "expression": "variables.v23 >= 0"}]}
    text = json.dumps(
        {
            "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": "chain"},
            "spec": spec,
        },
    )
    compiled = compile_documents(load([Source("chain.yaml", text)]))
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0)
    scheduler = Scheduler(cluster, Live(Registry.of(compiled, generation=1)))
    # In as many steps as there are ways through the chain this would never end.
    assert [scheduler.schedule(pod(f"p{number}", Random(1))).node for number in range(2)] == ["n00", "n00"]


def test_of_more_shapes_than_are_kept_those_that_came_last_are_still_known(monkeypatch):
    monkeypatch.setattr(caching, "_MOST_SHAPES", 8)
    plugin, _, scheduler = counting()
    asked = []

    def cache_key(point, pod, snapshot):
        asked.append(pod.namespace)
        return CacheKey(None, PODS, stable_for_shape=True)

    plugin.cache_key = cache_key
    names = [f"s{number}" for number in range(6)]
    for name in (*names, "s3", "s5", "s0"):
        scheduler.decide(PodInfo.of({**pod("q", Random(1)).object, "metadata": {"name": "q", "namespace": name}}))
    assert asked == [*names, "s0"]


class Counts:
    """Refuses nodes with an odd number of pods; names what that depends on, and records its calls."""

    def __init__(self):
        self.asked = []

    def cache_key(self, point, pod, snapshot):
        return CacheKey(pod.namespace, PODS)

    def filter(self, state, pod, snapshot, rows):
        self.asked.append(rows.tolist())
        passed = np.array([len(snapshot.pods(row)) % 2 == 0 for row in range(snapshot.size)])
        return Answer(passed, lambda row: Refusal("odd", f"{len(snapshot.pods(row))} pods"))


def counting(count=NODES, cache_results_from=0):
    plugin = Counts()
    nodes = (node(number, Random(number)) for number in range(count))
    cluster = Cluster(nodes, cache_results_from=cache_results_from, following_from=0)
    registry = Registry.of(
        [Plugin("Counts", Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: plugin, "here", "1")],
        generation=1,
    )
    return plugin, cluster, Scheduler(cluster, Live(registry))


def test_a_plugin_is_asked_about_the_nodes_that_changed_since_such_a_pod_was_asked_about():
    plugin, _, scheduler = counting()
    for number in range(3):
        assert scheduler.schedule(pod(f"p{number}", Random(number))).node == f"n{number:02}"
    assert plugin.asked == [list(range(NODES)), [0], [1]]


def test_reasons_are_those_of_the_plugin_and_it_is_asked_for_them_when_they_are_read():
    plugin, _, scheduler = counting()
    scheduler.schedule(pod("p", Random(1)))
    verdict = scheduler.decide(pod("q", Random(1)))
    asked = len(plugin.asked)
    assert (verdict.reasons(), verdict.why_not("n00")[0][1].rule) == ({"1 pods": 1}, "odd")
    assert plugin.asked[asked:] == [[0]]


def test_other_questions_are_kept_apart():
    plugin, cluster, scheduler = counting()
    scheduler.decide(pod("p", Random(1)))
    other = PodInfo.of({**pod("q", Random(1)).object, "metadata": {"name": "q", "namespace": "other"}})
    scheduler.decide(other)
    assert plugin.asked == [list(range(NODES))] * 2
    cluster.assume(other, "n07")
    scheduler.decide(pod("p", Random(1)))
    scheduler.decide(other)
    assert plugin.asked[2:] == [[7], [7]]


@pytest.mark.parametrize("odd", [
    SimpleNamespace(key="key", paths=frozenset(), epoch=None), CacheKey(["a list"], frozenset()),
    CacheKey("key", {("nodeInfo", "pods")}), CacheKey("key", frozenset(), lambda _: np.arange(2)), "no question",
    ("key", frozenset(), None),
])
def test_a_plugin_that_says_it_in_another_shape_is_asked_every_time_and_that_is_told_once(odd, caplog):
    plugin, _, scheduler = counting()
    plugin.cache_key = lambda point, pod, snapshot: odd
    for number in range(2):
        verdict = scheduler.decide(pod(f"p{number}", Random(1)))
        assert (verdict.node, verdict.failures) == ("n00", ())
    assert plugin.asked == [list(range(NODES))] * 2
    assert [each.name for each in caplog.records] == ["koordpolicy.scheduler.Counts"]


class Evil:
    """A value that cannot be compared."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        raise RuntimeError("evil")


@pytest.mark.parametrize("evil", [Evil, lambda: (Evil(),)])
@pytest.mark.parametrize("what", ["its cache key", "the epoch of its cache key"])
def test_what_cannot_be_compared_is_the_plugins_fault_and_ends_nothing(evil, what, caplog):
    plugin, cluster, scheduler = counting()
    key = evil if what == "its cache key" else lambda: None
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(
        key(), PODS, None if what == "its cache key" else lambda _: evil(),
    )
    placed = []
    for number in range(4):
        placed.append(scheduler.schedule(pod(f"p{number}", Random(1))).node)
        if number == 1:
            cluster.upsert(node(NODES, Random(1)))  # what was told stays told
    told = [each.getMessage() for each in caplog.records]
    assert (placed, told) == (
        ["n00", "n01", "n02", "n03"], [f"the plugin `Counts` at `filter`: {what} is of no use: RuntimeError: evil"],
    )


def test_an_answer_that_the_plugin_does_not_give_is_called_that():
    plugin, _, scheduler = counting()
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(
        None, PODS, vectorized=lambda snapshot, rows: np.zeros(len(rows), np.bool_),
    )
    ((_, refusal),) = scheduler.decide(pod("p", Random(1))).why_not("n00")
    assert refusal.message == (
        "refused by a cached result, and not by the plugin now: its `cache_key` does not name "
        "all that its results depend on, or its `vectorized` result differs"
    )


def test_a_question_that_says_its_answer_spares_the_plugin_but_for_the_reasons():
    plugin, _, scheduler = counting()
    said = []

    def even(snapshot, rows):
        said.append(rows.tolist())
        return np.array([len(snapshot.pods(row)) % 2 == 0 for row in rows.tolist()])

    plugin.cache_key = lambda point, pod, snapshot: CacheKey(None, PODS, vectorized=even)
    for number in range(2):
        assert scheduler.schedule(pod(f"p{number}", Random(1))).node == f"n{number:02}"
    assert (said, plugin.asked) == ([list(range(NODES)), [0]], [])
    assert scheduler.decide(pod("q", Random(1))).reasons() == {"1 pods": 2}
    assert plugin.asked == [[0, 1]]


def test_a_question_that_says_the_reasons_spares_the_plugin_until_the_cluster_changes():
    plugin, cluster, scheduler = counting()

    def even(snapshot, rows):
        return np.array([len(snapshot.pods(row)) % 2 == 0 for row in rows.tolist()])

    cache_key = CacheKey(None, PODS, vectorized=even, reasons=lambda snapshot, rows: {"odd": rows})
    plugin.cache_key = lambda point, pod, snapshot: cache_key
    scheduler.schedule(pod("p", Random(1)))
    assert (scheduler.decide(pod("q", Random(1))).reasons(), plugin.asked) == ({"odd": 1}, [])
    verdict = scheduler.decide(pod("q", Random(1)))
    cluster.assume(pod("r", Random(1)), "n00")
    assert verdict.reasons() == {"refused at the time of the decision; the cluster has changed since": 1}
    assert plugin.asked == [[0]]


def test_a_key_with_the_refusal_spares_the_plugin_but_for_single_nodes():
    plugin, cluster, scheduler = counting()
    cache_key = CacheKey(None, PODS, refusal=Refusal("even", "odd", Code.UNRESOLVABLE))
    plugin.cache_key = lambda point, pod, snapshot: cache_key
    scheduler.schedule(pod("p", Random(1)))
    verdict = scheduler.decide(pod("q", Random(1)))
    cluster.assume(pod("r", Random(1)), "n00")
    asked, (step,) = len(plugin.asked), verdict.filters
    assert (verdict.reasons(), step.answer.codes(step.refused), step.answer.rules(step.refused)) == (
        {"odd": 1}, {Code.UNRESOLVABLE: [0]}, {"even"})
    assert plugin.asked[asked:] == []
    verdict.why_not("n00")
    assert plugin.asked[asked:] == [[0]]


def test_where_a_node_failed_the_refusal_of_the_key_is_not_taken_for_the_reason():
    plugin, _, scheduler = counting()
    error = EvaluationError("no metric")
    plugin.filter = lambda state, pod, snapshot, rows: Answer(
        rows > 1, lambda row: Refusal("even", "no metric" if row else "odd"), {"even": {1: error}})
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(None, PODS, refusal=Refusal("even", "odd"))
    assert scheduler.decide(pod("p", Random(1))).reasons() == {"no metric": 1, "odd": 1}


def test_in_a_small_cluster_what_answers_by_arrays_is_asked_about_all_nodes_that_may_have_changed():
    asked = []

    class Says:
        def __init__(self, paths):
            self._paths = paths

        def filter(self, state, pod, snapshot, rows):
            raise AssertionError

        def cache_key(self, point, pod, snapshot):
            def answer(snapshot, rows):
                asked.append((self._paths, rows.tolist()))
                return np.ones(len(rows), np.bool_)

            return CacheKey(None, self._paths, vectorized=answer)

    nodes = frozenset((("node", "metadata"),))
    plugins = [
        Plugin(name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle, paths=paths: Says(paths), name, "1")
        for name, paths in (("Pods", PODS), ("Nodes", nodes))
    ]
    cluster = Cluster(node(number, Random(number)) for number in range(NODES))
    scheduler = Scheduler(cluster, Live(Registry.of(plugins, generation=1)))
    for number in range(2):
        assert scheduler.schedule(pod(f"p{number}", Random(1))).node == "n00"
    everything = list(range(NODES))
    assert sorted(asked, key=repr) == sorted([(nodes, everything), (PODS, everything), (PODS, everything)], key=repr)


@pytest.mark.parametrize(("said", "told"), [
    (lambda rows: None, []),
    (
        lambda rows: np.ones(NODES + 1, np.bool_),
        [
            (
                "the plugin `Counts` at `filter`: its vectorized result is of no use: TypeError: it must be 90 "
                "values of bool, not bool of shape (91,)"
            ),
        ],
    ),
    (
        lambda rows: np.ones(len(rows), np.int64),
        [
            (
                "the plugin `Counts` at `filter`: its vectorized result is of no use: TypeError: it must be 90 "
                "values of bool, not int64 of shape (90,)"
            ),
        ],
    ),
    (
        lambda rows: [True] * len(rows),
        [
            (
                "the plugin `Counts` at `filter`: its vectorized result is of no use: AttributeError: 'list' "
                "object has no attribute 'dtype'"
            ),
        ],
    ),
    (
        lambda rows: 1 / 0,
        [
            (
                "the plugin `Counts` at `filter`: its vectorized result is of no use: ZeroDivisionError: division "
                "by zero"
            ),
        ],
    ),
])
def test_where_a_question_says_nothing_that_makes_sense_the_plugin_is_asked(said, told, caplog):
    plugin, _, scheduler = counting()
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(None, PODS, vectorized=lambda snapshot, rows: said(rows))
    verdict = scheduler.decide(pod("p", Random(1)))
    assert (verdict.node, verdict.failures, plugin.asked) == ("n00", (), [list(range(NODES))])
    assert [each.getMessage() for each in caplog.records] == told


@pytest.mark.parametrize(("said", "asked"), [(100, 0), (101, 1), (-1, 1)])
def test_scores_beyond_their_range_are_left_to_the_plugin_to_tell(said, asked):
    plugin = Few()
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(
        None, PODS, vectorized=lambda snapshot, rows: np.full(len(rows), said),
    )
    plugin.scored = 0
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0)
    made = Plugin("Few", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: plugin, "here", "1")
    verdict = Scheduler(cluster, Live(Registry.of([made], generation=1))).decide(pod("p", Random(1)))
    assert (plugin.scored, verdict.score_of("n00")) == (asked, {"Few": 50 if asked else said})


def test_a_cache_key_that_is_stable_for_a_shape_is_computed_once_per_shape_of_pods_and_any_other_every_time():
    plugin, _, scheduler = counting()
    for stable, times in ((True, 2), (False, 4)):
        asked = []

        def cache_key(point, pod, snapshot, asked=asked, stable=stable):
            asked.append(pod.name)
            return CacheKey(pod.requests["cpu"], PODS, stable_for_shape=stable)

        plugin.cache_key = cache_key
        scheduler.cluster.cross_version_cache.clear()
        for name, seed in (("a", 1), ("b", 1), ("c", 2), ("d", 2)):
            scheduler.decide(pod(name, Random(seed)))
        assert len(asked) == times


def test_a_key_that_is_stable_until_nodes_change_is_asked_for_again_after_such_a_change_only():
    plugin, _, scheduler = counting()
    asked = []

    def cache_key(point, pod, snapshot):
        asked.append(pod.name)
        return CacheKey(pod.requests["cpu"], PODS, stable_until=PODS)

    plugin.cache_key = cache_key
    decided = []
    for name in ("a", "b", "c", "d"):
        decided.append(scheduler.decide(pod(name, Random(1))).node)
        if name == "b":
            scheduler.cluster.assume(pod("e", Random(1)), decided[0])
    plugin.cache_key = lambda point, pod, snapshot: None
    anew = scheduler.decide(pod("f", Random(1))).node
    assert (asked, decided) == (["a", "c"], [decided[0], decided[0], anew, anew])


class Uniform:
    """Scores all nodes alike, says so, and counts its calls."""

    def __init__(self):
        self.calls = 0

    def score(self, state, pod, snapshot, rows):
        self.calls += 1
        return Scores(np.full(snapshot.size, 30))

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, frozenset(), score=30)


class FewPods:
    def score(self, state, pod, snapshot, rows):
        return Scores(100 - snapshot.pod_count)

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, PODS, vectorized=lambda snapshot, rows: 100 - snapshot.pod_count[rows])


@pytest.mark.parametrize("following_from", [0, 2_048])
@pytest.mark.parametrize("others", [(), (FewPods(),)])
def test_a_scorer_whose_key_has_a_score_is_not_called_and_counts(following_from, others):
    plugin = Uniform()
    made = [
        Plugin(type(each).__name__, Framework.SCHEDULER, (Point.SCORE,), lambda args, handle, each=each: each, "here",
               "1", default_weight=3 if each is plugin else 1)
        for each in (plugin, *others)
    ]
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0,
                      following_from=following_from)
    scheduler = Scheduler(cluster, Live(Registry.of(made, generation=1)))
    for number in range(3):
        verdict = scheduler.schedule(pod(f"p{number}", Random(1)))
        # The pods before this one are on the first nodes, where they were placed, by name or because they had no pods.
        others_scored = [99] * number + [100] * (NODES - number)
        totals = [90 + score for score in others_scored] if others else [90] * NODES
        scored = {each.plugin: (each.weight, each.scores.values.tolist()) for each in verdict.scores}
        assert verdict.totals.tolist() == totals
        assert scored == {"Uniform": (3, [30] * NODES)} | ({"FewPods": (1, others_scored)} if others else {})
    assert plugin.calls == 0


@pytest.mark.parametrize("score", [-1, 101, 3.5, True])
def test_a_score_of_a_key_that_is_none_is_logged_and_the_scorer_is_called(score, caplog):
    plugin = Uniform()
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(None, frozenset(), score=score)
    registry = Registry.of([Plugin("Uniform", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: plugin, "here",
                                   "1")], generation=1)
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0)
    scheduler = Scheduler(cluster, Live(registry))
    for name in "ab":
        assert scheduler.decide(pod(name, Random(1))).totals.tolist() == [30] * NODES
    assert plugin.calls == 2
    message = "the plugin `Uniform` at `score`: its cache key is of no use: TypeError: its `score` must be None or, of "
    assert [each.getMessage() for each in caplog.records] == [f"{message}scorers, an int of 0..100, not {score!r}"]


def test_answers_of_another_epoch_are_asked_for_also_where_there_was_none_before():
    plugin, _, scheduler = counting()
    for number, (epoch, first) in enumerate([(None, 0), (1, 30), (1, 30), (None, 0)]):
        plugin.cache_key = lambda point, pod, snapshot, epoch=epoch: CacheKey(None, frozenset(), lambda _: epoch)
        plugin.filter = lambda state, pod, snapshot, rows, first=first: Answer(
            np.arange(snapshot.size) >= first, lambda _: Refusal("", "early"),
        )
        assert scheduler.decide(pod(f"p{number}", Random(1))).node == f"n{first:02}"


def test_views_and_single_nodes_that_are_looked_at_leave_nothing_behind_in_a_cluster_at_rest():
    scheduler = Scheduler(
        Cluster(node(number, Random(number)) for number in range(NODES)), Live(Registry.of(PLUGINS, generation=1)),
    )
    profile, snapshot = scheduler.profiles[0], scheduler.cluster.snapshot(START)
    for number in range(100):
        filter_only(profile, pod("q", Random(1)), snapshot, among=np.array([number % NODES], np.intp))
    first = filter_only(profile, pod("q", Random(1)), snapshot).passed[:1]
    for number in range(100):
        view = snapshot.overlay({f"n{number % NODES:02}": NodeChange(add=[pod(f"p{number}", Random(1))])})
        filter_only(profile, pod("q", Random(1)), view, among=first)
    scratches = scheduler.cluster.version_cache["scratches"].values()
    assert (len(scratches) <= 16, sum(len(kept) for _, kept in scratches) < 200) == (True, True)


def test_two_sets_of_questions_share_a_plugin_whose_epoch_comes_and_goes():
    plugin, _, scheduler = counting()
    epochs = {"a": None, "b": None}
    other = Few()
    other.cache_key = lambda point, pod, snapshot: CacheKey(pod.namespace, PODS)
    plugin.cache_key = lambda point, pod, snapshot: CacheKey(None, frozenset(), lambda _: epochs[pod.namespace])
    plugin.filter = lambda state, pod, snapshot, rows: Answer(
        np.full(len(rows), epochs[pod.namespace] is None), lambda _: Refusal("", "early"),
    )
    made = [("Counts", plugin), ("Few", other)]
    plugins = [
        Plugin(name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle, it=it: it, "here", "1")
        for name, it in made
    ]
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0)
    scheduler = Scheduler(cluster, Live(Registry.of(plugins, generation=1)))
    asked = {
        name: PodInfo.of({**pod("q", Random(1)).object, "metadata": {"name": "q", "namespace": name}}) for name in "ab"
    }
    for number in range(2 * NODES):
        cluster.assume(pod(f"p{number}", Random(1)), f"n{number % NODES:02}")
    assert scheduler.decide(asked["a"]).reasons() == {"two pods": NODES}
    epochs["b"] = 1
    assert scheduler.decide(asked["b"]).reasons() == {"early": NODES}
    cluster.forget("shop/p5")
    assert scheduler.decide(asked["a"]).node == "n05"


def test_a_plugin_is_asked_once_about_all_nodes_also_where_another_one_fails():
    counts, few, _, scheduler = two_plugins()
    few.fails = True
    assert scheduler.decide(pod("p", Random(1))).failures[0].plugin == "Few"
    assert counts.asked == [list(range(NODES))]


def test_load_aware_scheduling_notices_that_the_clock_goes_back_before_a_metric_expired():
    registry = Registry.of(PLUGINS, generation=1)
    stamp = np.datetime64(START // SECOND - 100, "s").astype(str)
    measured = [metric(number, Random(1), START) for number in range(NODES)]
    for each in measured:
        each["status"]["updateTime"] = f"{stamp}Z"
        each["status"]["nodeMetric"]["nodeUsage"]["resources"] = {"cpu": "1", "memory": "1Gi"}
    plain = [
        {
            "kind": "Node", "metadata": {"name": f"n{number:02}"},
            "status": {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "9"}},
        }
        for number in range(NODES)
    ]
    settings = Settings(read(Source("scheduler.yaml", CONFIGURATION), registry).profiles)
    scheduler = Scheduler(Cluster([*plain, *measured], cache_results_from=0), Live(registry), settings)
    profile, asked = scheduler.profiles[0], pod("p", Random(7))
    passed = [
        len(filter_only(profile, asked, scheduler.cluster.snapshot(now)).passed)
        for now in (START, START + 75 * SECOND, START)
    ]
    assert passed == [NODES, 0, NODES]


def test_a_snapshot_that_is_older_than_a_change_gathers_what_is_there_now():
    cluster = Cluster(node(number, Random(number)) for number in range(NODES))
    snapshot = cluster.snapshot(START)
    before = snapshot.gathered(snapshot.pod_count, FIRST).tolist()
    cluster.assume(pod("p", Random(1)), "n00")
    assert (before, snapshot.gathered(snapshot.pod_count, FIRST).tolist()) == ([0], [1])


def test_what_a_plugin_answered_about_some_nodes_is_spread_over_all_each_part_by_its_own_length():
    rows, whole = np.array([1, 3]), np.arange(4)
    scores = Scores(np.array([5, 7]), items={"a": np.array([1, 2])}, raw={"": whole}).spread(rows, 4)
    found = scores.values.tolist(), scores.items["a"].tolist(), scores.raw[""].tolist()
    assert found == ([0, 5, 0, 7], [0, 1, 0, 2], [0, 1, 2, 3])
    assert Scores(whole, items={"a": np.array([1, 2])}).spread(rows, 4).items["a"].tolist() == [0, 1, 0, 2]


class Few:
    """Answers about the nodes that it is asked about alone; fails where it is told to."""

    fails = False

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, PODS)

    def filter(self, state, pod, snapshot, rows):
        if self.fails:
            raise RuntimeError("broken")
        return Answer(np.array([len(snapshot.pods(row)) < 2 for row in rows]), lambda row: Refusal("full", "two pods"))

    def score(self, state, pod, snapshot, rows):
        self.scored = len(rows) and 1
        return Scores(np.array([50 - 10 * len(snapshot.pods(row)) for row in rows], np.int64))


def two_plugins():
    counts, few = Counts(), Few()
    made = [("Counts", (Point.FILTER,), counts), ("Few", (Point.FILTER, Point.SCORE), few)]
    plugins = [
        Plugin(name, Framework.SCHEDULER, points, lambda args, handle, it=it: it, "here", "1")
        for name, points, it in made
    ]
    cluster = Cluster((node(number, Random(number)) for number in range(NODES)), cache_results_from=0)
    return counts, few, cluster, Scheduler(cluster, Live(Registry.of(plugins, generation=1)))


def test_a_plugin_may_answer_about_the_nodes_that_it_is_asked_about_alone():
    _, _, cluster, scheduler = two_plugins()
    for number in range(2):
        cluster.assume(pod(f"p{number}", Random(1)), "n03")
    cluster.assume(pod("p2", Random(1)), "n05")
    verdict = scheduler.decide(pod("q", Random(1)))
    assert (verdict.reasons(), verdict.score_of("n04")) == ({"1 pods": 1, "two pods": 1}, {"Few": 50})
    assert verdict.node == "n00"


def test_what_a_plugin_missed_while_another_one_failed_it_is_asked_about_later():
    counts, few, cluster, scheduler = two_plugins()
    assert scheduler.decide(pod("p", Random(1))).node == "n00"
    cluster.assume(pod("a", Random(1)), "n00")
    few.fails = True
    assert scheduler.decide(pod("p", Random(1))).failures[0].plugin == "Few"
    cluster.assume(pod("b", Random(1)), "n01")
    few.fails = False
    verdict = scheduler.decide(pod("p", Random(1)))
    assert (verdict.node, verdict.reasons()) == ("n02", {"1 pods": 2})
    assert counts.asked[:3] == [list(range(NODES)), [0], [1]]


def test_scores_of_a_verdict_stay_what_they_were_when_the_cluster_has_changed():
    _, _, cluster, scheduler = two_plugins()
    before = scheduler.decide(pod("p", Random(1)))
    cluster.assume(pod("a", Random(1)), "n03")
    after = scheduler.decide(pod("q", Random(1)))
    assert (before.score_of("n03"), dict(before.best())["n03"]) == ({"Few": 50}, 50)
    assert (after.score_of("n03"), after.reasons()) == ({}, {"1 pods": 1})


def test_a_small_cluster_is_asked_as_it_is():
    for count, cache_results_from in ((20, 0), (NODES, NODES + 1)):
        plugin, _, scheduler = counting(count, cache_results_from)
        for number in range(2):
            scheduler.decide(pod(f"p{number}", Random(1)))
        assert plugin.asked == [list(range(count))] * 2


def test_a_plugin_without_a_cache_key_is_called_every_time():
    plugin, _, scheduler = counting()
    plugin.cache_key = lambda point, pod, snapshot: None
    for number in range(2):
        scheduler.decide(pod(f"p{number}", Random(1)))
    assert plugin.asked == [list(range(NODES))] * 2


def test_a_plugin_that_fails_to_say_so_fails_as_itself():
    plugin, _, scheduler = counting()

    def broken(state, pod, snapshot, rows):
        raise RuntimeError("broken")

    plugin.filter = broken
    verdict = scheduler.decide(pod("p", Random(1)))
    assert [(failure.plugin, failure.message) for failure in verdict.failures] == [("Counts", "RuntimeError: broken")]
    assert verdict.reasons() == {"RuntimeError: broken": NODES}


class ByPods:
    """Scores nodes by the number of their pods; the score does not depend on the pod."""

    def cache_key(self, point, pod, snapshot):
        return CacheKey(None, PODS)

    def score(self, state, pod, snapshot, rows):
        return Scores(np.array([len(snapshot.pods(row)) for row in range(snapshot.size)], np.int64))


@pytest.mark.parametrize("infeasible", [[1], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("changed", [[1], [1, 5], [0, 1, 2, 5]])
@pytest.mark.parametrize("between", [True, False])
def test_a_changed_row_where_a_pod_cannot_run_is_scored_again_for_a_later_pod(infeasible, changed, between):
    plugin = Plugin("ByPods", Framework.SCHEDULER, (Point.SCORE,), lambda args, handle: ByPods(), "here", "1")
    nodes = (node(number, Random(number)) for number in range(NODES))
    cluster = Cluster(nodes, cache_results_from=0, following_from=0)
    profile = Scheduler(cluster, Live(Registry.of([plugin], generation=1))).profiles[0]

    def scored(rows):
        return score_only(profile, pod("p", Random(1)), cluster.snapshot(), among=rows).totals.tolist()

    every, later = np.arange(NODES), np.arange(1, NODES)
    feasible = np.setdiff1d(every, infeasible)
    assert (scored(every), scored(feasible)) == ([0] * NODES, [0] * len(feasible))
    for number, row in enumerate(changed):
        cluster.assume(pod(f"on-{number}", Random(1)), f"n{row:02}")
    expected = [int(row in changed) for row in range(NODES)]
    if between:
        assert scored(feasible) == [expected[row] for row in feasible]  # the same array: only its rows are scored
    assert scored(later) == expected[1:]
    assert scored(every) == expected
