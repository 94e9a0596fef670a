"""The memory of useless evictions: of which workloads, from which nodes, and until when no more of them are made.

An eviction was useless if a pod of the workload came back to the node, or if its proof found a loop. Each one in a row
doubles the cool-down of the workload on that node. The memory is a value: every change returns another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from koordpolicy.engine.cel.values.values import EvaluationError, Timestamp
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.explanation import shortened

from ..pods import created
from .successors import workload_of

_SECOND: Final = 1_000_000_000
_MINUTE: Final = 60 * _SECOND
FORMAT: Final = "koord-policy/eviction-memory/1"
_LONGEST_MESSAGE: Final = 300

Place = tuple[str, str]
"""A workload (`namespace/kind/name`) and a node that its pods leave."""


def place_of(pod: PodInfo) -> Place:
    """Return the workload of a pod (empty if it has no owner) and its node."""
    return workload_of(pod), pod.node_name


@dataclass(frozen=True, slots=True)
class CoolDownSettings:
    """The durations of the memory in nanoseconds, and its size."""

    first: int = 10 * _MINUTE
    """The cool-down after the first useless eviction; doubled by each further one."""
    longest: int = 24 * 60 * _MINUTE
    """The longest cool-down; a place without a useless eviction for that long after its cool-down is forgotten."""
    window: int = 10 * _MINUTE
    """The time after an eviction in which a pod that comes back makes it useless."""
    most: int = 500
    """The most places, and the most watched evictions; the oldest ones are dropped first."""


@dataclass(frozen=True, slots=True)
class UselessEvictions:
    """The useless evictions in a row of a workload from one node; times in ns since the epoch."""

    streak: int
    since: int
    """The time of the last one."""
    until: int
    """The end of the cool-down."""
    message: str


@dataclass(frozen=True, slots=True)
class WatchedEviction:
    """An eviction whose effect is not known yet; `at` is in ns since the epoch."""

    place: Place
    uid: str
    at: int
    counted: tuple[str, ...] = ()
    """UIDs of pods that came back to the place, and made other evictions useless."""


@dataclass(frozen=True, slots=True)
class CoolDown:
    """The time until which a pod is not evicted from its node, and why."""

    until: int
    message: str


@dataclass(frozen=True, slots=True)
class UselessEvictionMemory:
    """The useless evictions of the past. Immutable."""

    useless: Mapping[Place, UselessEvictions] = field(default_factory=dict)
    watched: tuple[WatchedEviction, ...] = ()
    settings: CoolDownSettings = CoolDownSettings()

    def cool_down(self, pod: PodInfo, now: int) -> CoolDown | None:
        """Return the cool-down of a pod's workload on its node, or None."""
        found = self.useless.get(place_of(pod))
        if found is None or now >= found.until:
            return None
        times = "a useless eviction" if found.streak == 1 else f"{found.streak} useless evictions in a row"
        return CoolDown(found.until, f"cool-down until {Timestamp(found.until)} after {times}: {found.message}")

    def with_loop(self, place: Place, loop: str, now: int) -> UselessEvictionMemory:
        """Return the memory after the proof of an eviction found a loop."""
        return self._with_useless(place, loop, now) if place[0] else self

    def with_eviction(self, pod: PodInfo, now: int) -> UselessEvictionMemory:
        """Return the memory after the pod was evicted: the next cycles watch whether its workload comes back."""
        place = place_of(pod)
        if not place[0]:
            return self
        watched = (*self.watched, WatchedEviction(place, pod.uid, now))
        return replace(self, watched=watched[-self.settings.most:])

    def merged_with(self, other: UselessEvictionMemory) -> UselessEvictionMemory:
        """Return the memory with what another process remembers: of each place the newer entry, all that is watched."""
        useless = dict(self.useless)
        for place, found in other.useless.items():
            known = useless.get(place)
            if known is None or (known.since, known.streak) < (found.since, found.streak):
                useless[place] = found
        newest = sorted(useless, key=lambda place: useless[place].since)[-self.settings.most:]
        watched = {each.uid: each for each in (*other.watched, *self.watched)}
        return replace(self, useless={place: useless[place] for place in newest}, watched=tuple(
            sorted(watched.values(), key=lambda each: each.at))[-self.settings.most:])

    def observed(self, snapshot: Snapshot) -> UselessEvictionMemory:
        """Return the memory after a look at the cluster: watched evictions turned out useless, or useful."""
        now, memory, left = snapshot.now, self, []
        counted: dict[Place, tuple[str, ...]] = {}
        for each in self.watched:
            known = (*each.counted, *counted.get(each.place, ()))
            back = next((pod for pod in _returned(each, snapshot) if pod.uid not in known), None)
            if back is not None:
                counted[each.place] = (*counted.get(each.place, ()), back.uid)
                seconds = max(0, now - each.at) // _SECOND
                message = f"{back.key} came back to {each.place[1]} within {seconds} s of the eviction"
                memory = memory._with_useless(each.place, message, now)
            elif now - each.at < self.settings.window:
                left.append(each)
            elif each.place in memory.useless and memory.useless[each.place].since <= each.at:
                useless = {place: found for place, found in memory.useless.items() if place != each.place}
                memory = replace(memory, useless=useless)
        old = now - self.settings.longest
        useless = {place: found for place, found in memory.useless.items() if found.until > old}
        return replace(memory, useless=useless, watched=tuple(
            replace(each, counted=(*each.counted, *counted[each.place])) if each.place in counted else each
            for each in left))

    def _with_useless(self, place: Place, message: str, now: int) -> UselessEvictionMemory:
        known, settings = self.useless.get(place), self.settings
        streak = 1 if known is None else known.streak + 1
        # Beyond some doublings every cool-down is the longest one.
        wait = min(settings.first << min(streak - 1, 62), settings.longest)
        found = UselessEvictions(streak, now, now + wait, shortened(message, _LONGEST_MESSAGE))
        useless = {each: other for each, other in self.useless.items() if each != place} | {place: found}
        while len(useless) > settings.most:
            del useless[min(useless, key=lambda each: useless[each].since)]
        return replace(self, useless=useless)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, which `memory_of` reads."""
        return {
            "format": FORMAT,
            "useless": [
                {"workload": workload, "node": node, "streak": found.streak, "since": str(Timestamp(found.since)),
                 "until": str(Timestamp(found.until)), "message": found.message}
                for (workload, node), found in self.useless.items()
            ],
            "watched": [
                {"workload": each.place[0], "node": each.place[1], "uid": each.uid, "at": str(Timestamp(each.at)),
                 **({"counted": list(each.counted)} if each.counted else {})}
                for each in self.watched
            ],
        }


def memory_of(data: object, settings: CoolDownSettings | None = None) -> UselessEvictionMemory:
    """Return the memory of plain data.

    Raises:
        ValueError: it is not one; the message names the field.
    """
    settings = settings or CoolDownSettings()
    content = _mapping(data, "the memory")
    if content.get("format") != FORMAT:
        raise ValueError(f"`format` must be `{FORMAT}`")
    useless: dict[Place, UselessEvictions] = {}
    for index, item in enumerate(_items(content, "useless")):
        path = f"useless[{index}]"
        found = _mapping(item, path)
        streak = found.get("streak")
        if isinstance(streak, bool) or not isinstance(streak, int) or streak < 1:
            raise ValueError(f"`{path}.streak` must be a whole number above 0")
        useless[_text(found, "workload", path), _text(found, "node", path)] = UselessEvictions(
            streak, _time(found, "since", path), _time(found, "until", path),
            shortened(_text(found, "message", path), _LONGEST_MESSAGE),
        )
    watched = []
    for index, item in enumerate(_items(content, "watched")):
        path = f"watched[{index}]"
        found = _mapping(item, path)
        place = _text(found, "workload", path), _text(found, "node", path)
        watched.append(WatchedEviction(
            place, _text(found, "uid", path), _time(found, "at", path), _counted(found, path)))
    newest = sorted(useless, key=lambda place: useless[place].since)[-settings.most:]
    return UselessEvictionMemory({place: useless[place] for place in newest}, tuple(watched[-settings.most:]), settings)


def _returned(watched: WatchedEviction, snapshot: Snapshot) -> Iterator[PodInfo]:
    """Yield the pods of the workload that were created after the eviction and run on its node."""
    workload, node = watched.place
    row = snapshot.index.get(node)
    for pod in snapshot.pods(row) if row is not None else ():
        # Creation times are in whole seconds.
        if (pod.uid != watched.uid and workload_of(pod) == workload
                and created(pod) >= watched.at // _SECOND * _SECOND):
            yield pod


def _mapping(data: object, path: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ValueError(f"`{path}` must be a mapping")  # noqa: TRY004 - all that is wrong with a file is one kind
    return data


def _items(data: Mapping[str, Any], name: str) -> list[Any]:
    items = data.get(name)
    if not isinstance(items, list):
        raise ValueError(f"`{name}` must be a list")  # noqa: TRY004 - all that is wrong with a file is one kind
    return items


def _counted(data: Mapping[str, Any], path: str) -> tuple[str, ...]:
    items = data.get("counted", [])
    if not isinstance(items, list) or not all(isinstance(each, str) for each in items):
        raise ValueError(f"`{path}.counted` must be a list of texts")
    return tuple(items)


def _text(data: Mapping[str, Any], name: str, path: str) -> str:
    text = data.get(name)
    if not isinstance(text, str):
        raise ValueError(f"`{path}.{name}` must be a text")  # noqa: TRY004 - all that is wrong with a file is one kind
    return text


def _time(data: Mapping[str, Any], name: str, path: str) -> int:
    try:
        return Timestamp.parse(_text(data, name, path)).ns
    except EvaluationError as error:
        raise ValueError(f"`{path}.{name}`: {error.message}") from None
