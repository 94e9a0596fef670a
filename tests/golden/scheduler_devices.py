"""Golden cases of DeviceShare."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from koordpolicy.builtin_plugins.scheduler.allocation.resource_scoring import AllocationScorer
from koordpolicy.builtin_plugins.scheduler.device_share.allocation import score_device
from koordpolicy.builtin_plugins.scheduler.device_share.args import check_args
from koordpolicy.builtin_plugins.scheduler.device_share.devices import holding_in
from koordpolicy.builtin_plugins.scheduler.device_share.plugin import DeviceShare
from koordpolicy.builtin_plugins.scheduler.device_share.pod_devices import PodDevices
from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Refusal
from koordpolicy.engine.kubernetes.vocabulary import DEVICE_ALLOCATED_ANNOTATION
from koordpolicy.engine.scheduler.cycle.normalize import normalize_by_max
from koordpolicy.plugin import SKIP, CycleState
from tests.fake_framework import FakeFramework

from .scheduler_objects import Case, Runner, answer, filtered, framework, make, pod_info


def _prefilter(case: Case) -> Mapping[str, Any]:
    whole, state = framework(case), CycleState()
    found = make(case, whole).pre_filter(state, pod_info(case["pod"]), whole.snapshot())
    if isinstance(found, Refusal):
        return answer(found)
    if found is SKIP:
        return {"status": "Skip"}
    request = state[PodDevices].request
    result: dict[str, Any] = {"status": "Success", "deviceRequests": _as_expected(
        request.requests, case["expect"].get("deviceRequests", {}))}
    if request.gpu is not None:
        expected = case["expect"].get("gpu", {}).get("requestsPerGPU", {})
        result["gpu"] = {
            "numberOfGPUs": request.gpu.count, "requestsPerGPU": _amounts_as_expected(request.gpu.per_gpu, expected),
            "shared": request.gpu.shared,
        }
    return result


def _filter(case: Case) -> Mapping[str, Any]:
    whole = framework(case)
    return filtered(make(case, whole), case, _snapshot(case, whole))


def _score(case: Case) -> Mapping[str, Any]:
    whole = framework(case)
    state, pod, plugin, snapshot = CycleState(), pod_info(case["pod"]), make(case, whole), _snapshot(case, whole)
    plugin.pre_filter(state, pod, snapshot)
    scores = plugin.score(state, pod, snapshot, np.arange(snapshot.size))
    return {"status": "Success", "scores": dict(zip(snapshot.names, scores.raw[""].tolist(), strict=True))}


def _allocate(case: Case) -> Mapping[str, Any]:
    whole = framework(case)
    state, pod, plugin, snapshot = CycleState(), pod_info(case["pod"]), make(case, whole), _snapshot(case, whole)
    refusal = plugin.pre_filter(state, pod, snapshot)
    if not isinstance(refusal, Refusal):
        refusal = plugin.reserve(state, pod, snapshot, 0)
    if isinstance(refusal, Refusal):
        return answer(refusal)
    draft: dict[str, Any] = {"kind": "Pod", "metadata": {}}
    plugin.pre_bind(state, pod, draft, snapshot.names[0])
    found = holding_in(draft["metadata"].get("annotations") or {}).amounts
    expected = case["expect"].get("allocations", {})
    same = set(found) == set(expected) and all(
        {each["minor"]: _amounts(each["resources"]) for each in entries} == dict(found[device_type])
        for device_type, entries in expected.items()
    )
    return {"status": "Success", "allocations": expected if same else found}


def _normalize(case: Case) -> Mapping[str, Any]:
    given = case["state"]["scores"]
    values = normalize_by_max(np.array(list(given.values()), np.int64), np.arange(len(given)), HIGHEST_SCORE)
    return {"status": "Success", "scores": dict(zip(given, values.tolist(), strict=True))}


def _score_device(case: Case) -> Mapping[str, Any]:
    scorer = AllocationScorer.of(check_args(case.get("args") or {})["scoringStrategy"])
    request, total, free = (_amounts(case["state"][name]) for name in ("request", "total", "free"))
    return {"status": "Success", "value": score_device(scorer, request, total, free)}


def _snapshot(case: Case, whole: FakeFramework) -> Snapshot:
    """Return the cluster in which the pods hold less, by what the case says was given back by preempted ones."""
    snapshot = whole.snapshot()
    returned = {
        (device_type, each["minor"], name): amount
        for device_type, entries in ((case.get("state") or {}).get("preemptible") or {}).items()
        for each in entries for name, amount in _amounts(each["resources"]).items()
    }
    if not returned:
        return snapshot
    left = []
    for pod in snapshot.pods(0):
        held = holding_in(pod.object["metadata"].get("annotations") or {}).amounts
        kept: dict[str, list[dict[str, Any]]] = {}
        for device_type, minors in held.items():
            for minor, amounts in minors.items():
                rest = {}
                for name, amount in amounts.items():
                    gone = min(amount, returned.get((device_type, minor, name), 0))
                    returned[device_type, minor, name] = returned.get((device_type, minor, name), 0) - gone
                    rest[name] = str(amount - gone)
                if any(int(amount) for amount in rest.values()):
                    kept.setdefault(device_type, []).append({"minor": minor, "resources": rest})
        metadata = {**pod.object["metadata"], "annotations": {DEVICE_ALLOCATED_ANNOTATION: json.dumps(kept)}}
        left.append(pod_info({**pod.object, "metadata": metadata}))
    change = NodeChange(remove=[pod.key for pod in snapshot.pods(0)], add=left)
    return snapshot.overlay({snapshot.names[0]: change})


def _amounts(quantities: Mapping[str, Any]) -> dict[str, int]:
    return {name: canonical_amount(name, quantity, name) for name, quantity in quantities.items()}


def _amounts_as_expected(found: Mapping[str, int], expected: Mapping[str, Any]) -> Mapping[str, Any]:
    return expected if dict(found) == _amounts(expected) else dict(found)


def _as_expected(found: Mapping[str, Mapping[str, int]], expected: Mapping[str, Any]) -> Mapping[str, Any]:
    same = {key: dict(each) for key, each in found.items()} == {key: _amounts(each) for key, each in expected.items()}
    return expected if same else found


RUNNERS: Mapping[tuple[str, str], Runner] = {
    (DeviceShare.name, "prefilter"): _prefilter,
    (DeviceShare.name, "filter"): _filter,
    (DeviceShare.name, "score"): _score,
    (DeviceShare.name, "allocate"): _allocate,
    (DeviceShare.name, "normalize"): _normalize,
    (DeviceShare.name, "score_device"): _score_device,
}
"""By (plugin, point): returns the answer under the keys of `expect`."""
