"""The bindings that are under way: those of /bind, and those of binding cycles on workers."""

from __future__ import annotations

from typing import NamedTuple

from koordpolicy.engine.serving.daemons import Daemons

from .protocol import Extender


class BindingsUnderWay(NamedTuple):
    """The number of pods that are being bound, and the age of the oldest binding in seconds (0 without one)."""

    pods: int
    oldest_seconds: float


def bindings_under_way(extender: Extender, binder: Daemons | None) -> BindingsUnderWay:
    """Return the bindings that have not returned, also those that nobody waits for any more; for any thread."""
    ages = extender.scheduler.binding_seconds()
    if binder is not None:
        ages += binder.seconds_unfinished()
    return BindingsUnderWay(len(ages), max(ages, default=0.0))
