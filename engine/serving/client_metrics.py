"""Metrics of the API client, with client-go's names."""

from __future__ import annotations

from typing import Final

from .instruments import MetricSpec, MetricsRegistry, MetricType

_SECONDS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_NO_ANSWER: Final = "<error>"

REQUESTS: Final = MetricSpec(
    "rest_client_requests_total", MetricType.COUNTER, f"Requests to the API server by status; `{_NO_ANSWER}` without "
    "an answer", ("code", "method", "host"))
REQUEST_SECONDS: Final = MetricSpec(
    "rest_client_request_duration_seconds", MetricType.HISTOGRAM, "Duration of requests, of watches until they begin",
    ("verb", "host"), _SECONDS)
LIMITER_SECONDS: Final = MetricSpec(
    "rest_client_rate_limiter_duration_seconds", MetricType.HISTOGRAM, "Time for which the client's own limit delayed "
    "requests", ("verb", "host"), _SECONDS)
REQUEST_RETRIES: Final = MetricSpec(
    "rest_client_request_retries_total", MetricType.COUNTER, "Repeats of requests, by the status of the answer before",
    ("code", "verb", "host"))


class ClientMetrics:
    """Measures the requests of transports (implements `RequestObserver`)."""

    def __init__(self, registry: MetricsRegistry) -> None:
        """The metrics are added to the registry."""
        self._requests = registry.counter(REQUESTS)
        self._seconds = registry.histogram(REQUEST_SECONDS)
        self._limited = registry.histogram(LIMITER_SECONDS)
        self._retries = registry.counter(REQUEST_RETRIES)

    def limited(self, method: str, host: str, seconds: float) -> None:
        """Measure how long the client's own limit delayed a request."""
        self._limited.observe(seconds, method, host)

    def answered(self, method: str, host: str, code: int, seconds: float) -> None:
        """Measure a request."""
        self._requests.add(_code(code), method, host)
        self._seconds.observe(seconds, method, host)

    def repeated(self, method: str, host: str, code: int) -> None:
        """Count a repeat."""
        self._retries.add(_code(code), method, host)


def _code(code: int) -> str:
    return str(code) if code else _NO_ANSWER
