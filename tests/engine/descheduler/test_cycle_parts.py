"""The parts of a cycle that several replicas run: which plugins look at which nodes, and which limits count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.descheduler.framework import CyclePart, is_shared, run_cycle
from koordpolicy.engine.descheduler.ledger import CycleLedger
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfile, DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.descheduler.workload_limits import WorkloadLimits
from koordpolicy.engine.documents.loader import load
from koordpolicy.engine.framework.descheduler import EvictionResult, EvictOptions
from koordpolicy.engine.framework.handle import EvictionRefusedError, Nothing
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import Source

from .conftest import NOW, node, pod
from .ledgers import Store

SINGLE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: single}
spec:
  type: Deschedule
  criteria: [{name: all, expression: "true", message: it is a pod}]
"""
PAIRS = SINGLE.replace("single", "pairs").replace("type: Deschedule", "type: Deschedule\n  limits: {total: 1}")
BALANCE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: balance}
spec:
  type: Balance
  proof: "Off"
  nodes: {source: "true"}
"""
ANY = 'criteria: [{name: c, expression: "true"}]'
COUNTS = """criteria: [{name: c, expression: aggregates.pods > 1}]
  aggregates: [{name: pods, over: pods, function: count}]"""
EVICTS = {"evict": ("DefaultEvictor",), "filter": ("DefaultEvictor",)}


class Evicting(Nothing):
    """A client that evicts, or refuses."""

    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.refuses = False

    def evict_with_options(self, pod: Any, options: EvictOptions) -> EvictionResult:
        if self.refuses:
            raise EvictionRefusedError("no", "pdb-blocked")
        self.evicted.append(pod.name)
        return EvictionResult.EVICTED


def profiles(client: Evicting, *texts: str) -> tuple[DeschedulerProfile, ...]:
    documents = load([Source(f"{number}.yaml", text) for number, text in enumerate(texts)])
    registry = Registry.of([*PLUGINS, *compile_documents(documents)], generation=1)
    return build_profiles([DeschedulerProfileSpec("p", **EVICTS)], registry, dry_run=False, client=client)


def cluster() -> Cluster:
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    return Cluster([node("a"), node("b"), *(
        pod(f"{on}{number}", on, metadata={"uid": f"{on}{number}", "ownerReferences": [owner]})
        for on in "ab" for number in range(3))])


Part = Callable[..., CycleResult]


def run(store: Store, name: str, owns: Callable[[str], bool] | None, *texts: str, client: Evicting | None = None,
        **given: Any) -> tuple[CycleResult, list[str]]:
    client = client or Evicting()
    ledger = CycleLedger(store, store.load(), name, lambda: NOW)
    result = run_cycle(profiles(client, *texts), cluster().snapshot(NOW), dry_run=given.pop("dry_run", False),
                       part=CyclePart(ledger, owns), **given)
    assert ledger.finish(result.error)
    return result, client.evicted


@pytest.fixture
def store() -> Store:
    found = Store()
    found.open("one", "two")
    return found


def test_a_share_runs_what_decides_per_node_on_its_nodes_and_the_rest_all_else_on_all_nodes(store: Store):
    texts = SINGLE, PAIRS, BALANCE
    share, evicted = run(store, "one", lambda name: name == "a", *texts, limits=CycleLimits(total=2))
    assert ({each.decision.plugin for each in share.outcomes}, evicted) == ({"single"}, ["a0", "a1"])
    rest, evicted = run(store, "one", None, *texts, limits=CycleLimits(total=6))
    assert {each.decision.plugin for each in rest.outcomes} == {"pairs", "balance"}
    assert sorted(evicted) == ["a2", "b0", "b1", "b2"]
    # What its own share evicted leaves for the other plugins, and counts.
    assert [(each.pod, each.decision.plugin, each.decision.stopped_by) for each in rest.staying] == [
        ("d/b0", "pairs", "pairs"), ("d/b1", "pairs", "pairs"), ("d/b2", "pairs", "pairs")]


def test_built_in_plugins_examine_the_pods_of_the_share_only(store: Store):
    restarts = {"phase": "Running", "containerStatuses": [{"name": "c", "restartCount": 9}]}
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r"}
    found = Cluster([node("a"), node("b"), node("c"), *(
        {**pod(f"{on}{number}", on, metadata={
            "ownerReferences": [owner], "creationTimestamp": f"202{5 + number}-01-01T00:00:00Z"}),
         **({"status": restarts} if number else {})}
        for on in "abc" for number in range(2))])
    spec = DeschedulerProfileSpec("p", deschedule=("PodLifeTime", "RemovePodsHavingTooManyRestarts"), args={
        "PodLifeTime": {"maxPodLifeTimeSeconds": 86_400},
        "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 5}})
    built = build_profiles([spec], Registry.of(PLUGINS, generation=1), dry_run=True)
    part = CyclePart(CycleLedger(store, store.load(), "one", lambda: NOW), lambda name: name != "b")
    result = run_cycle(built, found.snapshot(NOW), part=part)
    assert [(each.decision.plugin, each.pod) for each in result.evicted] == [
        ("PodLifeTime", "d/a0"), ("PodLifeTime", "d/c0"),
        ("RemovePodsHavingTooManyRestarts", "d/a1"), ("RemovePodsHavingTooManyRestarts", "d/c1")]
    assert [{"oldest", "restarts"} & row.pod_facts.keys() for row in found.rows] == [
        {"oldest", "restarts"}, set(), {"oldest", "restarts"}]


@pytest.mark.parametrize(("limits", "most"), [
    (CycleLimits(total=4), 4), (CycleLimits(per_namespace=5), 5),
    (CycleLimits(workloads=WorkloadLimits(per_owner=2)), 2), (CycleLimits(workloads=WorkloadLimits("50%")), 3),
    (CycleLimits(per_node=2), 4),
])
def test_the_limits_of_a_cycle_hold_for_all_replicas_together(store: Store, limits: CycleLimits, most: int):
    first, second = (run(store, name, lambda each, on=on: each == on, SINGLE, limits=limits)[1]
                     for name, on in (("one", "a"), ("two", "b")))
    assert len(first) + len(second) == most
    assert {(each.pod, each.made) for each in store.ledger.entries} == {(f"d/{each}", True) for each in first + second}


def test_a_refused_eviction_is_given_back_to_the_other_replicas(store: Store):
    refused = Evicting()
    refused.refuses = True
    run(store, "one", lambda name: name == "a", SINGLE, limits=CycleLimits(total=1), client=refused)
    _, evicted = run(store, "two", lambda name: name == "b", SINGLE, limits=CycleLimits(total=1))
    assert evicted == ["b0"]


def test_a_dry_run_writes_nothing_into_the_ledger(store: Store):
    result, _ = run(store, "one", lambda name: name == "a", SINGLE, dry_run=True)
    assert ([each.pod for each in result.evicted], store.ledger.entries) == (["d/a0", "d/a1", "d/a2"], ())


@pytest.mark.parametrize(("spec", "shared"), [
    ("criteria: [{name: c, expression: pod.metadata.name == 'x'}]", True),
    ("criteria: [{name: c, expression: placement.otherNode}]", False),
    (f"{ANY}\n  limits: {{perNode: 1}}", True),
    (f"{ANY}\n  limits: {{perOwner: 1}}", False),
    (COUNTS, False),
])
def test_a_document_decides_per_node_if_it_compares_no_nodes_and_limits_no_more_than_nodes(spec: str, shared: bool):
    text = f"{SINGLE.partition('  criteria')[0]}  {spec}\n"
    profile, = profiles(Evicting(), text)
    assert [is_shared(each) for each in profile.deschedule] == [shared]


ARGUMENTS: Mapping[str, Mapping[str, Any]] = {"PodLifeTime": {"maxPodLifeTimeSeconds": 1}}


def test_built_in_plugins_that_compare_nodes_are_not_shared():
    names = ("PodLifeTime", "RemoveFailedPods", "RemovePodsHavingTooManyRestarts", "RemovePodsViolatingNodeTaints",
             "RemovePodsViolatingNodeAffinity", "RemovePodsViolatingInterPodAntiAffinity")
    args = {**ARGUMENTS, "RemovePodsHavingTooManyRestarts": {"podRestartThreshold": 1},
            "RemovePodsViolatingNodeAffinity": {"nodeAffinityType": ["requiredDuringSchedulingIgnoredDuringExecution"]}}
    profile, = build_profiles([DeschedulerProfileSpec("p", deschedule=names, args=args, **EVICTS)],
                              Registry.of(PLUGINS, generation=1), dry_run=False)
    assert {each.name: is_shared(each) for each in profile.deschedule} == {
        name: not name.endswith("Affinity") for name in names}
