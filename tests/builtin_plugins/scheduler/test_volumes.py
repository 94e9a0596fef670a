from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.snapshot import Cluster
from koordpolicy.engine.plugins import SKIP, CycleState
from koordpolicy.engine.points import Code


def node(name, **labels):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": {}}}


def claim(name, volume="", storage_class="", phase="", **metadata):
    spec = {**({"volumeName": volume} if volume else {}), **({"storageClassName": storage_class} if storage_class else {})}
    return {"kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec,
            "status": {"phase": phase or ("Bound" if volume else "Pending")}}


def volume(name, zone="", driver=""):
    spec = {}
    if zone:
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    if driver:
        spec["csi"] = {"driver": driver, "volumeHandle": name}
    return {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}


def storage_class(name, mode="Immediate", provisioner="disks"):
    return {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}


def csi_node(name, **limits):
    drivers = [{"name": driver, "allocatable": {"count": count}} for driver, count in limits.items()]
    return {"kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": drivers}}


def claiming(*names):
    return {"volumes": [{"name": f"v{place}", "persistentVolumeClaim": {"claimName": name}} for place, name in enumerate(names)]}


NODES = [node("a", zone="east"), node("b", zone="west")]
CONFLICT = "node(s) had volume node affinity conflict"


@pytest.mark.parametrize(("objects", "message"), [
    ([], 'persistentvolumeclaim "data" not found'),
    ([claim("data", "gone", phase="Lost")], 'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"'),
    ([claim("data", deletionTimestamp="2026-01-01T00:00:00Z")], 'persistentvolumeclaim "data" is being deleted'),
    ([claim("data")], "pod has unbound immediate PersistentVolumeClaims"),
    ([claim("data", storage_class="fast"), storage_class("fast")], "pod has unbound immediate PersistentVolumeClaims"),
    ([claim("data", storage_class="fast")], 'storageclass.storage.k8s.io "fast" not found'),
    ([claim("data", storage_class="fast"), storage_class("fast", "WaitForFirstConsumer")],
     'persistentvolumeclaim "data" waits for first consumer, and this scheduler binds no volumes'),
])
def test_a_pod_whose_claims_cannot_be_met_waits_and_says_why(kit, objects, message):
    refusal = kit.make("VolumeBinding").pre_filter(CycleState(), kit.pod(**claiming("data")), Cluster([*NODES, *objects]).snapshot())
    assert (refusal.message, refusal.code) == (message, Code.UNRESOLVABLE)


def test_ephemeral_volumes_wait_for_the_claim_that_is_made_for_them(kit):
    plugin, pod = kit.make("VolumeBinding"), kit.pod("web", volumes=[{"name": "scratch", "ephemeral": {}}])
    refusal = plugin.pre_filter(CycleState(), pod, Cluster(NODES).snapshot())
    assert refusal.message == 'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-scratch"'
    refusal = plugin.pre_filter(CycleState(), pod, Cluster([*NODES, claim("web-scratch", "pv"), volume("pv")]).snapshot())
    assert refusal.message == "PVC default/web-scratch was not created for pod default/web (pod is not owner)"


def test_pods_without_claims_are_skipped(kit):
    snapshot = Cluster(NODES).snapshot()
    for name in ("VolumeBinding", "NodeVolumeLimits"):
        assert kit.make(name).pre_filter(CycleState(), kit.pod(volumes=[{"name": "tmp", "emptyDir": {}}]), snapshot) is SKIP


def test_a_bound_volume_is_reached_from_the_nodes_that_it_names(kit):
    cluster = Cluster([*NODES, claim("data", "pv"), volume("pv", "west"), claim("any", "everywhere"), volume("everywhere")])
    plugin = kit.make("VolumeBinding")
    assert kit.reasons(plugin, kit.pod(**claiming("data", "any")), cluster) == {CONFLICT: ["a"]}
    assert kit.passed(plugin, kit.pod(**claiming("any")), cluster) == ["a", "b"]


def test_all_that_is_wrong_with_a_node_is_said(kit):
    cluster = Cluster([*NODES, claim("data", "pv"), volume("pv", "west"), claim("lost", "gone")])
    missing = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
    plugin, pod = kit.make("VolumeBinding"), kit.pod(**claiming("data", "lost"))
    assert kit.reasons(plugin, pod, cluster) == {CONFLICT: ["a"], missing: ["a", "b"]}
    assert kit.refusal(plugin, pod, cluster, "a").message == f"{CONFLICT}, {missing}"


def test_a_claim_that_another_scheduler_chose_a_node_for_keeps_its_pod_there(kit):
    annotations = {"volume.kubernetes.io/selected-node": "b"}
    waiting = claim("data", storage_class="late", annotations=annotations)
    cluster = Cluster([*NODES, waiting, storage_class("late", "WaitForFirstConsumer")])
    assert kit.reasons(kit.make("VolumeBinding"), kit.pod(**claiming("data")), cluster) == {
        "node(s) didn't find available persistent volumes to bind": ["a"]}


def test_a_driver_holds_no_more_volumes_than_its_node_allows(kit):
    claims = [item for name in ("one", "two", "three") for item in (claim(name, f"pv-{name}"), volume(f"pv-{name}", driver="disks"))]
    running = kit.pod("running", nodeName="a", **claiming("one", "two")).object
    cluster = Cluster([*NODES, *claims, csi_node("a", disks=2, others=0), running])
    plugin = kit.make("NodeVolumeLimits")
    assert kit.reasons(plugin, kit.pod(**claiming("three")), cluster) == {"node(s) exceed max volume count": ["a"]}
    # What is attached already needs no room, and a node without a limit takes any number.
    assert kit.passed(plugin, kit.pod(**claiming("one", "two")), cluster) == ["a", "b"]
    cluster.delete("Pod", "default/running")
    assert kit.passed(plugin, kit.pod(**claiming("three")), cluster) == ["a", "b"]
    cluster.upsert(csi_node("a", disks=0))
    assert kit.passed(plugin, kit.pod(**claiming("three")), cluster) == ["b"]


def test_a_volume_that_is_yet_to_be_made_counts_for_the_driver_that_will_make_it(kit):
    cluster = Cluster([*NODES, claim("new", storage_class="late"), storage_class("late"), csi_node("b", disks=0)])
    assert kit.passed(kit.make("NodeVolumeLimits"), kit.pod(**claiming("new")), cluster) == ["a"]


def test_the_limits_of_a_missing_claim_are_not_guessed(kit):
    refusal = kit.make("NodeVolumeLimits").pre_filter(CycleState(), kit.pod(**claiming("new")), Cluster(NODES).snapshot())
    assert refusal.message == 'looking up PVC default/new: persistentvolumeclaim "new" not found'
