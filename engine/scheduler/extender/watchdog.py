"""The watchdog of the deciding thread: detects an overdue task, and the code that it is in.

Nothing is recorded while decisions are made, so that they do not pay for it: the responsible code is read off the
thread's stack once it is overdue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.points import Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import Source

from ..profiles.profile import Active, Profile
from .decider import Decider, Task
from .shadow import Shadow

_SHOWN_FRAMES: Final = 5


@dataclass(frozen=True, slots=True)
class Overdue:
    """A task that has used up its budget and still runs; unknown fields are None."""

    what: str
    budget: float
    since: float
    """Seconds of the decider's clock."""
    pod: PodInfo | None = None
    plugin: Plugin | None = None
    point: Point | None = None
    profile: Profile | None = None
    shadow: bool = False
    """True if the shadow's policies run, and not the active ones."""
    trace: str = field(default="", repr=False)
    """The innermost calls of the thread, for the log."""

    @property
    def document(self) -> str:
        """The file of the responsible document; empty if none is responsible."""
        return self.plugin.span.root().name if self.plugin is not None and self.plugin.span is not None else ""

    def describe(self, now: float) -> str:
        """Return one line for users: the task, its time, and the responsible code."""
        about = f" about `{self.pod.key}`" if self.pod is not None else ""
        text = f"{self.what}{about} has been under way for {now - self.since:.1f} s, of {self.budget:g} s at most"
        if self.plugin is None:
            return text
        kind = "the document" if self.document else "the plugin"
        where = f" at `{self.point.value}`" if self.point is not None else ""
        shadow = " of the shadow" if self.shadow else ""
        return f"{text}: {kind} `{self.plugin.name}`{shadow} ({self.plugin.origin}){where} does not return"

    def to_json(self, now: float) -> dict[str, Any]:
        """Return plain data for `/status`."""
        return {
            "task": self.what, "seconds": round(now - self.since, 3), "budget": self.budget,
            "pod": None if self.pod is None else self.pod.key,
            "plugin": None if self.plugin is None else self.plugin.name,
            "origin": None if self.plugin is None else self.plugin.origin,
            "point": None if self.point is None else self.point.value,
            "generation": None if self.profile is None else self.profile.generation,
            "shadow": self.shadow, "message": self.describe(now),
        }


class Watchdog:
    """Watches a decider's task; call `look` a few times per budget.

    `report` is called once for each task that becomes overdue. After `last` more seconds the task counts as lost.
    """

    def __init__(self, decider: Decider, *, last: float, report: Callable[[Overdue], None] = lambda _: None) -> None:
        self._decider = decider
        self._last = last
        self._report = report
        self._lock = threading.RLock()
        self._seen: tuple[Task, Overdue] | None = None

    def look(self) -> Overdue | None:
        """Return the overdue task; None if there is none. May be called from any thread."""
        with self._lock:
            return self._look()

    def _look(self) -> Overdue | None:
        task = self._decider.task
        if task is None or self._decider.clock() - task.since <= task.budget:
            self._seen = None
            return None
        if self._seen is None or self._seen[0] is not task:
            found = blamed(task, self._decider.stack())
            if self._decider.task is not task:  # the task has just ended, and the stack belongs to another one
                return None
            self._seen = task, found
            # The deadline has already ended expressions; other code may check whether it was cancelled.
            task.deadline.cancel()
            self._report(found)
        return self._seen[1]

    @property
    def lost(self) -> Overdue | None:
        """The task that has been overdue for so long that only a restart helps, or None."""
        overdue = self.look()
        if overdue is None or self._decider.clock() - overdue.since <= overdue.budget + self._last:
            return None
        return overdue


def document_of(registry: Registry, text: Source) -> Plugin | None:
    """Return the document that contains a source text, by their positions in a file; None if there is none."""
    root = text.whole().root()
    found: Plugin | None = None
    for plugin in registry.plugins.values():
        span = plugin.span.root() if plugin.span is not None else None
        if span is None or span.source.name != root.source.name or span.start > root.start:
            continue
        if found is None or found.span is None or found.span.root().start <= span.start:
            found = plugin
    return found


def blamed(task: Task, stack: Iterable[FrameType]) -> Overdue:
    """Return the overdue task with the responsible plugin, found in its stack: frames, innermost first."""
    frames = list(stack)
    found: dict[type, Any] = {}
    for frame in frames:
        for value in tuple(frame.f_locals.values()):
            kind = type(value)
            # The innermost plugin is running, for the outermost pod: a plugin may evaluate other pods.
            if kind in _OUTERMOST or (kind in _INNERMOST and kind not in found):
                found[kind] = value
    active: Active | None = found.get(Active)
    calls = [f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}" for frame in frames[:_SHOWN_FRAMES]]
    return Overdue(
        task.what, task.budget, task.since, found.get(PodInfo), None if active is None else active.plugin,
        found.get(Point), found.get(Profile), Shadow in found, "; ".join(calls),
    )


_INNERMOST: Final = frozenset((Active, Point))
_OUTERMOST: Final = frozenset((PodInfo, Profile, Shadow))
