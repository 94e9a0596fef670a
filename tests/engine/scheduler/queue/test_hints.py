"""Requeue hints follow from the paths that refused a pod: an event that helps is never missed."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.events import Event
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.queue.scheduling_queue import PathHint
from koordpolicy.engine.source import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND

RULES = (
    "node.metadata.labels['zone'] == pod.metadata.labels['zone']",
    "'zone' in node.metadata.labels",
    "nodeInfo.zone == 'z1'",
    "nodeInfo.gpuModel == 'A10'",
    "nodeInfo.gpuFree >= 500",
    "nodeInfo.gpuTotal > 0",
    "nodeInfo.gpuDevices > 1",
    "nodeInfo.gpuFreeDevices > 0",
    "nodeInfo.pods < 1",
    "!nodeInfo.unschedulable",
    "'web' in nodeInfo.images",
    "nodeInfo.measured",
    "!nodeInfo.measured",
    "allocatable.cpu - requested.cpu >= requests.cpu",
    "allocatable.memory >= requests.memory * 2",
    "usage.cpu * 100 / allocatable.cpu < 40",
    "estimated.cpu < 3000",
    "metricAge < 60",
    "metricAge > 60",
    "devices.exists(d, d.free >= 500)",
    "devices.exists(d, d.model == 'A10')",
    "nodeMetric.status.nodeMetric.nodeUsage.resources['cpu'] == '1'",
    "node.spec.unschedulable != true",
    "pod.metadata.labels['approved'] == 'yes'",
    "podInfo.priority > 5",
    "usage.cpu < aggregates.mean",
    "aggregates.running < 1",
    "variables.free >= 2000",
    "now > timestamp('2026-01-01T00:00:30Z')",
)
HEADS = (
    "",
    "  failurePolicy: Ignore\n",
    "  match: {pods: {namespaceSelector: {matchLabels: {team: a}}}}\n",
    "  match: {nodes: {labelSelector: {matchLabels: {zone: z1}}}}\n",
    "  match: {nodes: {names: [n0]}}\n",
    "  match: {pods: {labelSelector: {matchLabels: {approved: 'no'}}}}\n",
    "  matchConditions: [{name: when, expression: \"node.metadata.labels['zone'] == 'z1'\"}]\n",
    "  matchConditions: [{name: when, expression: 'usage.cpu > 1000'}]\n",
)
DOCUMENT = """
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: d{number}}}
spec:
{head}  variables: [{{name: free, expression: allocatable.cpu - requested.cpu}}]
  aggregates:
  - {{name: mean, over: nodes, function: avg, expression: usage.cpu}}
  - {{name: running, over: pods, function: count, expression: "existingPod.metadata.labels['app'] == 'web'"}}
  filter: [{{name: rule, expression: "{rule}"}}]
"""


def documents(picked):
    text = "---".join(
        DOCUMENT.format(number=number, head=head, rule=rule) for number, (head, rule) in enumerate(picked)
    )
    return compile_documents(load([Source("policies.yaml", text)]))


def stamp(now):

    return datetime.fromtimestamp(now // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node(random, name):
    labels = random.choice(
        [
            {}, {"zone": "z1", "topology.kubernetes.io/zone": "z1"},
            {"zone": "z2", "node.koordinator.sh/gpu-model": "A10"},
        ],
    )
    allocatable = {
        "cpu": random.choice(["2", "4"]), "memory": random.choice(["1Gi", "8Gi"]), "pods": "10",
        **random.choice([{}, {"nvidia.com/gpu": "2"}]),
    }
    images = random.choice([[], [{"names": ["web"], "sizeBytes": 7}]])
    return {
        "kind": "Node", "metadata": {"name": name, "labels": labels},
        "spec": random.choice([{}, {"unschedulable": True}]), "status": {"allocatable": allocatable, "images": images},
    }


def metric(random, name, now):
    usage = {"cpu": random.choice(["100m", "1", "3"]), "memory": "1Gi"}
    return {
        "kind": "NodeMetric", "metadata": {"name": name},
        "status": {
            "updateTime": stamp(now - random.choice([0, 100]) * SECOND),
            "nodeMetric": {"nodeUsage": {"resources": usage}},
        },
    }


def device(random, name):
    gpus = [
        {"type": "gpu", "minor": minor, "health": True, "resources": {"koordinator.sh/gpu-core": "100"}}
        for minor in range(random.choice([0, 1, 2]))
    ]
    labels = random.choice([{}, {"node.koordinator.sh/gpu-model": "A10"}])
    return {"kind": "Device", "metadata": {"name": name, "labels": labels}, "spec": {"devices": gpus}}


def pod(name, **spec):
    container = {"name": "main", "resources": {"requests": {"cpu": "1", "memory": "1Gi", **spec.pop("gpu", {})}}}
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": spec.pop("labels", {"app": "web"})},
        "spec": {"containers": [container], **spec},
    }


def change(cluster, random, now):
    """Change something; return what the pod that waits is now, where that is what changed."""
    name = random.choice(["n0", "n1", "n2"])
    match random.randrange(8):
        case 0 | 1:
            cluster.upsert(node(random, name))
        case 2:
            cluster.upsert(metric(random, name, now))
        case 3:
            cluster.delete(random.choice(["NodeMetric", "Device"]), name)
        case 4:
            cluster.upsert(device(random, name))
        case 5:
            cluster.upsert(
                pod(
                    f"r{random.randrange(3)}", nodeName=random.choice(["n0", "n1"]),
                    labels=random.choice([{"app": "web"}, {}]), gpu=random.choice([{}, {"nvidia.com/gpu": "1"}]),
                ),
            )
        case 6:
            cluster.delete("Pod", f"shop/r{random.randrange(3)}")
        case _:
            cluster.upsert(
                {"kind": "Namespace", "metadata": {"name": "shop", "labels": random.choice([{}, {"team": "a"}])}},
            )


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(HEADS), st.sampled_from(RULES)), min_size=1, max_size=3), st.integers(0, 2**32),
)
def test_an_event_that_would_let_a_pod_pass_is_never_missed(picked, seed):
    random, time = Random(seed), [START]
    labels = random.choice([{"zone": "z1", "approved": "no"}, {"zone": "z2", "approved": "yes"}])
    objects = [node(random, name) for name in ("n0", "n1")] + [
        metric(random, "n0", START), device(random, "n1"), pod("p", labels=labels),
    ]
    cluster = Cluster(objects)
    loop = SchedulingLoop(cluster, Live(Registry.of(documents(picked), generation=1)), clock=lambda: time[0])
    verdict = loop.schedule_one()
    if verdict.node is not None:
        return
    [entry] = loop.queue._unschedulable.entries.values()
    events = []
    cluster.listen(events.append)
    for _ in range(4):
        events.clear()
        if random.random() < 0.2:
            cluster.upsert(pod("p", labels={"zone": "z1", "approved": "yes"}, priority=9))
        else:
            change(cluster, random, time[0])
        waiting = cluster.pod("shop/p")
        assert waiting is not None
        if any(hint(event, waiting) for event in events for hint in entry.hints):
            time[0] += 20 * SECOND
            if loop.schedule_one().node is not None:
                return
            [entry] = loop.queue._unschedulable.entries.values()
            continue
        assert loop.scheduler.decide(waiting).node is None, (picked, events)
        time[0] += random.choice([0, 1, 200]) * SECOND
        timed = any(isinstance(hint, PathHint) and hint.timed for hint in entry.hints)
        assert timed or loop.scheduler.decide(waiting).node is None, picked
        if timed:
            return


@pytest.mark.parametrize(("spec", "helps"), [
    (
        "  match: {pods: {namespaceSelector: {matchLabels: {team: a}}}}\n  filter: [{name: r, expression: 'false'}]",
        {"kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "b"}}},
    ),
    (
        "  filter: [{name: r, expression: \"nodeInfo.gpuModel == 'A10'\"}]",
        {
            "kind": "Node", "metadata": {"name": "n0", "labels": {"node.koordinator.sh/gpu-model": "A10"}},
            "status": {"allocatable": {"cpu": "4"}},
        },
    ),
    (
        "  filter: [{name: r, expression: nodeInfo.gpuFree > 0}]",
        {"kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "4", "nvidia.com/gpu": "1"}}},
    ),
    (
        "  filter: [{name: r, expression: \"nodeInfo.gpuModel == 'A10'\"}]",
        {
            "kind": "Device", "metadata": {"name": "n0", "labels": {"node.koordinator.sh/gpu-model": "A10"}},
            "spec": {"devices": []},
        },
    ),
])
def test_a_refused_pod_is_tried_again_when_what_helps_it_comes(spec, helps):
    text = f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {{name: d}}\nspec:\n{spec}\n"
    compiled = compile_documents(load([Source("policies.yaml", text)]))
    time = [START]
    first = [
        {"kind": "Namespace", "metadata": {"name": "shop", "labels": {"team": "a"}}},
        {"kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": {"cpu": "4"}}},
    ]
    loop = SchedulingLoop(Cluster([*first, pod("p")]), Live(Registry.of(compiled, generation=1)), clock=lambda: time[0])
    assert loop.schedule_one().node is None
    time[0] += 60 * SECOND
    loop.scheduler.cluster.upsert(helps)
    assert loop.schedule_one().node == "n0"
    assert PodInfo.of(pod("p")).key == "shop/p"


@pytest.mark.parametrize(
    ("head", "rule"),
    [("  failurePolicy: Ignore\n", "usage.cpu < 100"), ("", "!nodeInfo.measured"), ("", "usage.cpu < aggregates.mean")],
)
def test_what_a_metric_that_expires_may_change_is_tried_again_in_time(head, rule):
    random = Random(0)
    cluster = Cluster([node(random, "n0"), metric(random, "n0", START), pod("p")])
    loop = SchedulingLoop(cluster, Live(Registry.of(documents([(head, rule)]), generation=1)), clock=lambda: START)
    assert loop.schedule_one().node is None
    assert loop.next_time() == START + 10 * SECOND


@pytest.mark.parametrize(("change", "helps"), [
    ({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}, False),
    ({"metadata": {"name": "p", "resourceVersion": "2"}}, False),
    ({"metadata": {"name": "p", "labels": {"a": "b"}}}, True),
    ({"metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, True),
    ({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}, True),
])
def test_the_status_that_a_kubelet_writes_again_and_again_wakes_no_pod(change, helps):
    running = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
               "status": {"phase": "Running"}}
    new = {**running, **change}
    event = Event("Pod", "default/p", running, new, PodInfo.of(running), PodInfo.of(new))
    waiting = PodInfo.of({"kind": "Pod", "metadata": {"name": "w"}, "spec": {"containers": [{"name": "c"}]}})
    assert PathHint(frozenset({("requested",)}))(event, waiting) is helps
    assert PathHint(frozenset({("existingPod", "metadata", "labels")}))(event, waiting) is (
        "labels" in change.get("metadata", {}))
