"""Failures of plugins and expressions while policies are evaluated over a cluster, each kind once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.descheduler.results import CycleResult
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.scheduler.verdict.verdict import Verdict

_VETO: Final = "would stay: "


@dataclass(frozen=True, slots=True)
class FailureCount:
    """A failure of a plugin or an expression, with its count, and the first pod or node concerned."""

    plugin: str
    point: str
    rule: str
    message: str
    times: int
    example: str


class Faults:
    """Collects failures, each kind once."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str, str], list[Any]] = {}

    def add(self, key: tuple[str, str, str, str], subject: str, times: int = 1) -> None:
        """Count a failure: plugin, point, rule, message."""
        if key in self.found:
            self.found[key][0] += times
        else:
            self.found[key] = [times, subject]

    def add_verdict(self, verdict: Verdict) -> None:
        """Count the failures of a verdict, each once for every node that it concerns."""
        for each in verdict.errors():
            subject = f"{verdict.pod.key} on {each.nodes[0]}" if each.nodes else verdict.pod.key
            self.add((each.plugin, each.point.value, each.rule, each.message), subject, max(1, len(each.nodes)))

    def take_over(self, faults: Iterable[FailureCount], frameworks: Collection[Framework]) -> None:
        """Add the failures of the plugins of these frameworks."""
        for each in faults:
            if _framework_of(each.point) in frameworks:
                self.add((each.plugin, each.point, each.rule, each.message), each.example, each.times)

    def add_cycle(self, cycle: CycleResult, watched: Collection[str]) -> None:
        """Record the failures of a cycle; they include the vetoes of plugins that are not enforced (`watched`)."""
        failures = [each for each in cycle.failures if each.plugin not in watched or not each.message.startswith(_VETO)]
        for each in failures:
            self.add((each.plugin, Framework.DESCHEDULER.value, each.rule, each.message), each.subject)
        if cycle.error and not failures:
            self.add(("", Framework.DESCHEDULER.value, "", cycle.error), "the whole cycle")

    def counts(self) -> tuple[FailureCount, ...]:
        """Return the failures, in the order of their first occurrence."""
        return tuple(FailureCount(*key, *rest) for key, rest in self.found.items())


def _framework_of(point: str) -> Framework:
    return next((each for each in (Framework.QOS, Framework.DESCHEDULER) if each.value == point), Framework.SCHEDULER)
