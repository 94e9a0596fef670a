"""The public test kit for Python plugins, documented in docs/plugins.md."""

from koordpolicy.engine.testing.agent import FakeExecutor, FakeMetricCache, FakePodEvictor, strategy_context
from koordpolicy.engine.testing.cacheable import assert_cacheable
from koordpolicy.engine.testing.kit import (
    NOW,
    SECOND,
    FakeClient,
    FakeClock,
    FakeEvictor,
    FakeFramework,
    FakeNominator,
    FakeQueue,
    FakeReadings,
    FakeWaiting,
    assert_placed,
    assert_refused,
    assert_scored,
    node,
    node_metric,
    pod,
    schedule,
)
from koordpolicy.engine.testing.states import FakeStates

__all__ = [
    "NOW",
    "SECOND",
    "FakeClient",
    "FakeClock",
    "FakeEvictor",
    "FakeExecutor",
    "FakeFramework",
    "FakeMetricCache",
    "FakeNominator",
    "FakePodEvictor",
    "FakeQueue",
    "FakeReadings",
    "FakeStates",
    "FakeWaiting",
    "assert_cacheable",
    "assert_placed",
    "assert_refused",
    "assert_scored",
    "node",
    "node_metric",
    "pod",
    "schedule",
    "strategy_context",
]
