"""The metrics of the extender."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from koordpolicy.engine.serving.daemons import Daemons
from koordpolicy.engine.serving.instruments import Metric, MetricsRegistry

from ..observe import metric_table as table
from ..observe.policy_metrics import ExpressionTotals, plugin_counters, policies
from .bindings import bindings_under_way
from .decision_record import DecisionRecord, Verb
from .loaded_extender import Loaded
from .protocol import Extender
from .shadow import ShadowResult
from .watchdog import Watchdog


class Metrics:
    """The Prometheus metrics of one extender, in their own registry."""

    def __init__(self) -> None:
        self.registry = MetricsRegistry()
        self.loaded: Loaded | None = None
        self._decisions = self.registry.counter(table.DECISIONS)
        self._seconds = self.registry.histogram(table.DECISION_SECONDS)
        self._refusals = self.registry.counter(table.REFUSALS)
        self._reported = self.registry.counter(table.UNENFORCED_REFUSALS)
        self._errors = self.registry.counter(table.EXPRESSION_ERRORS)
        self._unknown = self.registry.counter(table.UNKNOWN_NODES)
        self._refreshes = self.registry.counter(table.CLUSTER_REFRESHES)
        self._overdue = self.registry.counter(table.OVERDUE_DECISIONS)
        self._expressions = ExpressionTotals()
        self.watchdog: Watchdog | None = None
        self.binder: Daemons | None = None
        """The threads of /bind."""
        self.registry.add(self)

    def overdue(self, plugin: str, point: str) -> None:
        """Count an overdue decision; unknown labels are empty."""
        self._overdue.add(plugin, point)

    def refreshed(self, result: str) -> None:
        """Count a listing: `success`, `partial` (a kind that was known could not be listed) or `failure`."""
        self._refreshes.add(result)

    def observe(self, record: DecisionRecord, seconds: float) -> None:
        """Count a decision."""
        verb = record.verb.value
        self._decisions.add(verb, record.result)
        self._seconds.observe(seconds, verb)
        self._unknown.add(amount=record.unknown)
        for plugin, count in record.refused_by.items():
            self._refusals.add(plugin, amount=count)
        for plugin, enforcement, count in record.unenforced:
            self._reported.add(plugin, enforcement.value, amount=count)
        for (plugin, point, rule), count in record.errors.items():
            self._errors.add(plugin, point.value, rule, amount=count)

    def bound(self, result: str) -> None:
        """Count a call of /bind by its result."""
        self._decisions.add("bind", result)

    def malformed(self, verb: Verb) -> None:
        """Count a call with a malformed body."""
        self._decisions.add(verb.value, "malformed")

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are collected on each scrape."""
        loaded = self.loaded
        overdue = self.watchdog.look() if self.watchdog is not None else None
        ready = loaded is not None and overdue is None and not loaded.reloader.status().emptied
        yield table.READY.value(int(ready))
        yield table.DECIDER_STUCK.value(int(overdue is not None))
        if loaded is None:
            return
        extender = loaded.extender
        yield from policies(loaded.reloader)
        yield from _compared(extender)
        yield from self._expressions.collect(extender.scheduler.profiles)
        yield from _known(loaded)
        yield table.NODES.value(len(extender.cluster.names))
        yield table.PINNED_PODS.value(extender.pins)
        yield table.ASSUMED_PODS.value(len(extender.placements))
        bindings = bindings_under_way(extender, self.binder)
        yield table.BINDING_PODS.value(bindings.pods)
        yield table.OLDEST_BINDING.value(bindings.oldest_seconds)
        yield table.ASSUMED_PODS_DROPPED.of(
            *(((reason,), count) for reason, count in sorted(extender.placements.dropped.copy().items())))
        yield from plugin_counters(loaded.counters)


def _compared(extender: Extender) -> Iterable[Metric]:
    yield table.AUDIT_DECISIONS.of(*(
        ((plugin, how.value, verb, result.value), tally.count(result))
        for plugin, verb, how, tally in extender.audits.read() for result in (ShadowResult.SAME, ShadowResult.DIFFERS)))
    shadow = extender.shadow
    if shadow is None:
        return
    yield table.SHADOW_DECISIONS.of(
        *(((verb, result.value), count) for (verb, result), count in shadow.totals.copy().items()))
    yield table.SHADOW_SECONDS.value(shadow.seconds)
    yield table.SHADOW_READY.value(int(shadow.ready))
    yield table.SHADOW_CONFIG.info({"hash": shadow.agreement.shadow})


def _known(loaded: Loaded) -> Iterable[Metric]:
    """Yield the metrics of the views of a cluster that is watched."""
    if loaded.watched is None:
        return
    views = loaded.watched.views
    yield table.LAST_REFRESH.value(min((view.listed for view in views.values() if view.listed), default=0))
    yield table.LAST_KIND_REFRESH.of(*(((kind,), view.listed) for kind, view in views.items()))
    yield table.KIND_STALE.of(*(((kind,), int(view.stale)) for kind, view in views.items()))
    yield table.CACHE_MISMATCH.of(*loaded.watched.mismatches.items())
