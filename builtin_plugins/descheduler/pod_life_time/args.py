"""Arguments of PodLifeTime: decoding and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.criteria import status_fields
from koordpolicy.engine.descheduler.plugin_args import PodSelection, check_label_selector, check_lists, decode

STATES: Final = tuple(sorted((
    "Running", "Pending", "Succeeded", "Failed", "Unknown",
    "NodeAffinity", "NodeLost", "Shutdown", "UnexpectedAdmissionError",
    "PodInitializing", "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError",
    "ErrImagePull", "CreateContainerError", "InvalidImageName",
    "OOMKilled", "Error", "Completed", "DeadlineExceeded", "Evicted", "ContainerCannotRun", "StartError",
)))  # fmt: skip
"""Phases of pods, and reasons of pods and containers, that `states` may name, sorted."""
_CRITERIA: Final = ("maxPodLifeTimeSeconds", "states", "conditions", "exitCodes")
_LEAST_TIME: Final = "minTimeSinceLastTransitionSeconds"


@dataclass(frozen=True, slots=True)
class ConditionMatch:
    """A match of pod conditions; empty fields match all."""

    type: str = ""
    status: str = ""
    reason: str = ""
    least_seconds: int | None = None
    """Seconds since the last transition at least; None for any."""


@dataclass(frozen=True, slots=True)
class PodLifeTimeArgs:
    """The internal form of PodLifeTimeArgs."""

    selection: PodSelection = PodSelection()  # noqa: RUF009 - frozen
    included_kinds: frozenset[str] = frozenset()
    excluded_kinds: frozenset[str] = frozenset()
    max_seconds: int | None = None
    states: frozenset[str] = frozenset()
    conditions: tuple[ConditionMatch, ...] = ()
    exit_codes: frozenset[int] = frozenset()
    state_fields: tuple[str, ...] = ()
    """The lists of container statuses whose reasons count."""
    exit_fields: tuple[str, ...] = ()
    """The lists of container statuses whose exit codes count."""


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoded arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "PodLifeTimeArgs")
    refuse(_faults(given))
    return given


def _faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    yield from check_lists(args)
    yield from check_label_selector(args)
    yield from check_lists(args, "ownerKinds")
    if args.get("maxPodLifeTimeSeconds") is None and not any(args.get(each) for each in _CRITERIA):
        yield (), (
            "at least one filtering criterion must be specified (maxPodLifeTimeSeconds, states, conditions, or"
            " exitCodes)"
        )
    if not set(args.get("states") or ()) <= set(STATES):
        yield ("states",), f"states must be one of [{' '.join(STATES)}]"
    for index, each in enumerate(args.get("conditions") or ()):
        if not any(each.get(field) for field in ("type", "status", "reason")) and each.get(_LEAST_TIME) is None:
            yield ("conditions", index), (
                f"conditions[{index}]: at least one of type, status, reason, or {_LEAST_TIME} must be set"
            )


def read_args(args: Mapping[str, Any]) -> PodLifeTimeArgs:
    """Return checked arguments as a frozen value."""
    kinds = args.get("ownerKinds") or {}
    return PodLifeTimeArgs(
        selection=PodSelection.of(args),
        included_kinds=frozenset(kinds.get("include") or ()),
        excluded_kinds=frozenset(kinds.get("exclude") or ()),
        max_seconds=args.get("maxPodLifeTimeSeconds"),
        states=frozenset(args.get("states") or ()),
        conditions=tuple(
            ConditionMatch(
                each.get("type") or "", each.get("status") or "", each.get("reason") or "", each.get(_LEAST_TIME),
            )
            for each in args.get("conditions") or ()
        ),
        exit_codes=frozenset(args.get("exitCodes") or ()),
        state_fields=status_fields(args, ephemeral=True),
        exit_fields=status_fields(args),
    )
