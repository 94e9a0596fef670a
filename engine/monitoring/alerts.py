"""The alerts about servers, as one table: queries for Prometheus, which are also computed of readings here.

`deploy/monitoring` and the console have the same alerts. A rate that is computed here is that of the readings at hand,
without extrapolation to the whole window.
"""

from __future__ import annotations

import enum
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from koordpolicy.engine.agent import metric_table as agent
from koordpolicy.engine.descheduler.live import metric_table as descheduler
from koordpolicy.engine.scheduler.observe import metric_table as table
from koordpolicy.engine.serving.client_metrics import LIMITER_SECONDS
from koordpolicy.engine.serving.instruments import MetricSpec, MetricType

from .exposition import Exposition, Labels, growth, quantile, upper_bound

INSTANCE: Final = "instance"
"""The label with the address of a server."""
_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {"==": operator.eq, ">": operator.gt}
_WINDOWS: Final = {300: "5m", 600: "10m", 3600: "1h"}
STEP_S: Final = 60.0
"""The time between two readings of a server that are stored."""


class Figure(enum.Enum):
    """The figure of a metric that a condition compares."""

    LATEST = enum.auto()
    AGE = enum.auto()
    """Of a metric that is a time: the seconds since then."""
    INCREASE = enum.auto()
    RATE = enum.auto()
    """The increase per second."""
    HIGHEST = enum.auto()
    """The highest of several servers."""
    P99 = enum.auto()
    """Of a histogram: the upper bound of 99 % of the observations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTerm:
    """A condition on the series of a metric."""

    metric: MetricSpec
    figure: Figure = Figure.LATEST
    compare: str = "=="
    bound: float = 0
    window_s: int = 600
    """Of increases, rates and quantiles."""
    by: tuple[str, ...] = ()
    """The labels by which series are added up, or of which the highest is taken; empty to compare each series."""
    where: tuple[tuple[str, str, str], ...] = ()
    """Labels, `!=`, `=` or `=~`, and values; `=~` takes alternatives with `|`."""

    @property
    def query(self) -> str:
        """The condition in PromQL."""
        name, window = self.metric.name, _WINDOWS[self.window_s]
        chosen = ",".join(f'{label}{sign}"{value}"' for label, sign, value in self.where)
        series = f"{name}{{{chosen}}}" if chosen else name
        by = ", ".join(self.by)
        text = {
            Figure.LATEST: series,
            Figure.AGE: f"time() - {series}",
            Figure.INCREASE: f"increase({series}[{window}])",
            Figure.RATE: f"sum by ({by}) (rate({series}[{window}]))",
            Figure.HIGHEST: f"max by ({by}) ({series})",
            Figure.P99: f"histogram_quantile(0.99, sum by (le, {by}) (rate({name}_bucket[{window}])))",
        }[self.figure]
        return f"{text} {self.compare} {self.bound:g}"

    @property
    def sample(self) -> str:
        """The name of the series that are compared."""
        return f"{self.metric.name}_bucket" if self.metric.type is MetricType.HISTOGRAM else self.metric.name


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that should wake somebody up."""

    name: str
    condition: AlertTerm
    seconds: int
    """The time for which the condition must hold."""
    severity: str
    summary: str
    """May name labels, as `{{ $labels.plugin }}`."""

    @property
    def query(self) -> str:
        """The condition in PromQL."""
        return self.condition.query


ALERTS: Final = (
    Alert("KoordPolicyNotReady", AlertTerm(metric=table.READY), 300, "critical",
          "policies and cluster are not loaded, so pods are placed without them or not at all"),
    Alert("KoordPolicyPoliciesNotHealthy", AlertTerm(metric=table.POLICIES_HEALTHY), 600, "warning",
          "an edit of the policies is refused, a volume is gone, or a rollback holds: `koord-policy status`"),
    Alert("KoordPolicyKindStale", AlertTerm(metric=table.KIND_STALE, bound=1), 300, "warning",
          "{{ $labels.kind }} cannot be listed any more: decisions go on with what was known of it"),
    Alert("KoordPolicyClusterStale",
          AlertTerm(metric=table.LAST_REFRESH, figure=Figure.AGE, compare=">", bound=300), 60, "warning",
          "nothing was heard of the cluster for five minutes"),
    Alert("KoordPolicyStuck", AlertTerm(metric=table.DECIDER_STUCK, bound=1), 60, "critical",
          "a decision does not end; `koord-policy status` names what keeps it"),
    Alert("KoordPolicyOverdueDecisions",
          AlertTerm(metric=table.OVERDUE_DECISIONS, figure=Figure.INCREASE, compare=">"), 0, "warning",
          "decisions take too long because of {{ $labels.plugin }}"),
    Alert("KoordPolicyExpressionErrors",
          AlertTerm(metric=table.EXPRESSION_ERRORS, figure=Figure.INCREASE, compare=">"), 600, "warning",
          "expressions of {{ $labels.plugin }} fail at {{ $labels.point }}"),
    Alert("KoordPolicyBindingHangs", AlertTerm(metric=table.OLDEST_BINDING, compare=">", bound=60), 60, "warning",
          "the binding of a pod has been under way for more than a minute"),
    Alert("KoordPolicyNoLeader", AlertTerm(metric=table.LEADER, figure=Figure.HIGHEST, by=("name",)), 60, "critical",
          "no replica holds the Lease {{ $labels.name }}, so no pod is scheduled"),
    Alert("KoordPolicySchedulingErrors",
          AlertTerm(metric=table.SCHEDULE_ATTEMPTS, figure=Figure.RATE, compare=">", bound=0.1, by=("profile",),
                    where=(("result", "=", "error"),)), 600, "warning",
          "attempts of {{ $labels.profile }} end with errors: the log says why"),
    Alert("KoordPolicyLostPods",
          AlertTerm(metric=table.LOST_PODS, figure=Figure.INCREASE, compare=">", window_s=3600), 0, "warning",
          "pods were in no queue and were queued again: please report the log"),
    Alert("KoordPolicyAgentNotReady", AlertTerm(metric=agent.READY), 300, "warning",
          "no strategy runs on the node of {{ $labels.instance }}: its /readyz says why"),
    Alert("KoordPolicyAgentPodsStale", AlertTerm(metric=agent.PODS_AGE, compare=">", bound=150), 60, "warning",
          "{{ $labels.instance }} does not get the pods of its node any more, and evicts none"),
    Alert("KoordPolicyAgentWritesFail",
          AlertTerm(metric=agent.WRITES, figure=Figure.RATE, compare=">", by=(INSTANCE, "status"),
                    where=(("status", "=~", "invalid|not-journaled|suspended|failed"),)), 600, "warning",
          "files of the node of {{ $labels.instance }} cannot be set: its log names them"),
    Alert("KoordPolicyAgentErrors",
          AlertTerm(metric=agent.ERRORS, figure=Figure.INCREASE, compare=">", where=(("reason", "!=", "NoMetric"),)),
          600, "warning", "rounds of {{ $labels.plugin }} fail: {{ $labels.reason }}"),
    Alert("KoordPolicyAgentFailures", AlertTerm(metric=agent.FAILURES, figure=Figure.INCREASE, compare=">"), 0,
          "warning", "{{ $labels.part }} of the agent {{ $labels.instance }} has failed: please report the log"),
    Alert("KoordPolicyDeschedulerCyclesFail",
          AlertTerm(metric=descheduler.CYCLES, figure=Figure.RATE, compare=">", by=(INSTANCE, "result"),
                    where=(("result", "!=", "completed"),)), 600, "warning",
          "cycles of {{ $labels.instance }} are {{ $labels.result }}: its log and /status say why"),
    Alert("KoordPolicyDeschedulerWithoutShard", AlertTerm(metric=descheduler.SHARD_HELD), 900, "warning",
          "{{ $labels.instance }} holds the Lease of no shard: there are more replicas than `--shards`, or its log "
          "says why"),
    Alert("KoordPolicyDeschedulerConfigurationRefused",
          AlertTerm(metric=descheduler.CONFIGURATION_REFUSED, bound=1), 300, "warning",
          "{{ $labels.instance }} goes on with its last good configuration: its /status says why"),
    Alert("KoordPolicyRequestsLimited",
          AlertTerm(metric=LIMITER_SECONDS, figure=Figure.P99, compare=">", bound=1, window_s=300, by=("verb",)), 600,
          "warning", "requests wait for the client's own limit: raise `--kube-api-qps`"),
)

READ: Final = frozenset(alert.condition.sample for alert in ALERTS)
"""The names of the series that alerts read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics of a server at a time of the monotonic clock, in seconds."""

    at: float
    metrics: Exposition


def of_window(readings: Sequence[Reading], now: float, seconds: float) -> list[Reading]:
    """Return the readings of the last seconds; half a step more, as a reading may be late."""
    return [each for each in readings if each.at >= now - seconds - STEP_S / 2]


@dataclass(frozen=True, slots=True)
class RaisedAlert:
    """An alert whose condition holds, for some labels."""

    alert: Alert
    labels: Labels
    since: float
    """When it was first found to hold, on the monotonic clock in seconds."""
    firing: bool

    @property
    def summary(self) -> str:
        """The summary with the values of the labels."""
        labels = dict(self.labels)
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels.get(match[1], ""), self.alert.summary)

    @property
    def instance(self) -> str:
        """The address of the server; empty for an alert about several."""
        return dict(self.labels).get(INSTANCE, "")


@dataclass(slots=True)
class AlertBook:
    """Remembers since when conditions hold."""

    _since: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def look(self, now: float, wall: float, servers: Mapping[str, Sequence[Reading]]) -> tuple[RaisedAlert, ...]:
        """Return the alerts whose conditions hold by the readings of each server, oldest first; firing ones first.

        `now` is on the clock of the readings, `wall` in seconds since the epoch.
        """
        held = {(alert.name, labels): alert for alert in ALERTS
                for labels in holding(alert.condition, now, wall, servers)}
        self._since = {key: self._since.get(key, now) for key in held}
        raised = [RaisedAlert(alert, key[1], self._since[key], now - self._since[key] >= alert.seconds)
                  for key, alert in held.items()]
        return tuple(sorted(raised, key=lambda each: (not each.firing, each.alert.severity, each.alert.name)))


def holding(
    condition: AlertTerm, now: float, wall: float, servers: Mapping[str, Sequence[Reading]],
) -> list[Labels]:
    """Return the labels for which a condition holds."""
    compare = _COMPARISONS[condition.compare]
    return [labels for labels, value in _values(condition, now, wall, servers) if compare(value, condition.bound)]


def _values(
    condition: AlertTerm, now: float, wall: float, servers: Mapping[str, Sequence[Reading]],
) -> Iterator[tuple[Labels, float]]:
    match condition.figure:
        case Figure.LATEST:
            yield from _latest(condition, servers)
        case Figure.AGE:
            for labels, amount in _latest(condition, servers):
                if amount > 0:  # 0 is never: it is not loaded yet
                    yield labels, wall - amount
        case Figure.HIGHEST:
            groups: dict[Labels, float] = {}
            for labels, amount in _latest(condition, servers):
                key = _grouped(labels, condition.by)
                groups[key] = max(groups.get(key, -math.inf), amount)
            yield from groups.items()
        case Figure.INCREASE:
            yield from _grown(condition, now, servers)
        case Figure.RATE:
            yield from _sums(((_grouped(labels, condition.by), amount / condition.window_s)
                              for labels, amount in _grown(condition, now, servers)))
        case Figure.P99:
            histograms: dict[Labels, dict[float, float]] = {}
            for key, amount in _sums(((_grouped(labels, ("le", *condition.by)), amount)
                                      for labels, amount in _grown(condition, now, servers))):
                if (bound := upper_bound(key)) is not None:
                    histograms.setdefault(_grouped(key, condition.by), {})[bound] = amount
            for labels, buckets in histograms.items():
                if (found := quantile(buckets, 0.99)) is not None:
                    yield labels, found


def _sums(items: Iterable[tuple[Labels, float]]) -> Iterable[tuple[Labels, float]]:
    found: dict[Labels, float] = {}
    for labels, amount in items:
        found[labels] = found.get(labels, 0.0) + amount
    return found.items()


def _latest(condition: AlertTerm, servers: Mapping[str, Sequence[Reading]]) -> Iterator[tuple[Labels, float]]:
    for endpoint, readings in servers.items():
        for labels, amount in readings[-1].metrics.of(condition.sample).items() if readings else ():
            if _chosen(labels, condition):
                yield _placed(labels, endpoint), amount


def _grown(
    condition: AlertTerm, now: float, servers: Mapping[str, Sequence[Reading]],
) -> Iterator[tuple[Labels, float]]:
    """Yield the increases of the series in the window."""
    for endpoint, readings in servers.items():
        window = [each.metrics for each in of_window(readings, now, condition.window_s)]
        for labels, amount in growth(window, condition.sample):
            if _chosen(labels, condition):
                yield _placed(labels, endpoint), amount


def _chosen(labels: Labels, condition: AlertTerm) -> bool:
    known = dict(labels)
    for label, sign, value in condition.where:
        has = known.get(label, "")
        if (has in value.split("|") if sign == "=~" else has == value) is (sign == "!="):
            return False
    return True


def _placed(labels: Labels, endpoint: str) -> Labels:
    return tuple(sorted((*(each for each in labels if each[0] != INSTANCE), (INSTANCE, endpoint))))


def _grouped(labels: Labels, by: Sequence[str]) -> Labels:
    return tuple(each for each in labels if each[0] in by)
