from __future__ import annotations

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources.leaving_pods import LeavingPods

NOW = 1_767_268_800_000_000_000
SINCE = "2026-01-01T12:00:00Z"


def pod(uid: str = "1", **metadata: str) -> dict:
    return {"kind": "Pod", "metadata": {"name": "web", "namespace": "d", "uid": uid, **metadata},
            "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Running"}}


def shown(cluster: Cluster) -> str | None:
    return cluster.object("Pod", "d/web")["metadata"].get("deletionTimestamp")


def test_the_cluster_shows_a_pod_as_leaving_until_the_server_says_since_when():
    cluster, leaving = Cluster([pod()]), LeavingPods(lambda: NOW)
    cluster.listen(leaving.note)
    leaving.add_later(pod())
    assert shown(cluster) is None  # a decision is under way
    leaving.apply(cluster)
    assert (shown(cluster), len(leaving)) == (SINCE, 1)
    late = pod(resourceVersion="2")
    assert leaving.revise(late)["metadata"]["deletionTimestamp"] == SINCE
    node = {"kind": "Node", "metadata": {"name": "web", "uid": "1"}}
    assert leaving.revise(node) is node
    final = pod(deletionTimestamp="2026-01-01T12:00:30Z")
    assert (leaving.revise(final), len(leaving)) == (final, 0)


def test_a_pod_that_was_gone_before_it_is_noted_is_forgotten():
    cluster, leaving = Cluster(), LeavingPods(lambda: NOW)
    leaving.add_later(pod())
    leaving.apply(cluster)
    assert len(leaving) == 0


def test_a_pod_that_is_replaced_in_one_change_is_forgotten():
    cluster, leaving = Cluster([pod()]), LeavingPods(lambda: NOW)
    cluster.listen(leaving.note)
    leaving.add_later(pod())
    leaving.apply(cluster)
    cluster.upsert(pod("2"))
    assert (len(leaving), shown(cluster)) == (0, None)


def test_a_pod_that_is_gone_or_replaced_is_forgotten():
    cluster, leaving = Cluster([pod()]), LeavingPods(lambda: NOW)
    cluster.listen(leaving.note)
    leaving.add_later(pod())
    cluster.delete("Pod", "d/web")
    cluster.upsert(pod("2"))
    leaving.apply(cluster)
    assert (shown(cluster), len(leaving)) == (None, 0)
