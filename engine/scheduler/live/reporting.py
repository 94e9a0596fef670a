"""Reports of attempts to the API server: events about pods, the condition PodScheduled, and the nominated node."""

from __future__ import annotations

import logging
from typing import Final

from koordpolicy.engine.client.event_recorder import cut_note
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference, pod_reference
from koordpolicy.engine.client.writes import PodCondition
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.framework.scheduler import NO_CANDIDATE
from koordpolicy.engine.serving.console_links import ConsoleLinks

from ..cycle.loop import Attempt
from ..extensions.reservations import is_reserve_pod, reservation_of
from ..verdict.verdict import Verdict
from .client import LiveClient, scheduler_of
from .waiting import WaitReasons

_LOG: Final = logging.getLogger(__name__)


class AttemptReporter:
    """Reports attempts as kube-scheduler does; for the deciding thread, which never waits here.

    The event about a success is recorded with the binding. Of Reservations only events are recorded here: their plugin
    writes their conditions.
    """

    def __init__(
        self, client: LiveClient, reasons: WaitReasons | None = None, links: ConsoleLinks | None = None,
    ) -> None:
        """`reasons` remember why pods wait; events about pods without a node end with their address of `links`."""
        self._client = client
        self._links = links or ConsoleLinks()
        self._reasons = reasons or WaitReasons()
        self._faults = RepeatedFaults()

    def observe(self, attempt: Attempt) -> None:
        """Report an attempt that has ended."""
        verdict = attempt.verdict
        if verdict.node is not None:
            self._reasons.placed(verdict.pod)
            if is_reserve_pod(verdict.pod):
                note = f"Successfully assigned {reservation_of(verdict.pod)} to {verdict.node}"
                self._record(verdict.pod, "Normal", "Scheduled", note, action="Binding")
            if verdict.warnings:
                self._warn(verdict)
        elif attempt.pod is not None:
            message = verdict.message()
            self._reasons.failed(attempt.pod, verdict, message)
            if is_reserve_pod(attempt.pod):
                self._record(attempt.pod, "Warning", "FailedScheduling", message)
            else:
                self._report_failure(attempt.pod, verdict, message)

    def _report_failure(self, pod: PodInfo, verdict: Verdict, message: str) -> None:
        failed = verdict.refusal is not None and verdict.refusal[2].code is Code.ERROR
        # Without the rights to write conditions and events, nobody would see why pods are not bound.
        if failed and self._faults.is_due(message, pod.name):
            _LOG.warning("an attempt to schedule pod %s/%s failed, it is tried again: %s", pod.namespace, pod.name,
                         message, extra={"pod": pod.key})
        link = self._links.pod(pod.key)
        self._record(pod, "Warning", "FailedScheduling", cut_note(message, f" See {link}") if link else message)
        condition = PodCondition(
            "PodScheduled", "False", "SchedulerError" if failed else "Unschedulable", message,
            observed_generation=(pod.object.get("metadata") or {}).get("generation"))
        self._client.statuses.write(pod, condition=condition, nominated_node=nominated_by(verdict))

    def _warn(self, verdict: Verdict) -> None:
        text = "; ".join(f"{plugin}: {refusal.message or refusal.rule}" for plugin, refusal in verdict.warnings)
        self._record(verdict.pod, "Warning", "PolicyWarning", f"{verdict.node}: {text}")

    def _record(self, pod: PodInfo, kind: str, reason: str, note: str, action: str = "Scheduling") -> None:
        """Record an event about the pod, or about the Reservation that it stands for."""
        regarding = pod_reference(pod.namespace, pod.name, pod.uid)
        if is_reserve_pod(pod):
            regarding = ObjectReference(BY_KIND["Reservation"], "", reservation_of(pod), pod.uid)
        self._client.recorder.record(
            regarding, type=kind, reason=reason, action=action, note=note, controller=scheduler_of(pod))


def nominated_by(verdict: Verdict) -> str | None:
    """Return the nominated node to write for a pod without a node: empty clears it, None leaves it as it is.

    Only a pod that may not preempt now, as its victims are still terminating, retains the node for which it waits.
    """
    if verdict.nomination is not None:
        return verdict.nomination.node
    refusals = verdict.post_filter_refusals
    if refusals and not any(refusal.rule == NO_CANDIDATE or refusal.code is Code.ERROR for _, refusal in refusals):
        return None
    return ""
