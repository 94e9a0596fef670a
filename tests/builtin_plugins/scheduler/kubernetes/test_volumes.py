from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.points import Code
from koordpolicy.plugin import SKIP_SHAPE, CycleState


def node(name, **labels):
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": {}}}


def claim(name, volume="", storage_class="", phase="", **metadata):
    spec = {
        **({"volumeName": volume} if volume else {}), **({"storageClassName": storage_class} if storage_class else {}),
    }
    return {
        "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default", **metadata}, "spec": spec,
        "status": {"phase": phase or ("Bound" if volume else "Pending")},
    }


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
    return {
        "volumes": [
            {"name": f"v{place}", "persistentVolumeClaim": {"claimName": name}} for place, name in enumerate(names)
        ],
    }


NODES = [node("a", zone="east"), node("b", zone="west")]
CONFLICT = "node(s) didn't match PersistentVolume's node affinity"
MISSING = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND = "node(s) didn't find available persistent volumes to bind"


@pytest.mark.parametrize(("objects", "message"), [
    ([], 'persistentvolumeclaim "data" not found'),
    (
        [claim("data", "gone", phase="Lost")],
        'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"',
    ),
    ([claim("data", deletionTimestamp="2026-01-01T00:00:00Z")], 'persistentvolumeclaim "data" is being deleted'),
    ([claim("data")], "pod has unbound immediate PersistentVolumeClaims"),
    ([claim("data", storage_class="fast"), storage_class("fast")], "pod has unbound immediate PersistentVolumeClaims"),
    # A claim of a class that does not exist, and one that names its volume beforehand, are for the volume controller.
    ([claim("data", storage_class="fast")], "pod has unbound immediate PersistentVolumeClaims"),
    (
        [
            claim("data", "pv", storage_class="late", phase="Pending"), storage_class("late", "WaitForFirstConsumer"),
            volume("pv"),
        ],
        "pod has unbound immediate PersistentVolumeClaims",
    ),
])
def test_a_pod_whose_claims_cannot_be_met_waits_and_says_why(kit, objects, message):
    refusal = kit.make("VolumeBinding").pre_filter(
        CycleState(), kit.pod(**claiming("data")), Cluster([*NODES, *objects]).snapshot(),
    )
    assert (refusal.message, refusal.code) == (message, Code.UNRESOLVABLE)


def test_ephemeral_volumes_wait_for_the_claim_that_is_made_for_them(kit):
    plugin, pod = kit.make("VolumeBinding"), kit.pod("web", volumes=[{"name": "scratch", "ephemeral": {}}])
    refusal = plugin.pre_filter(CycleState(), pod, Cluster(NODES).snapshot())
    assert refusal.message == (
        'waiting for ephemeral volume controller to create the persistentvolumeclaim "web-scratch"'
    )
    refusal = plugin.pre_filter(
        CycleState(), pod, Cluster([*NODES, claim("web-scratch", "pv"), volume("pv")]).snapshot(),
    )
    assert refusal.message == "PVC default/web-scratch was not created for pod default/web (pod is not owner)"


def test_pods_without_claims_are_skipped(kit):
    snapshot = Cluster(NODES).snapshot()
    for name in ("VolumeBinding", "NodeVolumeLimits"):
        assert kit.make(name).pre_filter(
            CycleState(), kit.pod(volumes=[{"name": "tmp", "emptyDir": {}}]), snapshot,
        ) is SKIP_SHAPE


def test_a_bound_volume_is_reached_from_the_nodes_that_it_names(kit):
    cluster = Cluster(
        [*NODES, claim("data", "pv"), volume("pv", "west"), claim("any", "everywhere"), volume("everywhere")],
    )
    plugin = kit.make("VolumeBinding")
    assert kit.reasons(plugin, kit.pod(**claiming("data", "any")), cluster) == {CONFLICT: ["a"]}
    assert kit.passed(plugin, kit.pod(**claiming("any")), cluster) == ["a", "b"]


def test_of_bound_claims_the_first_that_fails_speaks(kit):
    cluster = Cluster([*NODES, claim("data", "pv"), volume("pv", "west"), claim("lost", "gone")])
    plugin = kit.make("VolumeBinding")
    assert kit.reasons(plugin, kit.pod(**claiming("data", "lost")), cluster) == {CONFLICT: ["a"], MISSING: ["b"]}
    assert kit.reasons(plugin, kit.pod(**claiming("lost", "data")), cluster) == {MISSING: ["a", "b"]}


def test_what_is_wrong_with_bound_claims_and_with_those_that_wait_are_two_reasons(kit):
    cluster = Cluster([*NODES, claim("data", "pv"), volume("pv", "west"), claim("late", storage_class="late"),
                       storage_class("late", "WaitForFirstConsumer", provisioner="kubernetes.io/no-provisioner")])
    plugin, pod = kit.make("VolumeBinding"), kit.pod(**claiming("data", "late"))
    assert kit.reasons(plugin, pod, cluster) == {CONFLICT: ["a"], UNBOUND: ["a", "b"]}
    assert kit.refusal(plugin, pod, cluster, "a").message == f"{CONFLICT}, {UNBOUND}"


def test_a_claim_that_another_scheduler_chose_a_node_for_keeps_its_pod_there(kit):
    annotations = {"volume.kubernetes.io/selected-node": "b"}
    waiting = claim("data", storage_class="late", annotations=annotations)
    cluster = Cluster([*NODES, waiting, storage_class("late", "WaitForFirstConsumer")])
    assert kit.reasons(kit.make("VolumeBinding"), kit.pod(**claiming("data")), cluster) == {
        "node(s) didn't find available persistent volumes to bind": ["a"]}


def test_a_driver_holds_no_more_volumes_than_its_node_allows(kit):
    claims = [
        item
        for name in ("one", "two", "three")
        for item in (claim(name, f"pv-{name}"), volume(f"pv-{name}", driver="disks"))
    ]
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


def test_where_nobody_has_said_it_before_a_missing_claim_is_named_by_whom_it_keeps_from_counting(kit):
    plugin, pod = kit.make("NodeVolumeLimits"), kit.pod(**claiming("new"))
    assert plugin.pre_filter(CycleState(), pod, Cluster(NODES).snapshot()) is None
    assert kit.reasons(plugin, pod, Cluster(NODES)) == {
        'looking up PVC default/new: persistentvolumeclaim "new" not found': ["a", "b"],
    }
    assert kit.refusal(plugin, pod, Cluster(NODES), "a").code is Code.UNRESOLVABLE


def test_what_two_pods_get_is_not_given_twice(kit):
    objects = [*NODES, storage_class("late", "WaitForFirstConsumer", provisioner="kubernetes.io/no-provisioner"),
               {**volume("only", "west"), "status": {"phase": "Available"}}]
    objects[-1]["spec"] |= {"storageClassName": "late", "capacity": {"storage": "1Gi"}}
    cluster = Cluster([*objects, claim("one", storage_class="late"), claim("two", storage_class="late")])
    plugin, state = kit.make("VolumeBinding"), CycleState()
    first, second = kit.pod("first", **claiming("one")), kit.pod("second", **claiming("two"))

    def passed(pod, state):
        snapshot = cluster.snapshot()
        assert plugin.pre_filter(state, pod, snapshot) is None
        return [
            name
            for name, passes in zip(
                snapshot.names, plugin.filter(state, pod, snapshot, kit.rows(snapshot)).passed, strict=True,
            )
            if passes
        ]

    assert (passed(first, state), passed(second, CycleState())) == (["b"], ["b"])
    plugin.reserve(state, first, cluster.snapshot(), 1)
    assert (passed(first, CycleState()), passed(second, CycleState())) == (["b"], [])
    plugin.unreserve(state, first, cluster.snapshot(), -1)
    assert passed(second, CycleState()) == ["b"]
    plugin.reserve(state, first, cluster.snapshot(), 1)
    # what has changed says itself whose it is
    cluster.upsert({**objects[-1], "metadata": {"name": "only", "labels": {"seen": "again"}}})
    assert passed(second, CycleState()) == ["b"]


def test_a_claim_that_is_to_be_provisioned_keeps_other_pods_of_it_on_the_node(kit):
    cluster = Cluster([*NODES, storage_class("late", "WaitForFirstConsumer"), claim("shared", storage_class="late")])
    plugin, state, pod = kit.make("VolumeBinding"), CycleState(), kit.pod(**claiming("shared"))
    plugin.pre_filter(state, pod, cluster.snapshot())
    plugin.filter(state, pod, cluster.snapshot(), kit.rows(cluster.snapshot()))
    plugin.reserve(state, pod, cluster.snapshot(), 0)
    assert kit.reasons(plugin, kit.pod("another", **claiming("shared")), cluster) == {UNBOUND: ["b"]}
