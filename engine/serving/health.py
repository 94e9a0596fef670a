"""Health checks: what /healthz, /livez and /readyz answer, in kube-apiserver's and kube-scheduler's format."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .instruments import Counter, Metric, MetricSpec, MetricType

HEALTHCHECK: Final = MetricSpec(
    "kubernetes_healthcheck", MetricType.GAUGE, "Whether the last run of a health check succeeded", ("name", "type"))
HEALTHCHECKS: Final = MetricSpec(
    "kubernetes_healthchecks_total", MetricType.COUNTER, "Runs of health checks by result",
    ("name", "type", "status"))


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One condition of health. `fault` returns why it is not fulfilled, or an empty string; it must not wait."""

    name: str
    fault: Callable[[], str]


PING: Final = HealthCheck("ping", lambda: "")
"""Succeeds if the process answers at all."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer of an endpoint."""

    healthy: bool
    text: str


class UnknownCheckError(LookupError):
    """An endpoint has no check of that name."""


class Health:
    """The health checks of a server, by endpoint: `healthz`, `livez` or `readyz`."""

    def __init__(self, checks: Mapping[str, Sequence[HealthCheck]]) -> None:
        """Every endpoint has `ping` too."""
        self._checks = {endpoint: (PING, *found) for endpoint, found in checks.items()}
        self._runs = Counter(HEALTHCHECKS)
        self._last: dict[tuple[str, str], bool] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The names of the endpoints."""
        return tuple(self._checks)

    def report(self, endpoint: str, *, verbose: bool = False, excluded: Collection[str] = ()) -> HealthReport:
        """Run the checks of an endpoint but the excluded ones. The text has a line for each if one fails or with
        `verbose`, else it is `ok`.
        """
        checks = self._checks[endpoint]
        lines, healthy = [], True
        for check in checks:
            if check.name in excluded:
                lines.append(f"[+]{check.name} excluded: ok")
                continue
            fault = self._run(endpoint, check)
            healthy = healthy and not fault
            lines.append(f"[-]{check.name} failed: {fault}" if fault else f"[+]{check.name} ok")
        unknown = sorted(set(excluded) - {check.name for check in checks})
        if unknown:
            lines.append(f"warn: some health checks cannot be excluded: no matches for {', '.join(unknown)}")
        if healthy and not verbose:
            return HealthReport(True, "ok")
        lines.append(f"{endpoint} check {'passed' if healthy else 'failed'}")
        return HealthReport(healthy, "\n".join(lines) + "\n")

    def report_one(self, endpoint: str, name: str) -> HealthReport:
        """Run one check of an endpoint; raises `UnknownCheckError` if there is none of that name."""
        for check in self._checks[endpoint]:
            if check.name == name:
                fault = self._run(endpoint, check)
                return HealthReport(not fault, f"{fault}\n" if fault else "ok")
        known = ", ".join(check.name for check in self._checks[endpoint])
        raise UnknownCheckError(f"`{endpoint}` has no check of that name: it has {known}")

    def collect(self) -> Iterator[Metric]:
        """Run all checks and yield the metrics of /metrics/slis."""
        for endpoint, checks in self._checks.items():
            for check in checks:
                self._run(endpoint, check)
        last = sorted(self._last.copy().items())
        yield HEALTHCHECK.of(*(((name, endpoint), int(healthy)) for (endpoint, name), healthy in last))
        yield from self._runs.collect()

    def _run(self, endpoint: str, check: HealthCheck) -> str:
        fault = check.fault()
        self._last[endpoint, check.name] = not fault
        self._runs.add(check.name, endpoint, "error" if fault else "success")
        return fault
