"""Outcomes computed once per shape of pods are equal to those computed pod by pod."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.comparison.eligibility import ELIGIBLE
from koordpolicy.engine.comparison.outcome import Outcome, outcome
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings, decide
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.source import Source

from .conftest import NOW, document, metric, node, pod

POLICIES = {
    "cold": document("cold", "filter: [{name: r, expression: usage.cpu * 100 / allocatable.cpu < 65, message: hot}]"),
    "name": document("name", "filter: [{name: r, expression: '!pod.metadata.name.endsWith(\"1\")', message: named}]"),
    "uid": document(
        "uid",
        "filter: [{name: r, expression: '!has(pod.metadata.uid) || pod.metadata.uid != \"uid-p-2\"', message: uid}]",
    ),
    "few": document("few", "filter: [{name: r, expression: nodeInfo.pods < 2, message: many}]"),
    "even": document("even", """
aggregates: [{name: most, over: nodes, function: max, expression: nodeInfo.pods}]
filter: [{name: r, expression: nodeInfo.pods < aggregates.most || aggregates.most == 0, message: most}]
"""),
    "app": document("app", """
match: {pods: {labelSelector: {matchLabels: {app: a}}}}
filter: [{name: r, expression: 'nodeInfo.zone == "a"', message: zone}]
"""),
    "watched": document("watched", "enforcement: Warn\nfilter: [{name: r, expression: 'false', message: no}]"),
    "whole": document("whole", "preFilter: [{name: r, expression: 'podInfo.name != \"p-3\"', message: whole}]"),
}
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a"}}},
]}}


def objects(places: list[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    found = [node("n0", zone="a"), node("n1", zone="b"), node("n2", zone="a"),
             metric("n0", "1"), metric("n1", "3"), metric("n2", "1", at="2026-01-02T11:00:00Z")]
    for number, (on, app, apart) in enumerate(places):
        more = {"affinity": APART} if apart else {}
        found.append(pod(f"p-{number}", "1", on, labels={"app": app}, **more))
    return found


def one_by_one(registry: Registry, cluster: Cluster, chosen: Settings) -> dict[str, dict[str, str]]:
    """Return by pod and node who refuses it, each asked about with the pod off its node."""
    scheduler = Scheduler(cluster, Live(registry), chosen, clock=lambda: NOW)
    found = {}
    for key in cluster.objects("Pod"):
        each = cluster.pod(key)
        assert each is not None
        snapshot = cluster.snapshot(NOW)
        own = snapshot.overlay({each.node_name: NodeChange(remove=[key])}) if each.node_name else snapshot
        found[key] = {}
        for name in snapshot.names:
            # Other nodes are asked about with the pod where it is, unless a policy looks at all of them.
            verdict = decide(scheduler.profile_of(each), each.unbound(), own if name == each.node_name else snapshot)
            refused = [step.plugin for step in verdict.filters if step.enforcement.value == "Enforce"
                       and snapshot.index[name] in step.refused]
            if verdict.refusal is not None:
                found[key][name] = verdict.refusal[0]
            elif refused:
                found[key][name] = refused[0]
    scheduler.close()
    return found


def told(found: Outcome) -> dict[str, dict[str, str]]:
    return {
        key: {name: found.causes[number].plugin
              for name, number in zip(found.nodes, shape.refused_by.tolist(), strict=True) if number != ELIGIBLE}
        for shape in found.shapes for key in shape.pods
    }


@settings(max_examples=40, deadline=None)
@given(
    chosen=st.sets(st.sampled_from(sorted(POLICIES)), max_size=3), affinity=st.booleans(),
    places=st.lists(
        st.tuples(st.sampled_from(("", "n0", "n1", "n2")), st.sampled_from("ab"), st.booleans()), max_size=6,
    ),
)
def test_kinds_of_pods_say_what_each_pod_would(chosen: set[str], affinity: bool, places: list[tuple[str, str, bool]]):
    text = "".join(POLICIES[name] for name in sorted(chosen))
    registry = Registry.of(
        (*builtins(), *compile_documents(load([Source("p.yaml", text)], source_name="p"))), generation=1,
    )
    cluster = Cluster(objects(places))
    how = Settings((ProfileSpec(enabled=(PluginChoice("InterPodAffinity"),) if affinity else ()),))
    found = outcome(registry, cluster, now=NOW, settings=how)
    alone, where = one_by_one(registry, cluster, how), {
        f"shop/p-{number}": on for number, (on, _, _) in enumerate(places)
    }
    for shape in found.shapes:
        for key in shape.pods:
            # The nodes of its like are told as these find them.
            taken = {where[other] for other in shape.pods if shape.running} - {where[key]}
            mine, theirs = (
                {name: by for name, by in of[key].items() if name not in taken} for of in (told(found), alone)
            )
            assert mine == theirs
    misfits = {each.pod for each in found.misfits}
    assert misfits == {
        f"shop/p-{number}" for number, (on, _, _) in enumerate(places) if on and on in told(found)[f"shop/p-{number}"]
    }
