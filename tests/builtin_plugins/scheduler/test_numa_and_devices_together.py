from __future__ import annotations

import json

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.extensions.reservations import reserve_pod
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec

DOMAIN = "scheduling.koordinator.sh/"
GPU = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100", "koordinator.sh/gpu-memory": "80Gi"}
REQUESTS = {"cpu": "4", "koordinator.sh/gpu": "100"}


class Client:
    """Notes what is written of pods."""

    def __init__(self):
        self.written = {}

    def patch(self, original, modified):
        annotations = modified["metadata"]["annotations"]
        self.written[modified["metadata"]["name"]] = {
            key.removeprefix(DOMAIN): json.loads(text) for key, text in annotations.items()
        }

    def bind(self, pod, node):
        pass

    def evict(self, pod, reason):
        pass


def pod(name, app):
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "labels": {"app": app, "koordinator.sh/qosClass": "LSR"},
        },
        "spec": {"priority": 9500, "containers": [{"name": "c", "resources": {"requests": REQUESTS}}]},
    }


def cluster():
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": 0} for cpu in range(8)]
    held = {
        DOMAIN + "resource-status": json.dumps({"cpuset": "4-7"}),
        DOMAIN + "device-allocated": json.dumps({"gpu": [{"minor": 1, "resources": GPU}]}),
    }
    reservation = {
        "kind": "Reservation", "metadata": {"name": "r", "uid": "r-uid", "annotations": held},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "resources": {"requests": REQUESTS}}]}},
                 "owners": [{"labelSelector": {"matchLabels": {"app": "owner"}}}], "ttl": "1h", "allocateOnce": False},
        "status": {"phase": "Available", "nodeName": "n", "allocatable": REQUESTS},
    }
    return Cluster([
        {"kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {
            "cpu": "8", "memory": "8Gi", "pods": "9", "koordinator.sh/gpu": "200"}}},
        {"kind": "NodeResourceTopology", "metadata": {"name": "n", "annotations": {
            "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}}},
        {"kind": "Device", "metadata": {"name": "n"}, "spec": {"devices": [
            {"type": "gpu", "minor": minor, "id": f"GPU-{minor}", "health": True, "resources": GPU}
            for minor in (0, 1)]}},
        reservation, {**reserve_pod(reservation).object, "kind": "Pod"},
    ])


def test_what_a_reservation_holds_goes_to_its_owner_through_the_whole_cycle():
    names = ("NodeNUMAResource", "DeviceShare", "Reservation", "DefaultPreBind")
    spec = ProfileSpec(enabled=tuple(PluginChoice(name) for name in names), disabled={None: frozenset({"GpuShare"})})
    held, client = cluster(), Client()
    live = Live(Registry.of(PLUGINS, generation=1))
    scheduler = Scheduler(held, live, Settings((spec,)), clock=lambda: 0, client=client)
    # A stranger gets what is not reserved, a second one nothing; the owner gets what was held for it.
    found = []
    for item in (pod("stranger", "x"), pod("second", "x"), pod("owner", "owner")):
        held.upsert(item)
        verdict = scheduler.schedule(PodInfo.of(item))
        assert verdict.failures == ()
        found.append(verdict.node)
    assert found == ["n", None, "n"]
    assert {name: (written["resource-status"], [each["id"] for each in written["device-allocated"]["gpu"]])
            for name, written in client.written.items()} == {
        "stranger": ({"cpuset": "0-3"}, ["GPU-0"]), "owner": ({"cpuset": "4-7"}, ["GPU-1"])}
    assert client.written["owner"]["reservation-allocated"] == {"name": "r", "uid": "r-uid"}
