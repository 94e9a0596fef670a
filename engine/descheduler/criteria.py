"""Facts of single pods that Kubernetes' descheduling plugins read: ages, states of containers, restarts, exit codes.

Ages are whole seconds, as in Kubernetes' descheduler. Times in the form that the API server writes are compared as
texts, which is faster than to parse them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo

from .own_facts import STATE_FIELDS, TIME_WIDTH, is_comparable, own_facts_of
from .pods import moment

_SECOND: Final = 1_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class AgeLimit:
    """An age in whole seconds at one time, to find the times that are that long ago."""

    ns: int
    text: str
    """The last whole second at or before it."""

    @staticmethod
    def of(now: int, seconds: int) -> AgeLimit:
        """Return the instant at which something must have begun to be at least `seconds` old at `now`."""
        ns = now - seconds * _SECOND
        try:
            whole = _EPOCH + timedelta(seconds=ns // _SECOND)
        except OverflowError:
            return AgeLimit(ns, "")
        return AgeLimit(ns, whole.strftime("%Y-%m-%dT%H:%M:%SZ").rjust(TIME_WIDTH, "0"))

    def met_by(self, time: str) -> bool:
        """Return whether an RFC 3339 time is at or before it."""
        if is_comparable(time):
            return time <= self.text
        return moment(time) <= self.ns


def creation_of(pod: PodInfo) -> str:
    """Return the pod's creation time as text; empty if it has none."""
    return own_facts_of(pod).creation


def status_of(pod: PodInfo) -> Mapping[str, Any]:
    """Return the pod's status."""
    return pod.object.get("status") or {}


def container_states(status: Mapping[str, Any], fields: Collection[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the current states of containers, from these lists of statuses."""
    for field in fields:
        for each in status.get(field) or ():
            state = each.get("state")
            if state:
                yield state


def waiting_reason(state: Mapping[str, Any]) -> str:
    """Return why a container waits; empty if it does not."""
    waiting = state.get("waiting")
    return (waiting.get("reason") or "") if waiting else ""


def terminated_reason(state: Mapping[str, Any]) -> str:
    """Return why a container ended; empty if it did not."""
    terminated = state.get("terminated")
    return (terminated.get("reason") or "") if terminated else ""


def has_reason(status: Mapping[str, Any], fields: Collection[str], reasons: Collection[str]) -> str:
    """Return the first of these reasons for which a container waits or ended; empty if there is none."""
    for state in container_states(status, fields):
        for reason in (waiting_reason(state), terminated_reason(state)):
            if reason and reason in reasons:
                return reason
    return ""


def has_exit_code(status: Mapping[str, Any], fields: Collection[str], codes: Collection[int]) -> int | None:
    """Return the first of these exit codes with which a container ended, or None."""
    for state in container_states(status, fields):
        terminated = state.get("terminated")
        if terminated is not None and (terminated.get("exitCode") or 0) in codes:
            return int(terminated.get("exitCode") or 0)
    return None


def status_fields(args: Mapping[str, Any], *, ephemeral: bool = False) -> tuple[str, ...]:
    """Return the lists of container statuses that arguments include."""
    containers, init, of_debugging = STATE_FIELDS
    fields = [containers]
    if args.get("includingInitContainers"):
        fields.append(init)
    if ephemeral and args.get("includingEphemeralContainers"):
        fields.append(of_debugging)
    return tuple(fields)
