"""Golden cases of the scheduler's plugins: one function per plugin and point, by name in one table.

A plugin that has no entry in the table is not built, and each of its cases says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.load_aware_scheduling.args import check_args, convert
from koordpolicy.builtin_plugins.scheduler.load_aware_scheduling.estimates import estimate_node, estimate_pod
from koordpolicy.builtin_plugins.scheduler.node_resources_fit_plus.plugin import pod_request
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount, resource_list
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import Kind, load_paths
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.scheduler.documents.plugin import make_instance
from koordpolicy.engine.source import Problems
from koordpolicy.plugin import CycleState, Handle

from . import scheduler_devices, scheduler_gangs, scheduler_numa, scheduler_quota, scheduler_reservations
from .result import Result
from .suites import read_cases

Case = Mapping[str, Any]


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of each case of the file."""
    for case in read_cases(path):
        yield _result(case)


def _result(case: Case) -> Result:
    plugin, point = str(case.get("plugin")), str(case.get("point"))
    runner = RUNNERS.get((plugin, point))
    if runner is None:
        known = any(each == plugin for each, _ in RUNNERS)
        missing = f"point `{point}` of plugin `{plugin}`" if known else f"plugin `{plugin}`"
        return Result("scheduler", case["id"], False, f"{missing} is not built yet")
    try:
        difference = _difference(runner(case), case["expect"])
    except Exception as error:
        difference = f"stopped by {type(error).__name__}: {error}"
    return Result("scheduler", case["id"], not difference, difference)


def _difference(found: Mapping[str, Any], expect: Mapping[str, Any]) -> str:
    """Return the differences; every expectation is compared, and one that the runner does not answer is a
    difference."""
    return "; ".join(
        f"{key}: expected {wanted!r}, got {found.get(key, found.get('reason'))!r}"
        for key, wanted in expect.items() if not _agrees(found, key, wanted)
    )


def _agrees(found: Mapping[str, Any], key: str, wanted: Any) -> bool:
    """Return whether an expectation is met; a runner may give several reasons as one, as Kubernetes prints them."""
    if key == "reasonContains":
        return wanted in found.get("reason", "")
    if key == "reasons" and key not in found:
        return ", ".join(wanted) == found.get("reason")
    return key in found and bool(found[key] == _plain(key, wanted))


def _plain(key: str, wanted: Any) -> Any:
    """Return an expectation with its quantities as canonical amounts; estimates that are numbers are such already."""
    if key != "estimated":
        return wanted
    return {
        name: canonical_amount(name, amount, name) if isinstance(amount, str) else amount
        for name, amount in wanted.items()
    }


# What a case holds


def _now(case: Case) -> int:
    return nanoseconds(case["now"], "now") if case.get("now") else 0


def _pod(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod as the API server would take it: some cases leave out the containers, which it does not allow.

    A container that asks for nothing changes no sum; plugins that count containers have no such cases.
    """
    if (pod.get("spec") or {}).get("containers"):
        return pod
    return {**pod, "spec": {**(pod.get("spec") or {}), "containers": [{"name": "main"}]}}


def _node(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "Node", **node, "status": {"allocatable": {}, **(node.get("status") or {})}}


def _cluster(case: Case) -> Cluster:
    nodes = case.get("nodes") or ([case["node"]] if "node" in case else [])
    pods = ({"kind": "Pod", **_pod(pod)} for pod in case.get("pods_on_nodes") or ())
    return Cluster([*map(_node, nodes), *pods, *(case.get("objects") or ())])


def _make(case: Case, snapshot: Snapshot) -> Any:
    plugin = next(each for each in PLUGINS if each.name == case["plugin"])
    handle = Handle("koord-scheduler", lambda: snapshot, lambda: snapshot.now, logging.getLogger(plugin.name))
    assert plugin.check_args is not None
    return plugin.make(plugin.check_args(case.get("args") or {}), handle)


# The points


def _filter(case: Case) -> Mapping[str, Any]:
    snapshot = _cluster(case).snapshot(_now(case))
    pod = PodInfo.of(_pod(case["pod"]))
    answer = _make(case, snapshot).filter(CycleState(), pod, snapshot, np.arange(snapshot.size))
    if answer.passed.all():
        return {"status": "Success"}
    refusal = answer.explain(int(np.flatnonzero(~answer.passed)[0]))
    return {"status": refusal.code.value, "reason": refusal.message}


def _score(case: Case) -> Mapping[str, Any]:
    snapshot = _cluster(case).snapshot(_now(case))
    pod = PodInfo.of(_pod(case["pod"]))
    scores = _make(case, snapshot).score(CycleState(), pod, snapshot, np.arange(snapshot.size))
    return {"status": "Success", "scores": dict(zip(snapshot.names, scores.values.tolist(), strict=True))}


def _score_and_compare(case: Case) -> Mapping[str, Any]:
    """Return the result of the built-in; the shipped document that does the same must have the same result."""
    found = _score(case)
    name, params_of = _TWINS[case["plugin"]]
    plugin = next(each for each in _documents() if each.name == name)
    snapshot = _cluster(case).snapshot(_now(case))
    handle = Handle("documents", lambda: snapshot, lambda: snapshot.now, logging.getLogger(name))
    assert plugin.check_args is not None
    twin = make_instance(plugin, plugin.check_args(params_of(case.get("args") or {})), handle)
    values = twin.score(CycleState(), PodInfo.of(_pod(case["pod"])), snapshot, np.arange(snapshot.size)).values
    scores = dict(zip(snapshot.names, values.tolist(), strict=True))
    if scores != found["scores"]:
        raise AssertionError(f"the document `{name}` scores {scores}, the built-in {found['scores']}")
    return found


@cache
def _documents() -> tuple[Plugin, ...]:
    folder = Path(__file__).parents[2] / "policies" / "scheduler"
    loaded = load_paths([folder / f"{name}.yaml" for name, _ in _TWINS.values()], source_name="shipped")
    problems = Problems(list(loaded.problems))
    plugins = compile_documents(loaded.of(Kind.SCHEDULER), problems)
    problems.raise_errors()
    return tuple(plugins)


_TWINS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "NodeResourcesFitPlus": ("node-resources-fit-plus", lambda args: {"resources": [
        {"name": name, "type": each.get("type", ""), "weight": each.get("weight", 0)}
        for name, each in (args.get("resources") or {}).items()
    ]}),
    "ScarceResourceAvoidance": (
        "scarce-resource-avoidance", lambda args: {"resources": list(args.get("resources") or ())},
    ),
}


def _pod_request(case: Case) -> Mapping[str, Any]:
    resource = case["expect"]["value"]["resource"]
    return {"status": "Success", "value": {"resource": resource, "milli": pod_request(case["pod"], resource)}}


def _estimate_pod(case: Case) -> Mapping[str, Any]:
    args = convert(check_args(case.get("args") or {}))
    return {"status": "Success", "estimated": estimate_pod(PodInfo.of(_pod(case["pod"])), args)}


def _estimate_node(case: Case) -> Mapping[str, Any]:
    node = _node(case["node"])
    return {
        "status": "Success", "estimated": estimate_node(node, resource_list(node["status"], "allocatable", "status")),
    }


RUNNERS: Mapping[tuple[str, str], Callable[[Case], Mapping[str, Any]]] = {
    ("LoadAwareScheduling", "filter"): _filter,
    ("LoadAwareScheduling", "score"): _score,
    ("LoadAwareScheduling", "estimate_pod"): _estimate_pod,
    ("LoadAwareScheduling", "estimate_node"): _estimate_node,
    ("NodeResourcesFitPlus", "score"): _score_and_compare,
    ("NodeResourcesFitPlus", "pod_request"): _pod_request,
    ("ScarceResourceAvoidance", "score"): _score_and_compare,
    **scheduler_quota.RUNNERS,
    **scheduler_reservations.RUNNERS,
    **scheduler_gangs.RUNNERS,
    **scheduler_numa.RUNNERS,
    **scheduler_devices.RUNNERS,
}
"""By (plugin, point): returns the answer under the keys of `expect`."""
