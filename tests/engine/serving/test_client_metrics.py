"""Requests to an API server are measured under client-go's names."""

from __future__ import annotations

from koordpolicy.engine.serving.client_metrics import ClientMetrics
from koordpolicy.engine.serving.instruments import MetricsRegistry


def test_answers_are_counted_by_status_and_missing_ones_as_errors():
    registry = MetricsRegistry()
    metrics = ClientMetrics(registry)
    metrics.answered("POST", "api:443", 201, 0.01)
    metrics.answered("POST", "api:443", 0, 0.5)
    metrics.repeated("GET", "api:443", 429)
    metrics.limited("GET", "api:443", 0.2)
    text = registry.text().decode()
    for line in (
        'rest_client_requests_total{code="201",host="api:443",method="POST"} 1.0',
        'rest_client_requests_total{code="<error>",host="api:443",method="POST"} 1.0',
        'rest_client_request_duration_seconds_count{host="api:443",verb="POST"} 2.0',
        'rest_client_request_retries_total{code="429",host="api:443",verb="GET"} 1.0',
        'rest_client_rate_limiter_duration_seconds_bucket{host="api:443",le="0.25",verb="GET"} 1.0',
    ):
        assert line in text
