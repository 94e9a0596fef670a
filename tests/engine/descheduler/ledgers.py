"""A store of the ledger of several replicas, in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from koordpolicy.engine.descheduler.ledger import Ledger, StoredLedger, encoded, ledger_of
from koordpolicy.engine.descheduler.proof.store import StoreChangedError

from .conftest import NOW


@dataclass
class Store:
    """A store in memory; `faults` are raised by the next writes, those with True after they were carried out."""

    text: str = field(default_factory=lambda: encoded(Ledger()))
    version: int = 1
    faults: list[tuple[Exception, bool]] = field(default_factory=list)
    unreadable: str = ""
    """The reason why it cannot be read; empty if it can."""
    requests: list[str] = field(default_factory=list)

    def load(self) -> StoredLedger:
        self.requests.append("load")
        if self.unreadable:
            raise OSError(self.unreadable)
        return StoredLedger(ledger_of(self.text), str(self.version))

    def save(self, ledger: Ledger, version: str) -> StoredLedger:
        self.requests.append("save")
        fault, carried_out = self.faults.pop(0) if self.faults else (None, True)
        if carried_out:
            if version != str(self.version):
                raise StoreChangedError("the ConfigMap was changed")
            self.text, self.version = encoded(ledger), self.version + 1
        if fault is not None:
            raise fault
        return StoredLedger(ledger, str(self.version))

    @property
    def ledger(self) -> Ledger:
        return ledger_of(self.text)

    def open(self, *members: str, now: int = NOW) -> None:
        self.save(self.ledger.next(members[0], members, now), str(self.version))
