"""Koordinator's shipped profile at work: reservations, gangs and quotas beside each other, in whole cycles."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pytest

from koordpolicy.builtin_plugins.scheduler import KOORDINATOR_PLUGINS, PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.extensions.reservations import allocated_uid, is_reserve_pod
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.plugin import CycleState, PreBind
from tests.fake_framework import FakeFramework

SECOND = 1_000_000_000
GANG, QUOTA = "pod-group.scheduling.sigs.k8s.io", "quota.scheduling.koordinator.sh/name"
KNOWN = {plugin.name for plugin in PLUGINS}
PROFILE = ProfileSpec(name="koord-scheduler", named_only=True, enabled=tuple(
    PluginChoice(name, weight, points=frozenset((point,)))
    for point, plugins in KOORDINATOR_PLUGINS.items() for name, weight in plugins if name in KNOWN
))


def container(cpu, memory):
    return [{"name": "main", "resources": {"requests": {"cpu": str(cpu), "memory": f"{memory}Gi"}}}]


def node(number):
    return {"kind": "Node", "metadata": {"name": f"n{number}"},
            "status": {"allocatable": {"cpu": "12", "memory": "32Gi", "pods": "30"}}}


def quota(name, most):
    return {"kind": "ElasticQuota", "metadata": {"name": name, "namespace": "kube-system"},
            "spec": {"min": {"cpu": "10", "memory": "20Gi"}, "max": {"cpu": most, "memory": "200Gi"}}}


def group(number, least):
    return {"kind": "PodGroup", "metadata": {"name": f"g{number}", "namespace": "default"},
            "spec": {"minMember": least, "scheduleTimeoutSeconds": 30}}


def reservation(number, chance):
    spec = {
        "ttl": "1h", "allocateOnce": chance.random() < 0.5,
        "allocatePolicy": chance.choice(["", "Aligned", "Restricted"]),
        "owners": [{"labelSelector": {"matchLabels": {"app": chance.choice("abc")}}}],
        "template": {"spec": {"schedulerName": "koord-scheduler", "containers": container(chance.randint(1, 5), 4)}},
    }
    return {"kind": "Reservation", "metadata": {"name": f"r{number}", "uid": f"r{number}"}, "spec": spec}


def pod(number, chance):
    labels = {"app": chance.choice("abcd")}
    if chance.random() < 0.4:
        labels[GANG] = f"g{chance.randint(0, 3)}"
    if chance.random() < 0.5:
        labels[QUOTA] = chance.choice(["qa", "qb"])
    annotations = {"scheduling.koordinator.sh/reservation-affinity": json.dumps({})} if chance.random() < 0.1 else {}
    return {
        "kind": "Pod", "spec": {"schedulerName": "koord-scheduler", "containers": container(chance.randint(1, 4), 1)},
        "metadata": {
            "name": f"p{number:03}", "namespace": "default", "uid": f"p{number}", "labels": labels,
            "annotations": annotations,
        },
    }


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_given_twice_and_no_gang_runs_in_part(seed):
    chance, now = Random(seed), [1_000 * SECOND]
    least = {f"g{number}": chance.randint(1, 4) for number in range(4)}
    groups = [group(number, least[f"g{number}"]) for number in range(4)]
    cluster = Cluster([*map(node, range(6)), quota("qa", "30"), quota("qb", "15"), *groups])
    loop = SchedulingLoop(
        cluster, Live(Registry.of(PLUGINS, generation=1)), Settings(profiles=(PROFILE,)), clock=lambda: now[0],
    )
    failures = []
    for turn in range(10):
        if turn < 6:
            for number in range(turn * 6, turn * 6 + 6):
                cluster.upsert(pod(number, chance))
            cluster.upsert(reservation(turn, chance))
        for verdict in loop.schedule_all():
            failures += verdict.failures
        now[0] += 35 * SECOND
        for row in cluster.rows:
            pods = [each for each in row.pods.values() if not is_reserve_pod(each)]
            held = 0
            for each in row.pods.values():
                if is_reserve_pod(each):
                    used = sum(one.requests["cpu"] for one in pods if allocated_uid(one.object) == each.uid)
                    held += max(0, each.requests["cpu"] - used)
            assert sum(one.requests["cpu"] for one in pods) + held <= 12_000
    [*loop.schedule_all()]
    placed = [found for key in cluster.objects("Pod") if (found := cluster.pod(key)) is not None and found.node_name
              and not is_reserve_pod(found)]
    running = Counter(each.object["metadata"]["labels"].get(GANG) for each in placed
                      if each.key not in loop.scheduler.waiting)
    # A reservation may push a pod out, whatever that pod's gang makes of it.
    pushed_out = {name for name, count in running.items() if name and count < least[name]}
    assert len(pushed_out) <= len(loop.scheduler.client.evicted)
    plugin = next(active.instance for active in loop.scheduler.profiles[0].made if active.name == "ElasticQuota")
    for name in ("qa", "qb"):
        used = sum(each.requests["cpu"] for each in placed if each.object["metadata"]["labels"].get(QUOTA) == name)
        assert plugin.trees[""].quota(name).used["cpu"] == used <= {"qa": 30_000, "qb": 15_000}[name]
    assert (failures, loop.failures, len(placed) > 15) == ([], [], True)


def test_no_plugin_wants_a_draft_of_a_plain_pod():
    plain = {"kind": "Pod", "metadata": {"name": "p", "namespace": "default", "uid": "p"},
             "spec": {"containers": container(1, 1)}}
    framework = FakeFramework(node(0), plain)
    plugins = [framework.make(name) for name, _ in KOORDINATOR_PLUGINS[Point.PRE_BIND]]
    assert [each.name for each in plugins if isinstance(each, PreBind)
            and each.pre_bind_pre_flight(CycleState(), framework.pod("p"), "n0")] == []
