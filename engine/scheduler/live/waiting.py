"""The pods that wait in a live scheduler, as plain data for `/waiting`: where they wait, for how long, and why."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.kubernetes.vocabulary import GANG_NAME_ANNOTATION, POD_GROUP_LABEL, QUOTA_NAME_LABEL
from koordpolicy.engine.texts import first_of

from ..cycle.loop import SchedulingLoop
from ..queue.nominator import nominated_node
from ..queue.scheduling_queue import WaitingEntry
from ..verdict.verdict import Verdict

MOST_PODS: Final = 200
"""The maximum number of pods in an answer."""
_MOST_REASONS: Final = 10_000
_LONGEST_REASON: Final = 2000
_MOST_GATES: Final = 10
_MOST_PLUGINS: Final = 20


@dataclass(frozen=True, slots=True)
class WaitReason:
    """The result of the last attempt of a pod that has no node."""

    uid: str
    message: str
    plugins: tuple[str, ...]
    """The plugins that refused it, and count; the first ones."""
    plugins_left_out: int = 0
    """The number of the others."""


class WaitReasons:
    """The reasons of the last pods that failed; written by the deciding thread, read by any."""

    def __init__(self) -> None:
        self._by_pod: OrderedDict[str, WaitReason] = OrderedDict()

    def failed(self, pod: PodInfo, verdict: Verdict, message: str) -> None:
        """Remember why a pod has no node."""
        plugins, left_out = first_of(refusing_plugins(verdict), _MOST_PLUGINS)
        self._by_pod[pod.key] = WaitReason(pod.uid, message[:_LONGEST_REASON], tuple(plugins), left_out)
        self._by_pod.move_to_end(pod.key)
        if len(self._by_pod) > _MOST_REASONS:
            self._by_pod.popitem(last=False)

    def placed(self, pod: PodInfo) -> None:
        """Forget a pod that has a node."""
        self._by_pod.pop(pod.key, None)

    def of(self, pod: PodInfo) -> WaitReason | None:
        """Return why a pod has no node; None before its first attempt, and for another pod of its name."""
        found = self._by_pod.get(pod.key)
        return found if found is not None and found.uid == pod.uid else None


def refusing_plugins(verdict: Verdict) -> tuple[str, ...]:
    """Return the enforcing plugins that refused a pod or nodes for it, in the order of their calls."""
    if verdict.refusal is not None:
        return (verdict.refusal[0],)
    return tuple(step.plugin for step in verdict.filters
                 if step.enforcement is Enforcement.ENFORCE and len(step.refused))


def waiting_status(loop: SchedulingLoop, reasons: WaitReasons, now: int, *, pod: str = "") -> dict[str, Any]:
    """Return the pods that wait: those of the highest priority, then those that wait longest; or one `pod`, by its key.

    For any thread: the deciding one may go on meanwhile, and then a pod is in the answer twice or not at all. `now` is
    in nanoseconds since the epoch.
    """
    gates, permits = dict(loop.gated), _permits(loop)
    entries = [*loop.queue.waiting(), *permits]
    chosen = ([each for each in entries if each.queued.pod.key == pod] if pod
              else heapq.nsmallest(MOST_PODS, entries, key=_order))
    parts = {**loop.queue.counts(), "permit": len(permits), "binding": len(loop.scheduler.in_flight)}
    return {
        "parts": parts, "leftOut": 0 if pod else len(entries) - len(chosen),
        "pods": [_to_json(each, reasons, gates.get(each.queued.pod.key), now) for each in chosen],
    }


def _order(entry: WaitingEntry) -> tuple[int, int, str]:
    return -entry.queued.pod.priority, entry.queued.since, entry.queued.pod.key


def _permits(loop: SchedulingLoop) -> list[WaitingEntry]:
    in_binding, permits = loop.held_pods(), loop.scheduler.waiting
    waiting = {key: permits.get(key) for key in in_binding}
    return [WaitingEntry("permit", in_binding[key], plugins=tuple(dict(each.waits)))
            for key, each in waiting.items() if each is not None]


def _to_json(
    entry: WaitingEntry, reasons: WaitReasons, gate: tuple[str, Any] | None, now: int,
) -> dict[str, Any]:
    pod, reason, plugins, plugins_left_out = entry.queued.pod, "", entry.plugins, 0
    known = reasons.of(pod)
    if entry.part == "gated" and gate is not None:
        reason, plugins = gate[1].message or gate[1].rule, (gate[0],)
    elif entry.part == "permit":
        reason = f"waits for a permit of {', '.join(plugins)}"
    elif known is not None:
        reason, plugins, plugins_left_out = known.message, known.plugins, known.plugins_left_out
    gates, gates_left_out = first_of((pod.object.get("spec") or {}).get("schedulingGates") or (), _MOST_GATES)
    return {
        "pod": pod.key, "part": entry.part, "priority": pod.priority, "reason": reason[:_LONGEST_REASON],
        "plugins": list(plugins), "pluginsLeftOut": plugins_left_out,
        "gates": [str(each.get("name")) for each in gates], "gatesLeftOut": gates_left_out,
        "quota": _label(pod, QUOTA_NAME_LABEL),
        "gang": gang_of(pod), "attempts": entry.queued.attempts,
        "seconds": max(0.0, round((now - entry.queued.since) / 1e9, 3)),
        "backoffSeconds": None if entry.until is None else max(0.0, round((entry.until - now) / 1e9, 3)),
        "nominatedNode": nominated_node(pod) or None,
    }


def gang_of(pod: PodInfo) -> str:
    """Return the name of the pod's gang; empty for a pod of none."""
    annotations = (pod.object.get("metadata") or {}).get("annotations") or {}
    return _label(pod, POD_GROUP_LABEL) or str(annotations.get(GANG_NAME_ANNOTATION) or "")


def _label(pod: PodInfo, name: str) -> str:
    return str(((pod.object.get("metadata") or {}).get("labels") or {}).get(name) or "")
