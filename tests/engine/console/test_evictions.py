"""Views of a dry cycle of the descheduler, of pods and of nodes, and the audit of the policies."""

from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console.audits import audit_view
from koordpolicy.engine.console.evictions import eviction_view, evictions_view
from koordpolicy.engine.console.models import VIEWS
from koordpolicy.engine.console.models.evictions import PlannedEviction
from koordpolicy.engine.console.node_policies import node_policies
from koordpolicy.engine.console.nodes import node_view
from koordpolicy.engine.console.state import ConsoleState, UnknownNameError

from .conftest import HOT, NOW, OBJECTS, pod

DRAIN = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: remove-failed}
spec:
  type: Deschedule
  criteria:
  - {name: failed, expression: "pod.?status.?phase.orValue('') == 'Failed'"}
"""
LEAVING = DRAIN.replace("name: failed", "name: leaving").replace(
    "pod.?status.?phase.orValue('') == 'Failed'", "pod.metadata.name == 'web-9'")
FREE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: QoSPlugin
metadata: {name: hold-back}
spec:
  thresholds:
  - {name: busy, expression: "usage.cpu * 100 / allocatable.cpu > 70"}
  actions:
  - {name: hold, suppressCPU: {target: "1000"}}
"""


@pytest.fixture
def many(policies_of) -> ConsoleState:
    """Policies of all frameworks; a failed pod of a workload on `hot`, and a GPU there."""
    cluster = Cluster()
    owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}]
    failed = pod("web-9", "1", "hot")
    failed["metadata"]["ownerReferences"] = owner
    failed["status"] = {"phase": "Running"}
    gpu = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": "hot"},
           "spec": {"devices": [
               {"type": "gpu", "minor": 0, "health": True, "resources": {
                   "koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100",
                   "koordinator.sh/gpu-memory": "16Gi"}},
               {"type": "rdma", "minor": 1, "health": False}]}}
    assert not cluster.upsert_all([*OBJECTS, failed, gpu])
    return ConsoleState(cluster, policies_of(HOT, LEAVING, FREE), now=NOW, name="dump.yaml")


def texts(finding: dict) -> list[str]:
    return [finding.get("text", ""), *(text for part in finding.get("parts", ()) for text in texts(part))]


def test_a_pod_is_explained_by_the_cycle_that_evicts_others(many):
    stays = eviction_view(many, "shop/web-1")
    assert not stays.evicted
    assert "remove-failed: criterion leaving is false" in texts(stays.explanation)
    with pytest.raises(UnknownNameError, match="did you mean"):
        eviction_view(many, "shop/web-11")


def test_candidates_that_stay_are_counted_by_reason(many):
    view = evictions_view(many)
    assert view.plugins == ["remove-failed"]
    assert [(each.plugin, each.pods, each.example) for each in view.spared] == [("remove-failed", 1, "shop/web-9")]
    assert view.evicted == []


def test_a_node_has_its_devices_and_what_each_policy_says_of_it(many):
    details = node_view(many, "hot")
    assert [(each.type, each.minor, each.healthy, each.free, each.pods) for each in details.devices] == [
        ("gpu", 0, True, 100.0, []), ("rdma", 1, False, None, [])]
    view = node_policies(many, "hot")
    by_name = {each.policy: each for each in view.policies}
    hot = by_name["keep-off-hot-nodes"]
    assert (hot.refused, hot.pods, hot.reason, hot.document) == (2, 2, "cpu at 75%", True)
    assert view.policies[0].policy == "keep-off-hot-nodes"
    assert "remove-failed" in by_name
    assert any("hold-back" in text for text in texts(view.qos))
    assert node_policies(many, "unmeasured").qos is None


def test_the_cycle_is_run_once_until_the_state_changes(many, monkeypatch):
    evictions_view(many)
    monkeypatch.setattr("koordpolicy.engine.console.evictions.run_cycle", None)
    assert evictions_view(many).plugins == ["remove-failed"]
    many.forget()
    with pytest.raises(TypeError):
        evictions_view(many)


def test_rules_without_effect_are_found(many, policies_of):
    view = audit_view(many)
    tally = {(each.policy, use.rule): (use.evaluated, use.refused, use.failed)
             for each in view.policies for use in each.rules}
    # Five pods on three nodes, one of which has no metric.
    assert tally["keep-off-hot-nodes", "below-watermark"] == (12, 4, 4)
    never = ConsoleState(many.cluster, policies_of(HOT.replace("< params.percent", "< 1000")), now=NOW, name="x")
    assert ("keep-off-hot-nodes", "below-watermark", "refuses-nothing") in [
        (each.policy, each.rule, each.finding) for each in audit_view(never).findings]


def test_an_eviction_is_planned_for_a_pod_that_its_workload_replaces(policies_of):
    cluster = Cluster()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
    replicas = [pod(f"web-{number}", "1", "hot") for number in range(5, 10)]
    for each in replicas:
        each["metadata"]["ownerReferences"] = [owner]
        each["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    workload = {"apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": {"replicas": 5}}
    assert not cluster.upsert_all([*OBJECTS, *replicas, workload])
    state = ConsoleState(cluster, policies_of(LEAVING), now=NOW, name="x")
    planned = PlannedEviction(pod="shop/web-9", node="hot", plugin="remove-failed", reason="leaving")
    assert evictions_view(state).evicted == [planned]
    assert eviction_view(state, "shop/web-9").evicted
    assert node_policies(state, "hot").evicted == [planned]


def test_no_answer_but_a_refusal_has_an_error():
    assert [view.__name__ for view in VIEWS if "error" in view.__struct_fields__] == ["RefusalView"]
