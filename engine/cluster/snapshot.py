"""The cluster as columns: `Cluster`, which one thread owns and changes, and `Snapshot`, the view of one decision.

Objects are added by `Cluster.upsert` and `upsert_all`, which check every declared field (`kubernetes.objects`): all
other code relies on the types.

There is a row per node, sorted by name. Columns are built from the rows at their first read and then refreshed row by
row, so that the cost of a decision depends on the changes and not on the size of the cluster.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.scalar.values import EvaluationError
from koordpolicy.engine.cel.vector.encoding import Absent, KeptPaths, key_of, value_at
from koordpolicy.engine.cel.vector.frame import Codes, Frame, Numbers, Rows
from koordpolicy.engine.kubernetes.objects import check_object, json_kind
from koordpolicy.engine.source import PolicyError, Problem

from .change_log import NO_ROWS, Log
from .events import Event
from .objects.metrics import NANOSECONDS, NodeMetric, Unmeasured, unmeasured
from .objects.node_rows import FREE_DEVICES, NodeRow, allocatable_of, bound_devices, devices_of, model_of
from .objects.pods import NONZERO, DeviceRequest, PodInfo, ResourceList, mapping_at, text_at

__all__ = [
    "Cluster", "DeviceRequest", "Devices", "NodeChange", "NodeFrame", "PodInfo", "ResourceList", "Snapshot",
]

_LOG: Final = logging.getLogger(__name__)
_UNMEASURED: Final = Unmeasured("no metric of the node, or an expired one")
_NO_METRIC: Final = Unmeasured("no metric of the node")
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_OF_NO_NAMESPACE: Final = frozenset({"Node", "NodeMetric", "Device"})
_FOREVER: Final = 2**63 - 1
_NEVER: Final = -(2**62)

_Integers = NDArray[np.int64]
_Booleans = NDArray[np.bool_]
_SCRATCHES = "scratches"
_MOST_SCRATCHES = 16
_NONZERO: Final = {name: place for place, name in enumerate(NONZERO)}
_FORKS: Final = itertools.count(1)
_Cache = dict[object, Any]
_Number = TypeVar("_Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class NodeChange:
    """The changes of an overlay on one node: another node object or NodeMetric, removed pods (by key), added pods.

    `devices` are the minors of an added pod; without them, it gets the first that fit.
    """

    node: Mapping[str, Any] | None = None
    add: Sequence[PodInfo] = ()
    remove: Sequence[str] = ()
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    metric: Mapping[str, Any] | None = None
    """Another NodeMetric object; it is as fresh as the previous one."""


class _Binding(NamedTuple):
    """A pod on a node, and its minors there (empty: those that the row chose)."""

    pod: PodInfo
    devices: tuple[int, ...] = ()


class Devices:
    """The devices (GPUs) of all nodes: `free` and `total` are int64[nodes, D] in thousandths, 0 if there is none.

    `count` is int64[nodes], as is `most`, the largest of `free`; `model` holds per node an index into `models`, whose
    first entry is the empty text.
    """

    __slots__ = ("_view", "count", "free", "model", "models", "most", "total")

    def __init__(self, view: Snapshot, columns: _DeviceColumns) -> None:
        self._view = view
        self.free = columns.free
        self.total = columns.total
        self.count = columns.count
        self.most = columns.most
        self.model = columns.model
        self.models: Sequence[str] = columns.models

    def of(self, row: int) -> list[dict[str, Any]]:
        """Return the devices of one node as expressions see them: `{type, minor, total, free, model}`."""
        return self._view.row(row).devices()


class AmountColumn:
    """A maintained column of amounts, with bounds of all values it ever had, so that they need not be computed."""

    __slots__ = ("high", "low", "values")

    def __init__(self, amounts: Sequence[int]) -> None:
        self.values: _Integers = np.array(amounts, dtype=np.int64)
        self.low = min(amounts, default=0)
        self.high = max(amounts, default=0)

    def write(self, row: int, amount: int) -> None:
        """Rewrite one row."""
        self.values[row] = amount
        if amount > self.high:
            self.high = amount
        elif amount < self.low:
            self.low = amount

    @property
    def numbers(self) -> Numbers:
        """The column for frames."""
        return Numbers(self.values, None, (self.low, self.high))


class _DeviceColumns:
    """The maintained device columns of the cluster; written row by row."""

    def __init__(self, rows: Sequence[NodeRow]) -> None:
        width = max((len(row.total) for row in rows), default=0)
        # Device by device: operations on all nodes run along them.
        self.free: _Integers = np.zeros((len(rows), width), dtype=np.int64, order="F")
        self.total: _Integers = np.zeros((len(rows), width), dtype=np.int64, order="F")
        self.count: _Integers = np.zeros(len(rows), dtype=np.int64)
        self.most: _Integers = np.zeros(len(rows), dtype=np.int64)
        self.facts: dict[str, AmountColumn] = {}
        """The columns of `nodeInfo` of free devices, built at their first read."""
        self.model: NDArray[np.int32] = np.zeros(len(rows), dtype=np.int32)
        self.models: list[str] = [""]
        for index, row in enumerate(rows):
            if row.total:
                self.write(index, row)

    def write(self, index: int, row: NodeRow) -> None:
        """Rewrite one row whose number of devices fits the width."""
        self.free[index, len(row.free):] = 0
        self.write_free(index, row)
        self.total[index, : len(row.total)] = row.total
        self.total[index, len(row.total):] = 0
        self.count[index] = sum(1 for total in row.total if total)
        if row.model not in self.models:
            self.models.append(row.model)
        self.model[index] = self.models.index(row.model)

    def write_free(self, index: int, row: NodeRow) -> None:
        """Rewrite the free devices of one row."""
        free = row.free
        self.free[index, : len(free)] = free
        self.most[index] = max(free, default=0)
        for name, column in self.facts.items():
            column.write(index, FREE_DEVICES[name](row))

    def fact(self, name: str, rows: Sequence[NodeRow]) -> AmountColumn:
        """Return the column of one of `FREE_DEVICES`; `rows` are all of them."""
        column = self.facts.get(name)
        if column is None:
            amount = FREE_DEVICES[name]
            column = self.facts[name] = AmountColumn([amount(row) for row in rows])
        return column

    def copy(self) -> _DeviceColumns:
        """Return an independent copy."""
        twin = _DeviceColumns.__new__(_DeviceColumns)
        twin.free, twin.total, twin.count = self.free.copy(), self.total.copy(), self.count.copy()
        twin.model, twin.models = self.model.copy(), list(self.models)
        twin.most, twin.facts = self.most.copy(), {}
        return twin


class Cluster:
    """The state of the cluster. One thread owns it: changes come between decisions, never during one.

    `metric_expiry_seconds` is the age at which a NodeMetric expires (Koordinator's nodeMetricExpirationSeconds); 0
    means never.

    From `cache_results_from` nodes on, results of plugins that have a cache key are cached between decisions. From
    `following_from` nodes on, all plugins are called for changed nodes only; in a smaller cluster vectorized ones are
    called for all nodes, which is faster than to look up the changes.
    """

    def __init__(
        self, objects: Iterable[Mapping[str, Any]] = (), *, metric_expiry_seconds: int = 180,
        cache_results_from: int = 0, following_from: int = 2048, kinds: frozenset[str] | None = None,
    ) -> None:
        self.kinds = kinds
        """The kinds that the source contains; None where it may contain all."""
        self.metric_expiry = metric_expiry_seconds * NANOSECONDS
        self.cache_results_from = cache_results_from
        self.following_from = following_from
        self.version = 0
        self.rows: list[NodeRow] = []
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.fresh: _Booleans = np.zeros(0, dtype=np.bool_)
        self.cross_version_cache: dict[object, object] = {}
        """The cross-version cache, cleared when rows are added or removed; entries carry the stamp of their refresh."""
        self._objects: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._versions: dict[str, int] = {}
        self._pods: dict[str, PodInfo] = {}
        self._bound: dict[str, _Binding] = {}
        self._metrics: dict[str, NodeMetric] = {}
        self._fresh_from = self._fresh_until = 0
        self._now = 0
        self._listeners: tuple[Callable[[Event], None], ...] = ()
        self._version_cache: tuple[int, _Cache] = (-1, {})
        self._apply: Mapping[str, Callable[[str, Mapping[str, Any]], None]] = {
            "Node": self._upsert_node, "Pod": self._upsert_pod, "NodeMetric": self._upsert_metric,
            "Device": self._upsert_device,
        }
        self._shape_changed()
        problems = self.upsert_all(objects)
        if problems:
            raise PolicyError(problems)

    # Reading

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object by kind and key (`namespace/name`, or `name` of a cluster-scoped one), or None."""
        return self._objects.get(kind, {}).get(key)

    def objects(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all objects of a kind by key."""
        return self._objects.get(kind, {})

    def lacks(self, kind: str) -> bool:
        """Return whether a kind is unknown, because the source does not contain it; an empty kind is known."""
        return self.kinds is not None and kind not in self.kinds and not self._objects.get(kind)

    def version_of(self, kind: str) -> int:
        """Return a number that grows whenever an object of the kind is added, replaced or deleted."""
        return self._versions.get(kind, 0)

    @property
    def pending(self) -> tuple[PodInfo, ...]:
        """The pods without a node that may be scheduled, in order of arrival: by creation time, then by key."""

        def arrival(pod: PodInfo) -> tuple[str, str]:
            return (pod.object.get("metadata") or {}).get("creationTimestamp") or "", pod.key

        waiting = (pod for pod in self._pods.values() if pod.key not in self._bound)
        return tuple(sorted(
            (pod for pod in waiting if not pod.object["metadata"].get("deletionTimestamp")), key=arrival,
        ))

    def pod(self, key: str) -> PodInfo | None:
        """Return a pod that runs, waits or was assumed, or None."""
        binding = self._bound.get(key)
        return self._pods.get(key) if binding is None else binding.pod

    def snapshot(self, now: int = 0) -> Snapshot:
        """Return the snapshot for a decision at `now` (ns since the epoch); it is valid until the cluster changes."""
        self._keep_time(now)
        return Snapshot(self, now)

    @property
    def version_cache(self) -> _Cache:
        """The per-version cache: a new one after every change."""
        version, cache = self._version_cache
        if version != self.version:
            cache = {}
            self._version_cache = self.version, cache
        return cache

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call back after every change from now on, in the thread that makes it.

        An exception of a listener is logged: the change is applied all the same, and reaches the other listeners.
        """
        self._listeners += (listener,)

    # Changes

    def upsert_all(self, objects: Iterable[Mapping[str, Any]]) -> list[Problem]:
        """Add many objects, nodes first; return the problems of those that are invalid.

        Each object is applied as by `upsert`: a malformed one does not affect the others.
        """
        problems: list[Problem] = []
        later: list[Mapping[str, Any]] = []
        nodes: list[Mapping[str, Any]] = []
        for each in objects:
            (nodes if isinstance(each, Mapping) and each.get("kind") == "Node" else later).append(each)
        fresh: dict[str, NodeRow] = {}
        for node in nodes:
            try:
                name = _key_of(node)
                if name in self.index:
                    self.upsert(node)
                else:
                    fresh[name] = self._new_row(node)
                    self._objects.setdefault("Node", {})[name] = node
                    self._object_changed("Node", name)
            except PolicyError as error:
                problems.extend(error.problems)
            except ValueError as error:
                problems.append(_problem(node, error))
            except Exception as error:
                problems.append(_failure(node, error))
        if fresh:
            self._add_rows(fresh.values())
            for name, row in fresh.items():
                self._tell(Event("Node", name, None, row.node))
        for each in later:
            try:
                self.upsert(each)
            except PolicyError as error:
                problems.extend(error.problems)
        return problems

    def upsert(self, item: Mapping[str, Any]) -> None:
        """Add an object or replace it.

        Raises:
            PolicyError: it is malformed; object and field are named, and nothing is applied: the version before it is
                still in the cluster.
        """
        try:
            key = _key_of(item)
        except ValueError as error:
            raise PolicyError([_problem(item, error)]) from None
        kind = item["kind"]
        apply = self._apply.get(kind)
        old, old_pod = self.object(kind, key), self.pod(key) if kind == "Pod" else None
        known, binding = self._pods.get(key), self._bound.get(key)
        try:
            if apply is None:
                check_object(item, kind)
            else:
                apply(key, item)
        except ValueError as error:
            raise PolicyError([_problem(item, error)]) from None
        except Exception as error:
            self._recover(kind, key, old, known, binding)
            raise PolicyError([_failure(item, error)]) from error
        self._objects.setdefault(kind, {})[key] = item
        self._object_changed(kind, key)
        if self._listeners:
            self._tell(Event(kind, key, old, item, old_pod, self.pod(key) if kind == "Pod" else None))

    def delete(self, kind: str, key: str) -> None:
        """Remove an object; one that does not exist is no error."""
        old_pod = self.pod(key) if kind == "Pod" else None
        gone = self._objects.get(kind, {}).pop(key, None)
        if kind == "Pod":
            self._detach(key)
            self._pods.pop(key, None)
        elif kind == "NodeMetric":
            self._metrics.pop(key, None)
            self._set_metric(key, None)
        elif gone is not None and kind == "Device" and key in self.index:
            self._set_devices(self.index[key])
        elif gone is not None and kind == "Node" and key in self.index:
            row = self.rows.pop(self.index[key])
            for held in row.pods.values():  # they count again if the node is added again
                self._bound[held.key] = _Binding(held, row.taken.get(held.key, ()))
            self._shape_changed()
        if gone is not None:
            self._object_changed(kind, key)
        if self._listeners and (gone is not None or old_pod is not None):
            self._tell(Event(kind, key, gone, None, old_pod, None))

    def delete_nodes(self, names: Iterable[str]) -> None:
        """Remove many nodes, numbering the rows again once and not once for each; unknown names are no error."""
        gone = {name: node for name in names if (node := self._objects.get("Node", {}).pop(name, None)) is not None}
        if not gone:
            return
        for name in gone:
            row = self.rows[self.index[name]]
            for held in row.pods.values():  # they count again if the node is added again
                self._bound[held.key] = _Binding(held, row.taken.get(held.key, ()))
        self.rows = [row for row in self.rows if row.name not in gone]
        self._shape_changed()
        for name, node in gone.items():
            self._object_changed("Node", name)
            self._tell(Event("Node", name, node, None, None, None))

    def with_nodes(self, nodes: Iterable[Mapping[str, Any]]) -> tuple[Cluster, Mapping[str, str]]:
        """Return a read-only cluster with these nodes too, and the problems of those that are rejected.

        None of the names may exist. It shares rows and objects with this one, and is valid until this one changes.
        """
        rows: dict[str, NodeRow] = {}
        faults: dict[str, str] = {}
        for node in nodes:
            name = str(node["metadata"]["name"])
            try:
                rows[name] = self._new_row(node)
            except ValueError as error:
                faults[name] = str(error)
        twin = copy.copy(self)
        twin._diverge(rows)  # noqa: SLF001 - of its own class
        return twin, faults

    def _diverge(self, added: Mapping[str, NodeRow]) -> None:
        """Copy all that is written and shared with the original cluster, and add rows."""
        nodes = {**self._objects.get("Node", {}), **{name: row.node for name, row in added.items()}}
        self._objects = {**self._objects, "Node": nodes}
        self._listeners, self._version_cache, self.cross_version_cache = (), (-1, {}), {}
        # Results are compared by version, and no other cluster may have this one's.
        self.version = next(_FORKS) << 40
        self._versions = {**self._versions, "Node": self.version}
        self.rows = list(self.rows)
        self._add_rows(added.values())

    def assume(self, pod: PodInfo, node: str, devices: tuple[int, ...] = ()) -> None:
        """Bind a pod to a node in this view of the cluster; `devices` are the minors that it gets.

        Raises:
            ValueError: there is no such node.
        """
        if node not in self.index:
            raise ValueError(f"no node `{node}`")
        old = self.pod(pod.key) if self._listeners else None
        self._detach(pod.key)
        bound = pod.on(node)
        self._attach(bound, devices)
        if self._listeners:
            self._tell(Event("Pod", pod.key, None if old is None else old.object, pod.object, old, bound, assumed=True))

    def forget(self, pod_key: str) -> None:
        """Undo `assume`: the pod is pending again if its object exists; nothing happens to a pod without a node."""
        binding = self._bound.get(pod_key)
        self._detach(pod_key)
        if binding is not None and self._listeners:
            known = self.pod(pod_key)
            self._tell(Event("Pod", pod_key, binding.pod.object, None if known is None else known.object, binding.pod,
                             known, assumed=True))

    def _tell(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception as error:
                _LOG.error("a change of the %s `%s` could not be followed everywhere: %s", event.kind, event.key,
                           error or type(error).__name__)
                _LOG.debug("where that failed", exc_info=True)

    def _recover(
        self, kind: str, key: str, old: Mapping[str, Any] | None, pod: PodInfo | None, binding: _Binding | None,
    ) -> None:
        """Restore the state before an object whose application failed; all rows are rebuilt."""
        if kind == "Pod":
            for table, before in ((self._pods, pod), (self._bound, binding)):
                table.pop(key, None)
                if before is not None:
                    table[key] = before  # type: ignore[assignment]
        elif old is None:
            self._objects.get(kind, {}).pop(key, None)
            self._metrics.pop(key, None)
        else:
            self._objects[kind][key] = old
            if kind == "NodeMetric":
                self._metrics[key] = NodeMetric.of(old)
        self.rows = []
        self._add_rows([self._new_row(node) for node in self._objects.get("Node", {}).values()])

    # Application of changes to rows, columns and logs

    def _new_row(self, node: Mapping[str, Any]) -> NodeRow:
        allocatable = allocatable_of(node)
        device = self.object("Device", node["metadata"]["name"])
        row = NodeRow(node["metadata"]["name"], node, allocatable)
        row.set_devices(devices_of(allocatable, device), model_of(node, device))
        return row

    def _add_rows(self, added: Iterable[NodeRow]) -> None:
        for row in added:
            row.metric = self._metrics.get(row.name)
            self.rows.append(row)
        self.rows.sort(key=lambda row: row.name)
        waiting: dict[str, list[_Binding]] = {}
        for binding in self._bound.values():
            waiting.setdefault(binding.pod.node_name, []).append(binding)
        for row in self.rows:
            for pod, devices in waiting.get(row.name, ()):
                if pod.key not in row.pods:
                    row.add(pod, devices)
        self._shape_changed()

    def _shape_changed(self) -> None:
        """Reset rows, columns and logs after nodes were added or removed: row numbers have changed."""
        self.version += 1
        version = self.version
        self.names = [row.name for row in self.rows]
        self.index = {name: row for row, name in enumerate(self.names)}
        self.cross_version_cache.clear()
        self.pods_log, self.metric_log, self.clock_log = Log(version), Log(version), Log(version)
        self.devices_log, self.node_log, self.allocatable_log = Log(version), Log(version), Log(version)
        self._path_logs: dict[Path, Log] = {}
        self._object_logs: dict[str, Log] = {}
        self._logs: dict[frozenset[Path], tuple[Log, ...]] = {}
        self._requested: dict[str, AmountColumn] = {}
        self._nonzero: dict[int, AmountColumn] = {}
        self._allocatable: dict[str, AmountColumn] = {}
        self._pod_count = AmountColumn([len(row.pods) for row in self.rows])
        self._devices: _DeviceColumns | None = None
        self.updated: _Integers = np.array([_updated(row.metric) for row in self.rows], dtype=np.int64)
        self.paths = KeptPaths()
        self._fresh_from, self._fresh_until = 1, 0

    def _upsert_node(self, key: str, node: Mapping[str, Any]) -> None:
        index = self.index.get(key)
        if index is None:
            self._add_rows([self._new_row(node)])
            return
        row = self.rows[index]
        old = row.node
        allocatable = allocatable_of(node)
        devices_of(allocatable, self.object("Device", key))
        row.set_node(node)
        self.version += 1
        self.node_log.note(self.version, index)
        for path, log in self._path_logs.items():
            if key_of(value_at(old, path[1:])) != key_of(value_at(node, path[1:])):
                log.note(self.version, index)
        if allocatable != row.allocatable:
            row.allocatable = allocatable
            self.allocatable_log.note(self.version, index)
            for name, column in self._allocatable.items():
                column.write(index, allocatable[name])
        self._set_devices(index)

    def _set_devices(self, index: int) -> None:
        row = self.rows[index]
        device = self.object("Device", row.name)
        if row.set_devices(devices_of(row.allocatable, device), model_of(row.node, device)):
            self.version += 1
            self.devices_log.note(self.version, index)
            self.node_log.note(self.version, index)
            if self._devices is not None:
                if len(row.total) > self._devices.total.shape[1]:
                    self._devices = None
                else:
                    self._devices.write(index, row)

    def _object_changed(self, kind: str, key: str) -> None:
        self._versions[kind] = self._versions.get(kind, 0) + 1
        log = self._object_logs.get(kind)
        if log is not None and key in self.index:
            self.version += 1
            log.note(self.version, self.index[key])

    def _upsert_pod(self, key: str, item: Mapping[str, Any]) -> None:
        pod = PodInfo.of(item)
        binding = self._bound.get(key)
        if (item.get("status") or {}).get("phase") in _FINISHED:
            self._detach(key)
            self._pods.pop(key, None)
            return
        devices: tuple[int, ...] = ()
        if binding is not None and _may_be_one(binding.pod, pod):
            node = binding.pod.node_name
            if pod.node_name == node:
                devices = bound_devices(pod) or self._devices_held(binding)
            elif not pod.node_name:
                # An informer may still report the pod as unbound: an assumed pod stays assumed until forgotten.
                pod, devices = pod.on(node), self._devices_held(binding)
        self._detach(key)
        self._pods[key] = pod
        if pod.node_name:
            self._attach(pod, devices)

    def _devices_held(self, binding: _Binding) -> tuple[int, ...]:
        index = self.index.get(binding.pod.node_name)
        return binding.devices if index is None else self.rows[index].taken.get(binding.pod.key, ())

    def _upsert_metric(self, key: str, item: Mapping[str, Any]) -> None:
        metric = NodeMetric.of(item)
        self._metrics[key] = metric
        self._set_metric(key, metric)

    def _set_metric(self, key: str, metric: NodeMetric | None) -> None:
        index = self.index.get(key)
        if index is not None:
            self.rows[index].metric = metric
            self.updated[index] = _updated(metric)
            self.version += 1
            self.metric_log.note(self.version, index)
            self._fresh_from, self._fresh_until = 1, 0

    def _upsert_device(self, key: str, item: Mapping[str, Any]) -> None:
        check_object(item, "Device")
        devices_of(ResourceList(), item)
        self._objects.setdefault("Device", {})[key] = item
        if key in self.index:
            self._set_devices(self.index[key])

    def _attach(self, pod: PodInfo, devices: tuple[int, ...]) -> None:
        self._bound[pod.key] = _Binding(pod, devices)
        index = self.index.get(pod.node_name)
        if index is None:
            return  # bound to a node that is not known (yet)
        self.rows[index].add(pod, devices)
        self._pods_changed(index, pod)

    def _detach(self, key: str) -> None:
        binding = self._bound.pop(key, None)
        index = self.index.get(binding.pod.node_name) if binding is not None else None
        if index is not None:
            self._pods_changed(index, self.rows[index].remove(key))

    def _pods_changed(self, index: int, pod: PodInfo) -> None:
        self.version += 1
        version = self.version
        self.pods_log.note(version, index)
        row = self.rows[index]
        self._pod_count.write(index, len(row.pods))
        columns = self._requested
        if columns:
            for name in pod.requests:
                column = columns.get(name)
                if column is not None:
                    column.write(index, row.requested[name])
        for place, column in self._nonzero.items():
            column.write(index, row.nonzero[place])
        if pod.gpu is not None and row.free:
            self.devices_log.note(version, index)
            if self._devices is not None:
                self._devices.write_free(index, row)

    def _keep_time(self, now: int) -> None:
        """Update which metrics are fresh at `now`, if that may have changed."""
        if now != self._now:
            self._now = now
            self.version += 1
            self.clock_log.forget(self.version)
        if self._fresh_from <= now < self._fresh_until:
            return
        known = self.updated != _NEVER
        if self.metric_expiry > 0:
            # Koordinator's rule: an age *equal* to the expiry is expired.
            ends = self.updated + self.metric_expiry
            fresh = known & (ends > now)
            self._fresh_until = int(ends[fresh].min(initial=_FOREVER))
            self._fresh_from = int(ends[known & ~fresh].max(initial=-_FOREVER))
        else:
            fresh = known
            self._fresh_from, self._fresh_until = -_FOREVER, _FOREVER
        if len(self.fresh) == len(fresh):
            changed = np.flatnonzero(self.fresh != fresh)
            if len(changed):
                self.version += 1
                for index in changed.tolist():
                    self.metric_log.note(self.version, index)
        self.fresh = fresh

    # Columns, for snapshots

    def requested_amounts(self, name: str) -> AmountColumn:
        """Return the cached column of a resource's requests."""
        column = self._requested.get(name)
        if column is None:
            column = self._requested[name] = AmountColumn([row.requested[name] for row in self.rows])
        return column

    def nonzero_amounts(self, place: int) -> AmountColumn:
        """Return the cached column of the requests of a resource of `NONZERO`, by its place there."""
        column = self._nonzero.get(place)
        if column is None:
            column = self._nonzero[place] = AmountColumn([row.nonzero[place] for row in self.rows])
        return column

    def allocatable_amounts(self, name: str) -> AmountColumn:
        """Return the cached column of an allocatable resource."""
        column = self._allocatable.get(name)
        if column is None:
            column = self._allocatable[name] = AmountColumn([row.allocatable[name] for row in self.rows])
        return column

    @property
    def pod_counts(self) -> AmountColumn:
        """The cached column of the numbers of pods."""
        return self._pod_count

    @property
    def device_columns(self) -> _DeviceColumns:
        """The cached columns of devices."""
        if self._devices is None:
            self._devices = _DeviceColumns(self.rows)
        return self._devices

    def free_devices(self, name: str) -> AmountColumn:
        """Return the cached column of one of `FREE_DEVICES`."""
        return self.device_columns.fact(name, self.rows)

    def logs(self, paths: frozenset[Path]) -> tuple[Log, ...]:
        """Return the change logs of these ROW paths."""
        found = self._logs.get(paths)
        if found is None:
            found = tuple({id(log): log for path in sorted(paths) for log in self._logs_of(path)}.values())
            self._logs[paths] = found
        return found

    def scratch(self, rows: Rows | None) -> _Cache:
        """Return the scratch space of these rows (the very array; None for all) in this version of the cluster."""
        cache = self.version_cache
        scratches: dict[int, tuple[Rows | None, _Cache]] = cache.setdefault(_SCRATCHES, {})
        found = scratches.get(id(rows))
        if found is None:
            if len(scratches) >= _MOST_SCRATCHES:
                scratches.clear()  # each of many sets of rows is read once in one version
            found = scratches[id(rows)] = (rows, {})
        return found[1]

    def stamp(self, paths: frozenset[Path]) -> int:
        """Return a number that grows whenever a row may have changed at one of the ROW paths."""
        cache = self.version_cache
        found: int | None = cache.get(paths)
        if found is None:
            found = cache[paths] = max((log.last for log in self.logs(paths)), default=0)
        return found

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:
        """Return the rows, ascending, that changed at one of the paths since that stamp; None if that is not known.

        Not to be written: it is cached for the next caller.
        """
        cache = self.version_cache
        found: list[Rows] = []
        for log in self.logs(paths):
            if log.last <= since:
                continue
            key = log, since
            rows = cache.get(key, NO_ROWS)
            if rows is NO_ROWS:
                rows = cache[key] = log.since(since)
            if rows is None:
                return None
            found.append(rows)
        if len(found) < 2:
            return found[0] if found else NO_ROWS
        first = found[0]
        # Most logs have the same placements: pods and their devices.
        if all(len(rows) == len(first) and rows.tobytes() == first.tobytes() for rows in found[1:]):
            return first
        return np.unique(np.concatenate(found))

    def _logs_of(self, path: Path) -> tuple[Log, ...]:
        match path:
            case ("node", *_):
                if path not in self._path_logs:
                    self._path_logs[path] = Log(self.version)
                return (self._path_logs[path],)
            case ("objects", kind):  # the objects of a kind that are named like nodes; for plugins, not for expressions
                return (self._object_logs.setdefault(kind, Log(self.version)),)
            case ("allocatable", *_):
                return (self.allocatable_log,)
            case ("requested", *_) | ("nodeInfo", "pods", *_):
                return (self.pods_log,)
            case ("nodeInfo", "measured", *_) | ("usage", *_):
                return (self.metric_log,)
            case ("nodeInfo", "gpuFree" | "gpuFreeDevices", *_) | ("devices", *_):
                return (self.devices_log,)
            case ("nodeInfo", _, *_):
                return (self.node_log,)
            case ("metricAge", *_):
                return self.metric_log, self.clock_log
            case ("nodeMetric", *_):
                return (self.metric_log,)
            case ("estimated", *_):
                return self.metric_log, self.pods_log
            case _:
                return (
                    self.node_log, self.allocatable_log, self.pods_log, self.metric_log, self.devices_log,
                    self.clock_log,
                )


class Snapshot:
    """The view of one decision on the cluster; valid until the cluster changes. Cheap: it copies nothing.

    Rows are nodes sorted by name. Its arrays are read-only. An overlay (see `overlay`) is a
    snapshot too, in which a few rows differ.
    """

    __slots__ = ("_at", "_cluster", "_devices", "_overridden", "_row_caches", "now", "overlay_cache", "version")

    def __init__(self, cluster: Cluster, now: int, overridden: Mapping[int, NodeRow] | None = None) -> None:
        self._cluster = cluster
        self._overridden = overridden or {}
        self._devices: Devices | None = None
        self._at: tuple[Rows | None, int, _Cache] = (None, -1, {})
        self._row_caches: dict[int, _Cache] = {}
        self.now = now
        self.version = cluster.version
        self.overlay_cache: _Cache = {}
        """The cache of this overlay alone."""

    @property
    def size(self) -> int:
        """The number of nodes."""
        return len(self._cluster.rows)

    @property
    def names(self) -> Sequence[str]:
        """The nodes' names, sorted."""
        return self._cluster.names

    @property
    def index(self) -> Mapping[str, int]:
        """Row numbers by node name."""
        return self._cluster.index

    def row(self, row: int) -> NodeRow:
        """Return the row of one node; read-only."""
        return self._overridden.get(row) or self._cluster.rows[row]

    def node(self, row: int) -> Mapping[str, Any]:
        """Return a node object."""
        return self.row(row).node

    def node_info(self, row: int) -> dict[str, Any]:
        """Return the derived facts of a node (name, pods, images, zone, region, measured, gpuFree, ...)."""
        return self.row(row).info(bool(self._cluster.fresh[row]))

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object of the cluster by kind and key, or None."""
        return self._cluster.object(kind, key)

    def objects(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """Return all objects of a kind by key."""
        return self._cluster.objects(kind)

    def version_of(self, kind: str) -> int:
        """Return a number that grows whenever an object of the kind is added, replaced or deleted."""
        return self._cluster.version_of(kind)

    def pods(self, row: int) -> tuple[PodInfo, ...]:
        """Return the pods on a node, in order of arrival."""
        return tuple(self.row(row).pods.values())

    def allocatable(self, resource: str) -> _Integers:
        """Return a resource's allocatable amounts, int64[nodes], 0 where it is absent."""
        column = self._cluster.allocatable_amounts(resource).values
        return self._with_overridden(column, lambda row: row.allocatable[resource])

    def requested(self, resource: str) -> _Integers:
        """Return the sums of the pods' requests, int64[nodes], 0 where nothing is requested."""
        column = self._cluster.requested_amounts(resource).values
        return self._with_overridden(column, lambda row: row.requested[resource])

    def nonzero_requested(self, resource: str) -> _Integers:
        """Return `requested` as scores count it (see `PodInfo.nonzero`): Kubernetes' NonZeroRequested of all nodes."""
        place = _NONZERO.get(resource)
        if place is None:
            return self.requested(resource)
        return self._with_overridden(self._cluster.nonzero_amounts(place).values, lambda row: row.nonzero[place])

    def gathered(self, values: NDArray[_Number], rows: Rows) -> NDArray[_Number]:
        """Return `values[..., rows]` of a cached array, cached itself. Not to be written."""
        if len(rows) == values.shape[-1]:
            return values
        if self._overridden:
            return values[..., rows]  # an overlay's columns are copies of its own
        of, version, scratch = self._at
        if of is not rows or version != self._cluster.version:
            scratch = self._cluster.scratch(rows)
            self._at = rows, self._cluster.version, scratch
        found: tuple[NDArray[_Number], NDArray[_Number]] | None = scratch.get(id(values))
        if found is None:
            found = scratch[id(values)] = (values, values[rows] if values.ndim == 1 else values.take(rows, axis=-1))
        return found[1]

    @property
    def pod_count(self) -> _Integers:
        """The numbers of pods per node, int64[nodes]."""
        return self._with_overridden(self._cluster.pod_counts.values, lambda row: len(row.pods))

    def usage(self, resource: str, statistic: str = "") -> Numbers:
        """Return the measured usage; absent without a metric of the resource, or if the metric expired."""
        path = ("usage", statistic, resource) if statistic else ("usage", resource)
        return self.frame({}).numbers(path) or self._nothing()

    @property
    def metric_age(self) -> Numbers:
        """Seconds since the metric was taken, at `now`; absent if there never was one."""
        return self.frame({}).numbers(("metricAge",)) or self._nothing()

    @property
    def devices(self) -> Devices:
        """The devices of all nodes."""
        if self._devices is None:
            kept = self._cluster.device_columns
            if self._overridden:
                if max(len(row.total) for row in self._overridden.values()) > kept.total.shape[1]:
                    kept = _DeviceColumns([self.row(index) for index in range(self.size)])
                else:
                    kept = kept.copy()
                    for index, row in self._overridden.items():
                        kept.write(index, row)
            self._devices = Devices(self, kept)
        return self._devices

    def overlay(self, changes: Mapping[str, NodeChange]) -> Snapshot:
        """Return an overlay with these overrides; this snapshot and the cluster do not change.

        Raises:
            ValueError: there is no such node, a pod to remove is not on it, or an object is malformed.
        """
        overridden = dict(self._overridden)
        for name, change in changes.items():
            index = self.index.get(name)
            if index is None:
                raise ValueError(f"no node `{name}`")
            row = self.row(index).copy()
            if change.node is not None:
                row.set_node(change.node)
                row.allocatable = allocatable_of(change.node)
                device = self.object("Device", name)
                row.set_devices(devices_of(row.allocatable, device), model_of(row.node, device))
            if change.metric is not None:
                row.metric = NodeMetric.of(change.metric)
            for key in change.remove:
                if key not in row.pods:
                    raise ValueError(f"no pod `{key}` on node `{name}`")
                row.remove(key)
            for pod in change.add:
                if pod.key in row.pods:
                    row.remove(pod.key)
                row.add(pod.on(name), change.devices.get(pod.key, ()))
            overridden[index] = row
        overlay = Snapshot(self._cluster, self.now, overridden)
        overlay._row_caches = {row: cache for row, cache in self._row_caches.items()
                               if overridden[row] is self._overridden[row]}
        return overlay

    def frame(self, values: Mapping[str, Any]) -> NodeFrame:
        """Return the frame of expressions over the nodes; `values` are the CONSTANT and DECISION variables."""
        if values or self._overridden:
            return NodeFrame(self, values)
        cache, key = self._cluster.version_cache, (NodeFrame, self.now)
        found: NodeFrame | None = cache.get(key)
        if found is None:
            found = cache[key] = NodeFrame(self, {})
        return found

    def _with_overridden(self, column: _Integers, value: Callable[[NodeRow], int]) -> _Integers:
        if not self._overridden:
            return column
        copy = column.copy()
        for index, row in self._overridden.items():
            copy[index] = value(row)
        return copy

    def _nothing(self) -> Numbers:
        return Numbers(np.zeros(self.size, dtype=np.int64), np.zeros(self.size, dtype=np.bool_))

    # For frames

    @property
    def cluster(self) -> Cluster:
        """The cluster that this is a view of."""
        return self._cluster

    @property
    def overridden(self) -> Mapping[int, NodeRow]:
        """The overridden rows of an overlay, by number; empty for any other snapshot."""
        return self._overridden

    @property
    def base(self) -> Snapshot:
        """The base of an overlay: a snapshot of the cluster itself; if this is no overlay, this one."""
        return Snapshot(self._cluster, self.now) if self._overridden else self

    def is_overridden(self, row: int) -> bool:
        """Return whether this is an overlay that overrides the row."""
        return row in self._overridden

    def overridden_at(self, paths: frozenset[Path]) -> Rows:
        """Return the overridden rows, ascending, that may differ from the base at one of the ROW paths."""
        found: Rows | None = self.overlay_cache.get(paths)
        if found is None:
            rows, differ = self._cluster.rows, [_DIFFER.get(path[0], _always) for path in paths]
            some = [index for index, row in self._overridden.items() if any(each(row, rows[index]) for each in differ)]
            found = np.array(sorted(some), np.intp)
            self.overlay_cache[paths] = found
        return found

    def cache_of_row(self, row: int) -> _Cache:
        """Return the cache of an overridden row; overlays of this overlay that do not override it again share it."""
        return self._row_caches.setdefault(row, {})

    def pod_changes(self) -> Iterator[tuple[int, PodInfo, int]]:
        """Yield the pods that an overlay adds to or removes from its base: the row, the pod, and 1 or -1."""
        for index, row in self._overridden.items():
            before = self._cluster.rows[index].pods
            for key, pod in row.pods.items():
                if before.get(key) is not pod:
                    yield index, pod, 1
            for key, pod in before.items():
                if row.pods.get(key) is not pod:
                    yield index, pod, -1

    def is_fresh(self, row: int) -> bool:
        """Return whether the node has a metric that counts at `now`."""
        return bool(self._cluster.fresh[row])


def _always(row: NodeRow, base: NodeRow) -> bool:  # noqa: ARG001 - whatever they are
    return True


_DIFFER: Final[Mapping[str, Callable[[NodeRow, NodeRow], bool]]] = {
    "node": lambda row, base: row.node is not base.node,
    "allocatable": lambda row, base: row.allocatable is not base.allocatable,
    "nodeMetric": lambda row, base: row.metric is not base.metric,
    "objects": lambda row, base: False,  # noqa: ARG005 - an overlay overrides no objects of the cluster
}
"""True if an overridden row may differ from the base's at a path of this variable; all others may always."""


def _may_be_one(known: PodInfo, told: PodInfo) -> bool:
    """Return whether two pods of one key may be the same: a controller may reuse a deleted pod's name."""
    return not known.uid or not told.uid or known.uid == told.uid


def _updated(metric: NodeMetric | None) -> int:
    return _NEVER if metric is None or metric.updated is None else metric.updated


def _key_of(item: Mapping[str, Any]) -> str:
    """Return `namespace/name` or `name`; raise ValueError if it is no API object."""
    if not isinstance(item, Mapping):
        raise ValueError(f"an object of the API is needed, not {json_kind(item)}")  # noqa: TRY004 - one complaint
    if not text_at(item, "kind", ""):
        raise ValueError("`kind` is missing")
    metadata = mapping_at(item, "metadata")
    name = text_at(metadata, "name", "metadata")
    if not name:
        raise ValueError("`metadata.name` is missing")
    namespace = text_at(metadata, "namespace", "metadata") or ("default" if item["kind"] == "Pod" else "")
    if "/" in name or "/" in namespace:  # it would be another object's key
        raise ValueError(f"`metadata.{'name' if '/' in name else 'namespace'}` must not hold a `/`")
    if namespace and item["kind"] in _OF_NO_NAMESPACE:
        raise ValueError(f"`metadata.namespace` is `{namespace}`, but a {item['kind']} belongs to no namespace")
    return f"{namespace}/{name}" if namespace else name


def _failure(item: object, error: Exception) -> Problem:
    """Return the problem of an object that passes the checks and fails nevertheless."""
    return _problem(item, f"it cannot be taken in ({type(error).__name__}: {error})")


def _problem(item: object, error: ValueError | str) -> Problem:
    kind, name = "object", ""
    if isinstance(item, Mapping):
        kind = str(item.get("kind") or "object")
        metadata = item.get("metadata")
        if isinstance(metadata, Mapping) and metadata.get("name"):
            namespace = metadata.get("namespace")
            name = f" `{namespace}/{metadata['name']}`" if namespace else f" `{metadata['name']}`"
    return Problem(f"{kind}{name}: {error}", help="this object is left out", code="malformed-object")


class NodeFrame:
    """The input of one decision's expressions over nodes (see `engine.cel.vector.frame.Frame`).

    ROW variables: node, nodeInfo, nodeMetric, allocatable, requested, usage, estimated, metricAge, devices.
    """

    __slots__ = ("_base", "_cluster", "_snapshot", "_values", "decision_cache")

    def __init__(self, snapshot: Snapshot, values: Mapping[str, object]) -> None:
        self._snapshot = snapshot
        self._cluster = snapshot.cluster
        self._values = values
        self.decision_cache: dict[object, object] = {}
        self._base: tuple[Frame, Rows] | None = None
        if snapshot.overridden:
            rows = np.array(sorted(snapshot.overridden), dtype=np.intp)
            self._base = NodeFrame(Snapshot(self._cluster, snapshot.now), values), rows

    @property
    def size(self) -> int:
        """The number of nodes."""
        return self._snapshot.size

    @property
    def base(self) -> tuple[Frame, Rows] | None:
        """For an overlay: the frame of its base, and its overridden rows; else None."""
        return self._base

    def scratch(self, rows: Rows | None) -> dict[object, object]:
        """Return the scratch space of these rows (the very array; None for all); that of an overlay is its own."""
        return {} if self._base is not None else self._cluster.scratch(rows)

    @property
    def cross_version_cache(self) -> dict[object, object]:
        """The cache that outlives versions; an overlay has none."""
        return {} if self._base is not None else self._cluster.cross_version_cache

    def value(self, name: str) -> object:
        """Return a CONSTANT or DECISION variable's value; raise KeyError where it is not given."""
        return self._values[name]

    def row_value(self, name: str, row: int) -> object:
        """Return a ROW variable's value; raise `EvaluationError` where it has none, KeyError for an unknown name."""
        at = self._snapshot.row(row)
        match name:
            case "node":
                return at.node
            case "requested":
                return at.requested
            case "allocatable":
                return at.allocatable
            case "nodeInfo":
                return at.info(self._snapshot.is_fresh(row))
            case "usage":
                return at.metric.usage if at.metric is not None and self._snapshot.is_fresh(row) else _UNMEASURED
            case "estimated":
                return at.estimated() if self._snapshot.is_fresh(row) else _UNMEASURED
            case "nodeMetric":
                return at.metric.object if at.metric is not None else _NO_METRIC
            case "devices":
                return at.devices()
            case "metricAge":
                if at.metric is None or at.metric.updated is None:
                    raise unmeasured(_NO_METRIC.message)
                return (self._snapshot.now - at.metric.updated) // NANOSECONDS
            case _:
                raise KeyError(name)

    def numbers(self, path: Path) -> Numbers | None:
        """Return the numeric column at a path below a ROW variable, or None where it holds no numbers."""
        overlaid = self._base is not None
        match path:
            case ("requested", name):
                if overlaid:
                    return Numbers(self._snapshot.requested(name))
                return self._cluster.requested_amounts(name).numbers
            case ("allocatable", name):
                if overlaid:
                    return Numbers(self._snapshot.allocatable(name))
                return self._cluster.allocatable_amounts(name).numbers
            case ("metricAge",):
                # The clock moves with every decision: all rows change, so they are computed together.
                updated = self._cluster.updated
                ages = (self._snapshot.now - updated) // NANOSECONDS
                return Numbers(ages, updated != _NEVER)
            case ("nodeInfo", "pods"):
                return Numbers(self._snapshot.pod_count) if overlaid else self._cluster.pod_counts.numbers
            case ("nodeInfo", name) if name in FREE_DEVICES and not overlaid:
                return self._cluster.free_devices(name).numbers
            case _:
                pass
        paths = frozenset((path,))
        column = self._cluster.paths.numbers(
            path, self.size, self._kept_reader(path), self.stamp(paths), lambda since: self.changed(paths, since),
        )
        if column is None:
            return None
        if self._base is not None:
            column = column.copy()
            read = self.reader(path)
            for row in self._base[1].tolist():
                column.write(row, read(row))
        return column.numbers

    def codes(self, path: Path) -> Codes:
        """Return the dictionary-encoded column at a path below a ROW variable."""
        paths = frozenset((path,))
        column = self._cluster.paths.codes(
            path, self.size, self._kept_reader(path), self.stamp(paths), lambda since: self.changed(paths, since),
        )
        if self._base is not None:
            column = column.copy()
            read = self.reader(path)
            for row in self._base[1].tolist():
                column.write(row, read(row))
        return column.codes

    def stamp(self, paths: frozenset[Path]) -> int:
        """Return a number that grows whenever a row may have changed at one of the ROW paths."""
        return self._cluster.stamp(paths)

    def changed(self, paths: frozenset[Path], since: int) -> Rows | None:
        """Return the rows that changed at one of the paths since that stamp; None if that is not known any more."""
        return self._cluster.changed(paths, since)

    def _kept_reader(self, path: Path) -> Callable[[int], object]:
        """Return what reads a path of the cluster itself, whatever an overlay says."""
        base = self if self._base is None else self._base[0]
        assert isinstance(base, NodeFrame)
        return base.reader(path)

    def reader(self, path: Path) -> Callable[[int], object]:
        """Return what reads a path of a row, as `encoding.value_at` does."""
        name, keys = path[0], path[1:]

        def read(row: int) -> object:
            try:
                return value_at(self.row_value(name, row), keys)
            except EvaluationError as error:
                return Absent(0, (error.message, error.reason))

        return read
