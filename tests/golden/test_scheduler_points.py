"""Points, steps and fields that no case at hand has, each tried with a case of the same shape."""

from __future__ import annotations

import json

import pytest

from . import scheduler

POINTS = {
    "LoadAwareScheduling": "filter score estimate_pod estimate_node",
    "NodeResourcesFitPlus": "score pod_request",
    "ScarceResourceAvoidance": "score",
    "DefaultPreBind": "apply_patch",
    "Coscheduling": "preenqueue permit after_post_filter prebind",
    "ElasticQuota": "prefilter quota_name can_preempt redistribute runtime scaled_min check_parents",
    "DeviceShare": "prefilter filter score allocate normalize score_device",
    "NodeNUMAResource": "prefilter filter score take_cpus",
    "Reservation": "prefilter filter nominate_filter score nominate match match_owners post_filter_reasons"
                   " reservation_requests restricted_resources normalize restore sync_status",
}
DOMAIN = "quota.scheduling.koordinator.sh/"


def test_every_point_has_a_runner():
    assert set(scheduler.RUNNERS) == {(plugin, point) for plugin, points in POINTS.items() for point in points.split()}


def quota(name, maximum, minimum=None, parent="", **labels):
    found = {DOMAIN + "parent": parent} if parent else {}
    found |= {DOMAIN + key.replace("_", "-"): value for key, value in labels.items()}
    return {
        "kind": "ElasticQuota", "metadata": {"name": name, "labels": found},
        "spec": {"max": maximum, "min": minimum or {}},
    }


def pod(name, cpu=None, node="", labels=None, annotations=None, **requests):
    requests = {**({} if cpu is None else {"cpu": cpu}), **requests}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "default", "uid": name, "labels": labels or {}, "annotations": annotations or {},
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            **({"nodeName": node} if node else {}),
        },
    }


def of_quota(name, **labels):
    return {DOMAIN + "name": name} | {DOMAIN + key: value for key, value in labels.items()}


def gpus(*minors, **of_device):
    return {"kind": "Device", "metadata": {"name": "n"}, "spec": {"devices": [
        {
            "type": "gpu", "id": f"gpu-{minor}", "minor": minor, "health": True, **of_device,
            "resources": {
                "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                "koordinator.sh/gpu-memory": "8Gi",
            },
        }
        for minor in minors
    ]}}


PATCHED = {
    "kind": "Pod", "metadata": {"name": "p", "namespace": "default", "deletionTimestamp": "2026-01-01T00:00:00Z"},
}
NODE = {"kind": "Node", "metadata": {"name": "n"}, "status": {}}
TREE = [
    quota("top", {"cpu": "10"}, {"cpu": "10"}, is_parent="true"),
    quota("sub", {"cpu": "8"}, {"cpu": "4"}, parent="top"), quota("other", {"cpu": "10"}, {"cpu": "4"}, parent="top"),
]
MEMBER = {
    "kind": "Pod",
    "metadata": {
        "name": "p1", "namespace": "default", "uid": "p1", "labels": {"pod-group.scheduling.sigs.k8s.io": "g"},
    },
    "spec": {"containers": []},
}
GROUP = {
    "kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"},
    "spec": {"minMember": 2, "scheduleTimeoutSeconds": 10},
}

CASES = [
    {
        "plugin": "ElasticQuota", "point": "check_parents", "pod": pod("p", "4", labels=of_quota("sub")),
        "objects": TREE,
        "pods_on_nodes": [pod("q", "7", "n", of_quota("other"))],
        "state": {"clusterTotal": {"cpu": "10"}, "runtime": {"sub": {"cpu": "8"}}},
        "expect": {"status": "Unschedulable", "reason": "Insufficient quotas, quotaNameTopo: [top sub], runtime: "
                                                        "cpu:10, used: cpu:7,"
                                                        " pod's request: cpu:4, exceedDimensions: [cpu]"},
    },
    {
        "plugin": "ElasticQuota", "point": "prefilter",
        "pod": pod("p", "2", labels=of_quota("sub", preemptible="false")), "objects": TREE,
        "pods_on_nodes": [pod("q", "3", "n", of_quota("sub", preemptible="false"))],
        "state": {"clusterTotal": {"cpu": "10"}},
        "expect": {"status": "Unschedulable", "reason": "Insufficient non-preemptible quotas, quotaName: sub, min: "
                                                        "cpu:4, nonPreemptibleUsed: cpu:3,"
                                                        " pod's request: cpu:2, exceedDimensions: [cpu]"},
    },
    {
        "plugin": "ElasticQuota", "point": "runtime", "state": {"clusterTotal": {"cpu": "20"}},
        "objects": [
            quota("a", {"cpu": "20"}, {"cpu": "10"}), quota("b", {"cpu": "20"}, {"cpu": "10"}),
            quota("c", {"cpu": "20"}, {"cpu": "20"}),
        ],
        "steps": [
            {"op": "add_request", "quota": "a", "request": {"cpu": "20"}},
            {"op": "add_request", "quota": "b", "request": {"cpu": "20"}},
            {"op": "add_request", "quota": "c", "request": {"cpu": "4"}},
            {"op": "expect_scaled_min", "min": {"a": {"cpu": "5"}, "b": {"cpu": "5"}, "c": {"cpu": "10"}}},
            {"op": "expect_runtime", "runtime": {"a": {"cpu": "8"}, "b": {"cpu": "8"}, "c": {"cpu": "4"}}},
            {"op": "add_total", "total": {"cpu": "20"}}, {"op": "add_request", "quota": "b", "request": {"cpu": "-18"}},
            {"op": "expect_runtime", "runtime": {"a": {"cpu": "20"}, "b": {"cpu": "2"}, "c": {"cpu": "4"}}},
            {"op": "expect_scaled_min", "min": {"a": {"cpu": "10"}, "c": {"cpu": "20"}}},
        ],
        "expect": {"status": "Success"},
    },
    {
        # 10 - 4 - 2 = 4 left over, at weights 1:1:1 one unit more for the first name; what is guaranteed is not lent.
        "plugin": "ElasticQuota", "point": "redistribute", "state": {"total": 15, "children": [
            {"name": "c", "sharedWeight": 1, "request": 10, "min": 2},
            {"name": "a", "sharedWeight": 1, "request": 10, "min": 2},
            {"name": "b", "sharedWeight": 1, "request": 10, "min": 1, "guarantee": 2},
            {"name": "idle", "sharedWeight": 9, "request": 1, "min": 3, "guarantee": 5, "allowLent": False},
        ]},
        "expect": {"status": "Success", "runtime": {"a": 4, "b": 3, "c": 3, "idle": 5}},
    },
    {
        "plugin": "ElasticQuota", "point": "scaled_min",
        "state": {
            "parentTotal": {"cpu": "10"},
            "children": [
                {"name": "a", "min": {"cpu": "12"}, "enableScale": False},
                {"name": "b", "min": {"cpu": "4", "memory": "8"}},
            ],
        },
        "expect": {"status": "Success", "value": {"a": None, "b": {"cpu": "0", "memory": "8"}}},
    },
    {
        "plugin": "ElasticQuota", "point": "quota_name", "pod": pod("p"), "expect": {"status": "Success", "value": "q"},
        "objects": [
            {
                **quota("q", {}),
                "metadata": {
                    "name": "q", "namespace": "x", "annotations": {DOMAIN + "namespaces": '["other", "default"]'},
                },
            },
        ],
    },
    {
        "plugin": "ElasticQuota", "point": "can_preempt", "args": {"disableDefaultQuotaPreemption": True},
        "pod": {**pod("p"), "spec": {**pod("p")["spec"], "priority": 9}},
        "state": {"victim": pod("v")}, "expect": {"status": "Success", "value": False},
    },
    {
        "plugin": "DeviceShare", "point": "allocate", "pod": pod("p", **{"koordinator.sh/gpu": "200"}), "node": NODE,
        "objects": [gpus(0, 1, 2)],
        "pods_on_nodes": [
            pod(
                "q", node="n",
                annotations={
                    "scheduling.koordinator.sh/device-allocated": json.dumps(
                        {
                            "gpu": [
                                {
                                    "minor": 0,
                                    "resources": {
                                        "koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10",
                                    },
                                },
                            ],
                        },
                    ),
                },
            ),
        ],
        "expect": {"status": "Success", "allocations": {"gpu": [
            {
                "minor": minor,
                "resources": {
                    "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                    "koordinator.sh/gpu-memory": "8Gi",
                },
            }
            for minor in (1, 2)]}},
    },
    {
        "plugin": "DeviceShare", "point": "allocate", "pod": pod("p", "1"), "node": NODE, "objects": [gpus(0)],
        "expect": {"status": "Success", "allocations": {}},
    },
    {
        "plugin": "DeviceShare", "point": "filter", "pod": pod("p", **{"koordinator.sh/gpu": "50"}), "node": NODE,
        "objects": [gpus(0, 1, health=False)],
        "expect": {"status": "Unschedulable", "reason": "Insufficient gpu devices"},
    },
    {
        "plugin": "DeviceShare", "point": "filter", "node": NODE, "objects": [gpus(0)],
        "pod": pod("p", labels={"koordinator.sh/gpu-isolation-provider": "HAMi-core"}, **{"koordinator.sh/gpu": "50"}),
        "expect": {"status": "Error", "reason": "GPUIsolationProviderHAMICore not found on the node"},
    },
    {
        "plugin": "DeviceShare", "point": "prefilter",
        "pod": pod(
            "p",
            **{
                "koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-core": "100",
                "koordinator.sh/gpu-memory-ratio": "100",
            },
        ),
        "expect": {
            "status": "Success",
            "gpu": {
                "numberOfGPUs": 2,
                "requestsPerGPU": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
                "shared": True,
            },
        },
    },
    {
        "plugin": "DefaultPreBind", "point": "apply_patch",
        "state": {
            "original": PATCHED, "modified": {**PATCHED, "metadata": {**PATCHED["metadata"], "labels": {"a": "b"}}},
        },
        "expect": {"status": "Error", "reason": "pod is being deleted", "patched": True},
    },
    {
        "plugin": "DefaultPreBind", "point": "apply_patch",
        "state": {"original": NODE, "modified": {**NODE, "spec": {}}},
        "expect": {"status": "Skip", "patched": False},
    },
    {
        "plugin": "Coscheduling", "point": "prebind", "objects": [GROUP], "pod": MEMBER,
        "steps": [{"op": "pod_add", "pod": MEMBER}, {"op": "permit", "pod": MEMBER}],
        "expect": {"status": "Success", "annotations": {}},
    },
    {
        "plugin": "Coscheduling", "point": "permit", "objects": [GROUP], "pod": MEMBER,
        "state": {"onceSatisfied": True},
        "steps": [{"op": "pod_add", "pod": MEMBER}], "expect": {"status": "Success", "waitSeconds": 0},
    },
    {
        "plugin": "Coscheduling", "point": "after_post_filter", "pod": MEMBER,
        "expect": {"status": "Unschedulable", "reason": 'Pod "p1" cannot find Gang "g"', "rejectedWaitingPods": []},
    },
    {
        # Whole free cores of one NUMA node do not suffice: sockets are tried before cores of several.
        "plugin": "NodeNUMAResource", "point": "take_cpus", "state": {
            "topology": {"sockets": 2, "nodesPerSocket": 2, "coresPerNode": 2, "threadsPerCore": 2}, "numCPUsNeeded": 6,
            "allocatedCPUs": "0-1",
            "cpuBindPolicy": "FullPCPUs", "numaAllocateStrategy": "MostAllocated", "maxRefCount": 1,
        },
        "expect": {"status": "Success", "cpuset": "2-7"},
    },
    {
        "plugin": "NodeNUMAResource", "point": "take_cpus", "state": {
            "topology": {"sockets": 1, "nodesPerSocket": 1, "coresPerNode": 2, "threadsPerCore": 2}, "numCPUsNeeded": 4,
            "allocatedCPUs": "0",
            "cpuBindPolicy": "SpreadByPCPUs", "numaAllocateStrategy": "LeastAllocated", "maxRefCount": 1,
        },
        "expect": {"status": "Error", "reason": "not enough cpus available to satisfy request"},
    },
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['plugin']}-{case['point']}")
def test_a_case_that_nobody_has_yet_passes(case):
    found = scheduler.RUNNERS[case["plugin"], case["point"]](case)
    assert {key: found.get(key) for key in case["expect"]} == case["expect"]
