"""Arguments of RemovePodsHavingTooManyRestarts: decoding and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.criteria import status_fields
from koordpolicy.engine.descheduler.plugin_args import PodSelection, check_label_selector, check_lists, decode

_STATES: Final = ("CrashLoopBackOff", "Running")


@dataclass(frozen=True, slots=True)
class TooManyRestartsArgs:
    """The internal form of RemovePodsHavingTooManyRestartsArgs."""

    threshold: int
    selection: PodSelection = PodSelection()  # noqa: RUF009 - frozen
    states: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()
    """The lists of container statuses that count."""


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoded arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "RemovePodsHavingTooManyRestartsArgs")
    refuse(_faults(given))
    return given


def _faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    yield from check_lists(args)
    yield from check_label_selector(args)
    if args.get("podRestartThreshold", 0) < 1:
        yield ("podRestartThreshold",), "invalid PodsHavingTooManyRestarts threshold: it must be at least 1"
    if not set(args.get("states") or ()) <= set(_STATES):
        yield ("states",), f"states must be one of [{' '.join(_STATES)}]"


def read_args(args: Mapping[str, Any]) -> TooManyRestartsArgs:
    """Return checked arguments as a frozen value."""
    return TooManyRestartsArgs(
        args["podRestartThreshold"], PodSelection.of(args), frozenset(args.get("states") or ()), status_fields(args),
    )
