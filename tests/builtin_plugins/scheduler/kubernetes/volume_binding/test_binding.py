"""Pods whose claims are bound in a live cluster: what is written, what is waited for, and how that ends."""

from __future__ import annotations

import copy

import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.kubernetes.volume_binding.plugin import VolumeBinding
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.observe.counters import Counters
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from tests.engine.scheduler.cycle.manual_executor import ManualExecutor

SECOND = 1_000_000_000
SELECTED = "volume.kubernetes.io/selected-node"
PROVISIONER = "volume.kubernetes.io/storage-provisioner"


def node(name, zone):
    return {"kind": "Node", "metadata": {"name": name, "labels": {"zone": zone}},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}


def storage_class(name, provisioner):
    return {"kind": "StorageClass", "metadata": {"name": name}, "provisioner": provisioner,
            "volumeBindingMode": "WaitForFirstConsumer"}


def claim(name, of_class):
    return {"kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": {"kept": "yes"}},
            "spec": {"storageClassName": of_class, "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"}}


def volume(name, zone, of_class="local", **spec):
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}
    return {"kind": "PersistentVolume", "metadata": {"name": name, "uid": f"uid-{name}"},
            "spec": {"capacity": {"storage": "1Gi"}, "storageClassName": of_class,
                     "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}, **spec},
            "status": {"phase": "Available"}}


def pod(name, *claims, **metadata):
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **metadata},
            "spec": {"volumes": volumes, "containers": [{"name": "main"}]}}


def merged(target, patch):
    """The result of a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), value)
    return found


def difference(before, after):
    """The JSON merge patch from one object to another."""
    found = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key not in before:
            found[key] = value
        elif before[key] != value:
            both = isinstance(value, dict) and isinstance(before[key], dict)
            found[key] = difference(before[key], value) if both else value
    return found


class Api:
    """An API server with versions of objects; `shows` says when the scheduler's cluster sees what has changed."""

    def __init__(self, *objects, answers=True):
        self.objects, self.version, self.answers = {}, 0, answers
        self.patches, self.bound, self.unseen = [], {}, []
        self.cluster = Cluster()
        for item in objects:
            self.store(item)
        self.shows()

    @staticmethod
    def key(item):
        metadata = item["metadata"]
        namespace = metadata.get("namespace")
        return item["kind"], f"{namespace}/{metadata['name']}" if namespace else metadata["name"]

    def store(self, item):
        self.version += 1
        item = copy.deepcopy({**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}})
        self.objects[self.key(item)] = item
        self.unseen.append((*self.key(item), item))
        return item

    def merge(self, kind, key, patch):
        return self.store(merged(self.objects[kind, key], patch))

    def remove(self, kind, key):
        del self.objects[kind, key]
        self.unseen.append((kind, key, None))

    def shows(self):
        for kind, key, item in self.unseen:
            if item is None:
                self.cluster.delete(kind, key)
            else:
                self.cluster.upsert(item)
        self.unseen = []

    def patch(self, original, modified):
        patch = difference(original, modified)
        kind, key = self.key(original)
        expected = patch.get("metadata", {}).pop("resourceVersion", None)
        if expected is not None and expected != self.objects[kind, key]["metadata"]["resourceVersion"]:
            raise OSError(f'409: the object has been modified: "{key}"')
        self.patches.append((kind, key, {name: value for name, value in patch.items() if value}))
        made = self.merge(kind, key, patch)
        return copy.deepcopy(made) if self.answers else None

    def bind(self, pod, node):
        self.bound[pod.name] = node
        self.merge("Pod", pod.key, {"spec": {"nodeName": node}})

    def evict(self, pod, reason):
        raise NotImplementedError

    preempt = evict

    # The volume controller and the provisioner

    def bind_claim(self, name, volume_name):
        """Bind a claim to a volume, as the volume controller does."""
        self.merge("PersistentVolumeClaim", f"default/{name}", {
            "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": volume_name}, "status": {"phase": "Bound"}})

    def provision(self, name, zone, *, bind=True):
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": name, "uid": f"uid-{name}"}
        self.store(volume(f"pv-{name}", zone, "late", claimRef=reference))
        if bind:
            self.bind_claim(name, f"pv-{name}")


NODES = (node("a", "east"), node("b", "west"))
LATE = storage_class("late", "disks.example.com")
LOCAL = storage_class("local", "kubernetes.io/no-provisioner")


class World:
    """A scheduling loop whose input and output is done when a test says so."""

    def __init__(self, *objects, timeout=600, answers=True):
        self.now, self.verdicts = 0, []
        self.api = Api(*NODES, LATE, LOCAL, *objects, answers=answers)
        self.executor, self.counters = ManualExecutor(), Counters()
        profile = ProfileSpec("default-scheduler", args={"VolumeBinding": {"bindTimeoutSeconds": timeout}})
        self.loop = SchedulingLoop(
            self.api.cluster, Live(Registry.of(PLUGINS, generation=1)), Settings((profile,)), clock=lambda: self.now,
            client=self.api, executor=self.executor, concluded=self.verdicts.append, count=self.counters)

    def add(self, item):
        self.api.store(item)
        self.step()

    def step(self):
        """Let the cluster see what has changed, and schedule what can be; returns the names of decided pods."""
        self.api.shows()
        return [verdict.pod.name for verdict in self.loop.schedule_all()]

    def work(self):
        """Do all input and output, without that the cluster sees it."""
        while self.executor.jobs:
            self.executor.finish()
            self.loop.scheduler.process_bindings()

    @property
    def ends(self):
        """The ends of binding cycles: name, node, or the message of the failure."""
        return [(each.pod.name, each.node or each.refusal[2].message) for each in self.verdicts]

    @property
    def errors(self):
        """The failed attempts by stage of volume binding."""
        found = self.counters.read().get("scheduler_volume_scheduling_stage_error", {})
        return {dict(labels)["operation"]: amount for labels, amount in found.items()}

    @property
    def awaiting(self):
        return [binding.pod.name for binding in self.loop.scheduler.awaiting]

    def after_backoff(self):
        self.now += 20 * SECOND
        return self.step()


@pytest.fixture
def provisioning():
    """A pod whose claim is being provisioned: the claim is written, and the pod waits."""
    world = World(claim("data", "late"))
    world.add(pod("web", "data"))
    world.work()
    world.step()
    assert world.awaiting == ["web"]
    return world


CLAIM = ("PersistentVolumeClaim", "default/data")


def test_a_claim_to_provision_gets_the_node_and_the_pod_is_bound_after_it():
    world = World(claim("data", "late"))
    world.add(pod("web", "data"))
    world.work()
    assert world.api.patches == [(*CLAIM, {"metadata": {"annotations": {SELECTED: "a"}}})]
    for _ in range(3):  # neither the write's own event nor others end the wait
        world.api.merge(*CLAIM, {"metadata": {"annotations": {PROVISIONER: "disks.example.com"}}})
        assert (world.step(), world.awaiting, world.executor.jobs) == ([], ["web"], [])
    world.api.provision("data", "east")
    world.step()
    assert (world.awaiting, world.api.bound) == ([], {})
    world.work()
    assert (world.api.bound, world.ends) == ({"web": "a"}, [("web", "a")])


def test_an_existing_volume_refers_to_the_claim_before_the_pod_is_bound():
    world = World(claim("data", "local"), volume("disk", "west"))
    world.add(pod("web", "data"))
    world.work()
    known = world.api.objects[CLAIM]["metadata"]["resourceVersion"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": "data",
                 "uid": "uid-data", "resourceVersion": known}
    assert world.api.patches == [("PersistentVolume", "disk", {
        "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
        "spec": {"claimRef": reference}})]
    world.step()
    world.api.bind_claim("data", "disk")
    world.step()
    world.work()
    assert (world.api.bound, world.ends) == ({"web": "b"}, [("web", "b")])


def test_a_volume_that_a_user_reserved_for_the_claim_gets_its_uid_only():
    reference = {"namespace": "default", "name": "data"}
    world = World(claim("data", "local"), volume("disk", "west", claimRef=reference))
    world.add(pod("web", "data"))
    world.work()
    assert world.api.patches == [("PersistentVolume", "disk", {"spec": {"claimRef": {"uid": "uid-data"}}})]


def test_a_volume_that_another_scheduler_took_meanwhile_is_not_overwritten():
    world = World(claim("data", "local"), volume("disk", "west"))
    world.add(pod("web", "data"))
    world.api.merge("PersistentVolume", "disk", {"spec": {"claimRef": {"name": "other", "uid": "uid-other"}}})
    world.work()
    assert world.ends == [("web", 'binding volumes: 409: the object has been modified: "disk"')]
    assert world.api.objects["PersistentVolume", "disk"]["spec"]["claimRef"]["name"] == "other"


def test_a_pod_that_waits_for_volumes_holds_up_no_other_pod_and_no_worker(provisioning):
    world = provisioning
    world.add(pod("plain"))
    world.work()
    assert (world.api.bound, world.ends, world.awaiting) == ({"plain": "b"}, [("plain", "b")], ["web"])
    assert world.executor.jobs == []


def test_the_wait_is_not_subject_to_the_timeout_of_input_and_output(provisioning):
    provisioning.now += 599 * SECOND
    assert (provisioning.step(), provisioning.awaiting, provisioning.ends) == ([], ["web"], [])


@pytest.mark.parametrize("answers", [True, False])
def test_a_claim_that_the_cluster_shows_as_before_the_write_is_not_taken_for_reset(answers):
    world = World(claim("data", "late"), answers=answers)
    world.add(pod("web", "data"))
    world.work()
    world.api.unseen, late = [], world.api.unseen
    # Another object changes, so that the condition is looked at while the claim is as it was.
    world.api.merge("Node", "a", {"metadata": {"labels": {"seen": "again"}}})
    assert (world.step(), world.awaiting) == ([], ["web"])
    world.api.unseen = late
    assert (world.step(), world.awaiting) == ([], ["web"])


# Ends without a binding


def test_l40_a_claim_whose_annotation_the_provisioner_removes_sends_the_pod_back(provisioning):
    world = provisioning
    world.api.merge(*CLAIM, {"metadata": {"annotations": {SELECTED: None}}})
    world.step()
    assert (world.ends, world.awaiting) == ([("web", 'binding volumes: provisioning failed for PVC "data"')], [])
    assert world.loop.queue.counts()["backoff"] == 1
    assert world.after_backoff() == ["web"]
    world.work()
    assert len(world.api.patches) == 2
    world.step()
    world.api.provision("data", "east")
    world.step()
    world.work()
    assert world.api.bound == {"web": "a"}


def test_l41_a_claim_that_is_never_bound_ends_the_wait_after_its_timeout():
    world = World(claim("data", "late"), timeout=5)
    world.add(pod("web", "data"))
    world.work()
    world.step()
    assert world.loop.next_time() == 5 * SECOND
    world.now = 5 * SECOND
    world.step()
    assert world.ends == [("web", 'binding volumes: PVC "data" is not bound after 5 s')]
    assert world.loop.queue.counts()["backoff"] == 1
    # The next attempt finds the annotation, which is written no more, and waits again.
    assert world.after_backoff() == ["web"]
    world.work()
    assert (len(world.api.patches), world.awaiting) == (1, ["web"])


def test_a_volume_that_the_node_cannot_reach_ends_the_wait(provisioning):
    provisioning.api.provision("data", "west")
    provisioning.step()
    assert provisioning.ends == [
        ("web", 'binding volumes: pv "pv-data" node affinity doesn\'t match node "a"')]


def test_a_volume_that_is_reported_after_its_claim_is_waited_for(provisioning):
    world = provisioning
    world.api.provision("data", "east", bind=False)
    late, world.api.unseen = world.api.unseen, []
    world.api.bind_claim("data", "pv-data")
    assert (world.step(), world.awaiting) == ([], ["web"])
    world.api.unseen = late
    world.step()
    world.work()
    assert world.api.bound == {"web": "a"}


def test_a_volume_that_loses_its_claim_ends_the_wait():
    world = World(claim("data", "local"), volume("disk", "west"))
    world.add(pod("web", "data"))
    world.work()
    world.step()
    world.api.merge("PersistentVolume", "disk", {"spec": {"claimRef": None}})
    world.step()
    assert world.ends == [("web", 'binding volumes: ClaimRef got reset for pv "disk"')]


def test_a_claim_that_is_deleted_ends_the_wait(provisioning):
    provisioning.api.remove(*CLAIM)
    provisioning.step()
    assert provisioning.ends == [("web", 'binding volumes: persistentvolumeclaim "data" does not exist any more')]


def test_l39_a_pod_that_is_deleted_while_it_waits_leaves_its_room_at_once(provisioning):
    world = provisioning
    assert world.api.cluster.snapshot().pod_count.tolist() == [1, 0]
    world.api.remove("Pod", "default/web")
    world.step()
    assert (world.ends, world.awaiting) == ([("web", "the pod does not exist any more")], [])
    assert (world.api.cluster.snapshot().pod_count.tolist(), len(world.loop.queue)) == ([0, 0], 0)


def test_l39_a_pod_that_is_being_deleted_while_it_waits_leaves_its_room_at_once(provisioning):
    world = provisioning
    world.api.merge("Pod", "default/web", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    world.step()
    assert (world.ends, world.awaiting) == ([("web", "the pod is being deleted")], [])
    assert world.api.cluster.snapshot().pod_count.tolist() == [0, 0]
    assert (world.after_backoff(), len(world.loop.queue)) == ([], 0)


def test_a_node_that_is_deleted_ends_the_wait(provisioning):
    provisioning.api.remove("Node", "a")
    provisioning.step()
    assert provisioning.ends == [("web", "the node `a` is gone")]


def test_a_pod_of_the_same_claim_waits_on_the_same_node_and_writes_nothing(provisioning):
    world = provisioning
    world.add(pod("second", "data"))
    world.work()
    assert (len(world.api.patches), world.awaiting) == (1, ["web", "second"])
    world.api.provision("data", "east")
    world.step()
    world.work()
    assert world.api.bound == {"web": "a", "second": "a"}


def test_the_end_of_one_pod_of_a_claim_does_not_take_the_node_from_another_one():
    world = World(claim("data", "late"), *(claim(name, "late") for name in ("x", "y")))
    world.add(pod("first", "data"))
    world.add(pod("second", "data"))
    world.api.remove("Pod", "default/second")
    world.work()
    world.add(pod("third", "data"))
    world.work()
    assert {binding.pod.name: binding.node for binding in world.loop.scheduler.awaiting} == {"first": "a", "third": "a"}


def test_a_pod_without_claims_gets_no_draft():
    world = World()
    world.add(pod("plain"))
    binding, = world.loop.scheduler.in_flight
    assert binding.point.value == "bind"


def test_a_pod_that_changes_while_it_waits_is_requeued_all_the_same(provisioning):
    world = provisioning
    world.api.merge("Pod", "default/web", {"status": {"nominatedNodeName": "a"}})
    assert (world.step(), world.awaiting) == ([], ["web"])
    world.api.merge(*CLAIM, {"metadata": {"annotations": {SELECTED: None}}})
    world.step()
    assert world.ends == [("web", 'binding volumes: provisioning failed for PVC "data"')]
    assert world.loop.queue.counts()["backoff"] == 1


# Errors by stage


def deleted_pod(world):
    world.api.remove("Pod", "default/web")


def removed_annotation(world):
    world.api.merge(*CLAIM, {"metadata": {"annotations": {SELECTED: None}}})


def timeout(world):
    world.now += 600 * SECOND


@pytest.mark.parametrize("end", [deleted_pod, removed_annotation, timeout])
def test_a_wait_that_ends_without_the_claims_is_one_error_of_the_stage_bind(provisioning, end):
    assert provisioning.errors == {}
    end(provisioning)
    provisioning.step()
    assert (provisioning.awaiting, provisioning.errors) == ([], {"bind": 1})


def test_a_refused_write_is_an_error_of_the_stage_bind():
    world = World(claim("data", "local"), volume("disk", "west"))
    world.add(pod("web", "data"))
    world.api.merge("PersistentVolume", "disk", {"spec": {"claimRef": {"name": "other", "uid": "uid-other"}}})
    world.work()
    assert world.errors == {"bind": 1}


def test_a_pod_that_fails_after_its_claims_are_bound_is_no_error_of_a_stage(provisioning):
    provisioning.api.provision("data", "east")
    provisioning.step()

    def refused(pod, node):
        raise OSError("refused")

    provisioning.api.bind = refused
    provisioning.work()
    assert ([node for _, node in provisioning.ends], provisioning.errors) == (["refused"], {})


@pytest.mark.parametrize(("stage", "part"), [("predicate", "_matched"), ("assume", "_assume")])
def test_a_pod_that_fits_nowhere_is_no_error_of_a_stage_and_an_exception_is_one(monkeypatch, stage, part):
    world = World(claim("data", "local"))
    world.api.store(pod("web", "data"))
    assert (world.step(), world.errors) == (["web"], {})

    def fails(*_):
        raise ValueError("a volume that cannot be read")

    monkeypatch.setattr(VolumeBinding, part, fails)
    world.api.store(volume("disk", "west"))
    assert (world.after_backoff(), world.api.bound, world.errors) == (["web"], {}, {stage: 1})
