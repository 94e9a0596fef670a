"""`Cluster`: the state of the cluster and its changes, which one thread makes.

Objects are added by `Cluster.upsert` and `upsert_all`, which check every declared field (`kubernetes.objects`): all
other code relies on the types.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from koordpolicy.engine.cel.vector.encoding import key_of, value_at
from koordpolicy.engine.kubernetes.objects import check_object, json_kind
from koordpolicy.engine.source import PolicyError, Problem

from .events import Event
from .objects.metrics import NodeMetric
from .objects.node_rows import NodeRow, allocatable_of, bound_devices, devices_of, model_of
from .objects.pods import PodInfo, ResourceList, mapping_at, text_at
from .snapshot import Snapshot
from .state import ClusterState

__all__ = ["Cluster"]

_LOG: Final = logging.getLogger(__name__)
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_OF_NO_NAMESPACE: Final = frozenset({"Node", "NodeMetric", "Device"})
_FORKS: Final = itertools.count(1)


class _Binding(NamedTuple):
    """A pod on a node, and its minors there (empty: those that the row chose)."""

    pod: PodInfo
    devices: tuple[int, ...] = ()


class Cluster(ClusterState):
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
        super().__init__(metric_expiry_seconds=metric_expiry_seconds, cache_results_from=cache_results_from,
                         following_from=following_from, kinds=kinds)
        self._pods: dict[str, PodInfo] = {}
        self._bound: dict[str, _Binding] = {}
        self._metrics: dict[str, NodeMetric] = {}
        self._listeners: tuple[Callable[[Event], None], ...] = ()
        self._apply = self._applying()
        problems = self.upsert_all(objects)
        if problems:
            raise PolicyError(problems)

    # Reading

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

    def pods_without_row(self) -> Iterator[PodInfo]:
        """Yield the pods that are on no row: finished ones, and those whose node is unknown or not chosen yet."""
        yield from self.finished_pods.values()
        # No line of Python runs for each of the pods on nodes, which are many.
        yield from map(self._pods.__getitem__, itertools.filterfalse(self._bound.__contains__, self._pods))
        if len(self._bound) > sum(len(row.pods) for row in self.rows):
            yield from (each.pod for each in self._bound.values() if each.pod.node_name not in self.index)

    def bound_pods(self) -> list[PodInfo]:
        """Return the pods on nodes, assumed ones too, as a list that later changes do not affect."""
        return [binding.pod for binding in self._bound.values()]

    def snapshot(self, now: int = 0) -> Snapshot:
        """Return the snapshot for a decision at `now` (ns since the epoch); it is valid until the cluster changes."""
        self._keep_time(now)
        return Snapshot(self, now)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call back after every change from now on, in the thread that makes it.

        An exception of a listener is logged; the change is still applied, and reaches the other listeners.
        """
        self._listeners += (listener,)

    def unlisten(self, listener: Callable[[Event], None]) -> None:
        """Call a listener back no more; nothing happens if it does not listen."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

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
                self._publish(Event("Node", name, None, row.node))
        for each in later:
            try:
                self.upsert(each)
            except PolicyError as error:
                problems.extend(error.problems)
        return problems

    def upsert(self, item: Mapping[str, Any], *, is_sound: bool = False) -> None:
        """Add an object or replace it; one that `is_sound` passes `check_object`, and none of its parts ever changes.

        Raises:
            PolicyError: it is malformed; object and field are named, and nothing is applied: the version before it is
                still in the cluster.
        """
        try:
            key = (_key_of_pod(item) if is_sound and item["kind"] == "Pod" else "") or _key_of(item)
        except ValueError as error:
            raise PolicyError([_problem(item, error)]) from None
        kind = item["kind"]
        old, old_pod = self.object(kind, key), None
        known, binding = self._pods.get(key), self._bound.get(key)
        try:
            if kind == "Pod":
                old_pod = known if binding is None else binding.pod
                self._upsert_pod(key, item, is_sound=is_sound)
            elif kind in self._apply:
                self._apply[kind](key, item)
            elif not is_sound:
                check_object(item, kind)
        except ValueError as error:
            raise PolicyError([_problem(item, error)]) from None
        except Exception as error:
            self._recover(kind, key, old, known, binding)
            raise PolicyError([_failure(item, error)]) from error
        self._objects.setdefault(kind, {})[key] = item
        self._object_changed(kind, key)
        if self._listeners:
            self._publish(Event(kind, key, old, item, old_pod, self.pod(key) if kind == "Pod" else None))

    def delete(self, kind: str, key: str) -> None:
        """Remove an object; one that does not exist is not an error."""
        old_pod = self.pod(key) if kind == "Pod" else None
        deleted = self._objects.get(kind, {}).pop(key, None)
        if kind == "Pod":
            self._detach(key)
            self._pods.pop(key, None)
            self.finished_pods.pop(key, None)
        elif kind == "NodeMetric":
            self._metrics.pop(key, None)
            self._set_metric(key, None)
        elif deleted is not None and kind == "Device" and key in self.index:
            self._set_devices(self.index[key])
        elif deleted is not None and kind == "Node" and key in self.index:
            row = self.rows.pop(self.index[key])
            for held in row.pods.values():  # they count again if the node is added again
                self._bound[held.key] = _Binding(held, row.taken.get(held.key, ()))
            self._shape_changed()
        if deleted is not None:
            self._object_changed(kind, key)
        if self._listeners and (deleted is not None or old_pod is not None):
            self._publish(Event(kind, key, deleted, None, old_pod, None))

    def delete_nodes(self, names: Iterable[str]) -> None:
        """Remove many nodes and renumber the rows once; unknown names are ignored."""
        deleted = {name: node for name in names if (node := self._objects.get("Node", {}).pop(name, None)) is not None}
        if not deleted:
            return
        for name in deleted:
            row = self.rows[self.index[name]]
            for held in row.pods.values():  # they count again if the node is added again
                self._bound[held.key] = _Binding(held, row.taken.get(held.key, ()))
        self.rows = [row for row in self.rows if row.name not in deleted]
        self._shape_changed()
        for name, node in deleted.items():
            self._object_changed("Node", name)
            self._publish(Event("Node", name, node, None, None, None))

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

    def fork(self) -> Cluster:
        """Return an independent cluster in the same state, which another thread may own; no one listens to it.

        Objects and pods are shared, as nobody changes them.
        """
        twin = copy.copy(self)
        twin._separate()  # noqa: SLF001 - of its own class
        return twin

    def _separate(self) -> None:
        """Copy all mutable state that is shared with the original cluster."""
        self._listeners, self._version_cache, self.cross_version_cache = (), (-1, {}), {}
        self._apply = self._applying()
        self._pods, self._bound, self._metrics = dict(self._pods), dict(self._bound), dict(self._metrics)
        self.finished_pods = dict(self.finished_pods)
        self._objects = {kind: dict(objects) for kind, objects in self._objects.items()}
        self._versions = dict(self._versions)
        self.version = next(_FORKS) << 40  # as in `_diverge`
        self.rows = [row.copy() for row in self.rows]
        self._shape_changed()

    def _applying(self) -> Mapping[str, Callable[[str, Mapping[str, Any]], None]]:
        return {"Node": self._upsert_node, "NodeMetric": self._upsert_metric, "Device": self._upsert_device}

    def _diverge(self, added: Mapping[str, NodeRow]) -> None:
        """Copy all mutable state that is shared with the original cluster, and add rows."""
        nodes = {**self._objects.get("Node", {}), **{name: row.node for name, row in added.items()}}
        self._objects = {**self._objects, "Node": nodes}
        self._listeners, self._version_cache, self.cross_version_cache = (), (-1, {}), {}
        # Cached results are identified by version, so the versions of two clusters must differ.
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
            before = None if old is None else old.object
            self._publish(Event("Pod", pod.key, before, pod.object, old, bound, assumed=True))

    def forget(self, pod_key: str) -> None:
        """Undo `assume`: the pod is pending again if its object exists; nothing happens to a pod without a node."""
        binding = self._bound.get(pod_key)
        self._detach(pod_key)
        if binding is not None and self._listeners:
            known = self.pod(pod_key)
            now = None if known is None else known.object
            self._publish(Event("Pod", pod_key, binding.pod.object, now, binding.pod, known,
                                assumed=True))

    def _publish(self, event: Event) -> None:
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
            self.finished_pods.pop(key, None)
            if old is not None and (old.get("status") or {}).get("phase") in _FINISHED:
                self.finished_pods[key] = PodInfo.of(old)
        elif old is None:
            self._objects.get(kind, {}).pop(key, None)
            self._metrics.pop(key, None)
        else:
            self._objects[kind][key] = old
            if kind == "NodeMetric":
                self._metrics[key] = NodeMetric.of(old)
        self.rows = []
        self._add_rows([self._new_row(node) for node in self._objects.get("Node", {}).values()])

    # Application of changes

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

    def _upsert_pod(self, key: str, item: Mapping[str, Any], *, is_sound: bool) -> None:
        pod = PodInfo.of(item, is_sound=is_sound)
        binding = self._bound.get(key)
        if (item.get("status") or {}).get("phase") in _FINISHED:
            self._detach(key)
            self._pods.pop(key, None)
            self.finished_pods[key] = pod
            return
        self.finished_pods.pop(key, None)
        placed = pod
        devices: tuple[int, ...] = ()
        if binding is not None and _may_be_one(binding.pod, pod):
            node = binding.pod.node_name
            if pod.node_name == node:
                devices = bound_devices(pod) or self._devices_held(binding)
            elif not pod.node_name and not item["metadata"].get("deletionTimestamp"):
                # An informer may still report the pod as unbound: an assumed pod stays assumed until forgotten. One
                # that is being deleted can no longer be bound, so that its room is free.
                placed, devices = pod.on(node), self._devices_held(binding)
        self._detach(key)
        self._pods[key] = pod
        if placed.node_name:
            self._attach(placed, devices)

    def _devices_held(self, binding: _Binding) -> tuple[int, ...]:
        index = self.index.get(binding.pod.node_name)
        return binding.devices if index is None else self.rows[index].taken.get(binding.pod.key, ())

    def _upsert_metric(self, key: str, item: Mapping[str, Any]) -> None:
        metric = NodeMetric.of(item)
        self._metrics[key] = metric
        self._set_metric(key, metric)

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


def _may_be_one(known: PodInfo, other: PodInfo) -> bool:
    """Return whether two pods of one key may be the same: a controller may reuse a deleted pod's name."""
    return not known.uid or not other.uid or known.uid == other.uid


def _key_of_pod(item: Mapping[str, Any]) -> str:
    """Return `_key_of` a pod that passes `check_object`; an empty string if it may be a fault."""
    metadata = item.get("metadata") or {}
    key = f"{metadata.get('namespace') or 'default'}/{metadata.get('name') or '/'}"
    return key if key.count("/") == 1 else ""


def _key_of(item: Mapping[str, Any]) -> str:
    """Return `namespace/name` or `name`; raise ValueError if it is not an API object."""
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
    """Return the problem of an object that passes the checks and still cannot be applied."""
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
