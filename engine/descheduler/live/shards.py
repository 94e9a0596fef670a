"""The cycles that several replicas of a live descheduler run together.

Each replica holds the Lease of a shard. The leader begins a cycle: it writes into the ledger who takes part. Each
member runs the Deschedule plugins that decide per node on its share of the nodes; when all have finished, the leader
runs all other plugins, Balance last. The share of a replica that ended is that of others from the next cycle on.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..framework import CyclePart
from ..ledger import CycleLedger, Ledger, LedgerStore, StoredLedger, encoded, ledger_of, owner_of
from ..proof.store import StoreChangedError
from .config_map import ConfigMapKey

_LOG: Final = logging.getLogger(__name__)
_SECOND: Final = 1_000_000_000
_LOOK: Final = _SECOND
"""The time between two looks at the ledger, in ns."""
_PAUSE: Final = 5 * _SECOND
"""The time after a look that failed."""
_MOST_OWNED: Final = 1_000_000
"""The number of nodes, deleted ones included, whose shard is cached."""


class ConfigMapLedgerStore:
    """The ledger in a ConfigMap (implements `LedgerStore`)."""

    def __init__(self, config_map: ConfigMapKey) -> None:
        self._config_map = config_map
        self._damaged = ""

    def load(self) -> StoredLedger:
        """Return the stored ledger, an empty one if it is damaged: then the next cycle replaces it."""
        found = self._config_map.read()
        if found.text is None:
            return StoredLedger(Ledger(), found.version)
        try:
            return StoredLedger(ledger_of(found.text), found.version)
        except (ValueError, RecursionError) as error:
            if found.version != self._damaged:
                self._damaged = found.version
                _LOG.error("the ConfigMap %s is no ledger, the next cycle replaces it: %s", self._config_map.name,
                           error)
            return StoredLedger(Ledger(), found.version)

    def save(self, ledger: Ledger, version: str) -> StoredLedger:
        """Replace the ledger of that version."""
        return StoredLedger(ledger, self._config_map.write(encoded(ledger), version).version)


class PartKind(enum.Enum):
    """The parts of a cycle."""

    SHARE = "share"
    """The own nodes, of a member."""
    REST = "rest"
    """All else, of the leader."""
    CUT_OFF = "cut off"
    """Nothing: the leader does not run the rest, as a share was not finished."""


@dataclass(frozen=True, slots=True)
class ShardPart:
    """A part of a cycle that this replica is to run now."""

    kind: PartKind
    part: CyclePart
    error: str = ""
    """Why the rest of the cycle is not run."""
    last: bool = True
    """False if this replica runs another part of the same cycle."""


@dataclass(frozen=True, slots=True)
class ShardsView:
    """The shards as a replica sees them, for other threads."""

    shard: str = ""
    """The Lease of the own shard; empty without one."""
    cycle: int = 0
    opened: int = 0
    """When the cycle began, ns since the epoch; 0 if none has."""
    leader: str = ""
    members: tuple[str, ...] = ()
    """The replicas with a share in this cycle."""
    finished: tuple[str, ...] = ()
    evictions: int = 0
    """The evictions of this cycle in the ledger, of all replicas, those that are only reserved too."""
    fault: str = ""
    """Why the ledger cannot be read or written; empty if it can."""

    def to_json(self) -> dict[str, Any]:
        """Return the view as plain data."""
        return {
            "lease": self.shard or None, "cycle": self.cycle, "opened": self.opened / 1e9 or None,
            "leader": self.leader, "members": list(self.members), "finished": list(self.finished),
            "evictions": self.evictions, "fault": self.fault or None}


class ShardedCycles:
    """Says when this replica runs which part of a cycle; for the descheduler's thread, `view` for any."""

    def __init__(
        self, store: LedgerStore, identity: str, *, holders: Callable[[], Sequence[str]], shard: Callable[[], str],
        clock: Callable[[], int], ticks: Callable[[], int],
    ) -> None:
        """`holders` returns the identities with a shard, `shard` the Lease of the own one, empty without. `clock`
        returns the API server's time in ns, `ticks` measures intervals in ns.
        """
        self.view = ShardsView()
        self._store = store
        self._identity = identity
        self._holders = holders
        self._shard = shard
        self._clock = clock
        self._ticks = ticks
        self._next_look = 0
        self._shared: tuple[int, str, int] | None = None
        """The cycle in which the own share was run."""
        self._closed: tuple[int, str, int] | None = None
        """The cycle whose rest was run, or left out."""
        self._owned: tuple[tuple[str, ...], dict[str, bool]] = ((), {})
        """The members of the latest cycle, and which nodes are of the own share among them."""
        self._unfinished: tuple[CycleLedger, str] | None = None
        """The ledger that does not have the end of the own part yet, with its error."""

    def acts(self) -> bool:
        """Return whether this replica has a shard; for any thread."""
        return bool(self._shard())

    @property
    def next_look(self) -> int:
        """The time of the next look at the ledger, of the ticks."""
        return self._next_look

    def due(self, *, leads: bool, interval: int) -> ShardPart | None:
        """Return the part of a cycle that is due; call `finish` after it.

        With `leads` another cycle begins `interval` ns after the one before; with 0 there is only one.
        """
        now = self._ticks()
        if now < self._next_look:
            return None
        self._next_look = now + _LOOK
        try:
            stored = self._look(leads=leads, interval=interval)
        except StoreChangedError:
            return None  # a member wrote at the same time: the next look tries it again
        except OSError as error:
            self._failed(str(error))
            return None
        ledger = stored.ledger
        self.view = ShardsView(self._shard(), ledger.cycle, ledger.opened, ledger.leader, ledger.members,
                               tuple(ledger.finished), len(ledger.entries))
        if self._identity in ledger.members and self._identity not in ledger.finished and self._shared != ledger.key:
            return ShardPart(PartKind.SHARE, self._part(stored, self.nodes_of(ledger.members)),
                             last=not leads or ledger.leader != self._identity)
        if not leads or ledger.leader != self._identity or self._closed == ledger.key:
            return None
        return self._closing(stored)

    def nodes_of(self, members: tuple[str, ...]) -> Callable[[str], bool]:
        """Return which nodes are of the own share among these members; what was found is for later cycles, too."""
        if self._owned[0] != members or len(self._owned[1]) > _MOST_OWNED:
            self._owned = members, {}
        known = self._owned[1]

        def owns(node: str) -> bool:
            found = known.get(node)
            if found is None:
                found = known[node] = owner_of(node, members) == self._identity
            return found

        return owns

    def finish(self, part: ShardPart, error: str) -> None:
        """Note the end of a part, with the error that ended it early."""
        key = part.part.ledger.key
        if part.kind is not PartKind.SHARE:
            self._closed = key
        else:
            self._shared = key
        self._next_look = self._ticks()
        if part.kind is not PartKind.CUT_OFF and not part.part.ledger.finish(error):
            self._unfinished = part.part.ledger, error
            self._failed("the end of a part could not be written")

    def _look(self, *, leads: bool, interval: int) -> StoredLedger:
        """Return the ledger, with the next cycle if that is due and this replica leads."""
        if self._unfinished is not None:
            part, error = self._unfinished
            if not part.finish(error):
                raise OSError("the end of a part could not be written")
            self._unfinished = None
        stored = self._store.load()
        ledger, now = stored.ledger, self._clock()
        # A clock that is set back by more than an interval must not delay cycles until it is where it was.
        if not leads or (ledger.cycle and not (interval and abs(now - ledger.opened) >= interval)):
            return stored
        if ledger.cycle and ledger.leader == self._identity and self._closed != ledger.key:
            _LOG.error("cycle %d ended without its last part, as these replicas had not finished their shares: %s",
                       ledger.cycle, ", ".join(_waited_for(ledger)) or "none")
        return self._store.save(ledger.next(self._identity, self._members(), now), stored.version)

    def _members(self) -> tuple[str, ...]:
        """Return the members that take part; the leader alone if nobody has a shard."""
        return tuple(dict.fromkeys(self._holders())) or (self._identity,)

    def _closing(self, stored: StoredLedger) -> ShardPart | None:
        """Return the leader's last part, once all shares are finished; without them the cycle ends."""
        ledger = stored.ledger
        failed = next((f"the share of {member}: {error}" for member, error in ledger.finished.items() if error), "")
        if not failed:
            waited = _waited_for(ledger)
            present = {*self._holders(), self._identity}
            absent_members = [each for each in waited if each not in present]
            if waited and not absent_members:
                return None
            failed = ""
            if absent_members:
                failed = f"the share of {absent_members[0]} was not finished: it has lost its Lease"
        part = self._part(stored, None)
        return ShardPart(PartKind.CUT_OFF if failed else PartKind.REST, part, failed)

    def _part(self, stored: StoredLedger, owns: Callable[[str], bool] | None) -> CyclePart:
        return CyclePart(CycleLedger(self._store, stored, self._identity, self._clock), owns)

    def _failed(self, why: str) -> None:
        self._next_look = self._ticks() + _PAUSE
        if why != self.view.fault:
            _LOG.warning("no cycle begins, as the ledger of the replicas cannot be read or written: %s", why)
        self.view = ShardsView(self._shard(), fault=why)


def _waited_for(ledger: Ledger) -> list[str]:
    return [each for each in ledger.members if each not in ledger.finished]
