"""The generator of pods' lifecycle events (koordlet's PLEG): control groups of pods and containers come and go.

Events come from the directories, long before kubelet's list of pods is read again. A change of a directory only says
that it must be listed: what it holds then is compared with what was known. So no order of changes, no lost change and
no directory that comes back leads to a wrong state; what came and went in between has no event.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ..host.control_groups import TIERS, ControlGroups
from .inotify import Inotify

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """The control group of a pod, or of one of its containers, was created or deleted.

    `tier` is the logical directory of its QoS class, `uid` the pod's UID, `container` the container's id, empty for a
    pod. Sandboxes are containers too.
    """

    created: bool
    tier: str
    uid: str
    container: str = ""


_Key = tuple[str, str]
"""A tier, and the name of a pod's directory in it; the name is empty for the tier's own directory."""


class LifecycleWatcher:
    """Watches the directories of the three QoS classes, of all pods in them, and of pods that come later.

    For one thread. `start` once; then `dispatch` whenever `fileno()` is readable (or `wait` says so), and `rescan` now
    and then if the number of watches is limited. Directories that are missing are waited for.
    """

    def __init__(self, groups: ControlGroups, callback: Callable[[LifecycleEvent], object]) -> None:
        """`callback` gets each event, a pod's before those of its containers, in the thread that dispatches."""
        self._groups = groups
        # v1: kubelet makes the same directories in all hierarchies.
        self._root = groups.root("cpu") or "/nonexistent"
        self._callback = callback
        self._inotify: Inotify | None = None
        self._watches: dict[int, set[_Key]] = {}
        self._pods: dict[str, dict[str, set[str]]] = {tier: {} for tier in TIERS}
        self._unwatched = False

    def start(self) -> None:
        """Begin to watch; what is there already has no events. Raises `OSError` if there is no inotify."""
        self._inotify = Inotify()
        for _ in self._rescan():
            pass

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is something to dispatch."""
        assert self._inotify is not None
        return self._inotify.fileno()

    def wait(self, seconds: float) -> bool:
        """Wait for changes at most that long; return whether there are any."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def dispatch(self) -> None:
        """Pass the events since the last call to the callback; never waits."""
        assert self._inotify is not None
        changed: set[_Key] = set()
        for change in self._inotify.read():
            if change.watch < 0:
                _LOG.warning("changes of control groups were lost as there were too many: all of them are listed again")
                self.rescan()
                return
            changed |= self._watches.get(change.watch, set())
            if change.ended:
                self._watches.pop(change.watch, None)
        for tier, pod in sorted(changed):  # tiers before their pods
            events = self._list_pod(tier, pod) if pod else self._list_tier(tier)
            self._call(events)

    def rescan(self) -> None:
        """List all directories, and pass the differences to the callback."""
        self._call(self._rescan())

    @property
    def pods(self) -> Mapping[str, frozenset[str]]:
        """The ids of the containers by UID of the pod, as far as is known."""
        found: dict[str, frozenset[str]] = {}
        for pods in self._pods.values():
            for name, containers in pods.items():
                ids = (self._groups.parse_container(each) for each in containers)
                found[self._groups.parse_pod(name) or name] = frozenset(each for each in ids if each)
        return found

    def close(self) -> None:
        """End all watches."""
        if self._inotify is not None:
            self._inotify.close()

    def _call(self, events: Iterator[LifecycleEvent]) -> None:
        for event in events:
            try:
                self._callback(event)
            except Exception:
                _LOG.exception("the callback for %s failed", event)

    def _rescan(self) -> Iterator[LifecycleEvent]:
        for tier in TIERS:
            yield from self._list_tier(tier, deep=True)

    def _list_tier(self, tier: str, *, deep: bool = False) -> Iterator[LifecycleEvent]:
        """Compare a tier's directory with what is known; `deep` lists all its pods too."""
        path = f"{self._root}/{self._groups.tier(tier)}"
        if not self._watch(path, (tier, "")):
            self._await(tier)
        names = {name for name in _directories(path) if self._groups.parse_pod(name) is not None}
        known = self._pods[tier]
        for name in sorted(known.keys() - names):
            yield from self._pod_gone(tier, name)
        for name in sorted(names):
            if name not in known:
                known[name] = set()
                yield LifecycleEvent(True, tier, self._uid(name))
                yield from self._list_pod(tier, name)
            elif deep:
                yield from self._list_pod(tier, name)

    def _list_pod(self, tier: str, pod: str) -> Iterator[LifecycleEvent]:
        known = self._pods[tier].get(pod)
        if known is None:
            return
        path = f"{self._root}/{self._groups.tier(tier)}/{pod}"
        self._watch(path, (tier, pod))
        names = {name for name in _directories(path) if self._groups.parse_container(name) is not None}
        removed, new = known - names, names - known
        known -= removed
        known |= new
        yield from self._of_containers(False, tier, pod, removed)
        yield from self._of_containers(True, tier, pod, new)

    def _pod_gone(self, tier: str, pod: str) -> Iterator[LifecycleEvent]:
        containers = self._pods[tier].pop(pod)
        for watch in [watch for watch, keys in self._watches.items() if (tier, pod) in keys]:
            del self._watches[watch]
            if self._inotify is not None:
                self._inotify.unwatch(watch)
        yield from self._of_containers(False, tier, pod, containers)
        yield LifecycleEvent(False, tier, self._uid(pod))

    def _of_containers(self, created: bool, tier: str, pod: str, names: set[str]) -> Iterator[LifecycleEvent]:
        for name in sorted(names):
            yield LifecycleEvent(created, tier, self._uid(pod), self._groups.parse_container(name) or name)

    def _uid(self, name: str) -> str:
        return self._groups.parse_pod(name) or name

    def _await(self, tier: str) -> None:
        """Watch the last directory above a tier that exists, for the next one to come."""
        path, missing = self._root, self._groups.tier(tier).split("/")
        if not self._watch(path, (tier, "")):
            return  # not mounted: `rescan` finds it
        while missing:
            path = f"{path}/{missing.pop(0)}"
            if not self._watch(path, (tier, "")):
                return

    def _watch(self, path: str, key: _Key) -> bool:
        """Watch a directory; return false if it does not exist."""
        assert self._inotify is not None
        try:
            self._watches.setdefault(self._inotify.watch(path), set()).add(key)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if not self._unwatched:
                self._unwatched = True
                _LOG.warning("%s cannot be watched, its changes are seen later: %s", path, error)
        return True


def _directories(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # it went away meanwhile
