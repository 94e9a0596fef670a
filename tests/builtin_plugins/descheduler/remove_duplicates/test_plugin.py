from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.testing import FakeEvictor
from tests.builtin_plugins.descheduler.clusters import balance, node, pod

NODES = [node("n1"), node("n2"), node("n3")]


def evicted(*objects, args=None, **more):
    return list(balance("RemoveDuplicates", args or {}, objects, **more).evicted)


def test_pods_of_one_owner_leave_a_node_that_has_more_than_the_average():
    pods = [pod(f"web-{index}", "n1") for index in range(4)]
    result = balance("RemoveDuplicates", {}, [*NODES, *pods])
    assert result.evicted == dict.fromkeys(
        ("shop/web-2", "shop/web-3"), "node `n1` has 4 pods of ReplicaSet web, above 2",
    )
    assert result.kept == {"shop/web-1": "at most 2 pods of its owner per node"}


@pytest.mark.parametrize("args", [{"excludeOwnerKinds": ["ReplicaSet"]}, {"namespaces": {"exclude": ["shop"]}}])
def test_pods_that_the_arguments_leave_out_stay(args):
    assert evicted(*NODES, pod("a", "n1"), pod("b", "n1"), args=args) == []


def test_pods_with_other_images_or_without_an_owner_are_no_duplicates():
    bare = {"ownerReferences": []}
    assert evicted(
        *NODES, pod("a", "n1"), pod("b", "n1", image="web:2"), pod("c", "n1", metadata=bare),
        pod("d", "n1", metadata=bare),
    ) == []


def test_the_images_of_a_pod_have_no_order_and_init_containers_do_not_count():
    def with_images(name, *images, **spec):
        return {**pod(name, "n1"), "spec": {"nodeName": "n1", "containers": [
            {"name": image, "image": image} for image in images], **spec}}

    assert evicted(
        *NODES, with_images("a", "x", "y"), with_images("b", "y", "x", initContainers=[{"name": "i", "image": "z"}]),
    ) == ["shop/b"]


def test_without_a_second_node_that_takes_the_pods_all_stay():
    tainted = node("n2", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    result = balance("RemoveDuplicates", {}, [node("n1"), tainted, pod("a", "n1"), pod("b", "n1")])
    assert (result.evicted, result.kept) == ({}, {"shop/b": "fewer than two nodes take it"})


def test_a_cordoned_node_counts_as_one_that_takes_pods():
    assert evicted(node("n1"), node("n2", unschedulable=True), pod("a", "n1"), pod("b", "n1")) == ["shop/b"]


def test_a_pod_that_may_not_go_does_not_count():
    assert evicted(*NODES, pod("a", "n1"), pod("b", "n1"), evictor=FakeEvictor({"shop/a": "no"})) == []


def test_a_changed_pod_is_looked_at_again():
    pods = [pod("a", "n1"), pod("b", "n1")]
    assert evicted(*NODES, *pods) == ["shop/b"]
    assert evicted(*NODES, pods[0], pod("b", "n1", image="web:2")) == []


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 3)), max_size=14))
@settings(max_examples=60, deadline=None)
def test_no_node_keeps_more_pods_of_an_owner_than_the_average_rounded_up(placed):
    pods = [pod(f"p{index}", f"n{on}", owner=owner) for index, (owner, on) in enumerate(placed)]
    gone = evicted(*NODES, *pods)
    for owner in ("a", "b"):
        of_owner = [each for each in pods if each["metadata"]["labels"]["app"] == owner]
        for name in ("n1", "n2", "n3"):
            on_node = [f"shop/{each['metadata']['name']}" for each in of_owner if each["spec"]["nodeName"] == name]
            left = [key for key in on_node if key not in gone]
            assert len(left) == min(len(on_node), -(-len(of_owner) // 3))
