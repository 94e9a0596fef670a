"""Shipped documents that say what a plugin of Kubernetes' descheduler does evict the same pods, on random clusters."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.framework.registry import Registry

POLICIES = Path(__file__).parents[2] / "policies" / "descheduler"
TWINS = {
    "PodLifeTime": "old-pods", "RemovePodsHavingTooManyRestarts": "too-many-restarts",
    "RemovePodsViolatingNodeTaints": "untolerated-taints",
}
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REGISTRY = Registry.of([
    *PLUGINS, *compile_documents(load_paths([POLICIES / f"{name}.yaml" for name in TWINS.values()])),
], generation=1)


def evictions(objects, name, args, *, now=NOW, filters=(), more=None):
    """Return the evicted pods, node by node in their order, as one plugin alone chooses them."""
    spec = DeschedulerProfileSpec("p", deschedule=(name,), disabled=frozenset(TWINS.values()) - {name}, filter=filters,
                                  args={name: args, **(more or {})})
    result = run_cycle(build_profiles([spec], REGISTRY, dry_run=True),
                       Cluster(objects).snapshot(int(now.timestamp()) * 10**9))
    assert result.failures == ()
    found: dict[str, list[str]] = {}
    for each in result.evicted:
        found.setdefault(each.node, []).append(each.pod)
    return found


# Random clusters

KEYS, VALUES = ("dedicated", "spot"), ("", "gpu")
STATES = ("CrashLoopBackOff", "OOMKilled", "Running")
taints = st.lists(st.builds(
    lambda key, value, effect: {"key": key, "effect": effect, **({"value": value} if value else {})},
    st.sampled_from(KEYS), st.sampled_from(VALUES), st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule")),
), max_size=2)
tolerations = st.lists(st.one_of(
    st.builds(lambda key, value: {"key": key, "value": value}, st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.builds(lambda key: {"key": key, "operator": "Exists"}, st.sampled_from(KEYS)),
), max_size=2)
states = st.sampled_from((
    {}, {"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"reason": "OOMKilled"}},
))
containers = st.lists(st.fixed_dictionaries(
    {"name": st.just("c")}, optional={"restartCount": st.integers(0, 3), "state": states},
), max_size=2)
statuses = st.fixed_dictionaries({}, optional={
    "phase": st.sampled_from(("Pending", "Running", "Succeeded", "Failed")), "reason": st.sampled_from(STATES),
    "containerStatuses": containers, "initContainerStatuses": containers,
})


@st.composite
def clusters(draw):
    nodes = [{
        "kind": "Node", "metadata": {"name": f"n{number}"}, "spec": {"taints": draw(taints)},
        "status": {"allocatable": {"cpu": "4", "pods": "9"}},
    } for number in range(2)]
    # No two pods are of one age or have equal restarts in the same order: which of equals is first is not promised.
    ages = draw(st.permutations(range(-1, 6)))
    pods = [{
        "kind": "Pod", "status": draw(statuses),
        "metadata": {
            "name": f"p{number}", "namespace": "d",
            "creationTimestamp": (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        },
        "spec": {"nodeName": draw(st.sampled_from(("n0", "n1"))), "containers": [{"name": "c"}],
                 "tolerations": draw(tolerations)},
    } for number, age in enumerate(ages)]
    return [*nodes, *pods]


def age_and_states(args):
    age, wanted = args.get("maxPodLifeTimeSeconds", 0), args.get("states", [])
    return {"olderThanSeconds": age, "states": wanted}


def restarts(args):
    return {"threshold": args["podRestartThreshold"], "initContainers": args.get("includingInitContainers", False)}


def effects(args):
    soft = ["PreferNoSchedule"] if args.get("includePreferNoSchedule") else []
    return {"effects": ["NoSchedule", *soft], "excluded": args.get("excludedTaints", [])}


PARAMS = {
    "PodLifeTime": age_and_states, "RemovePodsHavingTooManyRestarts": restarts,
    "RemovePodsViolatingNodeTaints": effects,
}
"""The params of the documents by the arguments of the plugins."""
ARGS = {
    "PodLifeTime": st.fixed_dictionaries({
        "maxPodLifeTimeSeconds": st.integers(0, 4), "states": st.lists(st.sampled_from(STATES), unique=True),
    }),
    "RemovePodsHavingTooManyRestarts": st.fixed_dictionaries({
        "podRestartThreshold": st.integers(1, 5), "includingInitContainers": st.booleans(),
    }),
    "RemovePodsViolatingNodeTaints": st.fixed_dictionaries({
        "includePreferNoSchedule": st.booleans(),
        "excludedTaints": st.lists(st.sampled_from(("spot", "dedicated=gpu", "dedicated=cpu")), unique=True),
    }),
}


@pytest.mark.parametrize("name", TWINS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_document_evicts_what_the_plugin_evicts(name, data):
    objects = data.draw(clusters())
    args = data.draw(ARGS[name])
    assert evictions(objects, TWINS[name], PARAMS[name](args)) == evictions(objects, name, args)


# Golden cases

SAID = {
    "PodLifeTime": {"maxPodLifeTimeSeconds", "states"},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold", "includingInitContainers"},
    "RemovePodsViolatingNodeTaints": {"includePreferNoSchedule", "excludedTaints"},
}
"""The arguments that the documents have as params."""


def golden_cases():
    for path in sorted(Path(os.environ.get("KOORD_POLICY_CASES", "nowhere")).glob("descheduler*.json")):
        for case in json.loads(path.read_bytes()):
            args = SAID.get(case["plugin"])
            if case["point"] == "deschedule" and args is not None and case["args"].keys() <= args:
                yield pytest.param(case, id=case["id"])


@pytest.mark.parametrize("case", list(golden_cases()))
def test_a_document_evicts_what_the_plugin_evicts_in_a_golden_case(case):
    name, args = case["plugin"], case["args"]
    objects = [{"kind": kind, **each} for kind, field in (("Node", "nodes"), ("Pod", "pods")) for each in case[field]]
    now = datetime.fromisoformat(case["now"]) if case.get("now") else NOW
    how = {"now": now, "filters": ("DefaultEvictor",), "more": {"DefaultEvictor": case["evictor"].get("args") or {}}}
    assert evictions(objects, TWINS[name], PARAMS[name](args), **how) == evictions(objects, name, args, **how)
