"""Arguments of RemovePodsViolatingNodeAffinity: decoding and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import PodSelection, check_label_selector, check_lists, decode

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class NodeAffinityArgs:
    """The internal form of RemovePodsViolatingNodeAffinityArgs."""

    types: tuple[str, ...]
    """The affinities to check, in order; unknown ones have no effect, as upstream."""
    selection: PodSelection = PodSelection()  # noqa: RUF009 - frozen


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoded arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "RemovePodsViolatingNodeAffinityArgs")
    refuse(_faults(given))
    return given


def _faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    if not args.get("nodeAffinityType"):
        yield ("nodeAffinityType",), "nodeAffinityType needs to be set"
    yield from check_lists(args)
    yield from check_label_selector(args)


def read_args(args: Mapping[str, Any]) -> NodeAffinityArgs:
    """Return checked arguments as a frozen value."""
    return NodeAffinityArgs(tuple(args["nodeAffinityType"]), PodSelection.of(args))
