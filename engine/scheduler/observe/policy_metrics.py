"""Metrics of the active policies and of the counters of plugins, for every server of the scheduler."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.scheduler.documents.evaluations import Evaluations
from koordpolicy.engine.serving.instruments import Metric, MetricSpec, MetricType

from ..profiles.profile import Profile
from . import metric_table as table
from .counters import TOTAL, Counters, evaluations_of

PLUGIN_PREFIX: Final = "koord_policy_plugin_"
"""The prefix of the metrics that plugins count through their handle."""
Expression: TypeAlias = tuple[str, str, str]
"""Plugin, point and rule."""
_MOST_RETIRED: Final = 1000
"""The maximum number of expressions that no document has any more of which the amounts are reported."""
_REFUSING: Final = frozenset(("filter", "preFilter", "preEnqueue"))
_KINDS: Final = {
    Framework.SCHEDULER: "SchedulerPlugin", Framework.QOS: "QoSPlugin", Framework.DESCHEDULER: "DeschedulerPlugin",
}


class _Amounts(NamedTuple):
    """The amounts of an expression."""

    evaluated: int
    refused: int
    failed: int

    def with_(self, more: Evaluations) -> _Amounts:
        """Return the sum with the present amounts of a plugin."""
        return _Amounts(self.evaluated + more.evaluated, self.refused + more.refused, self.failed + more.failed)


_NOTHING: Final = _Amounts(0, 0, 0)


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


class ExpressionTotals:
    """The numbers of evaluations, refusals and failures of documents' expressions since the start, over generations.

    Each plugin counts from 0. When its counters are missed for the first time, their last amounts are added to those
    of earlier plugins. For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counting: dict[int, tuple[Expression, Evaluations]] = {}
        self._before: OrderedDict[Expression, _Amounts] = OrderedDict()

    def read(self, profiles: Iterable[Profile]) -> dict[Expression, _Amounts]:
        """Return the amounts by plugin, point and rule, of the active documents and of those before."""
        with self._lock:
            counting = {id(each): ((plugin, each.point, each.rule), each)
                        for _, plugin, each in evaluations_of(profiles)}
            for identity, (key, each) in self._counting.items():
                if identity not in counting:
                    self._before[key] = self._before.get(key, _NOTHING).with_(each)
                    self._before.move_to_end(key)
            self._counting = counting
            active = {key for key, _ in counting.values()}
            for key in [key for key in self._before if key not in active][:-_MOST_RETIRED]:
                del self._before[key]
            found = dict(self._before)
            for key, each in counting.values():
                found[key] = found.get(key, _NOTHING).with_(each)
            return found

    def collect(self, profiles: Iterable[Profile]) -> Iterator[Metric]:
        """Yield the metrics of evaluations and of refusals."""
        found = self.read(profiles)
        yield Metric(table.EXPRESSION_EVALUATIONS, [(key, each.evaluated) for key, each in found.items()])
        yield Metric(table.RULE_REFUSALS, [(key, each.refused) for key, each in found.items() if key[1] in _REFUSING])


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
