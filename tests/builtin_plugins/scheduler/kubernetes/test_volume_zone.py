from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Code
from koordpolicy.plugin import SKIP, SKIP_SHAPE, CycleState, Event

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
REASON = "node(s) had no available volume zone"


def node(name, **labels):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": {}}}


def volume(name="pv", **labels):
    return {"kind": "PersistentVolume", "metadata": {"name": name, "labels": labels}, "spec": {}}


def claim(name="data", **spec):
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def storage_class(mode):
    return {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "disks", "volumeBindingMode": mode}


def claiming(*names):
    return {
        "volumes": [
            {"name": f"v{place}", "persistentVolumeClaim": {"claimName": name}} for place, name in enumerate(names)
        ],
    }


NODES = [node("east", **{ZONE: "east", REGION: "here"}), node("west", **{ZONE: "west", REGION: "here"}),
         node("old", **{OLD_ZONE: "east"}), node("region", **{REGION: "here"}), node("anywhere", rack="1")]


@pytest.mark.parametrize(("labels", "refused"), [
    ({ZONE: "east"}, ["old", "region", "west"]),
    ({ZONE: "east__west"}, ["old", "region"]),
    ({ZONE: " east __ west "}, ["old", "region"]),
    # A label of old holds for nodes with that label, else for those with the new one; not the other way round.
    ({OLD_ZONE: "east"}, ["region", "west"]),
    ({OLD_REGION: "here"}, ["old"]),
    ({ZONE: "east", REGION: "elsewhere"}, ["east", "old", "region", "west"]),
    ({ZONE: "north"}, ["east", "old", "region", "west"]),
])
def test_a_node_that_names_zones_must_name_those_of_the_volume(kit, labels, refused):
    cluster = Cluster([*NODES, volume(**labels), claim(volumeName="pv")])
    plugin, pod = kit.make("VolumeZone"), kit.pod(**claiming("data"))
    assert plugin.pre_filter(CycleState(), pod, cluster.snapshot()) is None
    assert kit.reasons(plugin, pod, cluster) == {REASON: refused}
    assert kit.refusal(plugin, pod, cluster, refused[0]).code is Code.UNRESOLVABLE


def test_all_volumes_of_a_pod_count(kit):
    cluster = Cluster([*NODES, volume("one", **{ZONE: "east__west"}), claim("one", volumeName="one"),
                       volume("two", **{ZONE: "west"}), claim("two", volumeName="two")])
    assert kit.passed(kit.make("VolumeZone"), kit.pod(**claiming("one", "two")), cluster) == ["anywhere", "west"]


@pytest.mark.parametrize("labels", [{}, {"rack": "1"}, {ZONE: ""}, {ZONE: "east__"}, {ZONE: "__"}])
def test_a_volume_that_names_no_zone_is_no_concern(kit, labels):
    snapshot = Cluster([*NODES, volume(**labels), claim(volumeName="pv")]).snapshot()
    assert kit.make("VolumeZone").pre_filter(CycleState(), kit.pod(**claiming("data")), snapshot) is SKIP


@pytest.mark.parametrize("volumes", [[], [{"name": "tmp", "emptyDir": {}}], [{"name": "scratch", "ephemeral": {}}]])
def test_pods_without_claims_of_their_own_are_skipped(kit, volumes):
    found = kit.make("VolumeZone").pre_filter(CycleState(), kit.pod(volumes=volumes), Cluster(NODES).snapshot())
    assert found is (SKIP if volumes else SKIP_SHAPE)


@pytest.mark.parametrize(("objects", "name", "message"), [
    ([], "", "PersistentVolumeClaim had no name"),
    ([], "data", 'persistentvolumeclaim "data" not found'),
    ([claim(volumeName="gone")], "data", 'persistentvolume "gone" not found'),
    ([claim()], "data", "PersistentVolumeClaim had no pv name and storageClass name"),
    ([claim(storageClassName="fast")], "data", 'storageclass.storage.k8s.io "fast" not found'),
    ([claim(storageClassName="fast"), storage_class("Immediate")], "data", "PersistentVolume had no name"),
])
def test_a_claim_without_a_volume_keeps_its_pod_from_all_nodes(kit, objects, name, message):
    refusal = kit.make("VolumeZone").pre_filter(
        CycleState(), kit.pod(**claiming(name)), Cluster([*NODES, *objects]).snapshot(),
    )
    assert (refusal.message, refusal.code) == (message, Code.UNRESOLVABLE)


def test_a_claim_that_waits_for_its_pod_is_no_concern(kit):
    snapshot = Cluster([*NODES, claim(storageClassName="fast"), storage_class("WaitForFirstConsumer")]).snapshot()
    assert kit.make("VolumeZone").pre_filter(CycleState(), kit.pod(**claiming("data")), snapshot) is SKIP


def test_a_node_that_moves_is_seen(kit):
    cluster = Cluster([*NODES, volume(**{ZONE: "east"}), claim(volumeName="pv")])
    plugin, pod = kit.make("VolumeZone"), kit.pod(**claiming("data"))
    assert kit.passed(plugin, pod, cluster) == ["anywhere", "east"]
    cluster.upsert(node("west", **{ZONE: "east"}))
    assert kit.passed(plugin, pod, cluster) == ["anywhere", "east", "west"]


@pytest.mark.parametrize(("kind", "key", "helps"), [
    ("PersistentVolumeClaim", "default/data", True), ("PersistentVolumeClaim", "default/other", False),
    ("PersistentVolumeClaim", "elsewhere/data", False), ("PersistentVolume", "pv", True),
    ("StorageClass", "fast", True),
    ("Node", "east", True), ("Pod", "default/other", False),
])
def test_what_may_help_is_a_node_or_the_pods_storage(kit, kind, key, helps):
    assert kit.make("VolumeZone").may_help(Event(kind, key, None, {}), kit.pod(**claiming("data"))) is helps
