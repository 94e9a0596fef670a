"""Golden cases of Coscheduling: one function per point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.plugin import CycleState, Wait
from tests.fake_framework import FakeFramework

from .scheduler_objects import Case, Runner, answer, framework, make, pod_info, pod_object

_SECOND = 1_000_000_000
_KEYS = ("bind-gang-group-id", "bind-gang-member-count")


def _begun(case: Case) -> tuple[FakeFramework, Any]:
    """Return framework and plugin after the case's steps."""
    found = framework(case)
    plugin = make(case, found)
    for step in case.get("steps") or ():
        match step["op"]:
            case "pod_add":
                found.upsert(pod_object(step["pod"]))
            case "preenqueue":
                plugin.pre_enqueue(_pod_of(step, found), found.snapshot())
            case "permit":
                _permitted(found, plugin, _pod_of(step, found))
            case "post_bind":
                plugin.post_bind(CycleState(), _pod_of(step, found), "node")
            case other:
                raise ValueError(f"there is no step `{other}`")
    satisfied = (case.get("state") or {}).get("onceSatisfied") or ()
    for gang in plugin.gangs.all():
        if satisfied is True or gang.id in satisfied:
            plugin.gangs.group(gang).once_satisfied = True
    return found, plugin


def _pod_of(step: Mapping[str, Any], found: FakeFramework) -> PodInfo:
    """Return the pod of a step: the object that it holds, or the one of the key that it names."""
    given = step.get("podObject") or step["pod"]
    return found.pod(given) if isinstance(given, str) else pod_info(given)


def _permitted(found: FakeFramework, plugin: Any, pod: PodInfo) -> Any:
    answered = plugin.permit(CycleState(), pod, found.snapshot(), 0)
    if isinstance(answered, Wait):
        found.waiting.held.append(pod.key)
    return answered


def _pre_enqueue(case: Case) -> Mapping[str, Any]:
    found, plugin = _begun(case)
    return answer(plugin.pre_enqueue(pod_info(case["pod"]), found.snapshot()))


def _permit(case: Case) -> Mapping[str, Any]:
    found, plugin = _begun(case)
    answered = _permitted(found, plugin, pod_info(case["pod"]))
    if isinstance(answered, Wait):
        return {"status": "Wait", "waitSeconds": answered.timeout // _SECOND}
    return {**answer(answered), "waitSeconds": 0}


def _after_post_filter(case: Case) -> Mapping[str, Any]:
    found, plugin = _begun(case)
    told = answer(plugin.give_up(pod_info(case["pod"]), lambda: "fit error"))
    return {**told, "rejectedWaitingPods": sorted(found.waiting.rejected)}


def _pre_bind(case: Case) -> Mapping[str, Any]:
    _, plugin = _begun(case)
    pod = pod_info(case["pod"])
    draft = {**pod.object, "metadata": {**pod.object["metadata"]}}
    refusal = plugin.pre_bind(CycleState(), pod, draft, "node")
    annotations = draft["metadata"].get("annotations") or {}
    kept = {name: text for name, text in annotations.items() if name.rpartition("/")[2] in _KEYS}
    return {**answer(refusal), "annotations": kept}


RUNNERS: Mapping[tuple[str, str], Runner] = {
    ("Coscheduling", "preenqueue"): _pre_enqueue,
    ("Coscheduling", "permit"): _permit,
    ("Coscheduling", "after_post_filter"): _after_post_filter,
    ("Coscheduling", "prebind"): _pre_bind,
}
"""By (plugin, point): returns the answer under the keys of `expect`."""
