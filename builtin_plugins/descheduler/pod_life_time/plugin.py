"""PodLifeTime (Kubernetes' descheduler): evicts pods that are too old, or in a state or condition for too long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.criteria import (
    AgeLimit,
    container_states,
    creation_of,
    has_exit_code,
    has_reason,
    status_of,
    terminated_reason,
    waiting_reason,
)
from koordpolicy.engine.descheduler.own_facts import STATE_FIELDS, own_facts_of
from koordpolicy.engine.descheduler.pods import AssignedPods, created, owners_of
from koordpolicy.engine.descheduler.row_facts import facts_by_row
from koordpolicy.plugin import Evictor

from .args import ConditionMatch, PodLifeTimeArgs, check_args, read_args

__all__ = ["PodLifeTime", "check_args", "make"]


class PodLifeTime:
    """Evicts the pods of all nodes that meet all given criteria, in any phase, the oldest first."""

    name = "PodLifeTime"
    restarts_pods = True
    decides_per_node = True

    def __init__(self, args: PodLifeTimeArgs) -> None:
        self._args = args

    def deschedule(self, snapshot: Snapshot, rows: Rows, evictor: Evictor) -> None:
        """Evict pods that meet all criteria; see `Deschedule`."""
        args, assigned = self._args, AssignedPods(snapshot)
        look = _Look(args, snapshot.now)
        oldest = facts_by_row(snapshot, "oldest", _oldest, rows) if look.limits_age else [""] * len(rows)
        states = facts_by_row(snapshot, "states", _states, rows) if args.states else [_NO_STATES] * len(rows)
        found = [
            (created(pod) if creation_of(pod) else -1, pod, reason)
            for row, creation, of_row in zip(rows.tolist(), oldest, states, strict=True)
            for pod in look.old(assigned.all(row) if look.may_hold(creation, of_row) else assigned.finished(row))
            if (reason := look.reason(pod)) and args.selection.candidate(pod, evictor)
        ]
        for _, pod, reason in sorted(found, key=lambda each: each[0]):
            evictor.evict(pod, reason)


_NO_STATES: Final = frozenset[str]()


def _oldest(pods: tuple[PodInfo, ...]) -> str:
    """Return the oldest creation time on a node; empty if one is not as the API server writes it."""
    return min([own_facts_of(pod).comparable_creation for pod in pods], default="")


def _states(pods: tuple[PodInfo, ...]) -> frozenset[str]:
    """Return the states of the pods of a node."""
    states: set[str] = set()
    for pod in pods:
        status = status_of(pod)
        states.update((status.get("phase") or "", status.get("reason") or ""))
        for state in container_states(status, STATE_FIELDS):
            states.update((waiting_reason(state), terminated_reason(state)))
    return frozenset(states)


class _Look:
    """The criteria at one time."""

    def __init__(self, args: PodLifeTimeArgs, now: int) -> None:
        self._args = args
        # The age in whole seconds must exceed the maximum.
        self._too_old = None if args.max_seconds is None else AgeLimit.of(now, args.max_seconds + 1)
        self._conditions = tuple(
            (each, None if each.least_seconds is None else AgeLimit.of(now, each.least_seconds))
            for each in args.conditions
        )

    @property
    def limits_age(self) -> bool:
        """True if an age is among the criteria."""
        return self._too_old is not None

    def may_hold(self, oldest: str, states: frozenset[str]) -> bool:
        """Return whether an active pod of a node with these facts may meet the criteria; False only if none does."""
        if self._too_old is not None and oldest and not self._too_old.met_by(oldest):
            return False
        return not self._args.states or not self._args.states.isdisjoint(states)

    def old(self, pods: Sequence[PodInfo]) -> Sequence[PodInfo]:
        """Return the pods without those that are obviously too young."""
        limit = self._too_old
        if limit is None:
            return pods
        return [pod for pod in pods if own_facts_of(pod).comparable_creation <= limit.text]

    def reason(self, pod: PodInfo) -> str:
        """Return the facts by which the pod meets all criteria; empty if it does not."""
        args, parts = self._args, []
        if self._too_old is not None:
            time = creation_of(pod)
            if time and not self._too_old.met_by(time):
                return ""
            parts.append(f"it is older than {args.max_seconds} s")
        status = status_of(pod)
        if args.states:
            state = self._state(status)
            if not state:
                return ""
            parts.append(f"its state is {state}")
        if args.exit_codes:
            code = has_exit_code(status, args.exit_fields, args.exit_codes)
            if code is None:
                return ""
            parts.append(f"a container ended with exit code {code}")
        if self._conditions:
            condition = self._condition(status)
            if not condition:
                return ""
            parts.append(condition)
        return ", ".join(parts) if self._has_owner(pod) else ""

    def _state(self, status: Mapping[str, Any]) -> str:
        states = self._args.states
        for state in (status.get("phase"), status.get("reason")):
            if state and state in states:
                return str(state)
        return has_reason(status, self._args.state_fields, states)

    def _condition(self, status: Mapping[str, Any]) -> str:
        for condition in status.get("conditions") or ():
            for match, since in self._conditions:
                if _matches(match, since, condition):
                    return f"its condition {condition.get('type')} is {condition.get('status')}"
        return ""

    def _has_owner(self, pod: PodInfo) -> bool:
        included, excluded = self._args.included_kinds, self._args.excluded_kinds
        if not included and not excluded:
            return True
        kinds = {each.get("kind") for each in owners_of(pod)}
        return not kinds & excluded and (not included or bool(kinds & included))


def _matches(match: ConditionMatch, since: AgeLimit | None, condition: Mapping[str, Any]) -> bool:
    for required, field in ((match.type, "type"), (match.status, "status"), (match.reason, "reason")):
        if required and required != (condition.get(field) or ""):
            return False
    if since is None:
        return True
    time = condition.get("lastTransitionTime") or ""
    return time != "" and since.met_by(time)


def make(args: Mapping[str, Any], handle: object) -> PodLifeTime:  # noqa: ARG001 - factories take a handle
    """Make the plugin for one profile."""
    return PodLifeTime(read_args(args))
