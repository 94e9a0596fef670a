"""The usage of nodes and pods: requests, measurements of metrics.k8s.io, or samples of a Prometheus query.

Amounts are canonical: cpu in milli-cores, all else in base units, `pods` as their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, resource_list
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.descheduler.pod_columns import PodColumns
from koordpolicy.engine.framework.descheduler import Evictor

from .args import METRIC_RESOURCE

PODS: Final = "pods"
BASIC: Final = ("cpu", "memory", PODS)

Query: TypeAlias = Callable[[str], Mapping[str, float]]
"""Runs a query of Prometheus; returns the samples by node name, each 0 to 1."""


class Usage(Protocol):
    """The usage of nodes and pods."""

    @property
    def names(self) -> tuple[str, ...]:
        """The resources that are measured on all nodes."""
        ...

    def of_nodes(self, snapshot: Snapshot, rows: Sequence[int], evictor: Evictor) -> Mapping[int, dict[str, int]]:
        """Return the usage of each row, without the pods that leave in this cycle.

        Raises:
            ValueError: a node was not measured.
        """
        ...

    def of_pod(self, pod: PodInfo, snapshot: Snapshot) -> Mapping[str, int] | None:
        """Return a pod's usage; None if single pods are not measured at all.

        Raises:
            ValueError: this pod was not measured.
        """
        ...


def capacity_of(snapshot: Snapshot, row: int) -> ResourceList:
    """Return a node's allocatable resources; if it has none, its capacity."""
    allocatable = snapshot.row(row).allocatable
    if allocatable:
        return allocatable
    return resource_list(snapshot.node(row).get("status") or {}, "capacity", "status")


@dataclass(frozen=True, slots=True)
class Requested:
    """The requests of active pods."""

    names: tuple[str, ...]

    def of_nodes(self, snapshot: Snapshot, rows: Sequence[int], evictor: Evictor) -> Mapping[int, dict[str, int]]:
        """Return the sums of requests and the number of pods of each row."""
        amounts = [(snapshot.pod_count if name == PODS else snapshot.requested(name)) for name in self.names]
        leaving = evictor.leaving_pods()
        if leaving:
            pods = PodColumns.of(snapshot)
            places = np.flatnonzero(pods.are_among(leaving))
            amounts = [amount.copy() for amount in amounts]
            for name, amount in zip(self.names, amounts, strict=True):
                of_template = [1 if name == PODS else each.pod.requests[name] for each in pods.templates]
                np.subtract.at(amount, pods.rows[places], np.array(of_template, np.int64)[pods.codes[places]])
        columns = zip(*[amount[list(rows)].tolist() for amount in amounts], strict=True)
        return {row: dict(zip(self.names, of_row, strict=True)) for row, of_row in zip(rows, columns, strict=True)}

    def of_pod(self, pod: PodInfo, snapshot: Snapshot) -> Mapping[str, int]:
        """Return a pod's requests."""
        return pod.requests


@dataclass(frozen=True, slots=True)
class Measured:
    """The NodeMetrics and PodMetrics of metrics.k8s.io, if the cluster source contains them."""

    names: tuple[str, ...]

    def of_nodes(self, snapshot: Snapshot, rows: Sequence[int], evictor: Evictor) -> Mapping[int, dict[str, int]]:
        """Return the measured usage and the number of pods of each row."""
        metrics = snapshot.objects("NodeMetrics")
        if not metrics:
            raise ValueError("error initializing usage client: metrics client not initialized")
        found = {}
        for row in rows:
            name = snapshot.names[row]
            if name not in metrics:
                raise ValueError(f'error getting node usage: unable to find node "{name}" in the collected metrics')
            used = resource_list(metrics[name], "usage", "usage")
            used[PODS] = sum(not evictor.is_leaving(pod) for pod in snapshot.pods(row))
            for resource in self.names:
                if resource not in used:
                    raise ValueError(
                        f'error getting node usage: unable to find "{resource}" resource for collected "{name}" node '
                        "metric",
                    )
            found[row] = {resource: used[resource] for resource in self.names}
        return found

    def of_pod(self, pod: PodInfo, snapshot: Snapshot) -> Mapping[str, int]:
        """Return the measured usage of a pod's containers."""
        metrics = snapshot.object("PodMetrics", pod.key)
        if metrics is None:
            raise ValueError(f"there are no PodMetrics of {pod.key}")
        total = ResourceList()
        for container in metrics.get("containers") or ():
            used = resource_list(container, "usage", "containers[].usage")
            for name in self.names:
                if name != PODS and name not in used:
                    raise ValueError(f"container `{container.get('name')}` of {pod.key} has no measured {name}")
                total[name] += used[name]
        return total


@dataclass(frozen=True, slots=True)
class Sampled:
    """The samples of a Prometheus query, in percent; single pods are not measured."""

    query: str
    run: Query | None
    names: tuple[str, ...] = (METRIC_RESOURCE,)

    def of_nodes(self, snapshot: Snapshot, rows: Sequence[int], evictor: Evictor) -> Mapping[int, dict[str, int]]:
        """Return the sample of each row in percent, truncated."""
        if self.run is None:
            raise ValueError("error initializing usage client: prometheus client not initialized: name the server with "
                             "`metricsUtilization.prometheus.url`, or in `metricsProviders` of a DeschedulerPolicy")
        found: dict[str, int] = {}
        for name, value in self.run(self.query).items():
            if not 0 <= value <= 1:
                raise ValueError(
                    f'error getting node usage: the collected metrics sample for "{name}" has value {value:g} '
                    "outside of <0; 1> interval",
                )
            found[name] = int(value * 100)
        for row in rows:
            if snapshot.names[row] not in found:
                raise ValueError(f"error getting node usage: unable to find metric entry for {snapshot.names[row]}")
        return {row: {METRIC_RESOURCE: found[snapshot.names[row]]} for row in rows}

    def of_pod(self, pod: PodInfo, snapshot: Snapshot) -> Mapping[str, int] | None:
        """Return None: the query measures nodes."""
        return None


def reads_of(args: Mapping[str, Any]) -> tuple[Read, ...]:
    """Return the kinds of metrics.k8s.io, if the arguments name it as the source of usage; else none."""
    metrics = args.get("metricsUtilization") or {}
    if not metrics or metrics.get("source") == "Prometheus":
        return ()
    return Read("NodeMetrics"), Read("PodMetrics")


def source_of(args: Mapping[str, Any], names: tuple[str, ...], run: Query | None) -> Usage:
    """Return the source of usage that valid arguments name; `names` are the resources of their thresholds."""
    metrics = args.get("metricsUtilization") or {}
    if metrics.get("source") == "Prometheus":
        prometheus = metrics["prometheus"]
        if run is None and prometheus.get("url"):
            from .prometheus import PrometheusServer  # noqa: PLC0415 - TLS and HTTP, which few configurations need

            run = PrometheusServer(prometheus["url"], prometheus.get("tokenFile") or "")
        return Sampled(prometheus["query"], run)
    extended = tuple(dict.fromkeys((*names, *BASIC)))
    return Measured(extended) if metrics else Requested(extended)
