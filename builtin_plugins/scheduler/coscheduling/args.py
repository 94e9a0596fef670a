"""CoschedulingArgs: strict reading of version v1, its defaults, conversion to the internal form, validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.documents import parse_duration

from ..allocation.strict_args import boolean, duration, integer, raise_faults, read_args, text

KIND: Final = "CoschedulingArgs"
ONCE_SATISFIED: Final = "once-satisfied"
ONLY_WAITING: Final = "only-waiting"
WAITING_AND_RUNNING: Final = "waiting-and-running"
MATCH_POLICIES: Final = (ONCE_SATISFIED, ONLY_WAITING, WAITING_AND_RUNNING)

_FIELDS: Final = {
    "defaultTimeout": duration, "controllerWorkers": integer, "enablePreemption": boolean,
    "awareNetworkTopology": boolean, "defaultMatchPolicy": text, "skipCheckScheduleCycle": boolean,
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "defaultTimeout": "600s", "controllerWorkers": 1, "enablePreemption": False, "awareNetworkTopology": False,
    "defaultMatchPolicy": ONCE_SATISFIED,
}


@dataclass(frozen=True, slots=True)
class CoschedulingArgs:
    """The internal form; `timeout` in nanoseconds."""

    timeout: int
    workers: int
    preempts: bool
    network: bool
    match_policy: str


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises `ValueError` with all faults and the fields' paths."""
    full = default_args(args)
    raise_faults(validate(convert(full)))
    return full


def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the valid v1 arguments without effect, with the reasons."""
    found = {"skipCheckScheduleCycle": "it is deprecated, and does nothing in koord-scheduler either"}
    return found if args.get("controllerWorkers") == 1 else {**found, "controllerWorkers": "there is one worker"}


def default_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults filled in.

    Raises:
        ValueError: there is no such field, or its value is of another type.
    """
    return {**_DEFAULTS, **read_args(args, KIND, _FIELDS)}


def convert(full: Mapping[str, Any]) -> CoschedulingArgs:
    """Return the internal form of v1 arguments that have their defaults; an unknown policy means the default one."""
    policy = full["defaultMatchPolicy"]
    return CoschedulingArgs(
        parse_duration(full["defaultTimeout"]), full["controllerWorkers"], full["enablePreemption"],
        full["awareNetworkTopology"], policy if policy in MATCH_POLICIES else ONCE_SATISFIED,
    )


def validate(args: CoschedulingArgs) -> Iterator[str]:
    """Yield the faults of arguments, each with the field's path (negative durations are already rejected)."""
    if args.workers < 1:
        yield f"`controllerWorkers` is {args.workers}: it must be at least 1"
