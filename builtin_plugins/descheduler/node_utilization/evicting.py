"""Evictions of both utilization plugins: pods leave sources while all destinations together have room."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.pod_columns import PodColumns
from koordpolicy.engine.descheduler.pods import priority_order
from koordpolicy.engine.descheduler.templates import PodTemplate, template_of
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.kubernetes.selectors import tolerates

from .nodes import Utilization
from .usage import PODS, Usage

_RANK: Final = operator.itemgetter(0)


@dataclass(frozen=True, slots=True)
class Relief:
    """The evictions of one run of a plugin."""

    snapshot: Snapshot
    evictor: Evictor
    usage: Usage
    excluded: Collection[str]
    """Namespaces whose pods stay."""
    rule: str
    """The argument that chooses the sources."""
    is_removable: Callable[[PodInfo], bool] = lambda _: True
    per_node: int | None = None
    """The most evictions from one node; None for no limit."""

    def drain(
        self, sources: Sequence[Utilization], destinations: Sequence[Utilization], thresholds: Mapping[str, float],
        is_enough: Callable[[Utilization], bool],
    ) -> None:
        """Evict pods of the sources in order, until one `is_enough`, or a resource of all destinations is used up.

        A destination has room up to the percentages of `thresholds`.
        """
        available = dict.fromkeys(self.usage.names, 0)
        for node in destinations:
            for name, cap in node.caps(thresholds, available).items():
                available[name] += cap - node.usage[name]
        tolerance = _Tolerance(destinations)
        for source, removable in self._removable(sources):
            if removable and not self._drain(source, removable, available, tolerance, is_enough):
                return

    def _removable(self, sources: Sequence[Utilization]) -> Iterator[tuple[Utilization, list[PodInfo]]]:
        """Yield the sources with their pods that may be evicted, in the order of eviction.

        Filters are called, when a source is reached, only for pods that may differ from others of their template.
        """
        columns, filtered = PodColumns.of(self.snapshot), self.evictor.filter
        starts = np.searchsorted(columns.rows, np.arange(self.snapshot.size + 1))
        passes, ranks = self._of_templates(columns)
        leaving = self.evictor.leaving_pods()
        stays = ~columns.are_among(leaving) if leaving else np.ones(len(columns.pods), np.bool_)
        for source in sources:
            first, end = starts[source.row : source.row + 2].tolist()
            places = np.arange(first, end)[stays[first:end]]
            codes = columns.codes[places]
            found = [
                (rank, pod) for pod, rank, does_pass in zip(
                    columns.listed(places), ranks[codes].tolist(), passes[codes].tolist(), strict=True)
                if (does_pass or filtered(pod) is None) and self.is_removable(pod)
            ]
            found.sort(key=_RANK)
            yield source, [pod for _, pod in found]

    def _of_templates(self, columns: PodColumns) -> tuple[NDArray[np.bool_], NDArray[np.intp]]:
        """Return whether no filter refuses any pod of a template, and its place in the order of eviction, by code."""
        templates = columns.templates
        orders = [priority_order(each.pod) for each in templates]
        places = {order: place for place, order in enumerate(sorted(set(orders)))}
        return (np.array([self.evictor.passes_template(each.pod, now=False) for each in templates], np.bool_),
                np.array([places[order] for order in orders], np.intp))

    def _drain(
        self, source: Utilization, pods: Sequence[PodInfo], available: dict[str, int],
        tolerance: _Tolerance, is_enough: Callable[[Utilization], bool],
    ) -> bool:
        """Evict pods of one source; return whether pods of other sources may be evicted."""
        evicted, stop = 0, self._stop(source, available, is_enough)
        reason = f"node `{source.name}`: {source.text()}"
        for place, pod in enumerate(pods):
            if not stop and self.per_node is not None and evicted >= self.per_node:
                stop = f"at most {counted(self.per_node, 'pod')} of one node"
            if stop:
                refusal = Refusal(self.rule, stop)
                self.evictor.keep_all(pods[place:], refusal, rule=self.rule)
                return True
            if not tolerance.of(pod):
                self._keep(pod, "taints", "it does not tolerate the taints of a node that could take it")
                continue
            if self.evictor.pre_eviction_filter(pod) is not None:
                continue
            if pod.namespace in self.excluded:
                self._keep(pod, "evictableNamespaces", f"namespace `{pod.namespace}` is not evictable")
                continue
            try:
                used = self.usage.of_pod(pod, self.snapshot)
            except ValueError as error:
                self._keep(pod, "metricsUtilization", str(error))
                continue
            if not self.evictor.evict(pod, reason, rule=self.rule):
                if self.evictor.total_limit_exceeded():
                    return False
                continue
            evicted += 1
            if used is None:
                if self.per_node is None:
                    # Nobody knows how much the node is relieved, so one pod per run has to do.
                    return True
                continue
            for name in available:
                amount = 1 if name == PODS else used.get(name, 0)
                available[name] -= amount
                source.usage[name] -= amount
            stop = self._stop(source, available, is_enough)
        return True

    def _stop(
        self, source: Utilization, available: Mapping[str, int], is_enough: Callable[[Utilization], bool],
    ) -> str:
        if is_enough(source):
            return f"node `{source.name}` is not above its thresholds any more"
        if min(available.values(), default=1) > 0:
            return ""
        short = next(name for name, amount in available.items() if amount <= 0)
        return f"no room for more {short} on the nodes that could take it"

    def _keep(self, pod: PodInfo, rule: str, message: str) -> None:
        self.evictor.keep(pod, Refusal(rule, message), rule=self.rule)


class _Tolerance:
    """Finds whether pods tolerate all taints of one destination, once per template."""

    def __init__(self, destinations: Sequence[Utilization]) -> None:
        taints = ((node.node.get("spec") or {}).get("taints") or () for node in destinations)
        self._taints = list({repr(each): each for each in taints}.values())
        self._known: dict[PodTemplate, bool] = {}

    def of(self, pod: PodInfo) -> bool:
        template = template_of(pod)
        found = self._known.get(template)
        if found is None:
            found = self._known[template] = any(_tolerates_all(pod, each) for each in self._taints)
        return found


def _tolerates_all(pod: PodInfo, taints: Sequence[Any]) -> bool:
    """Return whether the pod tolerates all taints, of any effect, with at least as many tolerations as taints.

    Kubernetes' descheduler compares the numbers, so that one toleration of everything does not cover two taints.
    """
    if not taints:
        return True
    tolerations = pod.object["spec"].get("tolerations") or ()
    return len(tolerations) >= len(taints) and all(
        any(tolerates(each, taint) for each in tolerations) for taint in taints
    )
