"""The judge of the soak of the live scheduler finds what must not happen."""

from __future__ import annotations

from .live import CPU_PER_NODE, Judge


def pod(name: str, node: str = "", cpu: int = 100) -> dict[str, object]:
    spec = {"containers": [{"resources": {"requests": {"cpu": f"{cpu}m"}}}]}
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec | ({"nodeName": node} if node else {})}


def test_pods_that_are_bound_once_to_nodes_with_room_are_no_fault():
    judge = Judge()
    judge.see("ADDED", pod("a"))
    judge.see("MODIFIED", pod("a", "one", CPU_PER_NODE))
    judge.see("DELETED", pod("a", "one", CPU_PER_NODE))
    judge.see("ADDED", pod("b", "one", CPU_PER_NODE))
    assert (judge.faults, judge.bound) == ([], {"uid-a": "one", "uid-b": "one"})


def test_a_pod_that_changes_its_node_is_a_fault():
    judge = Judge()
    judge.see("ADDED", pod("a", "one"))
    judge.see("MODIFIED", pod("a", "two"))
    assert judge.faults == ["the pod a was bound to one, and then to two"]


def test_a_node_with_too_many_pods_is_a_fault_at_the_event_that_makes_it_so():
    judge = Judge()
    judge.see("ADDED", pod("a", "one", CPU_PER_NODE))
    judge.see("ADDED", pod("b", "one", 50))
    judge.see("DELETED", pod("a", "one", CPU_PER_NODE))
    assert judge.faults == ["one holds 8050 of 8000 milli-cores once b is bound"]
