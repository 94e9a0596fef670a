"""The reservation cache: available reservations, their consumers, and nominated pods, updated by events."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.scheduler.extensions.reservations import (
    ENDED,
    ReservationInfo,
    allocated_uid,
    is_operating_pod,
    is_reserve_pod,
    matches_owners,
)
from koordpolicy.plugin import Event

from .state import NodeReservations


class ReservationCache:
    """All reservations with a node, in the order of their arrival.

    Owners are matched once per pod and distinct owner specification, so that a pod without reservations costs
    next to nothing.
    """

    def __init__(self) -> None:
        self._infos: dict[str, ReservationInfo] = {}
        self._by_name: dict[str, str] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._by_owners: dict[str, dict[str, None]] = {}
        self._consumers: dict[str, dict[str, PodInfo]] = {}
        self._uses: dict[str, str] = {}
        self._assumed: dict[str, str] = {}
        self._assuming: dict[str, int] = {}
        """The number of pods assumed to use a reservation, by uid."""
        self._operating: dict[str, None] = {}
        self._shared: Mapping[str, NodeReservations] | None = None

    # Reading

    def get(self, uid: str) -> ReservationInfo | None:
        """Return a reservation by uid."""
        return self._infos.get(uid)

    def named(self, name: str) -> ReservationInfo | None:
        """Return a reservation by name."""
        uid = self._by_name.get(name)
        return None if uid is None else self._infos.get(uid)

    def on_node(self, node: str) -> Iterator[ReservationInfo]:
        """Yield the available reservations of a node."""
        for uid in self._by_node.get(node, ()):
            info = self._infos[uid]
            if info.is_available:
                yield info

    def nodes(self) -> tuple[str, ...]:
        """Return the nodes with reservations."""
        return tuple(self._by_node)

    def shared(self) -> Mapping[str, NodeReservations]:
        """Return, by node, the available reservations with consumers, all as unmatched ones."""
        if self._shared is None:
            by_node: dict[str, list[ReservationInfo]] = {}
            for uid, consumers in self._consumers.items():
                info = self._infos.get(uid)
                if consumers and info is not None and info.is_available:
                    by_node.setdefault(info.node, []).append(info)
            self._shared = {
                node: NodeReservations(unmatched=tuple(infos)) for node, infos in sorted(by_node.items())
            }
        return self._shared

    def unsettled(self) -> Mapping[str, Collection[str]]:
        """Return, by node, the uids of reservations whose reserve pod there still requests what its consumers use.

        That is so until the consumers' objects record the reservation; and always for a pod that acts as a reservation.
        """
        found: dict[str, set[str]] = {}
        for uid in (*self._assuming, *self._operating):
            info = self._infos.get(uid)
            if info is not None and info.consumers:
                found.setdefault(info.node, set()).add(uid)
        return found

    def owned_by(self, pod: PodInfo) -> Iterator[ReservationInfo]:
        """Yield the reservations that a pod is an owner of and may still use."""
        for uids in self._by_owners.values():
            first = self._infos[next(iter(uids))]
            if matches_owners(pod, first.owners):
                for uid in uids:
                    info = self._infos[uid]
                    if info.is_matchable:
                        yield info

    def uses(self, pod: PodInfo) -> str:
        """Return the uid of the reservation that a pod uses, also of one that has no place yet; empty for none."""
        return self._uses.get(pod.key, "")

    def owners(self, detail: str = "") -> dict[str, Any]:
        """Return the number of distinct owners, and with `detail` the reservations of each, as plain data."""
        found: dict[str, Any] = {
            "owners": len(self._by_owners), "reservations": sum(len(uids) for uids in self._by_owners.values()),
        }
        if detail == "true":
            found["byOwners"] = {
                owners: sorted(self._infos[uid].name for uid in uids) for owners, uids in self._by_owners.items()
            }
        return found

    def used_by(self, pod: PodInfo) -> ReservationInfo | None:
        """Return the reservation that a pod uses."""
        uid = self._uses.get(pod.key)
        return None if uid is None else self._infos.get(uid)

    # Changes

    def assume(self, pod: PodInfo, uid: str) -> None:
        """Record that a pod is about to use a reservation."""
        self._forget_assumption(pod.key)
        self._assumed[pod.key] = uid
        self._assuming[uid] = self._assuming.get(uid, 0) + 1
        self._use(pod, uid)

    def forget(self, pod: PodInfo) -> None:
        """Undo `assume`."""
        uid = self._forget_assumption(pod.key)
        if uid is not None and self._uses.get(pod.key) == uid:
            self._leave(pod.key)

    def on_event(self, event: Event) -> None:
        """Apply a change of a Reservation or a pod."""
        if event.kind == "Reservation":
            self._on_reservation(event.old, event.new)
        else:
            self._on_pod(event)

    def _on_reservation(self, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> None:
        item = new or old
        assert item is not None
        name = item["metadata"]["name"]
        known = self._by_name.get(name)
        status = (new or {}).get("status") or {}
        info = None
        if new is not None and status.get("nodeName") and status.get("phase") not in ENDED:
            try:
                info = ReservationInfo.of(new)
            except ValueError:
                info = None  # an unreadable reservation reserves nothing
        if known is not None and (info is None or info.uid != known):
            self._drop(known)
        if info is not None:
            self._put(info)

    def _on_pod(self, event: Event) -> None:
        pod = event.new_pod
        if pod is None or not pod.node_name:
            # A pod that only becomes pending again is forgotten by the caller of `assume`.
            if pod is None or event.key not in self._assumed:
                self._forget_assumption(event.key)
                self._leave(event.key)
            if event.old_pod is not None and is_operating_pod(event.old_pod):
                self._drop(event.old_pod.uid or event.key)
            return
        if is_reserve_pod(pod):
            return
        if is_operating_pod(pod):
            self._put(ReservationInfo.of_operating_pod(pod))
            self._operating[pod.uid or pod.key] = None
        uid = allocated_uid(pod.object)
        if uid:
            self._forget_assumption(pod.key)
            self._use(pod, uid)
        elif pod.key in self._uses:
            self._use(pod, self._uses[pod.key])

    def _forget_assumption(self, key: str) -> str | None:
        """Forget that a pod was assumed to use a reservation; return its uid."""
        uid = self._assumed.pop(key, None)
        if uid is not None:
            self._assuming[uid] -= 1
            if not self._assuming[uid]:
                del self._assuming[uid]
        return uid

    def _put(self, info: ReservationInfo) -> None:
        self._shared = None
        before = self._infos.get(info.uid)
        consumers = self._consumers.setdefault(info.uid, {})
        if before is not None and _place(before) != _place(info):
            self._detach(before)
            before = None
        self._infos[info.uid] = replace(info, consumers=MappingProxyType(consumers))
        self._by_name[info.name] = info.uid
        if before is None:
            if info.node:
                self._by_node.setdefault(info.node, {})[info.uid] = None
            if info.is_available and info.owners:
                self._by_owners.setdefault(_key(info), {})[info.uid] = None

    def _detach(self, info: ReservationInfo) -> None:
        """Take a reservation out of the indexes."""
        for index, key in ((self._by_node, info.node), (self._by_owners, _key(info))):
            uids = index.get(key)
            if uids is not None and info.uid in uids:
                del uids[info.uid]
                if not uids:
                    del index[key]

    def _drop(self, uid: str) -> None:
        self._shared = None
        self._operating.pop(uid, None)
        info = self._infos.pop(uid, None)
        if info is not None:
            self._detach(info)
            if self._by_name.get(info.name) == uid:
                del self._by_name[info.name]
        if not self._consumers.get(uid):
            self._consumers.pop(uid, None)

    def _use(self, pod: PodInfo, uid: str) -> None:
        self._shared = None
        if self._uses.get(pod.key) != uid:
            self._leave(pod.key)
        self._uses[pod.key] = uid
        self._consumers.setdefault(uid, {})[pod.key] = pod

    def _leave(self, key: str) -> None:
        self._shared = None
        uid = self._uses.pop(key, None)
        if uid is not None:
            consumers = self._consumers[uid]
            consumers.pop(key, None)
            if not consumers and uid not in self._infos:
                del self._consumers[uid]


def _key(info: ReservationInfo) -> str:
    return json.dumps(info.owners, sort_keys=True, default=str)


def _place(info: ReservationInfo) -> tuple[str, str, bool]:
    return info.node, _key(info), info.is_available
