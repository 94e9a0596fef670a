"""What plugins are asked during decisions, in which order, what they answer, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ..plugins import Changed, Nomination, OnlyNodes, Plan, Repeats, Skip, Wait
from ..points import Answer, Point, Refusal, Scores
from .profile import Active, Profile
from .rowwise import describe


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to one plugin: the method, what it came to in a few words, and the seconds that it took."""

    plugin: str
    method: str
    result: str
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"plugin": self.plugin, "method": self.method, "result": self.result,
                "microseconds": round(self.seconds * 1e6, 1)}


Record = Callable[[Asked], None]

_HIDDEN: Final = frozenset((Repeats.question.__name__,))
"""A plugin that is traced is asked itself every time: kept answers would leave nothing to see."""


class _Traced:
    """A plugin whose every answer is recorded; it has the methods that the plugin has."""

    def __init__(self, plugin: str, instance: Any, record: Record, timer: Callable[[], float]) -> None:
        self._plugin = plugin
        self._instance = instance
        self._record = record
        self._timer = timer

    def __getattr__(self, name: str) -> Any:
        if name in _HIDDEN:
            raise AttributeError(name)
        found = getattr(self._instance, name)
        if not callable(found) or name.startswith("_"):
            return found

        def ask(*arguments: Any) -> Any:
            begun = self._timer()
            try:
                answer = found(*arguments)
            except BaseException as error:
                self._record(Asked(self._plugin, name, f"raised {describe(error)}", self._timer() - begun))
                raise
            self._record(Asked(self._plugin, name, _in_words(answer, arguments), self._timer() - begun))
            return answer

        return ask


def traced(profile: Profile, record: Record, *, timer: Callable[[], float] = time.perf_counter) -> Profile:
    """Return the profile with plugins that are the same and tell `record` of everything that they are asked."""

    def wrap(active: Active) -> Active:
        return Active(active.plugin, active.weight, _Traced(active.name, active.ask, record, timer))

    at: dict[Point, tuple[Active, ...]] = {point: tuple(map(wrap, found)) for point, found in profile.at.items()}
    return Profile(profile.name, profile.generation, at, tuple(map(wrap, profile.made)))


def _in_words(answer: object, arguments: tuple[Any, ...]) -> str:
    match answer:
        case None:
            return "ok"
        case Refusal():
            return f"{answer.code.value}: {answer.message}"
        case Skip():
            return "skipped"
        case Answer():
            rows = arguments[-1]
            return f"{int(answer.passed[rows].sum())} of {len(rows)} nodes pass"
        case Scores():
            values = answer.values[arguments[-1]]
            return f"{int(values.min())} to {int(values.max())} over {len(values)} nodes" if len(values) else "no nodes"
        case Wait():
            return f"waits for up to {answer.timeout / 1e9:g} s"
        case OnlyNodes():
            return f"only {len(answer.names)} nodes"
        case Nomination():
            return f"{answer.node}, when {len(answer.victims)} pods have left it"
        case Plan():
            return f"a plan for {len(answer.nodes)} pods"
        case Changed():
            changed = [name for name, value in (("pod", answer.pod), ("cluster", answer.snapshot)) if value is not None]
            return f"another {' and another '.join(changed)}" if changed else "ok"
        case _:
            return type(answer).__name__ if not isinstance(answer, bool | int | str) else str(answer)
