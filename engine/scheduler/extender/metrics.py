"""The metrics of the extender."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from koordpolicy.engine.framework.points import Framework

from ..observe.counters import evaluations_of
from .bindings import bindings_under_way
from .daemons import Daemons
from .loaded import Loaded
from .protocol import DecisionRecord, Extender, Verb
from .shadow import ShadowResult
from .watchdog import Watchdog

_BUCKETS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_KINDS: Final = {
    Framework.SCHEDULER: "SchedulerPlugin", Framework.QOS: "QoSPlugin", Framework.DESCHEDULER: "DeschedulerPlugin",
}


class Metrics:
    """The Prometheus metrics of one extender, in their own registry."""

    def __init__(self) -> None:
        # These would add an unused series to each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.loaded: Loaded | None = None
        self._decisions = Counter(
            "koord_policy_decisions", "Calls by verb and result (ok, refused, error, malformed)", ["verb", "result"],
            registry=self.registry)
        self._seconds = Histogram(
            "koord_policy_decision_duration_seconds", "From the body to the answer, in the thread that decides",
            ["verb"], buckets=_BUCKETS, registry=self.registry)
        self._refusals = Counter(
            "koord_policy_refusals", "Nodes that plugins refused", ["plugin"], registry=self.registry)
        self._reported = Counter(
            "koord_policy_unenforced_refusals", "Nodes that plugins with enforcement Warn or Audit would refuse",
            ["plugin", "enforcement"], registry=self.registry)
        self._errors = Counter(
            "koord_policy_expression_errors", "Evaluations that failed, counted by node, and (without a rule) failures "
            "of plugins", ["plugin", "point", "rule"], registry=self.registry)
        self._unknown = Counter(
            "koord_policy_unknown_nodes", "Nodes of requests that the cluster's state does not hold",
            registry=self.registry)
        self._refreshes = Counter(
            "koord_policy_cluster_refreshes", "Listings of the cluster by what came of them", ["result"],
            registry=self.registry)
        self._overdue = Counter(
            "koord_policy_overdue_decisions", "Decisions that took longer than they may, by whose fault that was",
            ["plugin", "point"], registry=self.registry)
        self.watchdog: Watchdog | None = None
        self.binder: Daemons | None = None
        """The threads of /bind."""
        self.registry.register(self)

    def overdue(self, plugin: str, point: str) -> None:
        """Count an overdue decision; unknown labels are empty."""
        self._overdue.labels(plugin, point).inc()

    def refreshed(self, result: str) -> None:
        """Count a listing: `success`, `partial` (a kind that was known could not be listed) or `failure`."""
        self._refreshes.labels(result).inc()

    def observe(self, record: DecisionRecord, seconds: float) -> None:
        """Count a decision."""
        verb = record.verb.value
        self._decisions.labels(verb, record.result).inc()
        self._seconds.labels(verb).observe(seconds)
        self._unknown.inc(record.unknown)
        for plugin, count in record.refused_by.items():
            self._refusals.labels(plugin).inc(count)
        for plugin, enforcement, count in record.unenforced:
            self._reported.labels(plugin, enforcement.value).inc(count)
        for (plugin, point, rule), count in record.errors.items():
            self._errors.labels(plugin, point.value, rule).inc(count)

    def bound(self, result: str) -> None:
        """Count a call of /bind by its result."""
        self._decisions.labels("bind", result).inc()

    def malformed(self, verb: Verb) -> None:
        """Count a call with a malformed body."""
        self._decisions.labels(verb.value, "malformed").inc()

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics that are collected on each scrape."""
        loaded = self.loaded
        overdue = self.watchdog.look() if self.watchdog is not None else None
        ready = loaded is not None and overdue is None and not loaded.reloader.status().emptied
        yield GaugeMetricFamily("koord_policy_ready", "Whether policies and cluster are there and decisions are made",
                                int(ready))
        yield GaugeMetricFamily("koord_policy_decider_stuck", "Whether a decision takes longer than it may",
                                int(overdue is not None))
        if loaded is None:
            return
        status = loaded.reloader.status()
        reloads = CounterMetricFamily("koord_policy_reloads", "Versions of policies by what came of them",
                                      labels=["result"])
        reloads.add_metric(["success"], status.successes)
        reloads.add_metric(["failure"], status.failures)
        yield reloads
        for what, when in (("success", status.last_success), ("failure", status.last_failure)):
            yield GaugeMetricFamily(f"koord_policy_last_reload_{what}_timestamp_seconds",
                                    f"When a version of policies last came to a {what}; 0 for never", when or 0)
        yield GaugeMetricFamily("koord_policy_policies_healthy", "Whether what runs is what the directories hold",
                                int(status.healthy))
        yield GaugeMetricFamily("koord_policy_reload_running_seconds", "For how long a look at the policies has been "
                                "under way; 0 between looks", loaded.reloader.seconds_at_work)
        yield GaugeMetricFamily("koord_policy_generation", "The generation of active policies", status.generation)
        yield GaugeMetricFamily("koord_policy_restored_generation", "The earlier generation that somebody brought "
                                "back; 0 where what runs is what the directories hold", status.restored or 0)
        active = GaugeMetricFamily("koord_policy_active_policies", "Active policies, by kind", labels=["kind"])
        for framework, kind in _KINDS.items():
            plugins = loaded.reloader.registry.plugins.values()
            active.add_metric([kind], sum(each.framework is framework and bool(each.source) for each in plugins))
        yield active
        info = InfoMetricFamily("koord_policy_config", "The hash of the active policies")
        info.add_metric([], {"hash": status.digest})
        yield info
        sources = InfoMetricFamily("koord_policy_source", "The hash of what is active of each directory",
                                   labels=["path"])
        for source in status.sources:
            sources.add_metric([source.path], {"hash": source.digest or ""})
        yield sources
        yield from _compared(loaded.extender)
        yield _evaluations(loaded.extender)
        yield from _known(loaded)
        yield GaugeMetricFamily("koord_policy_nodes", "Nodes in the cluster's state",
                                len(loaded.extender.cluster.names))
        yield GaugeMetricFamily("koord_policy_pinned_pods", "Pods between their two calls", loaded.extender.pins)
        placements = loaded.extender.placements
        yield GaugeMetricFamily("koord_policy_assumed_pods", "Pods whose placement is assumed and that no listing has "
                                "shown there yet", len(placements))
        bindings = bindings_under_way(loaded.extender, self.binder)
        yield GaugeMetricFamily("koord_policy_binding_pods", "Pods whose binding has not returned", bindings.pods)
        yield GaugeMetricFamily("koord_policy_oldest_binding_seconds", "For how long the oldest of these bindings has "
                                "been in progress; 0 without one", bindings.oldest_seconds)
        dropped = CounterMetricFamily("koord_policy_assumed_pods_dropped", "Assumed placements by what ended them",
                                      labels=["reason"])
        for reason, count in sorted(placements.dropped.copy().items()):
            dropped.add_metric([reason], count)
        yield dropped
        for name, amounts in loaded.counters.read().items():
            labels = sorted({label for key in amounts for label, _ in key})
            family = CounterMetricFamily(f"koord_policy_plugin_{name}", "Counted by a plugin", labels=labels)
            for key, amount in amounts.items():
                given = dict(key)
                family.add_metric([given.get(label, "") for label in labels], amount)
            yield family


def _compared(extender: Extender) -> Iterable[Metric]:
    audits = CounterMetricFamily(
        "koord_policy_audit_decisions", "Answers by whether a plugin that only audits or warns would have changed them",
        labels=["plugin", "enforcement", "verb", "result"])
    for plugin, verb, how, tally in extender.audits.read():
        for result in (ShadowResult.SAME, ShadowResult.DIFFERS):
            audits.add_metric([plugin, how.value, verb, result.value], tally.count(result))
    yield audits
    shadow = extender.shadow
    if shadow is None:
        return
    decisions = CounterMetricFamily(
        "koord_policy_shadow_decisions", "Answers by how the shadow's compare with them", labels=["verb", "result"])
    for (verb, result), count in shadow.totals.copy().items():
        decisions.add_metric([verb, result.value], count)
    yield decisions
    yield CounterMetricFamily("koord_policy_shadow_seconds", "What deciding in the shadow took", shadow.seconds)
    yield GaugeMetricFamily("koord_policy_shadow_ready", "Whether a valid set is in the shadow", int(shadow.ready))
    info = InfoMetricFamily("koord_policy_shadow_config", "The hash of the policies in the shadow")
    info.add_metric([], {"hash": shadow.agreement.shadow})
    yield info


def _known(loaded: Loaded) -> Iterable[Metric]:
    """Yield the metrics of the listings of a cluster that is listed periodically."""
    if loaded.refresh is None:
        return
    views = loaded.refresh.listing.views
    yield GaugeMetricFamily("koord_policy_last_cluster_refresh_success_timestamp_seconds",
                            "When each kind was listed that can be: the time of the one that is behind most",
                            min((view.listed for view in views.values() if view.listed), default=0))
    listed = GaugeMetricFamily("koord_policy_last_kind_refresh_success_timestamp_seconds",
                               "When a kind was last listed; 0 for never", labels=["kind"])
    stale = GaugeMetricFamily("koord_policy_kind_stale", "Whether a kind that was listed once cannot be any more",
                              labels=["kind"])
    for kind, view in views.items():
        listed.add_metric([kind], view.listed)
        stale.add_metric([kind], int(view.stale))
    yield listed
    yield stale


def _evaluations(extender: Extender) -> Metric:
    family = CounterMetricFamily(
        "koord_policy_expression_evaluations", "Evaluations of expressions, counted by node",
        labels=["plugin", "point", "rule"])
    counts: dict[tuple[str, str, str], int] = {}
    for _, plugin, each in evaluations_of(extender.scheduler.profiles):
        key = plugin, each.point, each.rule
        counts[key] = counts.get(key, 0) + each.evaluated
    for labels, count in counts.items():
        family.add_metric(list(labels), count)
    return family
