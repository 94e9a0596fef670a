
import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.source import PolicyError

from .cluster_objects import T0, amounts, answers, metric, node, pod


def test_rows_are_sorted_by_name_and_pods_wait_in_order_of_arrival():
    cluster = Cluster([
        pod("late", creationTimestamp="2026-01-02T00:00:00Z"), pod("early", creationTimestamp="2026-01-01T00:00:00Z"),
        pod("b", on="n1"), node("n2"), node("n1"), {**pod("done"), "status": {"phase": "Succeeded"}},
        pod("leaving", deletionTimestamp="2026-01-01T00:00:00Z"),
    ])
    assert cluster.names == ["n1", "n2"]
    assert [each.key for each in cluster.pending] == ["shop/early", "shop/late"]
    assert amounts(cluster.snapshot()) == {"n1": 500, "n2": 0}


def test_assuming_a_pod_changes_its_row_and_forgetting_undoes_it():
    cluster = Cluster([node("n1", gpus=2), node("n2", gpus=2), pod("p", gpus=1)])
    snapshot = cluster.snapshot()
    assert (amounts(snapshot), snapshot.devices.free.tolist()) == ({"n1": 0, "n2": 0}, [[1000, 1000]] * 2)
    [waiting] = cluster.pending
    cluster.assume(waiting, "n2", (1,))
    after = cluster.snapshot()
    assert (amounts(after), after.devices.free.tolist()) == ({"n1": 0, "n2": 500}, [[1000, 1000], [1000, 0]])
    assert (after.pod_count.tolist(), cluster.pending) == ([0, 1], ())
    assert [each.node_name for each in after.pods(1)] == ["n2"]
    cluster.upsert(pod("p", gpus=1, labels={"stale": "yes"}))  # an informer that has not heard of it yet
    assert cluster.snapshot().devices.free.tolist() == [[1000, 1000], [1000, 0]]
    cluster.forget("shop/p")
    cluster.forget("shop/p")
    assert (amounts(cluster.snapshot()), cluster.snapshot().devices.free.tolist()) == (
        {"n1": 0, "n2": 0}, [[1000, 1000]] * 2,
    )
    assert [(each.key, each.node_name) for each in cluster.pending] == [("shop/p", "")]
    with pytest.raises(ValueError, match="no node `n9`"):
        cluster.assume(waiting, "n9")


def test_a_pod_on_a_node_that_comes_later_counts_when_it_does():
    cluster = Cluster([pod("p", on="n1"), metric("n1")])
    cluster.upsert(node("n1"))
    assert (amounts(cluster.snapshot(T0)), answers(cluster.snapshot(T0), "usage.cpu * 100 / allocatable.cpu")) == (
        {"n1": 500}, [25],
    )
    cluster.delete("Node", "n1")
    assert cluster.snapshot().size == 0


@pytest.mark.parametrize(("item", "message"), [
    ({"kind": "Node", "metadata": {"name": "n1"}, "status": {}}, "Node `n1`: `status.allocatable` is missing"),
    (node("n1", cpu="12Zi"), "Node `n1`: `status.allocatable.cpu`: `12Zi` is not a quantity"),
    (node("n1", taints={}), "Node `n1`: `spec.taints` must be a list, not an object"),
    ({"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}, "Pod `p`: `spec.containers` is missing or empty"),
    (pod("p", cpu="x"), "Pod `shop/p`: `spec.containers[0].resources.requests.cpu`: `x` is not a quantity"),
    ({**pod("p"), "spec": {"containers": [5]}}, "Pod `shop/p`: `spec.containers[0]` must be an object, not a number"),
    (metric("n1", cpu="1Q"), "NodeMetric `n1`: `status.nodeMetric.nodeUsage.resources.cpu`: `1Q` is not a quantity"),
    (metric("n1", at="today"), "NodeMetric `n1`: `status.updateTime`: `today` is not a time"),
    ({"kind": "Device", "metadata": {"name": "n1"}, "spec": {"devices": [{"type": "gpu", "minor": -1}]}},
     "Device `n1`: `spec.devices[0].minor` must be a number from 0 to 63"),
    ({"metadata": {"name": "x"}}, "object `x`: `kind` is missing"),
    ([], "object: an object of the API is needed, not a list"),
])
def test_a_malformed_object_is_named_and_nothing_else_is_lost(item, message):
    good = [node("n1"), node("n2"), pod("q", on="n1"), metric("n1")]
    cluster = Cluster(good)
    before = (amounts(cluster.snapshot(T0)), answers(cluster.snapshot(T0), "usage.cpu * 100 / allocatable.cpu"))
    with pytest.raises(PolicyError) as caught:
        cluster.upsert(item)
    assert caught.value.problems[0].message.startswith(message)
    assert (amounts(cluster.snapshot(T0)), answers(cluster.snapshot(T0), "usage.cpu * 100 / allocatable.cpu")) == before
    fresh = Cluster()
    assert [each.message[:20] for each in fresh.upsert_all([node("n0"), item, *good[1:]])] == [message[:20]]
    assert fresh.names == ["n0", "n2"]
    with pytest.raises(PolicyError):
        Cluster([item])


def test_a_fork_and_its_original_change_apart():
    cluster = Cluster([node("n1", gpus=2), node("n2", gpus=2), metric("n1"), pod("p", gpus=1, on="n1"),
                       pod("q", gpus=1)])
    told: list[str] = []
    cluster.listen(lambda event: told.append(event.key))
    before = amounts(cluster.snapshot())
    fork = cluster.fork()
    assert (amounts(fork.snapshot()), fork.snapshot().devices.free.tolist()) == (
        before, cluster.snapshot().devices.free.tolist())
    [waiting] = fork.pending
    fork.assume(waiting, "n1")
    fork.delete("NodeMetric", "n1")
    fork.upsert(node("n3"))
    fork.delete("Pod", "shop/p")
    assert (amounts(cluster.snapshot()), told, cluster.names, cluster.snapshot().row(0).metric is None) == (
        before, [], ["n1", "n2"], False)
    assert cluster.snapshot().devices.free.tolist() == [[0, 1000], [1000, 1000]]
    cluster.delete("Node", "n2")
    cluster.delete("Pod", "shop/q")
    assert (fork.names, fork.pod("shop/q").node_name, fork.version != cluster.version) == (
        ["n1", "n2", "n3"], "n1", True)
    assert told == ["n2", "shop/q"]
