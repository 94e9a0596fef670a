"""Whole nodes in a request belong to that request, whether the cluster has a source or not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler
from koordpolicy.engine.scheduler.extender.bodies import ExcessiveError, read_envelope
from koordpolicy.engine.scheduler.extender.decision_record import Verb
from koordpolicy.engine.scheduler.extender.protocol import Extender
from koordpolicy.engine.scheduler.extender.sent_nodes import AdoptedNodes, OverlaidNodes
from koordpolicy.engine.source import Source

POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: free}
spec:
  filter:
  - {name: cpu, expression: allocatable.cpu - requested.cpu >= 2000}
  - {name: pool, expression: "node.metadata.?labels['pool'].orValue('') != 'closed'"}
  score:
  - {name: free, expression: "math.least(100, (allocatable.cpu - requested.cpu) / 100)"}
"""
PLUGINS = compile_documents(load([Source("policy.yaml", POLICY)]))


def node(name, cpu=4, version="1", pool="open"):
    return {
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": version, "labels": {"pool": pool}},
        "spec": {}, "status": {"allocatable": {"cpu": str(cpu), "memory": "8Gi", "pods": "110"}},
    }


def running(name, where, cpu=3):
    return {
        "kind": "Pod", "metadata": {"name": name},
        "spec": {"nodeName": where, "containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}]},
    }


def source():
    return [node("a"), node("b", 8), node("c", 2), running("there", "b")]


def extending(objects=()):
    return Extender(
        Scheduler(Cluster(objects), Live(Registry.of(PLUGINS, generation=1))), clock=lambda: 7_000_000_000,
        timer=lambda: 0.0,
    )


def ask(extender, verb, *, nodes=None, names=None):
    pod = {"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}}
    items = None if nodes is None else {"items": nodes}
    return json.loads(extender.answer(verb, json.dumps({"Pod": pod, "Nodes": items, "NodeNames": names}).encode()).body)


def passing(answer):
    return [each["metadata"]["name"] for each in answer["Nodes"]["items"]] if answer["Nodes"] else answer["NodeNames"]


def state(extender):
    snapshot = extender.snapshot()
    return (list(snapshot.names), dict(extender.cluster.objects("Node")), snapshot.allocatable("cpu").tolist(),
            snapshot.requested("cpu").tolist(), snapshot.pod_count.tolist())


def test_nodes_of_a_request_decide_that_request_and_leave_the_cluster_as_it_is():
    extender = extending(source())
    before = state(extender)
    lie = [node("a", 1, "9"), node("b", 8, "9", pool="closed"), node("c", 64, "9"), node("new", 5)]
    assert passing(ask(extender, Verb.FILTER, nodes=lie)) == ["c", "new"]
    assert ask(extender, Verb.PRIORITIZE, nodes=lie[2:]) == [{"Host": "c", "Score": 10}, {"Host": "new", "Score": 0}]
    assert state(extender) == before
    assert passing(ask(extender, Verb.FILTER, names=["a", "b", "c"])) == ["a", "b", "c"]
    assert ask(extender, Verb.FILTER, names=["new"])["FailedNodes"] == {
        "new": "koord-policy: node `new` is not among the nodes that are known",
    }


def test_pods_that_are_known_count_on_the_nodes_of_a_request():
    extender = extending(source())
    assert passing(ask(extender, Verb.FILTER, nodes=[node("a", 4, "2"), node("b", 4, "2")])) == ["a"]
    # Also on one that was not known, but that pods are bound to.
    extender = extending([node("a"), running("early", "late")])
    assert passing(ask(extender, Verb.FILTER, nodes=[node("late", 4)])) == []
    assert passing(ask(extender, Verb.FILTER, nodes=[node("late", 8)])) == ["late"]


def test_the_version_that_the_cluster_has_means_the_content_that_the_cluster_has():
    extender = extending(source())
    assert passing(ask(extender, Verb.FILTER, nodes=[node("a", 0, "1")])) == ["a"]


def test_what_changes_in_the_cluster_counts_for_the_same_request():
    extender, nodes = extending(source()), [node("a", 6, "2"), node("b", 8, "2"), node("new", 4)]
    assert passing(ask(extender, Verb.FILTER, nodes=nodes)) == ["a", "b", "new"]
    extender.cluster.upsert(running("second", "a", 5))
    extender.cluster.upsert(running("third", "new", 3))
    assert passing(ask(extender, Verb.FILTER, nodes=nodes)) == ["b"]


def test_a_malformed_node_is_refused_alone_each_time_whether_it_is_known_or_not():
    extender = extending(source())
    for _ in range(2):
        got = ask(extender, Verb.FILTER, nodes=[node("a", "12Zi", "2"), node("b", 8, "2"), node("new", "12Zi")])
        assert passing(got) == ["b"]
        assert {name: why.partition(":")[0] for name, why in got["FailedNodes"].items()} == {
            "a": "koord-policy", "new": "koord-policy",
        }
        assert got["FailedNodes"]["new"].startswith("koord-policy: Node `new`: `status.allocatable.cpu`: ")


nodes = st.builds(
    node, st.sampled_from("abcdef"), st.integers(0, 9), st.sampled_from("123"), st.sampled_from(["open", "closed"]),
)
requests = st.lists(st.lists(nodes, unique_by=lambda each: each["metadata"]["name"]), min_size=1, max_size=4)


@given(requests, st.booleans())
def test_no_request_changes_what_another_is_answered(sequence, known):
    extender = extending(source() if known else ())
    for items in sequence:
        alone = extending(source() if known else ())
        assert ask(extender, Verb.FILTER, nodes=items) == ask(alone, Verb.FILTER, nodes=items)
        assert ask(extender, Verb.PRIORITIZE, nodes=items) == ask(alone, Verb.PRIORITIZE, nodes=items)


def sent(*items):
    return read_envelope(json.dumps({"Nodes": {"items": items}}).encode()).nodes


def test_without_a_source_the_nodes_that_came_last_make_room_for_the_newest():
    cluster, passed = Cluster(), [0.0]
    adopted = AdoptedNodes(cluster, lambda: passed[0], most_bytes=10_000)
    for number in range(50):
        passed[0] += 1
        adopted.view(sent(node(f"n{number:02}")), 0)
    assert 1 < len(cluster.names) < 10
    assert cluster.names == [f"n{number:02}" for number in range(50 - len(cluster.names), 50)]


@pytest.mark.parametrize("make", [lambda cluster: OverlaidNodes(cluster, most_bytes=10_000),
                                  lambda cluster: AdoptedNodes(cluster, lambda: 0.0, most_bytes=10_000)])
def test_nodes_that_would_take_too_much_memory_are_refused_and_nothing_is_changed(make):
    cluster = Cluster([node("a")])
    many = sent(*(node(f"n{number}") for number in range(50)))
    with pytest.raises(ExcessiveError, match=r"at most 10000 are taken: set `nodeCacheCapable: true`"):
        make(cluster).view(many, 0)
    assert cluster.names == ["a"]


def test_heartbeats_alone_make_no_difference():
    def beating(at, version):
        each = node("a", version=version)
        each["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastHeartbeatTime": at}]
        return each

    cluster = Cluster([beating("2026-01-01T00:00:00Z", "1")])
    view, faults = OverlaidNodes(cluster).view(sent(beating("2026-01-01T00:05:00Z", "2")), 0)
    assert (dict(view.overridden), faults) == ({}, {})


def test_a_cluster_with_more_nodes_shares_nothing_that_is_written():
    cluster = Cluster(source())
    before = cluster.snapshot().requested("cpu").tolist()
    twin, faults = cluster.with_nodes([node("aa", 3), node("bad", "12Zi")])
    assert (twin.names, cluster.names, list(faults)) == (["a", "aa", "b", "c"], ["a", "b", "c"], ["bad"])
    assert twin.version != cluster.version
    assert np.array_equal(twin.snapshot().allocatable("cpu"), [4000, 3000, 8000, 2000])
    assert (cluster.object("Node", "aa"), cluster.snapshot().requested("cpu").tolist()) == (None, before)


def test_many_nodes_are_deleted_as_one_by_one():
    one, many = Cluster(source()), Cluster(source())
    told = []
    many.listen(lambda event: told.append((event.kind, event.key, event.new)))
    one.delete("Node", "a")
    one.delete("Node", "b")
    many.delete_nodes(["a", "b", "x"])
    assert (many.names, many.objects("Node"), told) == (
        one.names, one.objects("Node"), [("Node", "a", None), ("Node", "b", None)],
    )
    for cluster in (one, many):
        cluster.upsert(node("b", 8))
    assert many.snapshot().requested("cpu").tolist() == one.snapshot().requested("cpu").tolist() == [3000, 0]
