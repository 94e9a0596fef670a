"""The shadow: policies that are not active are evaluated beside the active ones; differences are counted and sampled.

Two things are compared with each response: a whole set of policies that runs in the shadow of the active one, and each
plugin that only audits or warns, as if it was enforced. Comparing begins when the response is being sent, in the
deciding thread, over the same snapshot; its part of that thread's time is bounded.
"""

from __future__ import annotations

import enum
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import describe
from koordpolicy.engine.framework.points import Enforcement
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload.reloader import Reloader

from ..cycle.schedule_one import Scheduler, filter_only, score_only
from ..profiles.profile import Profile
from ..verdict.verdict import Verdict

SHARE: Final = 0.25
"""The default maximum part of the deciding thread's time for decisions in the shadow."""
SAMPLE: Final = 20
"""The number of sampled differences."""

_MOST_BUDGET_S: Final = 0.5
_NAMES_SHOWN: Final = 5
_LONGEST_MESSAGE: Final = 300
_MOST_PLUGINS: Final = 200

Scale: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Converts totals to the priorities of the response."""


class ShadowResult(enum.Enum):
    """The result of a comparison."""

    SAME = "same"
    DIFFERS = "differs"
    ERROR = "error"
    """The shadow failed as a whole."""
    SKIPPED = "skipped"
    """There was no time for a comparison, or the response was made under an older generation."""


@dataclass(frozen=True, slots=True)
class ActiveAnswer:
    """A response: the verdict, and for scores the priorities of the verdict's rows."""

    profile: Profile
    snapshot: Snapshot
    rows: Rows
    verdict: Verdict
    priorities: NDArray[np.int64] | None = None

    @property
    def verb(self) -> str:
        """The kind of the call."""
        return "filter" if self.priorities is None else "prioritize"


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """A response that would have differed for `nodes` nodes.

    For a filter, `gained` are nodes that would pass and did not, `lost` nodes that passed and would not. For
    priorities, `lost` are the best nodes of the response and `gained` those of the shadow. Both name the first few.
    """

    verb: str
    pod: str
    at: int
    """Nanoseconds since the epoch, by the clock of decisions."""
    nodes: int
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    why: tuple[str, ...] = ()
    """The plugin and message that refuse the first node gained or lost."""
    gained_left_out: int = 0
    lost_left_out: int = 0
    """The number of further nodes that are not named."""

    def to_json(self) -> dict[str, Any]:
        """Return plain data; `gainedLeftOut` and `lostLeftOut` count the nodes that are not named."""
        left_out = {"gainedLeftOut": self.gained_left_out, "lostLeftOut": self.lost_left_out}
        return {"verb": self.verb, "pod": self.pod, "at": self.at / 1e9, "nodes": self.nodes,
                "gained": list(self.gained), "lost": list(self.lost), "why": list(self.why),
                **{name: count for name, count in left_out.items() if count}}


def _most_nodes_first(difference: ShadowDifference) -> tuple[int, int]:
    return -difference.nodes, difference.at


@dataclass(slots=True)
class ShadowTally:
    """Counts results and samples differences with equal probability; for all threads."""

    seed: int = 0
    most: int = SAMPLE
    _counts: Counter[ShadowResult] = field(default_factory=Counter)
    _sample: list[ShadowDifference] = field(default_factory=list)
    _random: random.Random = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 - a sample needs no secrecy

    def add(self, result: ShadowResult, difference: ShadowDifference | None = None) -> None:
        """Count one comparison."""
        with self._lock:
            self._counts[result] += 1
            if difference is None:
                return
            if len(self._sample) < self.most:
                self._sample.append(difference)
                return
            place = self._random.randrange(self._counts[ShadowResult.DIFFERS])
            if place < self.most:
                self._sample[place] = difference

    def count(self, result: ShadowResult) -> int:
        """Return the number of comparisons with that result."""
        with self._lock:
            return self._counts[result]

    @property
    def compared(self) -> int:
        """The number of compared responses, whatever the result."""
        with self._lock:
            return sum(self._counts.values()) - self._counts[ShadowResult.SKIPPED]

    def sample(self) -> tuple[ShadowDifference, ...]:
        """Return the sampled differences, those that concern most nodes first."""
        with self._lock:
            return tuple(sorted(self._sample, key=_most_nodes_first))

    def to_json(self, most: int | None = None) -> dict[str, Any]:
        """Return plain data, with at most `most` examples; `examplesLeftOut` counts the other differences."""
        with self._lock:
            counts, sample = {each: self._counts[each] for each in ShadowResult}, tuple(self._sample)
        examples = sorted(sample, key=_most_nodes_first)[:most]
        rest = counts[ShadowResult.DIFFERS] - len(examples)
        return {"decisions": sum(counts.values()) - counts[ShadowResult.SKIPPED],
                **{each.value: count for each, count in counts.items()},
                "examples": [each.to_json() for each in examples], **({"examplesLeftOut": rest} if rest else {})}


@dataclass(frozen=True, slots=True)
class Agreement:
    """The comparisons of the shadow with the active policies, since either of them changed."""

    shadow: str
    """The hash of the registry in the shadow."""
    active: str
    """The hash of the active registry."""
    tally: ShadowTally
    failing: Counter[str] = field(default_factory=Counter)
    """The number of decisions in which a plugin's expressions failed in the shadow."""

    def fail(self, name: str) -> None:
        """Count a decision in which a plugin failed; once 200 plugins are counted, no others are."""
        if name in self.failing or len(self.failing) < _MOST_PLUGINS:
            self.failing[name] += 1


class Shadow:
    """Decides again under policies that are not active, and compares; `compare` is for the deciding thread.

    `timer` returns seconds of a monotonic clock; `share` (0 to 1) is the maximum part of that thread's time.
    `reloader` keeps the shadow's own policies up to date.
    """

    def __init__(
        self, scheduler: Scheduler, live: Live, active: Live, reloader: Reloader, *, timer: Callable[[], float],
        share: float = SHARE,
    ) -> None:
        self.reloader = reloader
        self.totals: Counter[tuple[str, ShadowResult]] = Counter()
        """The number of comparisons since the start, by verb and result."""
        self.seconds = 0.0
        """The seconds of shadow decisions since the start."""
        self._scheduler = scheduler
        self._live = live
        self._active = active
        self._timer = timer
        self._share = share
        self._budget_s, self._budget_at = _MOST_BUDGET_S, timer()
        self._agreement = Agreement("", "", ShadowTally())

    @property
    def ready(self) -> bool:
        """True if there is a set of policies in the shadow."""
        return self._live.registry.generation > 0

    @property
    def agreement(self) -> Agreement:
        """The comparisons since the shadow or the active policies changed; for any thread."""
        pair = self._live.registry.digest, self._active.registry.digest
        found = self._agreement
        return found if (found.shadow, found.active) == pair else Agreement(*pair, ShadowTally())

    def compare(self, response: ActiveAnswer, scale: Scale) -> None:
        """Decide in the shadow about the last request, and compare; never raises."""
        if not self.ready:
            return
        self._agreement = agreement = self.agreement
        now = self._timer()
        self._budget_s = min(_MOST_BUDGET_S, self._budget_s + (now - self._budget_at) * self._share)
        self._budget_at = now
        result, difference = ShadowResult.SKIPPED, None
        if self._budget_s > 0 and response.verdict.generation == self._active.registry.generation:
            try:
                result, difference = self._decide(response, scale, agreement)
            except Exception as error:  # whatever goes wrong in the shadow stays there
                result = ShadowResult.ERROR
                agreement.fail(f"koord-policy: {describe(error)}"[:_LONGEST_MESSAGE])
            took = self._timer() - now
            self._budget_s -= took
            self.seconds += took
        agreement.tally.add(result, difference)
        self.totals[response.verb, result] += 1

    def _decide(
        self, response: ActiveAnswer, scale: Scale, agreement: Agreement,
    ) -> tuple[ShadowResult, ShadowDifference | None]:
        pod, snapshot = response.verdict.pod, response.snapshot
        profile = self._scheduler.profile_of(pod)
        if response.priorities is None:
            other = filter_only(profile, pod, snapshot, among=response.rows)
            difference = _filtered(response, other)
        else:
            other = score_only(profile, pod, snapshot, among=response.rows)
            assert other.totals is not None
            difference = _scored(response, scale(other.totals), ())
        for plugin in {failure.plugin for failure in other.errors()}:
            agreement.fail(plugin)
        return (ShadowResult.SAME, None) if difference is None else (ShadowResult.DIFFERS, difference)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `/status`."""
        agreement = self.agreement
        return {
            "ready": self.ready, "hash": agreement.shadow, "comparedWith": agreement.active,
            "seconds": round(self.seconds, 6), "failing": dict(agreement.failing),
        } | agreement.tally.to_json() | {"policies": self.reloader.status().to_json()}

    def close(self) -> None:
        """Stop reloading and close the shadow's plugins."""
        self.reloader.close()
        self._scheduler.close()


class Audits:
    """Counts the responses that would differ if a plugin that only audits or warns was enforced; `compare` is for
    one thread.
    """

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str], tuple[Enforcement, ShadowTally]] = {}

    def compare(self, response: ActiveAnswer, scale: Scale) -> None:
        """Compare a response with what it would be if each of these plugins was enforced, one at a time."""
        profile, verdict = response.profile, response.verdict
        if response.priorities is None:
            watched = [each for each in (*profile.pre_filters, *profile.filters) if not each.enforced]
            for name, group in _by_name(watched):
                refused = [step.refused for step in verdict.filters
                           if step.plugin == name and step.enforcement is not Enforcement.ENFORCE]
                rows = np.unique(np.concatenate(refused)) if refused else np.zeros(0, np.intp)
                self._add(name, group, "filter", _lost(response, name, np.intersect1d(rows, verdict.passed)))
        elif verdict.totals is not None:
            for step in verdict.scores:
                if step.enforcement is Enforcement.ENFORCE:
                    continue
                totals = verdict.totals + step.scores.values[verdict.passed].astype(np.int64) * step.weight
                self._add(step.plugin, step.enforcement, "prioritize", _scored(response, scale(totals), (step.plugin,)))

    def read(self) -> list[tuple[str, str, Enforcement, ShadowTally]]:
        """Return plugin, verb, enforcement and tally; may be called from any thread."""
        found = [(*key, *tally) for key, tally in list(self._tallies.items())]
        return sorted(found, key=lambda each: each[:2])

    def to_json(self) -> list[dict[str, Any]]:
        """Return plain data for `/status`."""
        return [{"plugin": plugin, "verb": verb, "enforcement": enforcement.value} | tally.to_json()
                for plugin, verb, enforcement, tally in self.read()]

    def _add(self, plugin: str, enforcement: Enforcement, verb: str, difference: ShadowDifference | None) -> None:
        known = self._tallies.get((plugin, verb))
        if known is None:
            if len(self._tallies) >= _MOST_PLUGINS:
                # Reloads change the names; the oldest one is dropped.
                self._tallies.pop(next(iter(self._tallies)))
            known = enforcement, ShadowTally(most=_NAMES_SHOWN)
            self._tallies[plugin, verb] = known
        known[1].add(ShadowResult.SAME if difference is None else ShadowResult.DIFFERS, difference)


def _by_name(watched: Sequence[Any]) -> list[tuple[str, Enforcement]]:
    return list({each.name: each.plugin.enforcement for each in watched}.items())


def _filtered(response: ActiveAnswer, other: Verdict) -> ShadowDifference | None:
    before, after = response.verdict.passed, other.passed
    if np.array_equal(before, after):
        return None
    gained, lost = np.setdiff1d(after, before), np.setdiff1d(before, after)
    why = (*_why("was refused by", response.verdict, gained), *_why("would be refused by", other, lost))
    return _difference(response, len(gained) + len(lost), gained, lost, why)


def _lost(response: ActiveAnswer, plugin: str, rows: Rows) -> ShadowDifference | None:
    if not len(rows):
        return None
    step = next(each for each in response.verdict.filters if each.plugin == plugin and rows[0] in each.refused)
    message = step.answer.explain(int(rows[0])).message
    why = (f"would be refused by {plugin}: {message}"[:_LONGEST_MESSAGE],)
    return _difference(response, len(rows), rows[:0], rows, why)


def _scored(response: ActiveAnswer, priorities: NDArray[np.int64], why: tuple[str, ...]) -> ShadowDifference | None:
    before, rows = response.priorities, response.verdict.passed
    assert before is not None
    changed = int((before != priorities).sum())
    if not changed:
        return None
    return _difference(response, changed, _best(rows, priorities), _best(rows, before), why)


def _best(rows: Rows, priorities: NDArray[np.int64]) -> Rows:
    best: Rows = rows[priorities == priorities.max()]
    return best


def _difference(response: ActiveAnswer, count: int, gained: Rows, lost: Rows, why: tuple[str, ...]) -> ShadowDifference:
    return ShadowDifference(
        response.verb, response.verdict.pod.key, response.snapshot.now, count, _named(response, gained),
        _named(response, lost), why, len(gained[_NAMES_SHOWN:]), len(lost[_NAMES_SHOWN:]))


def _named(response: ActiveAnswer, rows: Rows) -> tuple[str, ...]:
    return tuple(str(response.verdict.names[int(row)]) for row in rows[:_NAMES_SHOWN])


def _why(verb: str, verdict: Verdict, rows: Rows) -> tuple[str, ...]:
    if not len(rows):
        return ()
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        found = [(plugin, refusal)]
    else:
        found = list(verdict.why_not(str(verdict.names[int(rows[0])])))
    return tuple(f"{verb} {plugin}: {refusal.message}"[:_LONGEST_MESSAGE] for plugin, refusal in found)
