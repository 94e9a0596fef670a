"""Sources of policies in OCI registries, and the thread that looks for newer bundles.

The thread pulls and verifies; the reloading thread reads what was pulled last, as it reads a directory. While a
registry does not answer, the last bundle stays readable and the source has a trouble. A bundle that is refused (no
signature of a known key, another digest, malformed) makes the source unreadable, so that the status shows why; the
active version stays.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.reference import SCHEME
from koordpolicy.engine.bundles.transfer import BundlePuller, PulledBundle
from koordpolicy.engine.client.pacing import Backoff
from koordpolicy.engine.source import Source

from .mount import Presence, SourceLimits, SourceReading, Stamp, Version, version_of
from .source_state import SourceState

INTERVAL_S: Final = 60.0
"""Seconds between looks at a tag."""
_JITTER: Final = 0.1
"""The share of an interval by which looks are moved, so that servers that started together spread."""
_NEVER: Final = float("inf")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pulled:
    """The knowledge about a source: the last bundle that was pulled, and the faults since then."""

    bundle: PulledBundle | None = None
    refusal: BundleFault | None = None
    """The reason why a newer bundle is not used."""
    trouble: BundleFault | None = None
    """The passing fault of the last look; a refusal before it stays."""


class BundleSource:
    """The bundle that a reference names. `look` and the other methods may be called from different threads."""

    unit: None = None
    consistent: bool = True

    def __init__(self, puller: BundlePuller, *, limits: SourceLimits | None = None) -> None:
        self.path = f"{SCHEME}{puller.reference}"
        self._puller = puller
        self._limits = limits or SourceLimits()
        self._known = _Pulled()

    @property
    def pinned(self) -> bool:
        """True if the reference has a digest: what it names never changes."""
        return bool(self._puller.reference.digest)

    @property
    def pulled(self) -> PulledBundle | None:
        """The last bundle that was pulled and verified; None if none was."""
        return self._known.bundle

    @property
    def fault(self) -> BundleFault | None:
        """The fault of the last look; None if it had none."""
        return self._known.trouble or self._known.refusal

    @property
    def trouble(self) -> str:
        """The reason why changes may be missed at present; empty if none is."""
        known = self._known
        return known.trouble.problem.message if known.bundle and known.trouble else ""

    def look(self) -> bool:
        """Pull the bundle if it is another one than before; return whether the state of the source has changed."""
        before = self._known
        known = before.bundle.digest if before.bundle is not None else ""
        try:
            found = self._puller.newer(known)
            if found is not None:
                self._check(found)
            after = _Pulled(found or before.bundle)
        except BundleFault as fault:
            after = replace(before, trouble=fault) if fault.passing else _Pulled(before.bundle, fault)
        self._known = after  # one assignment, which other threads see as a whole
        return after.bundle is not before.bundle or _shown(after) != _shown(before)

    def name_of(self, relative: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.path}/{relative}"

    def source_of(self, relative: str, text: str) -> Source:
        """Return the text of a file with its full name."""
        return Source(self.name_of(relative), text)

    def stamp(self) -> Stamp:
        """Return the stamp, without reading any file."""
        return _stamp(self._known)

    def read(self, previous: Version | None = None) -> SourceReading:
        """Return the files of the last bundle; one whose content is in `previous` keeps its `Source` object."""
        known = self._known
        stamp = _stamp(known)
        if not stamp.readable or known.bundle is None:
            return SourceReading(stamp)
        return SourceReading(stamp, self._version(known.bundle, previous))

    def _version(self, bundle: PulledBundle, previous: Version | None) -> Version:
        version = version_of(self, bundle.files, previous, limit=self._limits.file_bytes)
        return replace(version, bundle=bundle.digest)

    def _check(self, bundle: PulledBundle) -> None:
        """Raise `BundleFault` if the files do not have the hash that their maker wrote."""
        digest = self._version(bundle, None).digest
        if bundle.hash and bundle.hash != digest:
            raise BundleFault(f"the bundle {bundle.digest} names the hash {bundle.hash[:64]}, and has {digest}",
                              "push the policies again with `koord-policy push`", code="malformed-bundle")


def _stamp(known: _Pulled) -> Stamp:
    fault = known.refusal or (known.trouble if known.bundle is None else None)
    if fault is not None:
        problem = fault.problem
        return Stamp(Presence.UNREADABLE, (problem.message,), reason=problem.message, help=problem.help)
    if known.bundle is None:
        return Stamp(Presence.UNREADABLE, reason="it has not been pulled yet", help="wait for the registry")
    return Stamp(Presence.BUNDLE, (known.bundle.digest,))


def _shown(known: _Pulled) -> tuple[str, str]:
    return str(known.refusal or ""), str(known.trouble or "")


@dataclass(slots=True)
class _Schedule:
    """When a source is looked at next, by the monotonic clock."""

    source: BundleSource
    due: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)


class BundleFollower:
    """Looks for newer bundles in a thread of its own; an observer of its reloader.

    `interval_s` are the seconds between looks at a tag. After a failure the next look is sooner, with a growing delay,
    and not before the time that the registry demands. `random` returns numbers in [0, 1).
    """

    def __init__(
        self, sources: Sequence[BundleSource], *, interval_s: float = INTERVAL_S,
        random: Callable[[], float] = random.random,  # noqa: S311 - it spreads requests
    ) -> None:
        self.sources = tuple(sources)
        self._interval_s = interval_s
        self._random = random
        self._changed: Callable[[], None] = lambda: None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def first(self) -> None:
        """Look at all sources once, and return when that is done; faults are part of their state."""
        for source in self.sources:
            source.look()

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call a function after each change of a source, from another thread; it must not block."""
        self._changed = changed

    def started(self) -> None:
        """Begin to look for newer bundles."""
        self._thread = threading.Thread(target=self._run, name="bundles", daemon=True)
        self._thread.start()

    def published(self, states: Sequence[SourceState]) -> None:
        """Do nothing: nobody else is informed of what is active."""

    def closed(self) -> None:
        """End the thread; a request that is under way is not waited for."""
        self._ended.set()

    def delay_after(self, source: BundleSource, backoff: Backoff) -> float:
        """Return the seconds from a look at a source to the next one; infinite if it cannot change any more."""
        fault = source.fault
        if fault is None and source.pinned:
            return _NEVER
        if fault is not None and fault.passing:
            return max(min(backoff.next(), self._interval_s), fault.retry_after_s)
        return self._interval_s * (1 + _JITTER * (2 * self._random() - 1))

    def _run(self) -> None:
        schedules = [_Schedule(source) for source in self.sources]
        for each in schedules:
            each.due = time.monotonic() + self.delay_after(each.source, each.backoff)
        while True:
            following = min(schedules, key=lambda each: each.due)
            wait = following.due - time.monotonic()
            if self._ended.wait(None if wait == _NEVER else max(0.0, wait)):
                return
            self._look(following)

    def _look(self, schedule: _Schedule) -> None:
        source = schedule.source
        try:
            changed = source.look()
        except Exception:
            # The thread must not end by a defect: servers would go on with an old bundle, and nobody would know.
            _LOG.exception("looking for a newer bundle of `%s` failed", source.path)
            changed = False
        schedule.due = time.monotonic() + self.delay_after(source, schedule.backoff)
        if changed:
            self._changed()
