"""Kubernetes' default set at work together, in whole cycles."""

from __future__ import annotations

from collections import Counter

import pytest

from koordpolicy.builtin_plugins.scheduler import DEFAULT_PLUGINS, PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.kubernetes.release import KUBERNETES_1_35, KUBERNETES_1_36
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.profiles.profile import EVERYTHING, PluginChoice, ProfileSpec

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
ENABLED = tuple(
    PluginChoice(name, weight, points=frozenset((point,)))
    for point, plugins in DEFAULT_PLUGINS.items()
    for name, weight in plugins
)


def node(name, zone="", cpu=4):
    labels = {HOSTNAME: name, **({ZONE: zone} if zone else {})}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels},
            "status": {"allocatable": {"cpu": str(cpu), "memory": "16Gi", "pods": "20"}}}


def pod(name, cpu="1", app="web", priority=0, node="", **spec):
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": app}},
            "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}],
                     "priority": priority, **({"nodeName": node} if node else {}), **spec}}


def apart_from(app):
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


@pytest.fixture
def scheduler():
    def make(*objects, name="default-scheduler", kubernetes=None):
        profile = ProfileSpec(name, enabled=ENABLED, disabled={None: frozenset({EVERYTHING})})
        return Scheduler(
            Cluster(objects), Live(Registry.of(PLUGINS, generation=1)), Settings((profile,), kubernetes=kubernetes),
        )

    return make


def test_all_plugins_of_the_set_are_at_work_where_kubernetes_has_them(scheduler):
    profile = scheduler().profiles[0]
    found = {point: [(each.name, each.weight) for each in profile.at[point]] for point in DEFAULT_PLUGINS}
    assert found == {point: list(plugins) for point, plugins in DEFAULT_PLUGINS.items()}


def test_pods_are_spread_over_zones_as_their_constraints_say(scheduler):
    made = scheduler(*(node(f"{zone}{place}", zone) for zone in "abc" for place in range(3 if zone == "a" else 1)))
    spread = {"topologySpreadConstraints": [{"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
                                            "labelSelector": {"matchLabels": {"app": "web"}}}]}
    zones = Counter(made.schedule(PodInfo.of(pod(f"p{place}", **spread))).node[0] for place in range(9))
    assert zones == {"a": 3, "b": 3, "c": 3}


def test_pods_that_keep_apart_get_a_node_each_and_the_next_one_none(scheduler):
    made = scheduler(node("a"), node("b"))
    verdicts = [made.schedule(PodInfo.of(pod(f"p{place}", **apart_from("web")))) for place in range(3)]
    assert sorted(verdict.node or "" for verdict in verdicts) == ["", "a", "b"]
    assert verdicts[2].reasons() == {"node(s) didn't match pod anti-affinity rules": 2}


def test_room_is_made_by_those_who_matter_least_and_kept_for_the_pod(scheduler):
    made = scheduler(node("a"), node("b"), pod("big", "4", priority=5, node="a"), pod("one", "2", priority=3, node="b"),
                     pod("two", "2", priority=4, node="b"))
    important = PodInfo.of(pod("important", "2", priority=100))
    verdict = made.schedule(important)
    assert (
        verdict.node, verdict.nomination.node, [each.name for each in verdict.nomination.victims],
    ) == (None, "b", ["one"])
    made.cluster.delete("Pod", "default/one")
    # What became free is for the nominated pod, and not for one of lower priority.
    assert made.schedule(PodInfo.of(pod("late", "2", priority=50))).node != "b"
    assert made.schedule(important).node == "b"


def test_a_pod_takes_the_place_of_one_that_it_cannot_bear(scheduler):
    made = scheduler(
        node("a"), node("b"), pod("one", app="db", priority=2, node="a"), pod("two", app="db", priority=1, node="b"),
    )
    verdict = made.schedule(PodInfo.of(pod("new", priority=9, **apart_from("db"))))
    assert (verdict.nomination.node, [each.name for each in verdict.nomination.victims]) == ("b", ["two"])


def test_nothing_helps_a_pod_that_wants_what_no_node_is(scheduler):
    made = scheduler(node("a"), pod("low", "4", node="a"))
    verdict = made.schedule(PodInfo.of(pod("new", priority=9, nodeSelector={"disk": "ssd"})))
    assert verdict.nomination is None
    assert [refusal.message for _, refusal in verdict.post_filter_refusals] == [
        "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."]


@pytest.mark.parametrize(("name", "kubernetes", "score"), [
    ("default-scheduler", None, 70), ("koord-scheduler", None, 90),
    ("default-scheduler", KUBERNETES_1_35, 90), ("koord-scheduler", KUBERNETES_1_36, 70),
])
def test_a_profile_follows_its_release_of_kubernetes_or_the_one_that_is_named(scheduler, name, kubernetes, score):
    made = scheduler(node("a"), node("b"), name=name, kubernetes=kubernetes)
    verdict = made.decide(PodInfo.of(pod("p")))
    # A quarter of the cpu and a sixteenth of the memory, of an empty node.
    assert verdict.score_of("a")["NodeResourcesBalancedAllocation"] == verdict.score_of("b")[
        "NodeResourcesBalancedAllocation"
    ] == score


def test_the_second_pod_does_not_get_the_volume_that_the_first_one_takes(scheduler):
    def claiming(name):
        return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]}

    storage_class = {
        "kind": "StorageClass", "metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    claims = ({"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
               "spec": {"storageClassName": "local", "accessModes": ["ReadWriteOnce"]}} for name in ("one", "two"))
    volume = {
        "kind": "PersistentVolume", "metadata": {"name": "disk"}, "status": {"phase": "Available"},
        "spec": {
            "storageClassName": "local", "accessModes": ["ReadWriteOnce"],
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]},
                    ],
                },
            },
        },
    }
    made = scheduler(node("a"), node("b"), storage_class, volume, *claims)
    assert made.schedule(PodInfo.of(pod("first", **claiming("one")))).node == "b"
    assert made.schedule(PodInfo.of(pod("second", **claiming("two")))).message() == (
        "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind. "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
