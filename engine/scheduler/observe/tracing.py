"""Tracing of the calls of plugins during decisions: order, results, and times."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.framework.border import describe
from koordpolicy.engine.framework.points import Answer, CacheKey, Point, Refusal, Scores
from koordpolicy.engine.framework.scheduler import Cacheable, Changed, Nomination, OnlyNodes, Plan, Skip, Wait

from ..profiles.profile import Active, Profile


@dataclass(frozen=True, slots=True)
class PluginCall:
    """One call of a plugin: the method, its result in a few words, and the seconds that it took."""

    plugin: str
    method: str
    result: str
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"plugin": self.plugin, "method": self.method, "result": self.result,
                "microseconds": round(self.seconds * 1e6, 1)}


Record = Callable[[PluginCall], None]

_HIDDEN: Final = frozenset((Cacheable.cache_key.__name__,))
"""A traced plugin has no cache key: with cached results there would be no calls to trace."""


class TracedPlugin:
    """A plugin whose calls are reported; it has the methods of the plugin, except for hidden ones.

    `report` is called with the method, the seconds, the result (or the exception), whether it raised, and the
    arguments.
    """

    def __init__(
        self, instance: Any, report: Callable[[str, float, Any, bool, tuple[Any, ...]], None],
        timer: Callable[[], float], hidden: frozenset[str] = frozenset(),
    ) -> None:
        self._instance = instance
        self._report = report
        self._timer = timer
        self._hidden = hidden

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(name)
        found = getattr(self._instance, name)
        if not callable(found) or name.startswith("_"):
            return found
        report, timer = self._report, self._timer

        def ask(*arguments: Any) -> Any:
            begun = timer()
            try:
                answer = found(*arguments)
            except BaseException as error:
                report(name, timer() - begun, error, True, arguments)
                raise
            report(name, timer() - begun, answer, False, arguments)
            # Cached results would hide the plugin's calls.
            return answer._replace(vectorized=None) if isinstance(answer, CacheKey) else answer

        self.__dict__[name] = ask  # later look-ups do not call this method
        return ask


def watched(profile: Profile, watch: Callable[[Active], Any]) -> Profile:
    """Return the profile with each plugin replaced by the result of `watch`."""

    def wrap(active: Active) -> Active:
        return Active(active.plugin, active.weight, watch(active))

    at: dict[Point, tuple[Active, ...]] = {point: tuple(map(wrap, found)) for point, found in profile.at.items()}
    return Profile(profile.name, profile.generation, at, tuple(map(wrap, profile.made)))


def traced(profile: Profile, record: Record, *, timer: Callable[[], float] = time.perf_counter) -> Profile:
    """Return the profile with the same plugins, which report all calls to `record`."""

    def trace(active: Active) -> TracedPlugin:
        def report(method: str, seconds: float, answer: Any, raised: bool, arguments: tuple[Any, ...]) -> None:
            result = f"raised {describe(answer)}" if raised else _in_words(answer, arguments)
            record(PluginCall(active.name, method, result, seconds))

        return TracedPlugin(active.instance, report, timer, _HIDDEN)

    return watched(profile, trace)


def _in_words(answer: object, arguments: tuple[Any, ...]) -> str:
    match answer:
        case None:
            return "ok"
        case Refusal():
            return f"{answer.code.value}: {answer.message}"
        case Skip():
            return "skipped"
        case Answer():
            rows, size = arguments[-1], arguments[-2].size
            return f"{int(answer.spread(rows, size).passed[rows].sum())} of {len(rows)} nodes pass"
        case Scores():
            rows = arguments[-1]
            values = answer.spread(rows, arguments[-2].size).values[rows]
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
