"""Metrics of the active policies and of the counters of plugins, for every server of the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.serving.instruments import Metric, MetricSpec, MetricType

from ..profiles.profile import Profile
from . import metric_table as table
from .counters import TOTAL, Counters, evaluations_of

PLUGIN_PREFIX: Final = "koord_policy_plugin_"
"""The prefix of the metrics that plugins count through their handle."""
_KINDS: Final = {
    Framework.SCHEDULER: "SchedulerPlugin", Framework.QOS: "QoSPlugin", Framework.DESCHEDULER: "DeschedulerPlugin",
}


def policies(reloader: Reloader) -> Iterator[Metric]:
    """Yield the metrics of the active policies and their sources."""
    status = reloader.status()
    yield table.RELOADS.of((("success",), status.successes), (("failure",), status.failures))
    yield table.LAST_RELOAD_SUCCESS.value(status.last_success or 0)
    yield table.LAST_RELOAD_FAILURE.value(status.last_failure or 0)
    yield table.POLICIES_HEALTHY.value(int(status.healthy))
    yield table.RELOAD_RUNNING.value(reloader.seconds_at_work)
    yield table.GENERATION.value(status.generation)
    yield table.RESTORED_GENERATION.value(status.restored or 0)
    # Only numbers are referred to between the metrics: a reload would wait for the freeing of what it has replaced.
    active = Counter(each.framework for each in tuple(reloader.registry.plugins.values()) if each.source)
    yield table.ACTIVE_POLICIES.of(*(((kind,), active[framework]) for framework, kind in _KINDS.items()))
    yield table.CONFIG.info({"hash": status.digest})
    yield table.SOURCE.info(*({"path": source.path, "hash": source.digest or ""} for source in status.sources))


def evaluations(profiles: Iterable[Profile]) -> Metric:
    """Return the numbers of evaluations of the active documents' expressions."""
    counts: dict[tuple[str, ...], int] = {}
    for _, plugin, each in evaluations_of(profiles):
        key = plugin, each.point, each.rule
        counts[key] = counts.get(key, 0) + each.evaluated
    return Metric(table.EXPRESSION_EVALUATIONS, counts.items())


def plugin_counters(counters: Counters, rows: Iterable[MetricSpec] = ()) -> Iterator[Metric]:
    """Yield the counters that plugins maintain through their handle, those of a row with its labels as the row."""
    amounts_by_name = dict(counters.read())
    for row in rows:
        found = amounts_by_name.get(row.name.removesuffix(TOTAL), {})
        if all(sorted(row.labels) == [label for label, _ in key] for key in found):
            amounts_by_name.pop(row.name.removesuffix(TOTAL), None)
            yield row.of(*((tuple(dict(key)[label] for label in row.labels), amount) for key, amount in found.items()))
        else:
            yield row.of()
    for name, amounts in amounts_by_name.items():
        labels = sorted({label for key in amounts for label, _ in key})
        spec = MetricSpec(f"{PLUGIN_PREFIX}{name}{TOTAL}", MetricType.COUNTER, "Counted by a plugin", tuple(labels))
        yield spec.of(*((tuple(dict(key).get(label, "") for label in labels), amount)
                        for key, amount in amounts.items()))
