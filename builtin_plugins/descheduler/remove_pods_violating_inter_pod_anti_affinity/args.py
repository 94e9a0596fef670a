"""Arguments of RemovePodsViolatingInterPodAntiAffinity: decoding and validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import check_label_selector, check_lists, decode


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the decoded arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "RemovePodsViolatingInterPodAntiAffinityArgs")
    refuse(_faults(given))
    return given


def _faults(args: Mapping[str, Any]) -> Iterator[Fault]:
    yield from check_lists(args)
    yield from check_label_selector(args)
