"""Arguments of RemoveFailedPods: decoding, defaults and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.criteria import status_fields
from koordpolicy.engine.descheduler.plugin_args import PodSelection, check_label_selector, check_lists, decode

_LIFE_TIME: Final = 3600


@dataclass(frozen=True, slots=True)
class RemoveFailedPodsArgs:
    """The internal form of RemoveFailedPodsArgs."""

    selection: PodSelection = PodSelection()  # noqa: RUF009 - frozen
    excluded_kinds: frozenset[str] = frozenset()
    least_seconds: int = _LIFE_TIME
    reasons: frozenset[str] = frozenset()
    exit_codes: frozenset[int] = frozenset()
    fields: tuple[str, ...] = ()
    """The lists of container statuses that count."""


def default_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with their defaults."""
    return {"minPodLifetimeSeconds": _LIFE_TIME, **{key: value for key, value in args.items() if value is not None}}


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoded arguments with their defaults; raise `ArgumentError` with all faults."""
    given = default_args(decode(args, "RemoveFailedPodsArgs"))
    refuse(_faults(given))
    return given


def _faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    yield from check_lists(args)
    yield from check_label_selector(args)


def read_args(args: Mapping[str, Any]) -> RemoveFailedPodsArgs:
    """Return checked arguments as a frozen value."""
    return RemoveFailedPodsArgs(
        selection=PodSelection.of(args),
        excluded_kinds=frozenset(args.get("excludeOwnerKinds") or ()),
        least_seconds=args["minPodLifetimeSeconds"],
        reasons=frozenset(args.get("reasons") or ()),
        exit_codes=frozenset(args.get("exitCodes") or ()),
        fields=status_fields(args),
    )
