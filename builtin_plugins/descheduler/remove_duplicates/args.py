"""Arguments of RemoveDuplicates: decoding and validation (Kubernetes' descheduler)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import check_lists, decode


def check(args: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of decoded arguments."""
    yield from check_lists(args)


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return valid arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "RemoveDuplicatesArgs")
    refuse(check(given))
    return given
