"""The live feed: changes of a cluster, from informers on the I/O thread to the thread that owns the `Cluster`.

Informers deliver to an inbox; the owner applies it in slices bounded in time, between decisions. Per object the changes
come in order, deletions by UID; between kinds there is no order, except that nodes come first. Each object is decoded
by itself, by the projection of its kind, so that an odd one costs itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.informer import ABSENT_S, Change, Informer
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.list_parser import ListParser
from koordpolicy.engine.client.projection import PartPool, Projection
from koordpolicy.engine.client.resources import BY_KIND, ApiResource
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.source import PolicyError, Problem

from ..cluster import Cluster
from ..kinds import IDENTITY, NOT_LISTED, FieldSets
from .changes import Key, KindView, apply, key_at
from .comparer import Difference, Found, describe, differences, number_of, uid_of, version_of
from .finished_members import FIELD_SELECTOR as FINISHED
from .finished_members import LABEL_SELECTOR as MEMBERS
from .finished_members import STREAM, is_finished, is_member, with_finished_members
from .inbox import (
    Barrier,
    BarrierReached,
    ChangedObject,
    ChangedObjects,
    InboxEntry,
    KindStopped,
    KnownVersions,
    ListEnded,
    ReadObject,
)

_LOG: Final = logging.getLogger(__name__)

_SELECTORS: Final[Mapping[str, str]] = {"Pod": "status.phase!=Succeeded,status.phase!=Failed", STREAM: FINISHED}
_NODES_AT_ONCE: Final = 128
"""New nodes that are added together, as rows are numbered anew each time."""
_BARRIER_S: Final = 10.0
_BARRIER_KINDS: Final = ("Pod", "Reservation")
_BARRIER_RETRY_S: Final = 0.5
_COVER_LOOK_S: Final = 0.02
LAG_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class FeedView:
    """The state of a feed, for other threads."""

    synced: bool
    kinds: Mapping[str, KindView]
    absent: tuple[str, ...]
    """The kinds that the server does not have."""
    waiting: int
    """Entries of the inbox."""
    lag_s: float
    """Seconds that the oldest change in the inbox has waited; 0 without one."""
    applied: int
    """Changes that were applied since the start."""
    faulty: int
    """Objects that could not be decoded or applied, and are as they were before."""
    comparisons: int
    """Comparisons of one kind that are complete."""
    mismatches: Mapping[tuple[str, str], int]
    """Differences that they found, by kind and `Found`."""


@dataclass(slots=True)
class _Followed:
    """A kind that is followed. Belongs to the event loop."""

    resource: ApiResource
    informer: Informer
    projection: Projection
    task: asyncio.Task[Any] | None = None


class Feed:
    """Follows a cluster. `apply` and `synced` are for the owner of the cluster, all else for any thread."""

    def __init__(
        self, io: IoThread, transport: Transport, reads: FieldSets, *, wake: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time,
        streaming: bool | None = None, resources: Mapping[str, ApiResource] = BY_KIND,
        revise: Callable[[dict[str, Any]], dict[str, Any]] = lambda item: item, finished_pods: bool = False,
    ) -> None:
        """`reads` are the fields of each kind, see `kinds.fields_read`; kinds without an entry are not followed.

        `transport` belongs to the loop of `io`. `wake` is called there after changes arrived, and must not block.
        `revise` is called in the owner's thread with each object that is applied, and returns what the cluster gets.
        `clock` measures intervals and `now` is this machine's time, both in seconds. With `finished_pods` all pods are
        followed; without, those that have succeeded or failed only as members of PodGroups. `streaming` is as in
        `Informer`.
        """
        self._io = io
        self._transport = transport
        self._wake = wake
        self._clock = clock
        self._now = now
        self._streaming = streaming
        self._resources = resources
        self._revise = revise
        self._finished_pods = finished_pods
        self._started = now()
        # In the event loop:
        self._followed: dict[str, _Followed] = {}
        self._required: FieldSets = {}
        self._previous: FieldSets = {}
        self._unreadable: dict[Key, str] = {}
        self._parts = PartPool()
        # Between the threads:
        self._nodes: deque[InboxEntry] = deque()
        self._others: deque[InboxEntry] = deque()
        self._signalled = False
        self._unknown: frozenset[str] = frozenset()
        self._covering = threading.Lock()
        """Held by `cover`: what one thread requires must not be given up for another's while it waits."""
        self._late: set[str] = set()
        """The kinds for which `cover` has waited in vain; guarded by `_covering`."""
        # In the owner's thread:
        self.faults: dict[Key, str] = {}
        """The objects that could not be applied in their last version, with the error."""
        self.lags = [0] * (len(LAG_BUCKETS_S) + 1)
        """The number of changes by the time from arrival to application: up to each of `LAG_BUCKETS_S`, and above."""
        self.lag_sum_s = 0.0
        self._applied = 0
        self._projections: dict[str, Projection] = {}
        """The projections of the kinds whose lists are applied."""
        self._absent: frozenset[str] = frozenset()
        self._synced = False
        self._healed: dict[Key, int] = {}
        """The versions that were read beside the informers: older ones may still arrive."""
        self._work: Iterator[None] = iter(())
        self._comparisons = 0
        self._mismatches: Counter[tuple[str, str]] = Counter()
        self._initial = reads

    # Any thread

    def start(self) -> None:
        """Begin to follow the cluster."""
        self.require(self._initial)

    def require(self, reads: FieldSets) -> None:
        """Follow these kinds and fields from now on, and those of before until `require` is called once more.

        A kind of which more fields are read than before is listed again, and followed with the fields of both;
        decisions may go on meanwhile. `has` says when all is there. A kind that neither has is no longer followed.
        With PodGroups their finished members are followed, which are not among the pods otherwise.
        """
        reads = self._streams(reads)
        unknown = frozenset(reads) - self._resources.keys() - {STREAM}
        if unknown - self._unknown:
            _LOG.warning("no objects of %s are followed: it is not known where the API serves them",
                         ", ".join(sorted(unknown - self._unknown)))
        self._unknown |= unknown
        if not self._synced:
            self._initial = reads
        self._io.call_soon(self._require, {kind: fields for kind, fields in reads.items() if kind not in unknown})

    def has(self, reads: FieldSets) -> bool:
        """Return whether all objects of these kinds are applied with these fields."""
        known = ((self._projections.get(kind), fields) for kind, fields in self._streams(reads).items()
                 if kind not in self._unknown)
        return all(projection is not None and projection.covers(_projection(fields)) for projection, fields in known)

    def cover(
        self, reads: FieldSets, timeout: float, *, active: FieldSets | None = None,
        ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """Follow what these read, and return when the owner has applied it, or when `ended` returns True.

        For threads that reload policies, which take turns; never for the owner's. `active` are the reads that decisions
        have now: kinds of them that are not there either are no reason to wait. Kinds that did not come in time are
        followed further, and a later call does not wait for them again.

        Raises:
            PolicyError: kinds are not there after `timeout` seconds; they are named, with the code `NOT_LISTED`.
        """
        with self._covering:
            self.require(reads)
            deadline = self._clock() + timeout
            while (missing := self._missing(reads, active or {})) and not ended():
                if self._clock() >= deadline or missing <= self._late:
                    self._late |= missing
                    raise PolicyError([self._not_listed(kind, timeout) for kind in sorted(missing)])
                time.sleep(_COVER_LOOK_S)
            self._late -= reads.keys()

    def _streams(self, reads: FieldSets) -> FieldSets:
        return reads if self._finished_pods else with_finished_members(reads)

    def _has_left(self, kind: str, item: Mapping[str, Any]) -> bool:
        """Return whether an object is in no watch but that of finished members."""
        return kind == "Pod" and not self._finished_pods and is_finished(item)

    def _missing(self, reads: FieldSets, active: FieldSets) -> set[str]:
        """Return the kinds that are not there with these fields, except those that decisions lack already."""
        return {kind for kind, fields in self._streams(reads).items()
                if not self.has({kind: fields}) and (kind not in active or self.has({kind: active[kind]}))}

    def _not_listed(self, kind: str, timeout: float) -> Problem:
        view, plural = self.views.get(kind, KindView()), self._resources["Pod" if kind == STREAM else kind].plural
        return Problem(
            f"the new policies read {plural}, which "
            + (f"cannot be listed: {view.fault}" if view.fault else f"were not listed within {timeout:g} s"),
            help=f"grant `list` and `watch` on `{plural}` cluster-wide; it is tried again every second",
            code=NOT_LISTED)

    def barrier(self, timeout: float = _BARRIER_S) -> Barrier:
        """Return a barrier over the pods and Reservations as they are now on the API server.

        It costs one small request per kind, and no list.
        """
        deadline = self._clock() + timeout
        barrier = Barrier([kind for kind in _BARRIER_KINDS if kind in self._projections and kind not in self._absent],
                          deadline, self._clock)
        self._io.spawn(self._raise_barrier(barrier, deadline), "to wait for the newest pods")
        return barrier

    def compare(self) -> None:
        """Compare what the informers delivered with the cluster, once it is applied; heal and count differences."""
        self._io.call_soon(self._take_snapshots)

    def now(self) -> int:
        """Return the API server's time in nanoseconds since the epoch, as far as it differs from this machine's."""
        return self._transport.server_clock.nanoseconds()

    @property
    def view(self) -> FeedView:
        """The state of the feed."""
        return FeedView(
            self._synced, self.views, tuple(sorted(self._absent)), len(self._nodes) + len(self._others), self.lag_s,
            self._applied, len(self.faults) + len(self._unreadable), self._comparisons,
            dict(self._mismatches))

    @property
    def applied(self) -> int:
        """Changes that were applied since the start."""
        return self._applied

    @property
    def views(self) -> Mapping[str, KindView]:
        """The state of each kind: when the API server was last heard of it, and the error if it is not followed."""
        return {kind: KindView(each.informer.view.heard, each.informer.view.fault)
                for kind, each in tuple(self._followed.items())}

    def oldest_view_age(self) -> float:
        """Return the seconds since the API server was last heard of the kind of which that is longest ago.

        Kinds that the server does not have do not count. Bookmarks come about once a minute.
        """
        heard = [each.informer.view.heard or self._started for each in tuple(self._followed.values())
                 if not each.informer.view.absent]
        return max(0.0, self._now() - min(heard)) if heard else 0.0

    @property
    def lag_s(self) -> float:
        """Seconds that the oldest change in the inbox has waited; 0 without one."""
        arrived = [entry.arrived for inbox in (self._nodes, self._others)
                   for entry in tuple(inbox)[:1] if isinstance(entry, ChangedObjects)]
        return max(0.0, self._clock() - min(arrived)) if arrived else 0.0

    # The event loop

    def _require(self, reads: FieldSets) -> None:
        self._previous, self._required = self._required, reads
        for kind in tuple(self._followed):
            if kind not in reads and kind not in self._previous:
                followed = self._followed.pop(kind)
                if followed.task is not None:
                    followed.task.cancel()
                self._put(kind, KindStopped(kind))
        for kind, fields in reads.items():
            projection = _projection(fields)
            known = self._followed.get(kind)
            if known is None:
                self._follow(kind, projection)
            elif not known.projection.covers(projection):
                known.projection = projection | _projection(self._previous.get(kind, frozenset()))
                known.informer.relist()

    def _follow(self, kind: str, projection: Projection) -> None:
        resource = self._resources["Pod" if kind == STREAM else kind]
        informer = Informer(
            self._transport, resource, partial(self._deliver, kind), listed=partial(self._note_list, kind),
            field_selector=None if self._finished_pods else _SELECTORS.get(kind),
            label_selector=MEMBERS if kind == STREAM else None,
            streaming=self._streaming, now=self._now, absent_s=ABSENT_S, read=partial(self._read_listed, kind))
        followed = self._followed[kind] = _Followed(resource, informer, projection)
        followed.task = asyncio.create_task(informer.run())

    def _deliver(self, kind: str, changes: Sequence[Change]) -> None:
        followed = self._followed.get(kind)
        if followed is None:
            return
        items = [item for change in changes if (item := self._decoded(followed, change)) is not None]
        if kind == STREAM:
            items = [item._replace(finished=True) for item in items]
        if items:
            self._put(kind, ChangedObjects(self._clock(), items))

    def _read_listed(self, kind: str, text: bytes) -> tuple[dict[str, Any], bool]:
        followed = self._followed[kind]
        return self._parts.decode(text, followed.projection, followed.resource.kind)

    def _decoded(self, followed: _Followed, change: Change) -> ChangedObject | None:
        if not change.name:
            return None
        key = key_at(change.kind, change.namespace, change.name)
        if change.deleted or change.raw is None:
            self._unreadable.pop(key, None)
            return ChangedObject(key, change.uid, None)
        try:
            item, is_sound = change.read or self._parts.decode(change.raw, followed.projection, change.kind)
            item["apiVersion"], item["kind"] = followed.resource.api_version, change.kind
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            if self._unreadable.get(key) != why:
                _LOG.warning("%s `%s`: it cannot be read, and is left as it was: %s", *key, why)
            self._unreadable[key] = why
            return None
        self._unreadable.pop(key, None)
        return ChangedObject(key, change.uid, item, is_sound=is_sound)

    def _note_list(self, kind: str) -> None:
        followed = self._followed.get(kind)
        if followed is not None:
            self._put(kind, ListEnded(kind, followed.projection, followed.informer.view.absent))

    def _put(self, kind: str, entry: InboxEntry) -> None:
        (self._nodes if kind == "Node" else self._others).append(entry)
        if not self._signalled:
            self._signalled = True
            self._wake()

    async def _raise_barrier(self, barrier: Barrier, deadline: float) -> None:
        async def reach(kind: str) -> None:
            followed = self._followed[kind]
            while True:
                try:
                    version = await self._newest_version(followed.resource)
                    break
                except (ApiError, ConnectionFailed, PolicyError, ValueError) as error:
                    if isinstance(error, ApiError) and error.code == 404:
                        version = 0  # the server does not have the kind
                        break
                    _LOG.warning("the newest version of %s cannot be read, trying again: %s",
                                 followed.resource.plural, error)
                    await asyncio.sleep(_BARRIER_RETRY_S)
            if version:
                await followed.informer.reach(version)
            self._put(kind, BarrierReached(barrier, kind))

        kinds = [kind for kind in _BARRIER_KINDS if kind in self._followed]
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                await asyncio.gather(*(reach(kind) for kind in kinds))
        except TimeoutError:
            _LOG.warning("the newest pods were not seen in time: going on with those that were")
            self._wake()

    async def _newest_version(self, resource: ApiResource) -> int:
        """Return the resourceVersion of the newest change of a kind, or a later one."""
        parser = ListParser()
        # Without a resourceVersion the list is consistent: it has all that was accepted before.
        parser.feed(await self._transport.request("GET", resource.path(), query={"limit": "1"}))
        parser.close()
        assert parser.metadata is not None
        return int(parser.metadata.resourceVersion)

    def _take_snapshots(self) -> None:
        for kind, followed in self._followed.items():
            if followed.informer.view.synced and not followed.resource.poll_s:  # measurements have no version
                self._put(kind, KnownVersions(kind, followed.informer.known()))

    async def _read(self, key: Key, uid: str) -> None:
        """Read one object beside its informer, and deliver it: by a list, as the role need not have `get`."""
        kind, name = key
        followed = self._followed.get(kind)
        if followed is None:
            return
        namespace, _, own = name.rpartition("/")
        parser = ListParser()
        try:
            # Without a resourceVersion the list is consistent: it has all that was accepted before.
            body = await self._transport.request("GET", followed.resource.path(namespace or None),
                                                 query={"fieldSelector": f"metadata.name={own}"})
            listed = [*parser.feed(body), *parser.close()]
            item = decode(followed.resource, followed.projection, listed[0].raw) if listed else None
        except (ApiError, ConnectionFailed, PolicyError, ValueError, RecursionError) as error:
            if not isinstance(error, ApiError) or error.code != 404:
                _LOG.warning("%s `%s` cannot be read: %s", kind, name, error)
                return
            item = None  # the server does not have the kind any more
        found_uid, finished = (uid, False) if item is None else (uid_of(item), self._has_left(kind, item))
        if finished and item is not None and not (STREAM in self._followed and is_member(item)):
            item, finished = None, False  # no watch has it
        self._put(kind, ReadObject(ChangedObject(key, found_uid, item, finished)))

    # The owner's thread

    @property
    def synced(self) -> bool:
        """True once `apply` has applied the first list of each kind that is followed, and that the server has."""
        return self._synced

    def apply(self, cluster: Cluster, budget: float) -> bool:
        """Apply changes for about `budget` seconds; return whether there are more."""
        self._signalled = False
        clock = self._clock
        deadline = clock() + budget
        more = True
        while more and clock() < deadline:
            more = self._apply_some(cluster)
        if not self._synced and self.has(self._initial):
            self._synced = True
            if self._absent:
                _LOG.info("%s", self._without(sorted(self._absent)))
        return more

    def _apply_some(self, cluster: Cluster) -> bool:
        """Apply one change, or some new nodes; return False if there is none."""
        for _ in self._work:
            return True
        if self._nodes:
            self._work = self._node_steps(cluster)
        elif self._others and "Node" in self._projections:
            # Not before the nodes: a pod whose node is not known is looked at again for each node that is added.
            self._work = self._steps(cluster, self._others.popleft())
        else:
            return False
        return True

    def _node_steps(self, cluster: Cluster) -> Iterator[None]:
        """Apply what the inbox has of nodes, new ones together."""
        added: list[ChangedObject] = []
        while self._nodes and isinstance(self._nodes[0], ChangedObjects):
            batch = self._nodes.popleft()
            assert isinstance(batch, ChangedObjects)
            for item in batch.items:
                is_new = item.object is not None and item.key[1] not in cluster.index
                if is_new:
                    added.append(item)
                if added and (not is_new or len(added) >= _NODES_AT_ONCE):
                    self._add_nodes(cluster, added)
                    added = []
                    yield
                if not is_new:
                    self._apply_item(cluster, item)
                    yield
            self._note_lag(batch)
        if added:
            self._add_nodes(cluster, added)
            yield
        elif self._nodes:
            yield from self._steps(cluster, self._nodes.popleft())

    def _steps(self, cluster: Cluster, entry: InboxEntry) -> Iterator[None]:
        match entry:
            case ChangedObjects(_, items):
                for item in items:
                    self._apply_item(cluster, item)
                    yield
                self._note_lag(entry)
            case ReadObject(item):
                self._apply_read(cluster, item)
            case ListEnded(kind, projection, absent):
                self._end_list(cluster, kind, projection, absent=absent)
            case KindStopped(kind):
                yield from self._drop(cluster, kind)
            case KnownVersions(kind, known):
                yield from self._compare(cluster, kind, known)
            case BarrierReached(barrier, kind):
                barrier.note(kind)

    def _add_nodes(self, cluster: Cluster, items: Sequence[ChangedObject]) -> None:
        objects = [item.object for item in items if item.object is not None]
        cluster.upsert_all(objects)
        for item in items:
            if item.key[1] in cluster.index:
                self.faults.pop(item.key, None)
            else:
                self._apply_item(cluster, item)  # an odd one: again by itself, so that its error is noted
        self._applied += len(items)

    def _apply_item(self, cluster: Cluster, item: ChangedObject) -> None:
        key, uid, new = item.key, item.uid, item.object
        known = cluster.object(*key)
        is_other = False
        if known is not None:
            known_uid = uid_of(known)
            is_other = bool(uid and known_uid and uid != known_uid)
            if new is None and is_other:
                return  # what is there now is a later object of the same name
            if not item.finished and not is_other and self._has_left(key[0], known):
                return  # the watch of the other pods lags behind: no pod goes on after its end
        if self._healed:
            if new is not None and version_of(new) < self._healed.get(key, 0):
                return
            self._healed.pop(key, None)
        revised = None if new is None else self._revise(new)
        changes: list[tuple[Key, Mapping[str, Any] | None]] = [(key, revised)]
        if is_other:
            # Not one change: what others hold of the former object must be dropped.
            changes.insert(0, (key, None))
        for problem in apply(cluster, changes, self.faults, are_sound=item.is_sound and revised is new):
            _LOG.warning("%s; it is left out, or as it was", problem.message)
        self._applied += 1

    def _apply_read(self, cluster: Cluster, item: ChangedObject) -> None:
        """Apply an object that was read beside its informer, which may have delivered a later version already."""
        known = cluster.object(*item.key)
        if item.object is None or known is None or version_of(known) < version_of(item.object):
            self._apply_item(cluster, item)
            if item.object is not None:
                self._healed[item.key] = version_of(item.object)

    def _end_list(self, cluster: Cluster, kind: str, projection: Projection, *, absent: bool) -> None:
        was_absent = kind in self._absent
        self._projections[kind] = projection
        self._absent = self._absent | {kind} if absent else self._absent - {kind}
        self._set_kinds(cluster)
        if self._synced:
            if absent and not was_absent:
                _LOG.warning("%s", self._without((kind,)))
            elif was_absent and not absent:
                _LOG.info("the cluster has %s now", self._resources[kind].plural)

    def _without(self, kinds: Iterable[str]) -> str:
        names = ", ".join(f"{self._resources[kind].plural} ({self._resources[kind].api_version})" for kind in kinds)
        return f"the cluster has no {names}; going on without, until it has"

    def _set_kinds(self, cluster: Cluster) -> None:
        cluster.kinds = frozenset(self._projections) - self._absent - {STREAM}

    def _drop(self, cluster: Cluster, kind: str) -> Iterator[None]:
        self._projections.pop(kind, None)
        self._absent -= {kind}
        finished = kind == STREAM
        kind = "Pod" if finished else kind
        for name, item in tuple(cluster.objects(kind).items()):
            if not finished or is_finished(item):
                self._apply_item(cluster, ChangedObject((kind, name), "", None, finished))
                yield
        self._set_kinds(cluster)

    def _note_lag(self, batch: ChangedObjects) -> None:
        if self._synced:
            lag = max(0.0, self._clock() - batch.arrived)
            self.lags[bisect_left(LAG_BUCKETS_S, lag)] += len(batch.items)
            self.lag_sum_s += lag * len(batch.items)

    def _compare(
        self, cluster: Cluster, kind: str, known: Mapping[tuple[str, str], tuple[str, str]],
    ) -> Iterator[None]:
        found: list[Difference] = []
        finished = kind == STREAM
        kind = "Pod" if finished else kind
        for (namespace, name), (_, version) in known.items() if self._healed else ():
            key = kind, f"{namespace}/{name}" if namespace else name
            if key in self._healed and number_of(version) >= self._healed[key]:
                del self._healed[key]  # the informer has delivered what was read
        for each in differences(cluster, kind, known, lambda item: self._has_left(kind, item) == finished):
            if each is None:
                yield
            elif each.key not in self.faults and each.key not in self._healed and each.key not in self._unreadable:
                found.append(each)
                self._mismatches[kind, each.found.value] += 1
                if each.found is Found.REDUNDANT:
                    self._apply_item(cluster, ChangedObject(each.key, "", None, finished))
                else:
                    self._io.spawn(self._read(each.key, each.uid), "to read an object again")
        self._comparisons += 1
        if found:
            _LOG.error("Cache mismatch: %s", describe(found))


def decode(resource: ApiResource, projection: Projection, raw: msgspec.Raw | bytes) -> dict[str, Any]:
    """Return the projection of an object, with its `apiVersion` and `kind`, which objects of lists do not have.

    Raises `ValueError` or `RecursionError` if it cannot be decoded.
    """
    item = projection.decode(raw)
    item["apiVersion"], item["kind"] = resource.api_version, resource.kind
    return item


def _projection(fields: frozenset[tuple[str, ...]] | None) -> Projection:
    return Projection(None if fields is None else fields | IDENTITY)
