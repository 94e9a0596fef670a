"""Arguments of RemovePodsViolatingTopologySpreadConstraint: decoding, defaults and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import check_label_selector, check_lists, decode

DO_NOT_SCHEDULE: Final = "DoNotSchedule"
SCHEDULE_ANYWAY: Final = "ScheduleAnyway"


def default(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return decoded arguments with their defaults."""
    return {
        **args, "constraints": args.get("constraints") or [DO_NOT_SCHEDULE],
        "topologyBalanceNodeFit": args.get("topologyBalanceNodeFit", True),
    }


def check(args: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of decoded arguments."""
    yield from check_lists(args)
    yield from check_label_selector(args)
    for index, each in enumerate(args.get("constraints") or ()):
        if each not in (DO_NOT_SCHEDULE, SCHEDULE_ANYWAY):
            known = f"[{DO_NOT_SCHEDULE} {SCHEDULE_ANYWAY}]"
            yield ("constraints", index), f"constraint {each} is not one of {known}"


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return valid arguments with their defaults; raise `ArgumentError` with all faults."""
    given = decode(args, "RemovePodsViolatingTopologySpreadConstraintArgs")
    refuse(check(given))
    return default(given)
