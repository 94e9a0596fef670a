from __future__ import annotations

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState, Event

DISK = "node(s) had no available disk"
IN_USE = (
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)
NODES = [
    {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}
    for name in "ab"
]


def claim(name="data", mode="ReadWriteOncePod", namespace="default"):
    return {
        "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace},
        "spec": {"accessModes": [mode]},
    }


def claiming(*names):
    return {
        "volumes": [
            {"name": f"v{place}", "persistentVolumeClaim": {"claimName": name}} for place, name in enumerate(names)
        ],
    }


def disk(**source):
    return {"volumes": [{"name": "tmp", "emptyDir": {}}, {"name": "disk", **source}]}


GCE, READ = {"pdName": "one"}, {"readOnly": True}
RBD = {"monitors": ["m1", "m2"], "pool": "p", "image": "i"}


@pytest.mark.parametrize(("mine", "other", "conflict"), [
    (disk(gcePersistentDisk=GCE), disk(gcePersistentDisk=GCE), True),
    (disk(gcePersistentDisk=GCE), disk(gcePersistentDisk=GCE | READ), True),
    (disk(gcePersistentDisk=GCE | READ), disk(gcePersistentDisk=GCE | READ), False),
    (disk(gcePersistentDisk=GCE), disk(gcePersistentDisk={"pdName": "two"}), False),
    (disk(awsElasticBlockStore={"volumeID": "v"}), disk(awsElasticBlockStore={"volumeID": "v"}), True),
    (disk(awsElasticBlockStore={"volumeID": "v"} | READ), disk(awsElasticBlockStore={"volumeID": "v"} | READ), True),
    (disk(awsElasticBlockStore={"volumeID": "v"}), disk(awsElasticBlockStore={"volumeID": "w"}), False),
    (disk(iscsi={"iqn": "q"}), disk(iscsi={"iqn": "q"} | READ), True),
    (disk(iscsi={"iqn": "q"} | READ), disk(iscsi={"iqn": "q"} | READ), False),
    (disk(iscsi={"iqn": "q"}), disk(iscsi={"iqn": "r"}), False),
    (disk(rbd=RBD), disk(rbd=RBD | {"monitors": ["m2", "m3"]}), True),
    (disk(rbd=RBD | READ), disk(rbd=RBD | READ), False),
    (disk(rbd=RBD), disk(rbd=RBD | {"monitors": ["m3"]}), False),
    (disk(rbd=RBD), disk(rbd=RBD | {"image": "j"}), False),
    (disk(rbd=RBD), disk(rbd=RBD | {"pool": "q"}), False),
    (disk(gcePersistentDisk=GCE), disk(awsElasticBlockStore={"volumeID": "one"}), False),
])
def test_a_disk_that_one_pod_mounts_alone_keeps_others_off_its_node(kit, mine, other, conflict):
    cluster = Cluster([*NODES, kit.pod("other", nodeName="a", **other).object, kit.pod("plain", nodeName="b").object])
    plugin, pod = kit.make("VolumeRestrictions"), kit.pod(**mine)
    assert plugin.pre_filter(CycleState(), pod, cluster.snapshot()) is None
    assert kit.reasons(plugin, pod, cluster) == ({DISK: ["a"]} if conflict else {})
    if conflict:
        assert kit.refusal(plugin, pod, cluster, "a").code is Code.UNSCHEDULABLE


def asked(kit, pod, *objects):
    """Ask preFilter and filter of one decision; return SKIP, a refusal of the pod, or the reasons of the nodes."""
    snapshot, plugin, state = Cluster([*NODES, *objects]).snapshot(), kit.make("VolumeRestrictions"), CycleState()
    answer = plugin.pre_filter(state, pod, snapshot)
    if answer is not None:
        return answer
    found = plugin.filter(state, pod, snapshot, kit.rows(snapshot))
    return {
        reason: [snapshot.names[row] for row in rows]
        for reason, rows in found.reasons(kit.rows(snapshot)[~found.passed]).items()
    }


def test_a_claim_that_one_pod_uses_alone_keeps_others_off_every_node(kit):
    user = kit.pod("user", nodeName="a", **claiming("data")).object
    assert asked(kit, kit.pod(**claiming("data")), claim(), user) == {IN_USE: ["a", "b"]}
    assert asked(kit, kit.pod(**claiming("data")), claim()) is SKIP
    assert asked(kit, kit.pod(**claiming("data")), claim(mode="ReadWriteOnce"), user) is SKIP
    assert asked(kit, kit.pod(**claiming("data")), claim(), kit.pod("waits", **claiming("data")).object) is SKIP


def test_claims_of_the_same_name_elsewhere_are_others(kit):
    elsewhere = {**kit.pod("user", nodeName="a", **claiming("data")).object}
    elsewhere["metadata"] = {"name": "user", "namespace": "elsewhere"}
    assert asked(kit, kit.pod(**claiming("data")), claim(), elsewhere) is SKIP


def test_a_missing_claim_keeps_its_pod_from_all_nodes_and_that_of_an_ephemeral_volume_is_not_looked_for(kit):
    refusal = asked(kit, kit.pod(**claiming("gone")))
    assert (refusal.message, refusal.code) == ('persistentvolumeclaim "gone" not found', Code.UNRESOLVABLE)
    assert asked(kit, kit.pod(volumes=[{"name": "scratch", "ephemeral": {}}])) is SKIP
    assert asked(kit, kit.pod()) is SKIP_SHAPE


def test_of_two_reasons_on_a_node_the_disk_is_told(kit):
    both = {"volumes": [*claiming("data")["volumes"], *disk(gcePersistentDisk=GCE)["volumes"]]}
    user = kit.pod("user", nodeName="a", **both).object
    assert asked(kit, kit.pod(**both), claim(), user) == {DISK: ["a"], IN_USE: ["b"]}


def test_who_uses_the_claim_may_have_to_go_for_a_pod_of_higher_priority(kit):
    # The claim has no volume, which other plugins would refuse first.
    profile = ProfileSpec(disabled={None: frozenset({"VolumeBinding", "VolumeZone"})})
    user, new = kit.pod("user", nodeName="a", priority=1, **claiming("data")).object, kit.pod(
        "new", priority=9, **claiming("data"),
    ).object
    loop = SchedulingLoop(
        Cluster([*NODES, claim(), user, new]), Live(Registry.of(PLUGINS, generation=1)), Settings((profile,)),
        clock=lambda: 0,
    )
    verdict = loop.scheduler.decide(PodInfo.of(new))
    assert verdict.message() == f"0/2 nodes are available: 2 {IN_USE}."
    assert (verdict.nomination.node, [each.name for each in verdict.nomination.victims]) == ("a", ["user"])
    equal = kit.pod("equal", priority=1, **claiming("data"))
    assert loop.scheduler.decide(equal).message() == (
        f"0/2 nodes are available: 2 {IN_USE}. preemption: 0/2 nodes are available: 2 No preemption victims found for "
        "incoming pod."
    )


@pytest.mark.parametrize(("kind", "key", "helps"), [
    ("PersistentVolumeClaim", "default/data", True), ("PersistentVolumeClaim", "default/other", False),
    ("Node", "a", True),
    ("PersistentVolume", "pv", False),
])
def test_what_may_help_is_a_node_or_one_of_the_pods_claims(kit, kind, key, helps):
    assert kit.make("VolumeRestrictions").may_help(Event(kind, key, None, {}), kit.pod(**claiming("data"))) is helps
