"""Random clusters, pods, profiles and documents, for tests that compare two ways to decide.

Objects follow from a seed; what a failure should be made small in (documents, profiles) is drawn by hypothesis.
"""

from __future__ import annotations

import json
from random import Random

import numpy as np
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
GPU, CORE, RATIO = "nvidia.com/gpu", "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"
GANG, QUOTA = "pod-group.scheduling.sigs.k8s.io", "quota.scheduling.koordinator.sh/name"
IMAGES = ("app:1", "db:latest", "registry:5000/app:latest")
APPS, ZONES = ("web", "db"), ("z0", "z1", "z2")
TEAMS = ("a", "b")


def time_of(now):
    return f"{np.datetime64(now // SECOND, 's').astype(str)}Z"


# Objects


def node(name, random):
    labels = {"kubernetes.io/hostname": name,
              "pool": random.choice(("general", "batch")), "rank": random.choice("0123")}
    if random.random() < 0.9:
        labels["topology.kubernetes.io/zone"] = random.choice(ZONES)
    spec = {}
    if random.random() < 0.15:
        spec["unschedulable"] = True
    if random.random() < 0.3:
        effect = random.choice(("NoSchedule", "PreferNoSchedule", "NoExecute"))
        spec["taints"] = [{"key": "dedicated", "value": random.choice(("gpu", "")), "effect": effect}]
    allocatable = {"cpu": random.choice(("4", "8", "3500m")), "memory": random.choice(("8Gi", "16Gi")),
                   "pods": random.choice(("5", "12"))}
    if random.random() < 0.4:
        allocatable[GPU] = random.choice("248")
    if random.random() < 0.3:
        allocatable |= {"kubernetes.io/batch-cpu": "3000", "kubernetes.io/batch-memory": "4Gi"}
    images = [{"names": [image], "sizeBytes": random.choice((40, 500, 900)) * 2**20}
              for image in IMAGES if random.random() < 0.4]
    annotations = {}
    if random.random() < 0.1:
        annotations["node.koordinator.sh/resource-amplification-ratio"] = json.dumps({"cpu": 1.5})
    return {"kind": "Node", "metadata": {"name": name, "labels": labels, "annotations": annotations}, "spec": spec,
            "status": {"allocatable": allocatable, "images": images}}


def metric(name, random, now, pods=()):
    def usage(most):
        return {"cpu": f"{random.randrange(most)}m", "memory": f"{random.randrange(most)}Mi"}

    status = {"updateTime": time_of(now - random.randrange(200) * SECOND), "nodeMetric": {
        "nodeUsage": {"resources": usage(7000)},
        "aggregatedNodeUsages": [{"duration": "5m", "usage": {
            kind: {"resources": usage(7000)} for kind in ("avg", "p50", "p90", "p95", "p99")}}],
        "systemUsage": {"resources": usage(500)},
    }}
    status["podsMetric"] = [
        {"namespace": pod.namespace, "name": pod.name, "priority": random.choice(("koord-prod", "koord-batch")),
         "podUsage": {"resources": usage(1500)}}
        for pod in pods if random.random() < 0.7
    ]
    return {"kind": "NodeMetric", "metadata": {"name": name}, "status": status,
            "spec": {"metricCollectPolicy": {"reportIntervalSeconds": random.choice((30, 60))}}}


def device(name, random):
    entries = [{
        "type": "gpu", "minor": minor, "id": f"{name}-{minor}", "health": random.random() < 0.9,
        "topology": {"socketID": minor // 2, "nodeID": minor // 2, "pcieID": str(minor), "busID": f"0000:{minor:02}"},
        "resources": {CORE: "100", RATIO: "100", "koordinator.sh/gpu-memory": "16Gi"},
    } for minor in range(random.choice((1, 2, 4)))]
    return {"kind": "Device", "metadata": {
        "name": name, "labels": {"node.koordinator.sh/gpu-model": random.choice(("A100", "T4"))},
    }, "spec": {"devices": entries}}


def topology(name, random):
    count = random.choice((4, 8))
    detail = [{"id": cpu, "core": cpu // 2, "socket": 0, "node": cpu * 2 // count} for cpu in range(count)]
    zones = [{"name": f"node-{number}", "type": "Node", "resources": [
        {"name": "cpu", "capacity": str(count // 2), "allocatable": str(count // 2), "available": str(count // 2)},
        {"name": "memory", "capacity": "4Gi", "allocatable": "4Gi", "available": "4Gi"},
    ]} for number in range(2)]
    policy = random.choice(("None", "BestEffort", "SingleNUMANodeContainerLevel", "Restricted"))
    return {"kind": "NodeResourceTopology", "zones": zones, "topologyPolicies": [policy], "metadata": {
        "name": name, "annotations": {"node.koordinator.sh/cpu-topology": json.dumps({"detail": detail})}}}


def volume(name, random):
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [random.choice(ZONES)]}]}]}}
    return {"kind": "PersistentVolume", "metadata": {"name": name, "labels": {}}, "status": {"phase": "Bound"},
            "spec": {
        "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "csi": {"driver": "disk.example.com", "volumeHandle": name},
        **({"nodeAffinity": affinity} if random.random() < 0.7 else {}),
        "claimRef": {"namespace": "shop", "name": f"claim-{name}"}}}


def claim(name):
    return {"kind": "PersistentVolumeClaim", "metadata": {
        "name": f"claim-{name}", "namespace": "shop", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": name, "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                 "resources": {"requests": {"storage": "10Gi"}}}, "status": {"phase": "Bound"}}


def csi_node(name, random):
    return {"kind": "CSINode", "metadata": {"name": name}, "spec": {"drivers": [
        {"name": "disk.example.com", "nodeID": name, "topologyKeys": [],
         "allocatable": {"count": random.choice((0, 1, 5))}}]}}


def namespace(random):
    return {"kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": random.choice(TEAMS)}}}


def quota(name, random):
    return {"kind": "ElasticQuota", "metadata": {"name": name, "namespace": "kube-system"}, "spec": {
        "min": {"cpu": "2", "memory": "4Gi"}, "max": {"cpu": random.choice(("2", "8", "60")), "memory": "200Gi"}}}


def gang(name, random):
    return {"kind": "PodGroup", "metadata": {"name": name, "namespace": "shop"},
            "spec": {"minMember": random.choice((1, 2)), "scheduleTimeoutSeconds": 30}}


def reservation(name, random, nodes=()):
    """A reservation that waits or, where there are nodes, holds what it reserves on one of them."""
    status = {} if not nodes else {
        "phase": "Available", "nodeName": random.choice(nodes), "allocatable": {"cpu": "2", "memory": "2Gi"},
        "allocated": {}, "conditions": [{"type": "Ready", "status": "True", "reason": "Available"}],
    }
    return {"kind": "Reservation", "metadata": {"name": name, "uid": name}, "status": status, "spec": {
        "ttl": "1h", "allocateOnce": random.random() < 0.5,
        "allocatePolicy": random.choice(("", "Aligned", "Restricted")),
        "owners": [{"labelSelector": {"matchLabels": {"app": random.choice(APPS)}}}],
        "template": {"spec": {"containers": [container("2", "2Gi", Random(0))]}}}}


def objects(names, random, now):
    """Return the objects of a whole cluster with nodes of these names."""
    for name in names:
        yield node(name, random)
        for make, share in ((device, 0.3), (topology, 0.3), (csi_node, 0.5)):
            if random.random() < share:
                yield make(name, random)
        if random.random() < 0.8:
            yield metric(name, random, now)
    yield namespace(random)
    yield {"kind": "StorageClass", "metadata": {"name": "fast"}, "provisioner": "disk.example.com",
           "volumeBindingMode": random.choice(("Immediate", "WaitForFirstConsumer"))}
    for number in range(2):
        yield volume(f"v{number}", random)
        yield claim(f"v{number}")
        yield quota(f"q{number}", random)
        yield gang(f"g{number}", random)
    for number in range(random.randrange(2 * len(names))):
        item = pod(f"old{number}", random.randrange(SHAPES))
        if random.random() < 0.5:
            # A metric knows of the pod what it says of itself: since when it runs.
            item["status"] = {"phase": "Running", "startTime": time_of(now - random.randrange(300) * SECOND)}
        yield {**item, "spec": {**item["spec"], "nodeName": random.choice(names)}}


# Pods: a shape is a number, and pods of one shape differ in their names alone


def container(cpu, memory, random, **more):
    return {"name": "main", "image": random.choice(IMAGES),
            "resources": {"requests": {"cpu": cpu, "memory": memory, **more}}}


def _term(random, key="pool"):
    return {"matchExpressions": [{"key": key, "operator": random.choice(("In", "NotIn")),
                                  "values": [random.choice(("general", "batch"))]}]}


def _tolerating(random, _):
    return {"tolerations": [random.choice((
        {"key": "dedicated", "operator": "Exists"}, {"operator": "Exists"},
        {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}))]}


def _selecting(random, _):
    return {"nodeSelector": {"pool": random.choice(("general", "batch"))}}


def _preferring(random, _):
    preferred = [{"weight": 10, "preference": _term(random)}]
    required = {"nodeSelectorTerms": [_term(random)]}
    return {"affinity": {"nodeAffinity": random.choice((
        {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
        {"requiredDuringSchedulingIgnoredDuringExecution": required}))}}


def _keeping_apart(random, labels):
    term = {"labelSelector": {"matchLabels": {"app": random.choice(APPS)}},
            "topologyKey": random.choice(("kubernetes.io/hostname", "topology.kubernetes.io/zone"))}
    if random.random() < 0.3:
        term["namespaceSelector"] = {"matchLabels": {"team": random.choice(TEAMS)}}
    labels["app"] = random.choice(APPS)
    kind = random.choice(("podAffinity", "podAntiAffinity"))
    return {"affinity": {kind: random.choice((
        {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
        {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}]}))}}


def _spreading(random, labels):
    labels["app"] = "web"
    return {"topologySpreadConstraints": [{
        "maxSkew": 1, "topologyKey": random.choice(("kubernetes.io/hostname", "topology.kubernetes.io/zone")),
        "whenUnsatisfiable": random.choice(("DoNotSchedule", "ScheduleAnyway")),
        "labelSelector": {"matchLabels": {"app": "web"}}}]}


def _with_a_volume(random, _):
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"claim-v{random.choice('01')}"}}]}


def _with_a_priority(random, _):
    return {"priority": random.choice((0, 5, 5500, 9500))}


SPECS = (_tolerating, _selecting, _preferring, _keeping_apart, _spreading, _with_a_volume, _with_a_priority)
SHAPES = 40


def pod(name, shape, *, plain=False):
    """Return a pod's object; `plain` leaves out what plugins remember of pods beside the cluster's objects."""
    random = Random(f"shape {shape}")
    labels, annotations = random.choice(({"app": "web", "avoid": "z1"}, {"app": "web"}, {"app": "db"}, {})).copy(), {}
    more = random.choice(({}, {}, {}, {GPU: "1"}, {CORE: "50", RATIO: "50"}, {GPU: "2"},
                          {"kubernetes.io/batch-cpu": "500"}))
    main = container(random.choice(("100m", "1", "2", "0")), random.choice(("0", "512Mi", "2Gi")), random, **more)
    if random.random() < 0.3:
        main["resources"]["limits"] = {**main["resources"]["requests"], "cpu": "2"}
    if random.random() < 0.2:
        main["ports"] = [{"containerPort": 80, "hostPort": random.choice((80, 81))}]
    spec = {"containers": [main]}
    for make in random.sample(SPECS, random.choice((0, 0, 1, 2))):
        spec |= make(random, labels)
    if random.random() < 0.15:
        labels["koordinator.sh/qosClass"] = random.choice(("LSR", "BE", "LS"))
    if random.random() < 0.15:
        labels[QUOTA] = random.choice(("q0", "q1"))
    if random.random() < 0.15:
        labels[GANG] = random.choice(("g0", "g1"))
    if random.random() < 0.1:
        annotations["scheduling.koordinator.sh/reservation-affinity"] = json.dumps({})
    if plain:
        labels.pop(GANG, None)
    metadata = {"name": name, "namespace": "shop", "labels": labels, "annotations": annotations, "uid": name}
    if random.random() < 0.1:
        metadata["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "uid": "d", "apiVersion": "apps/v1"}]
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


def easy_pod(name):
    """Return a pod that nearly every plugin lets run anywhere: what single documents say of nodes is seen in it."""
    spec = {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": IMAGES[0]}]}
    metadata = {"name": name, "namespace": "shop", "labels": {}, "annotations": {}, "uid": name}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}


# Profiles

ALLOCATION = ({}, {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 1}]}})
RATIO_SHAPE = {"shape": [{"utilization": 0, "score": 0}, {"utilization": 70, "score": 10}]}
TERM = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["general"]}]}
ARGS = {
    "NodeAffinity": ({}, {"addedAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [TERM]}}}, {"addedAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 7, "preference": TERM}]}}),
    "NodeResourcesFit": (
        *ALLOCATION, {"ignoredResources": [GPU]},
        {"scoringStrategy": {"type": "RequestedToCapacityRatio", "resources": [{"name": "cpu", "weight": 3}],
                             "requestedToCapacityRatio": RATIO_SHAPE}},
    ),
    "PodTopologySpread": ({}, {"defaultingType": "List", "defaultConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}]}),
    "InterPodAffinity": ({}, {"hardPodAffinityWeight": 7}, {"ignorePreferredTermsOfExistingPods": True}),
    "LoadAwareScheduling": (
        {}, {"usageThresholds": {"cpu": 60}, "nodeMetricExpirationSeconds": 170},
        {"filterExpiredNodeMetrics": False, "prodUsageThresholds": {"cpu": 40}, "scoreAccordingProdUsage": True},
        {"enableScheduleWhenNodeMetricsExpired": True, "dominantResourceWeight": 3},
        {"aggregated": {"usageThresholds": {"cpu": 70}, "usageAggregationType": "p95",
                        "scoreAggregationType": "p99"}},
        {"estimatedSecondsAfterPodScheduled": 60, "estimatedSecondsAfterInitialized": 30},
    ),
    "DeviceShare": ({}, {"disableDeviceNUMATopologyAlignment": True}),
    "NodeResourcesFitPlus": tuple({"resources": {"cpu": {"type": kind, "weight": 2}, GPU: {"type": kind, "weight": 1}}}
                                  for kind in ("MostAllocated", "LeastAllocated")),
    "ScarceResourceAvoidance": ({"resources": [GPU]},),
    "NodeResourcesBalancedAllocation": ({}, {"resources": [{"name": "cpu", "weight": 1}, {"name": GPU, "weight": 1}]}),
    "ImageLocality": ({}, {"sizes": "EachNode"}),
    "NodeNUMAResource": ({}, {"defaultCPUBindPolicy": "SpreadByPCPUs"}, *ALLOCATION),
    "ElasticQuota": ({}, {"enableCheckParentQuota": True}),
    "Reservation": ({}, {"enablePreemption": True}),
    "Coscheduling": ({}, {"defaultTimeout": "20s"}),
    "FragmentationGradient": ({"typicalPods": [
        {"cpuMilli": 1000, "gpuMilli": 500, "gpus": 1, "probability": 0.5},
        {"cpuMilli": 2000, "gpuMilli": 1000, "gpus": 2, "probability": 0.5}]},),
    "GpuShare": ({}, {"select": "random"}),
    "RandomScore": ({"seed": 7},),
}
NEEDED = frozenset({"PrioritySort", "DefaultBinder"})
NAMES = tuple(plugin.name for plugin in PLUGINS if plugin.name not in NEEDED)


@st.composite
def profiles(draw, without=frozenset()):
    """A profile of any built-in plugins, in any order, with any weights."""
    names = draw(st.permutations([name for name in NAMES if name not in without]))
    names = names[: draw(st.sampled_from((4, 10, 20, len(names))))]
    choices = [
        PluginChoice(name, draw(st.integers(1, 5)), draw(st.sampled_from(ARGS.get(name, ({},))))) for name in names
    ]
    return ProfileSpec(
        "default-scheduler", (*map(PluginChoice, sorted(NEEDED)), *choices), named_only=True,
    )


# Documents

OF_THE_POD = (
    "requests.cpu", "requests.memory / 1048576", "limits.cpu", "podInfo.priority", "podInfo.gpuRequest",
    "size(pod.metadata.name)", "size(pod.spec.containers)", "size(pod.metadata.labels)", "requests['nvidia.com/gpu']",
    "(pod.metadata.name.endsWith('1') ? 1 : 2)",
)
OF_THE_NODE = (
    "allocatable.cpu", "allocatable.memory / 1048576", "allocatable['nvidia.com/gpu']", "requested.cpu",
    "requested.memory / 1048576", "requested['nvidia.com/gpu']", "usage.cpu", "usage.p95.cpu",
    "usage.memory / 1048576", "estimated.cpu", "metricAge", "nodeInfo.pods", "nodeInfo.gpuFree",
    "nodeInfo.gpuFreeDevices", "nodeInfo.gpuTotal", "size(nodeInfo.gpuModel)", "size(nodeInfo.images)",
    "devices.filter(d, d.free > 0).size()", "int(node.metadata.labels['rank'])", "size(node.spec.taints)",
    "nodeMetric.status.podsMetric.size()", "node.metadata.labels.size()",
)
OF_BOTH = ("now.getSeconds()", "now.getMinutes()", "params.limit", "params.table.a", "params.table['b']")
NODE_CHECKS = (
    "nodeInfo.zone == 'z0'", "nodeInfo.zone != pod.metadata.labels['avoid']", "nodeInfo.measured",
    "nodeInfo.unschedulable", "node.metadata.labels['pool'] == params.pool", "'rank' in node.metadata.labels",
    "has(node.spec.taints)", "node.spec.?taints.orValue([]).exists(t, t.effect == 'NoSchedule')",
    "nodeInfo.name.endsWith('1')", "'app:1' in nodeInfo.images", "devices.exists(d, d.model == 'A100')",
)
POD_CHECKS = (
    "pod.metadata.labels['app'] == 'web'", "podInfo.qosClass == 'BE'", "has(pod.spec.nodeSelector)",
    "podInfo.name.endsWith('3')", "has(pod.status.phase) && pod.status.phase == 'Pending'",
)
SMALL = ("0", "1", "2", "3", "50", "500", "1000", "3000")
MATCHES = (
    {}, {}, {}, {"nodes": {"labelSelector": {"matchLabels": {"pool": "general"}}}},
    {"pods": {"labelSelector": {"matchLabels": {"app": "web"}}}},
    {"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
)
AGGREGATES = (
    {"over": "nodes", "function": "avg", "expression": "usage.cpu"},
    {"over": "nodes", "function": "max", "expression": "requested.cpu"},
    {"over": "nodes", "function": "count", "expression": "nodeInfo.measured"},
    {"over": "nodes", "function": "sum", "expression": "allocatable.cpu - requested.cpu - requests.cpu"},
    {"over": "pods", "function": "sum", "expression": "existingPodInfo.requests.cpu"},
    {"over": "nodes", "function": "percentile", "percentile": 50, "expression": "nodeInfo.pods"},
)


@st.composite
def documents(draw, name):
    """A SchedulerPlugin as plain data, whose expressions compile."""
    variables, aggregates = [], []

    def number(atoms, depth):
        if depth == 0 or draw(st.integers(0, 2)) == 0:
            return draw(st.sampled_from((*atoms, *SMALL)))
        left, right = number(atoms, depth - 1), number(atoms, depth - 1)
        form = draw(st.sampled_from((
            "({0} + {1})", "({0} - {1})", "({0} * 100 / math.greatest(1, {1}))", "math.least({0}, {1})",
            "({2} ? {0} : {1})", "int(double({0}) / 2.0)", "{0} % 7")))
        return form.format(f"({left})", f"({right})", check(atoms, 0) if "{2}" in form else "")

    def check(atoms, depth):
        if depth and draw(st.integers(0, 2)):
            form = draw(st.sampled_from(("({0} && {1})", "({0} || {1})", "!({0})", "({0} ? {1} : true)")))
            return form.format(check(atoms, depth - 1), check(atoms, depth - 1))
        if draw(st.booleans()):
            return draw(st.sampled_from(POD_CHECKS if atoms is of_pod else (*NODE_CHECKS, *POD_CHECKS)))
        comparison = draw(st.sampled_from(("<", ">=", "!=")))
        return f"{number(atoms, 1)} {comparison} {number(atoms, 1)}"

    of_pod = (*OF_THE_POD, *OF_BOTH)
    atoms = (*OF_THE_POD, *OF_THE_NODE, *OF_THE_NODE, *OF_BOTH)
    most = draw(st.sampled_from((0, 0, 0, 2)))  # with aggregates, what reads them is not cached
    for each in draw(st.lists(st.sampled_from(AGGREGATES), max_size=most, unique_by=str)):
        aggregates.append({"name": f"a{len(aggregates)}", **each})
    atoms += tuple(f"int(aggregates.{each['name']})" for each in aggregates) * 6
    for place in range(draw(st.integers(0, 2))):
        variables.append({"name": f"v{place}", "expression": number(atoms, 1)})
        atoms += (f"variables.v{place}",) * 5
    spec = {
        "params": {"table": {"a": draw(st.integers(0, 50)), "b": 2}},
        "paramsFrom": [{"name": "shared"}],
        "failurePolicy": draw(st.sampled_from(("Fail", "Fail", "Ignore"))),
        "enforcement": draw(st.sampled_from(("Enforce", "Enforce", "Enforce", "Audit", "Warn"))),
        "order": draw(st.integers(-40, 1)), "weight": draw(st.integers(1, 3)),
        "match": draw(st.sampled_from(MATCHES)), "variables": variables, "aggregates": aggregates,
        "filter": [
            {"name": f"f{place}", "expression": check(atoms, 1),
             **({"messageExpression": f"'limit ' + string({number(atoms, 0)})"} if draw(st.booleans()) else {})}
            for place in range(draw(st.integers(0, 2)))
        ],
        "score": [
            {"name": f"s{place}", "weight": draw(st.integers(1, 3)),
             "expression": f"math.greatest(0, math.least(100, {number(atoms, 2)}))",
             "normalize": draw(st.sampled_from(("Identity", "Identity", "Identity", "Max", "MinMaxReverse")))}
            for place in range(draw(st.integers(0, 2)))
        ],
    }
    if draw(st.integers(0, 5)) == 0:
        spec["preFilter"] = [{"name": "p", "expression": check(of_pod, 1)}]
    if draw(st.integers(0, 3)) == 0:
        # Conditions of what is asked before any node see none.
        seen = of_pod if "preFilter" in spec else draw(st.sampled_from((of_pod, atoms)))
        spec["matchConditions"] = [{"name": "c", "expression": check(seen, 1)}]
    if not (spec["filter"] or spec["score"]):
        spec["filter"] = [{"name": "f0", "expression": check(atoms, 1)}]
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": name},
            "spec": {key: value for key, value in spec.items() if value not in ([], {})}}


# What each of these reads is changed by a rule of its own, often beyond the threshold.
READERS = {
    "usage": ("!nodeInfo.measured || usage.cpu < {0} * 70",
              "nodeInfo.measured ? math.least(100, usage.cpu / 70) : {0}"),
    "params": ("allocatable.cpu >= params.limit * {0}", "params.limit + {0} % 7"),
    "nodes": ("requested.cpu < {0} * 20", "{0}"),
}
"""By what a document reads: the expression of its filter and of its score, both with a threshold from 1 to 100."""
GENERAL = {"nodes": {"labelSelector": {"matchLabels": {"pool": "general"}}}}


def reader(reads, threshold):
    """Return a simple SchedulerPlugin that reads one thing of a node, before all others, so that it is seen."""
    rule, score = (each.format(threshold) for each in READERS[reads])
    spec = {"order": -90, "filter": [{"name": "f", "expression": rule}], "score": [{"name": "s", "expression": score}]}
    if reads == "params":
        spec["paramsFrom"] = [{"name": "shared"}]
    if reads == "nodes":
        spec["match"] = GENERAL
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin",
            "metadata": {"name": f"reads-{reads}"}, "spec": spec}


def params(pool, limit):
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "PolicyParams", "metadata": {"name": "shared"},
            "spec": {"params": {"pool": pool, "limit": limit}}}


def _single(name, **spec):
    return {"apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "SchedulerPlugin", "metadata": {"name": name},
            "spec": {"order": -80, **spec}}


def _score(expression, **rest):
    return {"score": [{"name": "s", "expression": expression, **rest}]}


SINGLE = (
    _single("normalized", **_score("requested.cpu", normalize="MinMaxReverse")),
    _single("ignored", failurePolicy="Ignore", **_score("math.least(100, usage.cpu / 70)")),
    _single("aggregated", aggregates=[{"name": "a", "over": "nodes", "function": "sum", "expression": "requested.cpu"}],
            **_score("int(aggregates.a) % 101")),
    _single("of-namespace", match={"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}}}},
            filter=[{"name": "f", "expression": "int(node.metadata.labels['rank']) > 0"}]),
    _single("two-rules", order=-95, filter=[{"name": "f", "expression": "requested.cpu < 6000"},
                                 {"name": "g", "expression": "allocatable.cpu > 600"}]),
    _single("in-pool", match=GENERAL, **_score("requested.cpu % 97")),
    _single("two-logs", **_score("math.least(100, (allocatable.cpu + requested.cpu) / 200)")),
    _single("devices", **_score("math.least(100, nodeInfo.gpuFreeDevices * 10 + devices.size())")),
    _single("of-name", **_score("size(pod.metadata.name) * 5 + size(node.metadata.labels)")),
)
"""Simple documents, each of which reads what another way to cache results would get wrong."""
PLAIN = ProfileSpec("default-scheduler", tuple(map(PluginChoice, (
    "PrioritySort", "DefaultBinder", "NodeResourcesFit", "NodeUnschedulable", "TaintToleration", "ImageLocality",
    "NodeAffinity", "DeviceShare", "DefaultPreemption"))), named_only=True)
