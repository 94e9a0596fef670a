"""Odd objects of other components are read, left out, or refused with a reason, and no plugin fails."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler.device_share.devices import Holding, NodeDevices, holding_in
from koordpolicy.builtin_plugins.scheduler.device_share.requests import DeviceRequestError, read_request
from koordpolicy.builtin_plugins.scheduler.node_numa_resource.allocation import PodAllocation, allocation_in
from koordpolicy.builtin_plugins.scheduler.node_numa_resource.topology import NodeTopology, topology_of
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes import vocabulary
from koordpolicy.engine.source import PolicyError

WORDS = st.sampled_from([
    "detail", "id", "core", "socket", "node", "cpuset", "0-3", "numaNodeResources", "resources", "cpu", "gpu", "rdma",
    "minor",
    "labels", "topology", "nodeID", "pcieID", "vfGroups", "vfs", "busID", "selector", "matchLabels", "matchExpressions",
    "key",
    "operator", "vfSelector", "deviceTypes", "minors", "allocationScore", "ringBusBandwidth", "reservedCPUs", "options",
    "managedByKubelet", "uid", "extension", "koordinator.sh/gpu-memory", "node-0", "Node", "name", "type",
    "allocatable", "1", "2Gi",
])
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-3, 9), st.just(10**400), st.floats(), WORDS)
JSON = st.recursive(LEAVES, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=4)), max_leaves=6)
TEXTS = st.one_of(JSON.map(json.dumps), st.sampled_from(["", "{", "[]", "null", '"x"']))


def notes(data, *names):
    return {name: data.draw(TEXTS) for name in names if data.draw(st.booleans())}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_node_resource_topology_is_a_topology(data):
    node = {"kind": "Node", "status": {"allocatable": {}}, "metadata": {
        "name": "n", "annotations": notes(data, vocabulary.RESOURCE_AMPLIFICATION_RATIO_ANNOTATION)}}
    reported = {
        "kind": "NodeResourceTopology", "zones": data.draw(JSON), "topologyPolicies": data.draw(JSON),
        "metadata": {"name": "n", "annotations": notes(
            data, vocabulary.CPU_TOPOLOGY_ANNOTATION, vocabulary.CPU_MANAGER_POLICY_ANNOTATION,
            vocabulary.NODE_RESERVATION_ANNOTATION, vocabulary.SYSTEM_QOS_RESOURCE_ANNOTATION,
            "node.koordinator.sh/pod-cpu-allocs", vocabulary.RESOURCE_AMPLIFICATION_RATIO_ANNOTATION)},
    }
    cluster = Cluster([node])
    with suppress(PolicyError):
        cluster.upsert(reported)
    found = topology_of(cluster.snapshot(), 0)
    if cluster.objects("NodeResourceTopology"):
        assert isinstance(found, NodeTopology)
        assert len(found.facts) == 6


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_device_object_is_some_devices(data):
    entries = data.draw(st.lists(st.dictionaries(WORDS, JSON, max_size=5), max_size=3) | JSON)
    device = {"kind": "Device", "spec": {"devices": entries}, "metadata": {
        "name": "n", "annotations": notes(data, "scheduling.koordinator.sh/gpu-partitions")}}
    assert isinstance(NodeDevices.of(device), NodeDevices)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_annotation_of_a_pod_is_read_or_refused(data):
    with suppress(ValueError):
        assert isinstance(allocation_in(notes(data, vocabulary.RESOURCE_STATUS_ANNOTATION)), PodAllocation)
    with suppress(ValueError):
        assert isinstance(holding_in(notes(data, vocabulary.DEVICE_ALLOCATED_ANNOTATION)), Holding)
    pod = PodInfo.of({
        "kind": "Pod", "metadata": {"name": "p", "annotations": notes(
            data, vocabulary.DEVICE_ALLOCATE_HINT_ANNOTATION, vocabulary.DEVICE_JOINT_ALLOCATE_ANNOTATION,
            "scheduling.koordinator.sh/gpu-partition-spec")},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"koordinator.sh/gpu": "100"}}}]},
    })
    with suppress(DeviceRequestError):
        assert read_request(pod) is not None
