"""Shipped documents that say what a plugin of Kubernetes' descheduler does evict the same pods, on random clusters."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.compile.plugins import compile_documents
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.profile import DeschedulerProfileSpec, build_profiles
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.framework.registry import Registry

POLICIES = Path(__file__).parents[2] / "policies" / "descheduler"
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


# Params of the documents, by the arguments of the plugins


def life_time(args):
    kinds = args.get("ownerKinds") or {}
    return {
        "olderThanSeconds": args.get("maxPodLifeTimeSeconds", -1), "states": args.get("states", []),
        "conditions": args.get("conditions", []), "exitCodes": args.get("exitCodes", []),
        "ownerKinds": kinds.get("include", []), "excludedOwnerKinds": kinds.get("exclude", []),
        "initContainers": args.get("includingInitContainers", False),
        "ephemeralContainers": args.get("includingEphemeralContainers", False),
    }


def failed(args):
    return {
        "olderThan": f"{args.get('minPodLifetimeSeconds', 3600)}s", "reasons": args.get("reasons", []),
        "exitCodes": args.get("exitCodes", []), "excludedOwnerKinds": args.get("excludeOwnerKinds", []),
        "initContainers": args.get("includingInitContainers", False), "bare": True,
    }


def restarts(args):
    return {"threshold": args["podRestartThreshold"], "initContainers": args.get("includingInitContainers", False),
            "states": args.get("states", [])}


def effects(args):
    soft = ["PreferNoSchedule"] if args.get("includePreferNoSchedule") else []
    return {"effects": ["NoSchedule", *soft], "excluded": args.get("excludedTaints", []),
            "included": args.get("includedTaints", ["*"])}


def affinities(args):
    return {"affinities": [{REQUIRED: "Required", PREFERRED: "Preferred"}[each] for each in args["nodeAffinityType"]]}


# Random arguments

KINDS, KEYS = ("Job", "ReplicaSet"), ("dedicated", "spot")
STATES, CODES = ("CrashLoopBackOff", "OOMKilled", "Running"), (0, 1, 137)


class Draw(random.Random):
    """Random values of clusters and arguments."""

    def some(self, values):
        return [each for each in values if self.random() < 0.4]

    def often(self):
        return self.random() < 0.6

    def maybe(self, **fields):
        """Some of these fields; each is a function without parameters."""
        return {name: make() for name, make in fields.items() if self.often()}

    def list(self, make, most=2):
        return [make() for _ in range(self.randint(0, most))]


def life_time_args(draw):
    args = {
        **draw.maybe(
            maxPodLifeTimeSeconds=lambda: draw.randint(0, 4), states=lambda: draw.some(STATES),
            includingInitContainers=draw.often, includingEphemeralContainers=draw.often,
        ),
        **draw.choice(({}, {"exitCodes": draw.some(CODES)}, {"conditions": [condition(draw) or {"type": "Ready"}]})),
        **draw.choice(({}, {"ownerKinds": {draw.choice(("include", "exclude")): draw.some(KINDS)}})),
    }
    criteria = ("states", "conditions", "exitCodes")
    return args if "maxPodLifeTimeSeconds" in args or any(map(args.get, criteria)) else {**args, "states": ["Running"]}


def condition(draw):
    return draw.maybe(
        type=lambda: draw.choice(("Ready", "Initialized")), status=lambda: draw.choice(("True", "False")),
        reason=lambda: draw.choice(("Stuck", "Slow")), minTimeSinceLastTransitionSeconds=lambda: draw.randint(0, 3),
    )


def failed_args(draw):
    return {"minPodLifetimeSeconds": draw.randint(0, 3), **draw.choice((
        {}, {"reasons": draw.some(STATES)}, {"exitCodes": draw.some(CODES)}, {"excludeOwnerKinds": draw.some(KINDS)},
    )), **draw.maybe(includingInitContainers=draw.often)}


def restarts_args(draw):
    return {"podRestartThreshold": draw.randint(1, 4), **draw.maybe(
        includingInitContainers=draw.often, states=lambda: draw.some(("Running", "CrashLoopBackOff")),
    )}


def effects_args(draw):
    named = draw.choice(({}, {"excludedTaints": NAMED}, {"includedTaints": NAMED}))
    return {"includePreferNoSchedule": draw.often(), **{key: draw.some(names) for key, names in named.items()}}


NAMED = ("spot", "dedicated=gpu", "dedicated=cpu")


def affinities_args(draw):
    return {"nodeAffinityType": draw.choice(([REQUIRED], [PREFERRED], [REQUIRED, PREFERRED]))}


class Twin(NamedTuple):
    document: str
    params: Callable[[dict[str, Any]], dict[str, Any]]
    args: Callable[[Draw], dict[str, Any]]


TWINS = {
    "PodLifeTime": Twin("old-pods", life_time, life_time_args),
    "RemoveFailedPods": Twin("remove-failed-pods", failed, failed_args),
    "RemovePodsHavingTooManyRestarts": Twin("too-many-restarts", restarts, restarts_args),
    "RemovePodsViolatingNodeTaints": Twin("untolerated-taints", effects, effects_args),
    "RemovePodsViolatingNodeAffinity": Twin("misplaced-pods", affinities, affinities_args),
}
REGISTRY = Registry.of([
    *PLUGINS, *compile_documents(load_paths([POLICIES / f"{twin.document}.yaml" for twin in TWINS.values()])),
], generation=1)


# Random clusters


def taint(draw):
    effect = draw.choice(("NoSchedule", "NoSchedule", "NoExecute", "PreferNoSchedule"))
    return {"key": draw.choice(KEYS), "effect": effect, **draw.choice(({}, {"value": "gpu"}))}


def toleration(draw):
    return {"key": draw.choice(KEYS), **draw.choice(({"operator": "Exists"}, {"value": "gpu"}, {}))}


def container(draw):
    return {"name": "c", **draw.maybe(restartCount=lambda: draw.randint(0, 3), state=lambda: draw.choice((
        {}, {"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"reason": "OOMKilled"}},
        {"terminated": {"exitCode": 137}},
    )))}


def status(draw):
    def containers():
        return draw.list(lambda: container(draw))

    return draw.maybe(
        phase=lambda: draw.choice(("Pending", "Running", "Succeeded", "Failed", "Failed")),
        reason=lambda: draw.choice(STATES), containerStatuses=containers, initContainerStatuses=containers,
        ephemeralContainerStatuses=containers, conditions=lambda: draw.list(lambda: {
            **{key: value for key, value in condition(draw).items() if isinstance(value, str)},
            **draw.maybe(lastTransitionTime=lambda: seconds_ago(draw.randint(-1, 4))),
        }),
    )


def seconds_ago(age):
    return (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")


def zone(draw):
    values = draw.some(("z0", "z1")) or ["z1"]
    return {"matchExpressions": [{"key": "zone", "operator": draw.choice(("In", "NotIn")), "values": values}]}


def node_affinity(draw):
    return draw.maybe(**{
        REQUIRED: lambda: {"nodeSelectorTerms": [zone(draw)]},
        PREFERRED: lambda: draw.list(lambda: {"weight": draw.randint(1, 3), "preference": zone(draw)}),
    })


def cluster(draw):
    nodes = [{
        "kind": "Node", "metadata": {"name": f"n{number}", "labels": {"zone": f"z{number}"}},
        "spec": {"taints": draw.list(lambda: taint(draw)), "unschedulable": draw.random() < 0.2},
        "status": {"allocatable": {"cpu": draw.choice(("2", "8")), "pods": "9"}},
    } for number in range(2)]
    # No two pods are of one age: which of equals is first is not promised.
    pods = [{
        "kind": "Pod", "status": status(draw),
        "metadata": {
            "name": f"p{number}", "namespace": "d", "creationTimestamp": seconds_ago(age),
            "ownerReferences": [{"kind": kind, "name": "o", "uid": "o"} for kind in draw.some(KINDS)],
        },
        "spec": {
            "nodeName": draw.choice(("n0", "n1")), "tolerations": draw.list(lambda: toleration(draw)),
            "containers": [{"name": "c", "resources": {"requests": {"cpu": draw.choice(("0", "1"))}}}],
            "affinity": {"nodeAffinity": node_affinity(draw)},
        },
    } for number, age in enumerate(draw.sample(range(-1, 6), 7))]
    return [*nodes, *pods]


def evictions(objects, name, args, *, now=NOW, filters=(), more=None, total=None):
    """Return the evicted pods as one plugin alone chooses them, in order."""
    documents = frozenset(twin.document for twin in TWINS.values())
    spec = DeschedulerProfileSpec("p", deschedule=(name,), disabled=documents - {name}, filter=filters,
                                  args={name: args, **(more or {})})
    result = run_cycle(build_profiles([spec], REGISTRY, dry_run=True),
                       Cluster(objects).snapshot(int(now.timestamp()) * 10**9), limits=CycleLimits(total=total))
    assert result.failures == ()
    return [(each.node, each.pod) for each in result.evicted]


@pytest.mark.parametrize("name", TWINS)
def test_a_document_evicts_what_the_plugin_evicts(name):
    found = set()
    for seed in range(60):
        draw = Draw(f"{name} {seed}")
        objects, args, total = cluster(draw), TWINS[name].args(draw), draw.choice((None, 2))
        document = evictions(objects, TWINS[name].document, TWINS[name].params(args), total=total)
        plugin = evictions(objects, name, args, total=total)
        if len(args.get("nodeAffinityType", ())) > 1:
            # The plugin takes type after type, the document node after node.
            document, plugin = (sorted(each) if total is None else len(each) for each in (document, plugin))
        assert document == plugin, f"seed {seed}: {args}"
        found.add(str(plugin))
    assert len(found) > 10  # many different results, not only empty ones


# Golden cases

SAID = {
    "PodLifeTime": {"maxPodLifeTimeSeconds", "states", "conditions", "exitCodes", "ownerKinds",
                    "includingInitContainers", "includingEphemeralContainers"},
    "RemoveFailedPods": {"minPodLifetimeSeconds", "reasons", "exitCodes", "excludeOwnerKinds",
                         "includingInitContainers"},
    "RemovePodsHavingTooManyRestarts": {"podRestartThreshold", "includingInitContainers", "states"},
    "RemovePodsViolatingNodeTaints": {"includePreferNoSchedule", "excludedTaints", "includedTaints"},
    "RemovePodsViolatingNodeAffinity": {"nodeAffinityType"},
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
    if not set(args.get("nodeAffinityType", ())) <= {REQUIRED, PREFERRED}:
        pytest.skip("a type that has no effect")
    objects = [{"kind": kind, **each} for kind, field in (("Node", "nodes"), ("Pod", "pods")) for each in case[field]]
    now = datetime.fromisoformat(case["now"]) if case.get("now") else NOW
    how = {"now": now, "filters": ("DefaultEvictor",), "more": {"DefaultEvictor": case["evictor"].get("args") or {}}}
    document = evictions(objects, TWINS[name].document, TWINS[name].params(args), **how)
    assert sorted(document) == sorted(evictions(objects, name, args, **how))
