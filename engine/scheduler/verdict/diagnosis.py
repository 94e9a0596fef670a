"""The diagnosis of a pod without a node in koord-scheduler's form: plain data, one record per attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.framework.points import Code, Enforcement, Point
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.kubernetes.vocabulary import GANG_NAME_ANNOTATION, POD_GROUP_LABEL

from .verdict import Verdict

_BEFORE_NODES: Final = frozenset((Point.PRE_ENQUEUE, Point.PRE_FILTER))


def diagnosis_of(verdict: Verdict, now: int, *, waiting: int = 0) -> dict[str, Any]:
    """Return the diagnosis of a pod without a node, in the keys of koord-scheduler.

    The keys are those of Koordinator `pkg/scheduler/frameworkext/schedule_diagnosis.go`.

    `now` is in nanoseconds since the epoch; `waiting` counts the pods of the same job that have a node and wait to be
    bound. Call it while the verdict is valid (see `Verdict`). `topologyKeyToExplain` and `nodeOfferSlot` belong to
    plans for whole jobs, which are not explained here: empty. `preemptionDiagnosis` is null if no postFilter ran,
    `suggestion` if there is none.
    """
    pod = verdict.pod
    status: Mapping[str, Any] = pod.object.get("status") or {}
    before = verdict.refusal is not None and verdict.refusal[1] in _BEFORE_NODES
    nominated = verdict.nomination.node if verdict.nomination is not None else status.get("nominatedNodeName") or ""
    return {
        "timestamp": rfc3339(now),
        "questionedKey": pod.key,
        "nominatedNode": nominated,
        "preFilterMessage": verdict.refusal[2].message if verdict.refusal is not None and before else "",
        "topologyKeyToExplain": "",
        "isRootCausePod": True,
        "scheduleDiagnosis": {
            "schedulingMode": "Job" if _in_job(pod.object) else "Pod",
            "alreadyWaitForBound": waiting,
            "nodeOfferSlot": {},
            "nodeFailedDetails": _failed(verdict),
        },
        "preemptionDiagnosis": _preemption(verdict),
        "suggestion": _suggestion(verdict, nominated),
    }


def _in_job(pod: Mapping[str, Any]) -> bool:
    metadata = pod.get("metadata") or {}
    return bool((metadata.get("labels") or {}).get(POD_GROUP_LABEL)
                or (metadata.get("annotations") or {}).get(GANG_NAME_ANNOTATION))


def _failed(verdict: Verdict) -> list[dict[str, Any]]:
    found = [
        _detail(refused.plugin, refused.reason, refused.code, list(refused.nodes)) for refused in verdict.refusals()
        if refused.enforcement is Enforcement.ENFORCE
    ]
    if verdict.refusal is not None:
        plugin, point, refusal = verdict.refusal
        # Before any node is filtered, the reason applies to all of them; after one is chosen, to that one.
        nodes = list(verdict.names) if point in _BEFORE_NODES else []
        found.append(_detail(plugin, refusal.message, refusal.code, nodes))
    return found


def _detail(plugin: str, reason: str, code: Code, nodes: list[str]) -> dict[str, Any]:
    return {"failedPlugin": plugin, "reason": reason, "preemptMightHelp": code is Code.UNSCHEDULABLE,
            "failedNodes": nodes}


def _preemption(verdict: Verdict) -> dict[str, Any] | None:
    if verdict.nomination is None and not verdict.post_filter_refusals:
        return None
    victims = () if verdict.nomination is None else verdict.nomination.victims
    return {
        "node": None if verdict.nomination is None else verdict.nomination.node,
        "victims": [victim.key for victim in victims],
        "failures": [{"plugin": plugin, "reason": refusal.message} for plugin, refusal in verdict.post_filter_refusals],
    }


def _suggestion(verdict: Verdict, nominated: str) -> dict[str, str] | None:
    if not nominated:
        return None
    left = "" if verdict.nomination is None else ", ".join(victim.key for victim in verdict.nomination.victims)
    who = f"{left} to leave" if left else "pods to leave"
    return {"type": "WaitingVictimReleased", "message": f"wait for {who} {nominated}"}
