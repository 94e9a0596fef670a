"""The ledger of the cycles that several replicas run together: who takes part, which evictions are reserved or made.

An eviction needs a reservation in the ledger of the running cycle. A reservation is written only if nobody changed the
ledger since it was read, so that all replicas together keep the limits of one cycle, and a replica that missed the
begin of another cycle evicts nothing. The reservation of a replica that ended before it recorded the outcome counts
until its cycle has ended, and in later cycles until it expires, as the request may still be carried out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Refusal

FORMAT: Final = "koord-policy/eviction-ledger/1"
KEY: Final = "eviction-ledger.json"
"""The key of a ConfigMap's data."""
MOST: Final = 2_000
"""The most evictions of one cycle: a ConfigMap holds 1 MiB."""
EXPIRES: Final = 60 * 1_000_000_000
"""The time in ns after which a request for an eviction is no longer under way."""
_TRIES: Final = 20
"""Attempts to write a reservation, or the end of a share, while other replicas change the ledger."""
_FAULTS: Final = 20
"""The most requests of a share that fail although nobody else changed the ledger; after them it reserves nothing."""
LEDGER: Final = "ledger"
"""The name of the ledger among what stops evictions."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An eviction that a replica reserved, or made."""

    pod: str
    """Namespace and name."""
    uid: str
    node: str
    by: str
    """The identity of the replica."""
    at: int
    """The time of the reservation, ns since the epoch."""
    made: bool = False

    @property
    def namespace(self) -> str:
        """The namespace of the pod."""
        return self.pod.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The running cycle; times in ns since the epoch. Immutable."""

    cycle: int = 0
    """The number of the cycle; 0 before the first one."""
    leader: str = ""
    """The identity of the replica that began it, and does what is not shared."""
    opened: int = 0
    members: tuple[str, ...] = ()
    """The identities of the replicas with a share of the nodes."""
    finished: Mapping[str, str] = field(default_factory=dict)
    """The members whose part has ended, with the error that ended it early."""
    entries: tuple[LedgerEntry, ...] = ()

    @property
    def key(self) -> tuple[int, str, int]:
        """The identity of the cycle, also if the ledger was lost and begun again."""
        return self.cycle, self.leader, self.opened

    def next(self, leader: str, members: Iterable[str], now: int) -> Ledger:
        """Return the ledger of the next cycle, with the reservations that may still be carried out."""
        return Ledger(self.cycle + 1, leader, now, tuple(members), {}, tuple(
            each for each in self.entries if not each.made and now - each.at < EXPIRES))

    def with_entry(self, entry: LedgerEntry) -> Ledger:
        """Return the ledger with one more reservation."""
        return replace(self, entries=(*self.entries, entry))

    def with_outcomes(self, by: str, outcomes: Mapping[str, bool]) -> Ledger:
        """Return the ledger with the outcomes of a replica's reservations, by UID: made, or not, and then no entry."""
        if not outcomes:
            return self
        return replace(self, entries=tuple(
            replace(each, made=True) if each.by == by and outcomes.get(each.uid) else each
            for each in self.entries if each.by != by or outcomes.get(each.uid) is not False))

    def with_finished(self, member: str, error: str) -> Ledger:
        """Return the ledger after a member's part."""
        return replace(self, finished={**self.finished, member: error})

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which `ledger_of` reads."""
        return {
            "format": FORMAT, "cycle": self.cycle, "leader": self.leader, "opened": self.opened,
            "members": list(self.members), "finished": dict(self.finished),
            "entries": [[each.pod, each.uid, each.node, each.by, each.at, each.made] for each in self.entries]}


def encoded(ledger: Ledger) -> str:
    """Return the ledger as JSON."""
    return json.dumps(ledger.to_json(), separators=(",", ":"))


def ledger_of(text: str) -> Ledger:
    """Return the ledger of JSON.

    Raises:
        ValueError: it is none.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"`format` must be `{FORMAT}`")
    cycle, opened, leader = data.get("cycle"), data.get("opened"), data.get("leader")
    members, finished, entries = data.get("members"), data.get("finished"), data.get("entries")
    if (not isinstance(cycle, int) or not isinstance(opened, int) or not isinstance(leader, str)
            or not isinstance(members, list) or not isinstance(finished, dict) or not isinstance(entries, list)
            or not all(isinstance(each, str) for each in (*members, *finished, *finished.values()))
            or not all(map(_is_entry, entries))):
        raise ValueError("its fields have other types")
    return Ledger(cycle, leader, opened, tuple(members), finished, tuple(LedgerEntry(*each) for each in entries))


def _is_entry(item: object) -> bool:
    return (isinstance(item, list) and len(item) == 6 and all(isinstance(each, str) for each in item[:4])
            and isinstance(item[4], int) and isinstance(item[5], bool))


def owner_of(node: str, members: Sequence[str]) -> str:
    """Return the member with a node in its share; empty without members.

    Each node goes to the member with the greatest hash (rendezvous hashing): one that leaves or joins moves no node
    between two others.
    """
    return max(members, default="", key=lambda member: hashlib.blake2b(
        f"{member}\0{node}".encode(), digest_size=8).digest())


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger with its version in the store; an empty version if it is not stored yet."""

    ledger: Ledger
    version: str = ""


class LedgerStore(Protocol):
    """Stores the ledger for all replicas."""

    def load(self) -> StoredLedger:
        """Return the stored ledger; raises `OSError` if it cannot be read."""
        ...

    def save(self, ledger: Ledger, version: str) -> StoredLedger:
        """Replace the ledger of that version.

        Raises:
            StoreChangedError (an `OSError`): it has another version, maybe since an earlier attempt of this write
                succeeded.
            OSError: it cannot be written, or it is not known whether it was.
        """
        ...


class CycleLedger:
    """The ledger during the part of a cycle that one replica runs, in that replica's thread."""

    def __init__(self, store: LedgerStore, stored: StoredLedger, identity: str, clock: Callable[[], int]) -> None:
        """`stored` is the ledger of the cycle as it was read last; `clock` returns the time in ns."""
        self._store = store
        self._stored: StoredLedger | None = stored
        self._key = stored.ledger.key
        self._identity = identity
        self._clock = clock
        self._counted: set[str] = set()
        self._outcomes: dict[str, bool] = {}
        """By UID, whether the evictions were made whose outcomes the ledger does not have yet."""
        self._faults = 0
        self._fault = Refusal(LEDGER, "")
        """The last of the faults."""

    @property
    def key(self) -> tuple[int, str, int]:
        """The identity of the cycle."""
        return self._key

    def begin(self, count: Callable[[LedgerEntry], object]) -> None:
        """Count the evictions that the ledger has already, the own ones too; `reserve` counts those that follow."""
        if self._stored is not None:
            self._count(self._stored.ledger, count)

    def reserve(
        self, pod: PodInfo, over: Callable[[], str], count: Callable[[LedgerEntry], object],
    ) -> Refusal | None:
        """Reserve an eviction, or return why it must not be made; call `record_outcome` after it.

        `over` returns the limit that one more eviction would exceed; `count` counts one of another replica against
        the limits. A store that fails costs a bounded number of requests, however many pods follow.
        """
        tried: str | None = None
        why = ""
        for _ in range(_TRIES if self._faults < _FAULTS else 0):
            try:
                stored = self._stored = self._stored or self._store.load()
            except OSError as error:
                return self._failed(f"read: {error}")
            ledger = stored.ledger
            if ledger.key != self._key:
                return Refusal("cycle-over", "another cycle has begun meanwhile")
            known = next((each for each in ledger.entries if each.uid == pod.uid), None)
            if known is not None and tried is not None and known.by == self._identity:
                self._counted.add(pod.uid)
                return None  # the write without an answer was carried out
            self._count(ledger, count)
            refusal = self._refusal(known, ledger, over)
            if refusal is not None:
                return refusal
            if tried == stored.version:
                self._failed(f"written: {why}")
                if self._faults >= _FAULTS:
                    break
            entry = LedgerEntry(pod.key, pod.uid, pod.node_name, self._identity, self._clock())
            why, tried = self._write(ledger.with_entry(entry), stored.version), stored.version
            if not why:
                self._counted.add(pod.uid)
                return None
        return Refusal(LEDGER, f"the ledger of the replicas cannot be written: {why}") if why else self._fault

    def record_outcome(self, pod: PodInfo, *, made: bool) -> None:
        """Record the outcome of a reserved eviction, for the next write; `made=False` returns the reservation to the
        limits.
        """
        self._outcomes[pod.uid] = made

    def finish(self, error: str) -> bool:
        """Write the outcomes, and the end of a member's share; return False if that must be tried again later.

        It is tried again at once only after another replica has changed the ledger: then the store works.
        """
        tried: str | None = None
        for _ in range(_TRIES):
            try:
                stored = self._stored = self._stored or self._store.load()
            except OSError:
                return False
            if stored.version == tried:
                return False
            ledger = stored.ledger
            known = self._identity not in ledger.members or self._identity in ledger.finished
            if ledger.key != self._key or (known and not self._outcomes):
                return True
            ended = ledger if known else ledger.with_finished(self._identity, error)
            if not self._write(ended, stored.version):
                return True
            tried = stored.version
        return False

    def _count(self, ledger: Ledger, count: Callable[[LedgerEntry], object]) -> None:
        for each in ledger.entries:
            if each.uid not in self._counted:
                self._counted.add(each.uid)
                count(each)

    def _failed(self, why: str) -> Refusal:
        self._faults += 1
        self._fault = Refusal(LEDGER, f"the ledger of the replicas cannot be {why}")
        return self._fault

    @staticmethod
    def _refusal(known: LedgerEntry | None, ledger: Ledger, over: Callable[[], str]) -> Refusal | None:
        if known is not None:
            return Refusal("leaving", "its eviction was requested before, maybe by another replica")
        why = over()
        if not why and len(ledger.entries) >= MOST:
            why = f"replicas evict at most {MOST} pods together in a cycle"
        return Refusal("", why) if why else None

    def _write(self, ledger: Ledger, version: str) -> str:
        """Write a ledger with the outcomes so far; return why it failed, and then it is read before the next write."""
        try:
            self._stored = self._store.save(ledger.with_outcomes(self._identity, self._outcomes), version)
        except OSError as error:
            self._stored = None
            return str(error) or type(error).__name__
        self._outcomes = {}
        return ""
