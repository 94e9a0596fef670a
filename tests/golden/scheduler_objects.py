"""Objects of the scheduler's golden cases, as the engine takes them; shared by the runners of several plugins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.plugin import SKIP, CycleState
from tests.fake_framework import FakeFramework

Case = Mapping[str, Any]
Runner = Callable[[Case], Mapping[str, Any]]

_STATUSES = {
    Code.UNSCHEDULABLE: "Unschedulable", Code.UNRESOLVABLE: "UnschedulableAndUnresolvable", Code.ERROR: "Error",
}


def pod_object(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod as the API server would take it: some cases leave out the containers, which it does not allow."""
    spec = pod.get("spec") or {}
    return {**pod, "kind": "Pod", "spec": {**spec, "containers": spec.get("containers") or [{"name": "main"}]}}


def pod_info(pod: Mapping[str, Any]) -> PodInfo:
    """Return a case's pod."""
    return PodInfo.of(pod_object(pod))


def framework(case: Case, *objects: Mapping[str, Any]) -> FakeFramework:
    """Return a framework over all that the case holds, and over further objects."""
    nodes = case.get("nodes") or ([case["node"]] if "node" in case else [])
    held = [{"kind": "Node", **node, "status": {"allocatable": {}, **(node.get("status") or {})}} for node in nodes]
    gates = {name for name, on in (case.get("featureGates") or {}).items() if on}
    now = nanoseconds(case["now"], "now") if case.get("now") else 0
    pods = [pod_object(pod) for pod in case.get("pods_on_nodes") or ()]
    return FakeFramework(*held, *(case.get("objects") or ()), *pods, *objects, gates=gates, now=now)


def make(case: Case, found: FakeFramework) -> Any:
    """Return the case's plugin."""
    args = {key: value for key, value in (case.get("args") or {}).items() if key not in ("apiVersion", "kind")}
    return found.make(case["plugin"], **args)


def answer(refusal: Refusal | None) -> dict[str, Any]:
    """Return status and reason as the cases have them."""
    if refusal is None:
        return {"status": "Success"}
    return {"status": _STATUSES[refusal.code], "reason": refusal.message}


def filtered(plugin: Any, case: Case, snapshot: Snapshot) -> Mapping[str, Any]:
    """Return the result of a plugin's preFilter and filter on the nodes of a case: success, or the first refusal."""
    state, pod = CycleState(), pod_info(case["pod"])
    found = plugin.pre_filter(state, pod, snapshot)
    if isinstance(found, Refusal) or found is SKIP:
        return answer(found if isinstance(found, Refusal) else None)
    result = plugin.filter(state, pod, snapshot, np.arange(snapshot.size))
    rows = np.flatnonzero(~result.passed)
    return answer(result.explain(int(rows[0])) if len(rows) else None)
