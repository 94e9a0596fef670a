"""Arguments of RemovePodsViolatingNodeTaints: decoding and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import PodSelection, check_label_selector, check_lists, decode


@dataclass(frozen=True, slots=True)
class NodeTaintsArgs:
    """The internal form of RemovePodsViolatingNodeTaintsArgs."""

    selection: PodSelection = PodSelection()  # noqa: RUF009 - frozen
    include_prefer_no_schedule: bool = False
    excluded: frozenset[str] = frozenset()
    included: frozenset[str] | None = None
    """Only these count; None for all, and none at all if it is empty."""


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoded arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "RemovePodsViolatingNodeTaintsArgs")
    refuse(_faults(given))
    return given


def _faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    yield from check_lists(args)
    yield from check_label_selector(args)
    if args.get("includedTaints") and args.get("excludedTaints"):
        yield ("includedTaints",), "either includedTaints or excludedTaints can be set, but not both"


def read_args(args: Mapping[str, Any]) -> NodeTaintsArgs:
    """Return checked arguments as a frozen value."""
    included = args.get("includedTaints")
    return NodeTaintsArgs(
        PodSelection.of(args), bool(args.get("includePreferNoSchedule")), frozenset(args.get("excludedTaints") or ()),
        None if included is None else frozenset(included),
    )
