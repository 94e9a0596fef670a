"""The Reservation controller: expiration, completion and garbage collection of Reservations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.handle import Deletes
from koordpolicy.engine.kubernetes.vocabulary import RESERVATION_ALLOCATED_ANNOTATION
from koordpolicy.engine.scheduler.extensions.reservations import allocated_uid
from koordpolicy.engine.scheduler.extensions.status_writes import StatusWrites
from koordpolicy.plugin import Event, Handle

from ..allocation.annotations import annotations_of
from .args import ReservationArgs
from .status import expires_at, synced

_SECOND: Final = 1_000_000_000
_CLEAN: Final = "CleanExpiredReservationAllocated"
_LEAD: Final = 3 * _SECOND
_NEVER: Final = 2**63


class ReservationStatus:
    """Writes the status of Reservation objects, and deletes those that ended long ago."""

    name = "ReservationStatus"
    period = _SECOND
    """Nanoseconds between two runs."""

    def __init__(self, handle: Handle, args: ReservationArgs) -> None:
        self._handle = handle
        self._args = args
        self._writes = StatusWrites(handle)
        self._touched: dict[str, None] = {}
        """The Reservations that may not be as they should be: changed ones, and those that were written."""
        self._expiries: dict[str, tuple[Mapping[str, Any], int]] = {}
        """When Available Reservations expire, by name, with the objects that say so."""
        self._deleted: dict[str, None] = {}
        self._resynced = self._collected = -(2**62)
        handle.events.on(("Reservation", "Pod"), self._on_event)

    def _on_event(self, event: Event) -> None:
        if event.kind == "Reservation":
            self._touched[event.key] = None
            self._expiries.pop(event.key, None)
            if event.new is None and event.old is not None:
                self._deleted[event.old["metadata"].get("uid") or event.key] = None
            return
        for pod in (event.old_pod, event.new_pod):
            if pod is not None and RESERVATION_ALLOCATED_ANNOTATION in annotations_of(pod.object):
                name = _name_in(pod.object)
                if name:
                    self._touched[name] = None

    def run(self, now: int) -> None:
        """Sync changed and expiring Reservations, and periodically all of them."""
        snapshot = self._handle.snapshot()
        items = snapshot.objects("Reservation")
        due = set(self._touched)
        self._touched.clear()
        if now - self._resynced >= self._args.resync_interval * _SECOND:
            self._resynced = now
            due = set(items)
        for name in sorted(items):
            if name in due or self._is_about_to_expire(name, items[name], now):
                self.sync(items[name], snapshot, now)
        if _CLEAN in self._handle.feature_gates:
            self._clean(snapshot)
        self._deleted.clear()
        if self._args.collects_garbage and now - self._collected >= self._args.gc_interval * _SECOND:
            self._collected = now
            for name in sorted(items):
                if self._is_garbage(items[name], snapshot, now):
                    self._delete(items[name], name)

    def sync(self, item: Mapping[str, Any], snapshot: Snapshot, now: int) -> None:
        """Write the changed status of one Reservation."""
        name = item["metadata"]["name"]
        row = snapshot.index.get((item.get("status") or {}).get("nodeName") or "")
        try:
            desired = synced(item, None if row is None else snapshot.pods(row), now)
        except ValueError as error:
            self._handle.log.warning("Reservation `%s` cannot be read: %s", name, error)
            return
        if desired is not item:
            self._writes.patch(item, desired)
            self._touched[name] = None  # until the cluster shows it

    def _is_about_to_expire(self, name: str, item: Mapping[str, Any], now: int) -> bool:
        known = self._expiries.get(name)
        if known is None or known[0] is not item:
            known = self._expiries[name] = item, _expiry(item)
        return known[1] - now <= _LEAD

    def _is_garbage(self, item: Mapping[str, Any], snapshot: Snapshot, now: int) -> bool:
        status = item.get("status") or {}
        if status.get("phase") not in ("Failed", "Succeeded"):
            return False
        node = status.get("nodeName")
        if node and node not in snapshot.index:
            return True
        field = "lastTransitionTime" if status["phase"] == "Failed" else "lastProbeTime"
        conditions = {each.get("type"): each for each in status.get("conditions") or ()}
        ready: Mapping[str, Any] = conditions.get("Ready") or {}
        try:
            since = nanoseconds(ready.get(field) or "", field)
        except ValueError:
            return False
        return now - since > self._args.gc_duration * _SECOND

    def _clean(self, snapshot: Snapshot) -> None:
        """Remove the annotation of deleted Reservations from the pods that used them."""
        for item in list(snapshot.objects("Pod").values()) if self._deleted else ():
            if allocated_uid(item) in self._deleted:
                others = {key: value for key, value in annotations_of(item).items()
                        if key != RESERVATION_ALLOCATED_ANNOTATION}
                modified = {**item, "metadata": {**item["metadata"], "annotations": others}}
                self._writes.patch(item, modified)

    def _delete(self, item: Mapping[str, Any], name: str) -> None:
        client = self._handle.client
        if isinstance(client, Deletes):
            try:
                client.delete(item)
            except OSError as error:
                self._handle.log.warning("Reservation `%s` was not deleted: %s", name, error)


def _name_in(item: Mapping[str, Any]) -> str:
    try:
        found = json.loads(annotations_of(item)[RESERVATION_ALLOCATED_ANNOTATION])
    except ValueError:
        return ""
    return str(found.get("name") or "") if isinstance(found, Mapping) else ""


def _expiry(item: Mapping[str, Any]) -> int:
    """Return the time at which a Reservation expires; never (`_NEVER`) if it is not Available."""
    if (item.get("status") or {}).get("phase") != "Available":
        return _NEVER
    try:
        moment = expires_at(item)
    except ValueError:
        return _NEVER  # reported by `sync`
    return _NEVER if moment is None else moment
