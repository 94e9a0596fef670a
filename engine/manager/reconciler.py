"""The reconciliation of one node: its NodeSLO, its NodeMetric, and its batch and mid resources.

The desired objects are computed and compared with the known ones; only differences are written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from koordpolicy.engine.client.patches import merge_patch
from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.slo import defaults
from koordpolicy.engine.slo.colocation import ColocationConfig, strategy_faults
from koordpolicy.engine.slo.config_map import NODE_SLO_KEYS, SloConfig

from .node_resources import batch_resources, is_stale, measurements, mid_resources, zone_measurements
from .node_status import origin_patch, published_resources, status_patch, zone_capacities, zones_with
from .objects import ManagedObjects

_LOG: Final = logging.getLogger(__name__)

HASH_ANNOTATION: Final = "policy.koordinator.sh/slo-config-hash"
"""On a NodeSLO: the hash of the spec that was applied last."""
_SECTIONS: Final = tuple(key.section for key in NODE_SLO_KEYS)
_OVER: Final = frozenset({WriteStatus.GONE, WriteStatus.REPLACED})
"""Results after which nothing is left to do: the watch brings the news."""


class WriteRefused(OSError):
    """A write failed, and is tried again later."""


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """Counters of a reconciler since its start, for other threads."""

    reconciled: int = 0
    written: int = 0
    failed: int = 0
    degraded: int = 0
    """Nodes without usable measurements at their last reconciliation, of those with colocation."""


class NodeReconciler:
    """Reconciles nodes by name. Belongs to the event loop of its writer."""

    def __init__(
        self, objects: ManagedObjects, writer: ClusterWriter, *, now: Callable[[], int],
        may_write: Callable[[], bool] = lambda: True, parity: bool = False,
        clock: Callable[[], float] = time.monotonic, jitter: Callable[[], float] = random.random,  # noqa: S311 - it spreads writes
    ) -> None:
        """`now` returns nanoseconds since the epoch; before each write `may_write` is called.

        `parity`: as Koordinator, see `batch_resources`.
        """
        self.slo = SloConfig()
        self.colocation = ColocationConfig()
        self.figures = NodeFigures()
        self._objects = objects
        self._writer = writer
        self._now = now
        self._may_write = may_write
        self._parity = parity
        self._clock = clock
        self._jitter = jitter
        self._started = clock()
        self._resources_at: dict[str, float] = {}
        """The time of the last write of the resources, by node."""
        self._specs: dict[tuple[str, str], tuple[str, object]] = {}
        """The hash of the spec and the resourceVersion that a write led to, by kind and name.

        A server that stores another spec than the written one is not written to again and again.
        """
        self._degraded: set[str] = set()
        self._faults = RepeatedFaults()

    def configure(self, data: Mapping[str, str] | None, *, deleted: bool = False) -> bool:
        """Take the data of the ConfigMap, None without one; return whether any node may have to be reconciled.

        The deletion of the ConfigMap leaves NodeSLOs as they are.
        """
        slo = self.slo if deleted else self.slo.updated(data)
        colocation = self.colocation.updated(data)
        changed = slo.configs != self.slo.configs or colocation.changed or not self.colocation.available
        self.slo, self.colocation = slo, colocation
        return changed

    async def reconcile(self, name: str) -> None:
        """Write the differences for a node, or delete the objects of one that does not exist any more.

        Raises:
            WriteRefused: a write failed.
        """
        node = self._objects.object("Node", name)
        self.figures = replace(self.figures, reconciled=self.figures.reconciled + 1)
        if node is None:
            for kind in ("NodeSLO", "NodeMetric"):
                await self._delete(kind, name)
            for key in (name, _zones_of(name)):
                self._resources_at.pop(key, None)
            self._degraded.discard(name)
            return
        await self._node_slo(name, node)
        await self._node_metric(name, node)
        await self._node_resources(name, node)

    # NodeSLO and NodeMetric

    async def _node_slo(self, name: str, node: Mapping[str, Any]) -> None:
        desired = self.slo.node_spec(node)
        known = self._objects.object("NodeSLO", name)
        spec = (known or {}).get("spec") or {}
        own = {section: spec[section] for section in _SECTIONS if section in spec}
        await self._spec("NodeSLO", name, own, desired, {HASH_ANNOTATION: spec_hash(desired)})

    async def _node_metric(self, name: str, node: Mapping[str, Any]) -> None:
        if not self.colocation.available:
            return
        known = self._objects.object("NodeMetric", name)
        if known is not None and self.colocation.error:
            return  # the spec stays while the configuration cannot be used
        desired = {"metricCollectPolicy": collect_policy(self.colocation.of_node(node))}
        spec = (known or {}).get("spec") or {}
        own = {key: spec[key] for key in desired if key in spec}
        await self._spec("NodeMetric", name, own, desired, {})

    async def _spec(
        self, kind: str, name: str, own: Mapping[str, Any], desired: dict[str, Any], annotations: dict[str, str],
    ) -> None:
        """Write the spec of an object where it differs; `own` is the part of the known one that this manager owns."""
        known = self._objects.object(kind, name)
        resource, identity = BY_KIND[kind], (kind, name)
        mark = spec_hash(desired)
        if known is None:
            item = {"metadata": {"name": name, "annotations": annotations}, "spec": desired}
            result = await self._write(lambda: self._writer.create(resource, item), f"create {kind} {name}")
        else:
            metadata = known.get("metadata") or {}
            if own == desired or self._specs.get(identity) == (mark, metadata.get("resourceVersion")):
                return
            patch: dict[str, Any] = {"spec": merge_patch(own, desired)}
            if annotations:
                patch["metadata"] = {"annotations": annotations}
            reference = ObjectReference(resource, "", name, str(metadata.get("uid") or ""))
            result = await self._write(lambda: self._writer.merge_patch(reference, patch), f"change {kind} {name}")
        if result.answer:
            self._objects.put(kind, name, result.answer)
            stored = self._objects.object(kind, name) or {}
            self._specs[identity] = mark, (stored.get("metadata") or {}).get("resourceVersion")

    async def _delete(self, kind: str, name: str) -> None:
        known = self._objects.object(kind, name)
        self._specs.pop((kind, name), None)
        if known is not None:
            reference = ObjectReference(BY_KIND[kind], "", name, str((known.get("metadata") or {}).get("uid") or ""))
            await self._write(lambda: self._writer.delete(reference), f"delete {kind} {name}")

    # Resources

    async def _node_resources(self, name: str, node: Mapping[str, Any]) -> None:
        if not self.colocation.available:
            return
        strategy = self.colocation.of_node(node)
        metric = self._objects.object("NodeMetric", name)
        topology = self._objects.object("NodeResourceTopology", name)
        batch = mid = zones = None
        enabled = strategy.get("enable") is True
        degraded = enabled and is_stale(metric, strategy, self._now())
        if enabled and not degraded:
            try:
                measured = measurements(node, metric or {}, self._objects.pods_of(name))
                capacities = zone_capacities(topology)
            except (ValueError, TypeError, AttributeError) as error:
                degraded = True  # amounts of an old measurement would be as wrong as those of a stale report
                if self._faults.is_due(str(error), name):
                    _LOG.warning("node %s: its measurements cannot be read: %s", name, error)
            else:
                batch = batch_resources(measured, strategy, parity=self._parity)
                mid = mid_resources(measured, strategy)
                zones = {number: batch_resources(each, strategy, parity=self._parity)
                         for number, each in zone_measurements(measured, capacities).items()} or None
        (self._degraded.add if degraded else self._degraded.discard)(name)
        self.figures = replace(self.figures, degraded=len(self._degraded))
        await self._publish(name, node, strategy, *published_resources(node, batch, mid))
        if topology is not None:
            await self._publish_zones(name, topology, zones, strategy)

    def _is_due(self, key: str, strategy: Mapping[str, Any]) -> bool:
        """Return whether small differences are written, too: the last write is long ago.

        At the start that is spread over the whole time, so that not all nodes are written at once.
        """
        period = float(strategy.get("updateTimeThresholdSeconds", 300))
        last = self._resources_at.setdefault(key, self._started - period * self._jitter())
        return self._clock() - last > period

    async def _publish(
        self, name: str, node: Mapping[str, Any], strategy: Mapping[str, Any], desired: dict[str, int | None],
        origin: dict[str, int],
    ) -> None:
        threshold = float(strategy.get("resourceDiffThreshold", 0.1))
        patch = status_patch(node, desired, threshold, exact=self._is_due(name, strategy))
        if patch is None:
            return
        reference = ObjectReference(BY_KIND["Node"], "", name, str((node.get("metadata") or {}).get("uid") or ""))
        annotation = origin_patch(node, origin)
        if annotation is not None:
            await self._write(lambda: self._writer.merge_patch(reference, annotation), f"annotate node {name}")
        result = await self._write(
            lambda: self._writer.merge_patch(reference, patch, subresource="status"), f"change the status of {name}")
        self._resources_at[name] = self._clock()
        if result.answer:
            self._objects.put("Node", name, result.answer)

    async def _publish_zones(
        self, name: str, topology: Mapping[str, Any], zones: Mapping[int, Mapping[str, int]] | None,
        strategy: Mapping[str, Any],
    ) -> None:
        key = _zones_of(name)
        threshold = float(strategy.get("resourceDiffThreshold", 0.1))
        desired = zones_with(topology, zones, threshold, exact=self._is_due(key, strategy))
        if desired is None:
            return
        metadata = topology.get("metadata") or {}
        reference = ObjectReference(BY_KIND["NodeResourceTopology"], "", name, str(metadata.get("uid") or ""))
        version = metadata.get("resourceVersion")  # the agent writes zones, too
        result = await self._write(
            lambda: self._writer.merge_patch(reference, {"zones": desired}, resource_version=version),
            f"change the {key}")
        self._resources_at[key] = self._clock()
        if result.answer:
            self._objects.put("NodeResourceTopology", name, result.answer)

    async def _write(self, send: Callable[[], Any], what: str) -> WriteResult:
        if not self._may_write():
            raise WriteRefused("this process does not lead any more")
        result: WriteResult = await send()
        if result.done:
            self.figures = replace(self.figures, written=self.figures.written + 1)
        elif result.status not in _OVER:
            self.figures = replace(self.figures, failed=self.figures.failed + 1)
            raise WriteRefused(f"cannot {what}: {result.message or result.status.value}")
        return result


def _zones_of(node: str) -> str:
    return f"zones of {node}"


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Return a short hash of a spec, the same for equal ones."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def collect_policy(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `metricCollectPolicy` of a NodeMetric for a node's strategy; the default for an invalid one."""
    if any(strategy_faults(strategy)):
        strategy = defaults.colocation()
    policy = strategy.get("metricAggregatePolicy")
    return {
        "aggregateDurationSeconds": strategy.get("metricAggregateDurationSeconds"),
        "reportIntervalSeconds": strategy.get("metricReportIntervalSeconds"),
        **({"nodeAggregatePolicy": policy} if policy else {}),
        "nodeMemoryCollectPolicy": strategy.get("metricMemoryCollectPolicy"),
    }
