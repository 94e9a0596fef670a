from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.proof.memory import UselessEvictionMemory
from koordpolicy.engine.descheduler.proof.prove import (
    CycleProof,
    ProofBudget,
    ProofCandidate,
    Proving,
    prove_evictions,
)
from koordpolicy.engine.descheduler.proof.successors import metric_entry, successor_of, with_successor, without_pods
from koordpolicy.engine.descheduler.proof.verdicts import EvictionProof, Landing, ProofResult
from koordpolicy.engine.framework.points import Proof

from ..conftest import NOW, metric, node, pod


class EmptiestNode:
    """A scheduler that places a pod on the node with the fewest pods, of those with room for two."""

    def __init__(self, *without: str) -> None:
        self.without = without
        self.calls: list[str] = []

    def place(self, pod: PodInfo, snapshot: Snapshot, *, home: str, avoids_home: bool) -> Landing | None:
        self.calls.append(pod.name)
        if pod.object["spec"].get("schedulerName") == "another":
            return None
        rows = [row for row in range(snapshot.size) if len(snapshot.pods(row)) < 2
                and snapshot.names[row] not in self.without and not (avoids_home and snapshot.names[row] == home)]
        if not rows:
            return Landing("p", reasons={"Room: full": snapshot.size})
        row = min(rows, key=lambda each: len(snapshot.pods(each)))
        return Landing("p", snapshot.names[row], passed=len(rows), reasons={"Room: full": snapshot.size - len(rows)})


def cluster(**on: str) -> tuple[Snapshot, Mapping[str, PodInfo]]:
    """A cluster of three nodes with these pods."""
    found = Cluster([*(node(name) for name in "abc"), *(pod(name, where) for name, where in on.items())])
    return found.snapshot(NOW), {name: known for name in on if (known := found.pod(f"d/{name}")) is not None}


def results(
    on: dict[str, str], *names: str, scheduler: EmptiestNode | None = None, given: dict[str, Any] | None = None,
    **proving: Any,
) -> list[str]:
    """Return the results of the proofs of these pods in turn, with the nodes of successors that are placed."""
    snapshot, pods = cluster(**on)
    candidates = [ProofCandidate(pods[name], "drain", **(given or {})) for name in names]
    proofs = prove_evictions(snapshot, Proving(scheduler or EmptiestNode(), **proving), candidates)
    return [f"{each.result.value} {each.node}".strip() for each in proofs if each is not None]


def test_a_pod_that_runs_elsewhere_helps():
    assert results({"x": "a", "y": "a"}, "x") == ["helps b"]


def test_a_pod_that_comes_back_is_a_loop():
    assert results({"x": "a", "y": "b", "z": "c"}, "x") == ["loop a"]


def test_evictions_of_a_cycle_are_placed_on_the_same_overlay():
    assert results({"x": "a", "y": "a", "z": "c"}, "x", "y", scheduler=EmptiestNode("a")) == ["helps b", "helps b"]


def test_a_successor_that_a_later_eviction_brings_back_makes_that_one_a_loop():
    # x goes to b while y is on a; without y, a is as empty as b, and comes first.
    assert results({"x": "a", "y": "a", "z": "c"}, "x", "y") == ["helps b", "loop b"]


def test_a_pod_that_fits_nowhere_stays_with_its_reasons():
    snapshot, pods = cluster(x="a")
    proof, = prove_evictions(snapshot, Proving(EmptiestNode("a", "b", "c")), [ProofCandidate(pods["x"], "drain")])
    assert proof == EvictionProof(
        ProofResult.NO_NODE, "profile p finds no node for its successor: 3 Room: full", Proof.ENFORCE, "p",
        reasons={"Room: full": 3},
    )


def test_a_node_that_the_policy_would_clear_is_a_loop():
    given = {"clears": lambda snapshot, row, pod: f"{pod.name} again" if snapshot.names[row] == "b" else ""}
    assert results({"x": "a", "y": "a"}, "x", given=given) == ["loop b"]
    assert results({"x": "a", "y": "a", "z": "b"}, "x", given=given) == ["helps c"]


@pytest.mark.parametrize("given", [{"restarts": True}, {"avoids_home": True}])
def test_restarts_and_reservations_on_other_nodes_are_no_loops(given: dict[str, Any]):
    assert results({"x": "a", "y": "b", "z": "c"}, "x", given=given)[0].startswith("helps")


def test_with_warn_and_off_the_pod_counts_as_evicted():
    on = {"x": "a", "y": "b", "z": "c", "w": "c"}
    for effect, second in (("Enforce", "loop b"), ("Warn", "helps a"), ("Off", "helps a")):
        found = results(on, "x", "y", given={"effect": Proof(effect)}, scheduler=EmptiestNode("c"))
        assert found[0] == "loop a"
        assert (found[1] == second) or effect != "Enforce"


def test_an_unknown_scheduler_and_a_bare_pod_are_no_fault():
    found = Cluster([node("a"), node("b"), pod("x", "a", schedulerName="another"),
                     pod("bare", "a", metadata={"ownerReferences": []})])
    candidates = [ProofCandidate(known, "drain") for name in ("x", "bare")
                  if (known := found.pod(f"d/{name}")) is not None]
    proofs = prove_evictions(found.snapshot(NOW), Proving(EmptiestNode()), candidates)
    assert [(each.result.value, each.message, each.stops, each.warns) for each in proofs if each is not None] == [
        ("unproved", "not proved: no profile for the scheduler `another` is known", False, True),
        ("helps", "no controller replaces it", False, False),
    ]


def test_the_proofs_end_with_their_budget_and_say_so():
    scheduler = EmptiestNode("a")
    on = {"x": "a", "y": "a"}
    assert results(on, "x", "y", scheduler=scheduler, budget=ProofBudget(placements=2)) == ["helps b", "unproved"]
    assert len(scheduler.calls) == 2
    ticks = iter(range(100))
    snapshot, pods = cluster(**on)
    proving = Proving(EmptiestNode(), budget=ProofBudget(seconds=1), clock=lambda: float(next(ticks)))
    proof, = prove_evictions(snapshot, proving, [ProofCandidate(pods["x"], "drain")])
    assert proof is not None
    assert (proof.message, proof.stops, proof.warns) == (
        "not proved: the budget of this cycle's proofs is used up (1 s)", False, True)


def test_a_loop_is_remembered_once_and_keeps_the_workload_on_its_node():
    snapshot, pods = cluster(x="a", y="b", z="c")
    memory: UselessEvictionMemory | None = UselessEvictionMemory()
    found: list[tuple[str, int]] = []
    for _ in range(2):
        cycle = CycleProof(snapshot, Proving(EmptiestNode(), memory=memory))
        for _ in range(2):
            proof = cycle.prove(ProofCandidate(pods["x"], "drain"))
            assert proof is not None
            found.append((proof.result.value, proof.until))
        memory = cycle.remembered()
        assert memory is not None
        assert [each.streak for each in memory.useless.values()] == [1]
    until = NOW + 600_000_000_000
    assert found == [("loop", 0), ("loop", 0), ("coolDown", until), ("coolDown", until)]


def test_only_real_evictions_are_watched():
    snapshot, pods = cluster(x="a", y="a")
    for made in (False, True):
        cycle = CycleProof(snapshot, Proving(EmptiestNode(), memory=UselessEvictionMemory()))
        cycle.prove(ProofCandidate(pods["x"], "drain"))
        cycle.evicted(ProofCandidate(pods["x"], "drain"), made=made)
        memory = cycle.remembered()
        assert memory is not None
        assert len(memory.watched) == made


def test_the_measured_usage_moves_with_the_pods():
    found = Cluster([node("a"), node("b"), pod("x", "a"), pod("y", "a"), metric("a", {"x": "2000m", "y": "1500m"}),
                     metric("b", {}, system="250m")])
    snapshot, x = found.snapshot(NOW), found.pod("d/x")
    assert x is not None
    successor = successor_of(x, NOW)
    overlay = with_successor(without_pods(snapshot, [x]), successor, "b", metric_entry(snapshot, x))
    metrics = [overlay.row(row).metric for row in (0, 1)]
    assert [(dict(each.usage), {key: dict(used) for key, used in each.pods.items()}) for each in metrics if each] == [
        ({"cpu": 1500}, {"d/y": {"cpu": 1500}}),
        ({"cpu": 2250}, {"d/x-successor": {"cpu": 2000}}),
    ]
    assert [len(overlay.pods(row)) for row in (0, 1)] == [1, 1]
    assert dict(snapshot.row(0).metric.usage) == {"cpu": 3500}  # type: ignore[union-attr]


def test_a_successor_is_new_and_has_no_results_of_scheduling():
    old = pod("x", "a", metadata={"uid": "u", "annotations": {
        "scheduling.koordinator.sh/device-allocated": "{}", "team": "red"}})
    new = successor_of(PodInfo.of(old), NOW)
    assert new.object["metadata"] == {
        "name": "x-successor", "namespace": "d", "uid": "u-successor", "creationTimestamp": "2026-01-01T12:00:00Z",
        "ownerReferences": [{"kind": "ReplicaSet", "name": "r", "uid": "r"}], "annotations": {"team": "red"},
    }
    assert (new.node_name, new.object["status"]) == ("", {"phase": "Pending"})


def test_a_finished_pod_that_is_evicted_first_makes_no_room_and_is_no_fault():
    found = Cluster([node("a"), node("b"), node("c"), pod("x", "b")])
    snapshot, alive = found.snapshot(NOW), found.pod("d/x")
    done = PodInfo.of(pod("done", "a", phase="Succeeded"))
    assert alive is not None
    candidates = [ProofCandidate(each, "drain", restarts=True) for each in (done, alive)]
    proofs = prove_evictions(snapshot, Proving(EmptiestNode()), candidates)
    assert [each.result.value for each in proofs if each is not None] == ["helps", "helps"]


def spread(size: int, count: int) -> tuple[Snapshot, list[PodInfo]]:
    """Return a cluster with `count` pods, `size` per node on the first nodes, and as many empty nodes."""
    names = [f"n{number:03}" for number in range(2 * count)]
    found = Cluster([*map(node, names), *(pod(f"p{number:03}", names[number // size]) for number in range(count))])
    pods = [found.pod(f"d/p{number:03}") for number in range(count)]
    return found.snapshot(NOW), [each for each in pods if each is not None]


@pytest.mark.parametrize(("size", "placed"), [(1, [10, 20, 40]), (5, [18, 36, 72])])
def test_the_placements_of_a_cycle_grow_with_its_evictions(size: int, placed: list[int]):
    counted = []
    for count in (10, 20, 40):
        scheduler, (snapshot, pods) = EmptiestNode(*(f"n{number:03}" for number in range(count // size))), spread(
            size, count)
        proofs = prove_evictions(snapshot, Proving(scheduler), [ProofCandidate(each, "drain") for each in pods])
        assert {each.result.value for each in proofs if each is not None} == {"helps"}
        counted.append(len(scheduler.calls))
    # Each successor once, and for each but the first of a node the successor that was placed last of that node.
    assert counted == placed


def test_a_successor_that_had_no_node_takes_the_room_of_a_later_eviction():
    on = {"x": "a", "y": "b", "z": "b", "w": "c"}
    given = {"effect": Proof.WARN, "avoids_home": True}
    scheduler = EmptiestNode("a", "c")
    assert results(on, "x", "y", "w", scheduler=scheduler, given=given) == ["noNode", "noNode", "noNode"]
    # y leaves b, x goes there, and nobody finds room after it.
    assert scheduler.calls == ["x-successor", "x-successor", "y-successor", "y-successor", "w-successor"]


def test_all_successors_alike_are_placed_again_while_they_move():
    # Both go to b and c. Without z, a is the emptiest node for each of them, the last one first.
    on = {"x": "a", "y": "a", "z": "a"}
    given = {"effect": Proof.OFF}

    class Roomy(EmptiestNode):
        def place(self, pod: PodInfo, snapshot: Snapshot, *, home: str, avoids_home: bool) -> Landing | None:
            self.calls.append(pod.name)
            row = min(range(snapshot.size), key=lambda each: len(snapshot.pods(each)))
            return Landing("p", snapshot.names[row], passed=snapshot.size)

    scheduler = Roomy()
    assert results(on, "x", "y", "z", scheduler=scheduler, given=given) == ["helps b", "helps c", "loop c"]
    assert scheduler.calls == ["x-successor", "x-successor", "y-successor", "y-successor", "x-successor", "z-successor"]
