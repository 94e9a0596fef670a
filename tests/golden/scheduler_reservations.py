"""Golden cases of Reservation: one function per point."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from koordpolicy.builtin_plugins.scheduler.reservation.matching import Counts, ReservationRequirement
from koordpolicy.builtin_plugins.scheduler.reservation.scoring import normalize
from koordpolicy.builtin_plugins.scheduler.reservation.state import ReservationState
from koordpolicy.builtin_plugins.scheduler.reservation.status import synced
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.cluster.overlay import NodeChange
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.scheduler.extensions.reservations import (
    ReservationInfo,
    allocated_uid,
    is_reserve_pod,
    matches_owners,
    reserve_pod,
)
from koordpolicy.plugin import SKIP, Changed, CycleState, OnlyNodes
from tests.fake_framework import FakeFramework

from .scheduler_objects import Case, Runner, answer, framework, make, pod_info


def _subject(case: Case) -> PodInfo:
    """Return the pod of a case, or the pod that stands for the Reservation that it names."""
    if "pod" in case:
        return pod_info(case["pod"])
    name = case["state"]["reserve"]
    gone = {"metadata": {"name": name}}  # one that is not there has a pod all the same: that is what is asked about
    return reserve_pod(next((each for each in case["objects"] if each["metadata"]["name"] == name), gone))


def _begun(case: Case) -> tuple[FakeFramework, Any, CycleState, PodInfo, Snapshot, Refusal | None]:
    """Return the reservations after the pod was shown its view of the cluster."""
    found = framework(case)
    plugin = make(case, found)
    state, pod, snapshot = CycleState(), _subject(case), found.snapshot()
    changed = plugin.before_pre_filter(state, pod, snapshot)
    if isinstance(changed, Changed):
        snapshot = changed.snapshot or snapshot
    return found, plugin, state, pod, snapshot, changed if isinstance(changed, Refusal) else None


def _pre_filter(case: Case) -> Mapping[str, Any]:
    _, plugin, state, pod, snapshot, refusal = _begun(case)
    found = refusal or plugin.pre_filter(state, pod, snapshot)
    if found is SKIP:
        return {"status": "Skip"}
    if isinstance(found, OnlyNodes):
        return {"status": "Success", "nodes": sorted(found.names)}
    return answer(found)


def _filter(case: Case) -> Mapping[str, Any]:
    found, plugin, state, pod, snapshot, refusal = _begun(case)
    if refusal is not None:
        return answer(refusal)
    snapshot = _without_victims(case, snapshot)
    judged = plugin.filter(state, pod, snapshot, found.rows)
    refused = [row for row in found.rows.tolist() if not judged.passed[row]]
    if not refused:
        return {"status": "Success"}
    refusal = judged.explain(refused[0])
    reasons = dict(refusal.values).get("reasons", (refusal.message,))
    return {**answer(refusal), "reasons": list(reasons)}


def _without_victims(case: Case, snapshot: Snapshot) -> Snapshot:
    """Return the view in which the pods are gone that a preemption took away."""
    preemptible = (case.get("state") or {}).get("preemptible") or {}
    row = snapshot.row(0)
    gone: list[str] = []
    free = [pod for pod in row.pods.values() if not allocated_uid(pod.object) and not is_reserve_pod(pod)]
    if preemptible.get("node"):
        gone += _adding_up(free, resource_list(preemptible, "node", ""))
    for uid in preemptible.get("reservations") or ():
        users = [pod for pod in row.pods.values() if allocated_uid(pod.object) == uid]
        gone += _adding_up(users, resource_list(preemptible["reservations"], uid, ""))
    return snapshot.overlay({snapshot.names[0]: NodeChange(remove=gone)}) if gone else snapshot


def _adding_up(pods: list[PodInfo], amounts: ResourceList) -> list[str]:
    """Return the pods that request exactly this together; where the amounts count pods, so many of them."""
    many = amounts.pop("pods", 0)
    for size in range(1, len(pods) + 1):
        for some in itertools.combinations(pods, size):
            total = ResourceList()
            for pod in some:
                for name, amount in pod.requests.items():
                    total[name] += amount
            if (not many or size == many) and all(total[name] == amount for name, amount in amounts.items()):
                return [pod.key for pod in some]
    raise ValueError(f"no pods request {amounts} together")


def _score(case: Case) -> Mapping[str, Any]:
    found, plugin, state, pod, snapshot, _ = _begun(case)
    plugin.pre_filter(state, pod, snapshot)
    skipped = plugin.pre_score(state, pod, snapshot, found.rows) is SKIP
    raw = {} if skipped else plugin.raw_scores(state, pod, snapshot, found.rows)
    return {"status": "Success", "scores": {name: raw.get(row, 0) for row, name in enumerate(snapshot.names)}}


def _normalize(case: Case) -> Mapping[str, Any]:
    return {"status": "Success", "scores": normalize(case["state"]["scores"])}


def _match(case: Case) -> Mapping[str, Any]:
    _, _, state, _, snapshot, refusal = _begun(case)
    if refusal is not None:
        return answer(refusal)
    names = sorted(info.name for info in state[ReservationState].of(snapshot, 0).matched)
    wanted = case["expect"].get("matched", [])
    return {"status": "Success", "matched": wanted if sorted(wanted) == names else names}


def _match_owners(case: Case) -> Mapping[str, Any]:
    info = ReservationInfo.of(case["objects"][0])
    return {"status": "Success", "value": matches_owners(pod_info(case["pod"]), info.owners)}


def _restore(case: Case) -> Mapping[str, Any]:
    found, _, state, _, shown, _ = _begun(case)
    names = {name for key in ("before", "podRequested", "nodeRequested") for name in case["expect"].get(key) or ()}
    hidden = state[ReservationState].of(shown, 0).hidden
    row = found.snapshot().row(0)
    # What consumers use is taken off the pods that hold reservations from the beginning, and not here.
    whole = [info.pod for each in [state[ReservationState].of(shown, 0)] for info in (*each.matched, *each.unmatched)]
    totals = {
        "before": {
            name: row.requested[name] + sum(pod.requests[name] - row.pods[pod.key].requests[name] for pod in whole)
            for name in names
        },
        "nodeRequested": shown.row(0).requested,
        "podRequested": {
            name: shown.row(0).requested[name] + sum(pod.requests[name] for pod in hidden) for name in names
        },
    }
    result: dict[str, Any] = {"status": "Success"}
    for key, amounts in totals.items():
        wanted = case["expect"].get(key)
        if wanted is not None:
            same = all(amounts[name] == amount for name, amount in resource_list({"x": wanted}, "x", "").items())
            result[key] = wanted if same else dict(amounts)
    return result


def _nominate(case: Case) -> Mapping[str, Any]:
    _, plugin, state, pod, snapshot, _ = _begun(case)
    found = plugin.nominate(state, pod, snapshot, 0)
    if isinstance(found, Refusal):
        return answer(found)
    return {"status": "Success", "nominated": None if found is None else found.name}


def _nominate_filter(case: Case) -> Mapping[str, Any]:
    _, plugin, state, pod, snapshot, _ = _begun(case)
    info = plugin.cache.named(case["state"]["reservation"])
    return answer(plugin.filter_nominated(state, pod, info, snapshot, 0))


def _post_filter_reasons(case: Case) -> Mapping[str, Any]:
    plugin = make(case, framework(case))
    names = {
        "ignored": "ignored", "ownerMatched": "owner_matched", "nameMatched": "name_matched",
        "nameUnmatched": "name_unmatched", "affinityUnmatched": "affinity_unmatched",
        "isUnschedulableUnmatched": "unschedulable", "notExactMatched": "not_exact", "taintsUnmatched": "tainted",
        "taintsUnmatchedReasons": "taints",
    }
    counts = {
        node: Counts(**{names[key]: value for key, value in each.items()})
        for node, each in case["state"]["diagnosis"].items()
    }
    told = {node: each.get("reasons") or () for node, each in (case["state"].get("nodeStatuses") or {}).items()}
    reasons = plugin.post_filter_reasons(counts, told, ReservationRequirement.of(pod_info(case["pod"])))
    return {"status": "Unschedulable", "reasons": list(reasons)}


def _reservation_requests(case: Case) -> Mapping[str, Any]:
    requests, wanted = ReservationInfo.of(case["objects"][0]).pod.requests, case["expect"]["value"]
    same = {name: amount for name, amount in requests.items() if amount} == resource_list({"x": wanted}, "x", "")
    return {"status": "Success", "value": wanted if same else dict(requests)}


def _restricted_resources(case: Case) -> Mapping[str, Any]:
    return {"status": "Success", "value": list(ReservationInfo.of(case["objects"][0]).resource_names)}


def _sync_status(case: Case) -> Mapping[str, Any]:
    found = framework(case)
    snapshot = found.snapshot()
    item = next(each for each in case["objects"] if each["kind"] == "Reservation")
    row = snapshot.index.get((item.get("status") or {}).get("nodeName") or "")
    status = synced(item, None if row is None else snapshot.pods(row), snapshot.now).get("status") or {}
    wanted = case["expect"].get("value")
    if isinstance(wanted, str):
        return {"status": "Success", "value": status.get("phase", "")}
    return {"status": "Success", "value": {key: _status_value(status, wanted, key) for key in wanted or ()}, **{
        key: _status_value(status, case["expect"], key) for key in case["expect"] if key not in ("status", "value")}}


def _status_value(status: Mapping[str, Any], wanted: Mapping[str, Any], key: str) -> Any:
    """Return a field of a status, as it is wanted where both mean the same amounts."""
    value = status.get(key)
    if key in ("allocated", "allocatable") and isinstance(wanted[key], Mapping):
        same = resource_list(status, key, "status") == resource_list(wanted, key, "wanted")
        return wanted[key] if same else value
    if key == "currentOwners" and all(isinstance(each, str) for each in wanted[key]):
        return [each["name"] for each in value or ()]
    return value


RUNNERS: Mapping[tuple[str, str], Runner] = {
    ("Reservation", "prefilter"): _pre_filter,
    ("Reservation", "filter"): _filter,
    ("Reservation", "score"): _score,
    ("Reservation", "normalize"): _normalize,
    ("Reservation", "match"): _match,
    ("Reservation", "match_owners"): _match_owners,
    ("Reservation", "restore"): _restore,
    ("Reservation", "nominate"): _nominate,
    ("Reservation", "nominate_filter"): _nominate_filter,
    ("Reservation", "post_filter_reasons"): _post_filter_reasons,
    ("Reservation", "reservation_requests"): _reservation_requests,
    ("Reservation", "restricted_resources"): _restricted_resources,
    ("Reservation", "sync_status"): _sync_status,
}
"""By (plugin, point): returns the answer under the keys of `expect`."""
