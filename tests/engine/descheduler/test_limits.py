from __future__ import annotations

import pytest

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.descheduler.config import read
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.limits import CycleLimits, EvictionLimiter
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.descheduler.workload_limits import PodOwners, WorkloadBudget, WorkloadLimits
from koordpolicy.engine.documents import load
from koordpolicy.engine.source import PolicyError, Source

from .conftest import evicted, node, pod
from .fake_plugins import REGISTRY


def test_limits_count_nodes_namespaces_and_all():
    limiter = EvictionLimiter(CycleLimits(per_node=2, per_namespace=3, total=4))
    answers = []
    for on, namespace in (("a", "x"), ("a", "x"), ("a", "x"), ("b", "x"), ("c", "x"), ("", "y"), ("", "z")):
        answers.append(limiter.refusal(on, namespace))
        if not answers[-1]:
            limiter.done(on, namespace)
    assert answers == [
        "", "", "at most 2 pods of one node per cycle", "", "at most 3 pods of one namespace per cycle", "",
        "at most 4 pods per cycle",
    ]
    assert EvictionLimiter(CycleLimits(total=0)).refusal("a", "x") == "at most 0 pods per cycle"


def owner(kind, name):
    return [{"kind": kind, "name": name, "uid": f"u-{name}", "controller": True}]


def replica_set(name, replicas, deployment="web"):
    return {"kind": "ReplicaSet", "spec": {"replicas": replicas}, "metadata": {
        "name": name, "namespace": "d", "uid": f"u-{name}", "ownerReferences": owner("Deployment", deployment),
    }}


def replica(number, name, *, leaving=False, kind="ReplicaSet"):
    deleted = {"deletionTimestamp": "2026-01-01T11:59:00Z"} if leaving else {}
    return pod(f"{name}-{number}", "a", metadata={"ownerReferences": owner(kind, name), **deleted})


WEB = [
    {"kind": "Deployment", "metadata": {"name": "web", "namespace": "d", "uid": "u-web"}, "spec": {"replicas": 5}},
    replica_set("new", 3), replica_set("old", 2), *(replica(number, "new") for number in range(3)),
    *(replica(number, "old") for number in range(2)),
]


def left(limits, *objects):
    """Return the pods that a budget lets go, in the order of their names."""
    snapshot = Cluster([node("a"), *objects]).snapshot()
    budget, found = WorkloadBudget(limits, PodOwners(snapshot)), []
    for each in sorted(snapshot.pods(0), key=lambda each: each.name):
        if not budget.refusal(each):
            budget.done(each)
            found.append(each.name)
    return found


@pytest.mark.parametrize(("limits", "names"), [
    (WorkloadLimits(), ["new-0", "new-1", "new-2", "old-0", "old-1"]),
    (WorkloadLimits(per_workload=2), ["new-0", "new-1"]),
    (WorkloadLimits(per_owner=1), ["new-0", "old-0"]),
    (WorkloadLimits(per_workload=3, per_owner=2), ["new-0", "new-1", "old-0"]),
    (WorkloadLimits(per_workload="40%"), ["new-0", "new-1"]),
    (WorkloadLimits(per_workload="10%"), ["new-0"]),
    (WorkloadLimits(per_owner="70%"), ["new-0", "new-1", "old-0"]),
    (WorkloadLimits(per_workload="0%"), []),
    (WorkloadLimits(per_owner=0), []),
])
def test_a_workload_and_each_of_its_owners_have_limits(limits, names):
    assert left(limits, *WEB) == names


def test_terminating_pods_count_and_pods_without_owner_have_no_limit():
    bare = pod("bare", "a", metadata={"ownerReferences": []})
    leaving = replica(9, "old", leaving=True)
    assert left(WorkloadLimits(per_workload=2), *WEB, leaving, bare) == ["bare", "new-0"]
    snapshot = Cluster([node("a"), *WEB, leaving]).snapshot()
    budget = WorkloadBudget(WorkloadLimits(per_workload="20%"), PodOwners(snapshot))
    assert budget.refusal(PodInfo.of(WEB[3])) == (
        "at most 1 pod of Deployment d/web at the same time, 1 of which terminate already")


def test_without_the_object_of_the_owner_its_pods_are_its_replicas():
    jobs = [replica(number, "job", kind="Job") for number in range(5)]
    assert left(WorkloadLimits(per_workload="40%"), *jobs) == ["job-0", "job-1"]
    metadata = {"name": "job", "namespace": "d", "uid": "u-job"}
    parallel = {"kind": "Job", "metadata": metadata, "spec": {"parallelism": 3}}
    assert left(WorkloadLimits(per_owner="40%"), parallel, *jobs) == ["job-0"]


def test_a_cycle_and_a_document_count_workloads(cycle):
    profiles = build_profiles([DeschedulerProfileSpec("p", deschedule=("Everyone",))], REGISTRY, dry_run=True)
    objects = [node("a"), node("b"), *WEB]
    limits = CycleLimits(workloads=WorkloadLimits(per_owner=1))
    assert evicted(run_cycle(profiles, Cluster(objects).snapshot(), limits=limits)) == ["new-0", "old-0"]
    result = cycle(objects, """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: all}
spec:
  type: Deschedule
  criteria: [{name: all, expression: "true"}]
  limits: {perWorkload: "50%", perOwner: 1}
""")
    assert evicted(result) == ["new-0", "old-0"]
    assert {each.decision.message for each in result.staying} == {
        "at most 2 pods of Deployment d/web at the same time", "at most 1 pod of ReplicaSet d/new at the same time"}


def test_a_limit_that_is_no_number_is_told_in_words():
    (problem,) = load([Source("d.yaml", """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: all}
spec:
  type: Deschedule
  criteria: [{name: all, expression: "true"}]
  limits: {perWorkload: 110%}
""")]).problems
    assert (problem.message, problem.help) == (
        "`110%` is not a value of `spec.limits.perWorkload`",
        "write a whole number, or a percentage from `0%` to `100%`")


def test_the_configuration_limits_workloads():
    head = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nmaxNoOfPodsToEvictPerOwner: 1\n"
    found = read(Source("c.yaml", f"{head}maxNoOfPodsToEvictPerWorkload: 25%\n"))
    assert found.limits.workloads == WorkloadLimits("25%", 1)
    for wrong in ("-1", "1.5", "'25'", "101%", "-5%", "[]"):
        with pytest.raises(PolicyError, match="maxNoOfPodsToEvictPerWorkload"):
            read(Source("c.yaml", f"{head}maxNoOfPodsToEvictPerWorkload: {wrong}\n"))
