"""The scheduling cycle: preFilter, filter, score, weights, the choice, reserve, bind.

`decide` is the cycle up to the choice and changes nothing; `Scheduler` owns the cluster and carries a decision out.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cel.frame import Rows
from ..cel.values import EvaluationError
from ..cluster.pods import PodInfo
from ..cluster.snapshot import Cluster, Snapshot
from ..plugins import Count, CycleState, Handle
from ..points import HIGHEST_SCORE, Answer, Code, Framework, IgnoredErrors, Point, Refusal, Scores
from ..registry import Live, Registry
from ..reload.instances import Adoption, Instances, Lease
from ..source import PolicyError
from .profile import Active, Profile, ProfileSpec
from .rowwise import describe, failed
from .verdict import NOWHERE, Failure, Filtered, Scored, Tie, Verdict


class ReservedDevices:
    """The key of the cycle state under which a Reserve plugin leaves the minor numbers of the devices it took."""


class FirstByName:
    """Among the best nodes the one whose name sorts first: the same pods meet the same fate in every run."""

    rule = "first"
    seed: int | None = None

    def pick(self, rows: Rows) -> int:
        """Return one of the rows, which are ascending: a snapshot's rows are sorted by name."""
        return int(rows[0])


class SeededRandom:
    """Among the best nodes any one with equal chance, as kube-scheduler does, from a generator of its own."""

    rule = "random"

    def __init__(self, seed: int) -> None:
        self.seed: int | None = seed
        self._random = random.Random(seed)  # noqa: S311 - a choice among equals needs no secrecy

    def pick(self, rows: Rows) -> int:
        """Return one of the rows."""
        return int(rows[self._random.randrange(len(rows))])


TieBreak = FirstByName | SeededRandom
TIE_BREAKS = ("first", "random")
FIRST_BY_NAME = FirstByName()


def tie_break(rule: str, seed: int = 0) -> TieBreak:
    """Return the tie-break of that name.

    Raises:
        ValueError: there is none of that name.
    """
    match rule:
        case "first":
            return FIRST_BY_NAME
        case "random":
            return SeededRandom(seed)
        case _:
            raise ValueError(f"the tie-break `{rule}` does not exist: choose one of {', '.join(TIE_BREAKS)}")


def decide(
    profile: Profile, pod: PodInfo, snapshot: Snapshot, *, tie_break: TieBreak = FIRST_BY_NAME,
    exhaustive: bool = False, state: CycleState | None = None,
) -> Verdict:
    """Decide where a pod should run; changes nothing.

    `exhaustive` asks every filter about every node and scores a single node too: for explanations, which want all
    reasons and not only the first. What the plugins do wrong never ends the decision: an exception, a malformed answer
    or a score outside 0..100 is in the verdict as that plugin's failure, with the meaning that `engine.points` gives to
    an error at its point.
    """
    asking = _Asking(CycleState() if state is None else state, pod, snapshot)
    refusal, filters, rows = asking.filters(profile, _all_rows(snapshot.size), exhaustive)
    verdict = Verdict(pod, profile.name, profile.generation, snapshot.names, filters=filters, passed=rows,
                      refusal=refusal, failures=tuple(asking.failures))
    if refusal is not None:
        return verdict
    tie = Tie(tie_break.rule, 1, tie_break.seed)
    if len(rows) < (1 if exhaustive else 2):
        row = int(rows[0]) if len(rows) else -1
        return replace(verdict, row=row, node=snapshot.names[row], tie=tie) if len(rows) else verdict
    scores, totals = asking.scores(profile, rows)
    best = rows[totals == totals.max()]
    row = tie_break.pick(best)
    return replace(verdict, node=snapshot.names[row], row=row, totals=totals, scores=scores,
                   failures=tuple(asking.failures), tie=replace(tie, among=len(best)))


def filter_nodes(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, among: Rows | None = None) -> Verdict:
    """Return which of the nodes `among` (rows; None for all) the pod may run on: `decide` up to its filters.

    The verdict chooses no node and has no scores; `passed` is its answer, unless the pod was refused as a whole.
    """
    asking = _Asking(CycleState(), pod, snapshot)
    rows = _all_rows(snapshot.size) if among is None else among
    refusal, filters, passed = asking.filters(profile, rows, exhaustive=False)
    return Verdict(pod, profile.name, profile.generation, snapshot.names, filters=filters, passed=passed,
                   refusal=refusal, failures=tuple(asking.failures), considered=len(rows))


def score_nodes(profile: Profile, pod: PodInfo, snapshot: Snapshot, *, among: Rows | None = None) -> Verdict:
    """Return how good the nodes `among` (rows; None for all) are, which have passed: `decide` from its scores on.

    The verdict chooses no node; `totals` is its answer, in the order of `passed`, which are the nodes asked about.
    """
    asking = _Asking(CycleState(), pod, snapshot)
    rows = _all_rows(snapshot.size) if among is None else among
    for active in profile.pre_filters:  # what they leave in the state is there for their scores; the pod has passed
        asking.pre_filter(active)
    scores, totals = asking.scores(profile, rows)
    return Verdict(pod, profile.name, profile.generation, snapshot.names, passed=rows, totals=totals, scores=scores,
                   failures=tuple(asking.failures), considered=len(rows))


@dataclass(slots=True)
class _Asking:
    """One pod's questions to plugins: what they raise becomes a failure here, and nowhere else."""

    state: CycleState
    pod: PodInfo
    snapshot: Snapshot
    failures: list[Failure] = field(default_factory=list)

    def filters(
        self, profile: Profile, rows: Rows, exhaustive: bool,
    ) -> tuple[tuple[str, Point, Refusal] | None, tuple[Filtered, ...], Rows]:
        """Return who refused the pod as a whole, what the filters said, and which of the rows are left."""
        everything = rows
        found: list[Filtered] = []
        for active in profile.pre_filters:
            refusal = self.pre_filter(active)
            if refusal is None:
                continue
            if active.enforced:
                return (active.name, Point.PRE_FILTER, refusal), tuple(found), NOWHERE
            # What is only watched would have kept the pod from every node.
            answer, plugin = _refusing_all(refusal, self.snapshot.size), active.plugin
            found.append(Filtered(plugin.name, plugin.origin, answer, rows, rows, plugin.enforcement))
        for active in profile.filters:
            if not len(rows) and not exhaustive:
                break
            asked = everything if exhaustive else rows
            answer = self.filter(active, asked)
            refused, kept = _split(answer.passed, asked)
            if len(refused) or answer.errors:
                plugin = active.plugin
                found.append(Filtered(plugin.name, plugin.origin, answer, asked, refused, plugin.enforcement))
            if active.enforced and len(refused):
                rows = kept if asked is rows else rows[answer.passed[rows]]
        return None, tuple(found), rows

    def scores(self, profile: Profile, rows: Rows) -> tuple[tuple[Scored, ...], NDArray[np.int64]]:
        """Return what the scorers said about the rows, and the weighted totals in their order."""
        totals = np.zeros(len(rows), np.int64)
        if not len(rows):
            return (), totals
        found: list[Scored] = []
        for active in profile.scores:
            scores = self.score(active, rows)
            plugin = active.plugin
            found.append(Scored(plugin.name, plugin.origin, active.weight, scores, plugin.enforcement))
            if active.enforced:
                chosen = scores.values[rows]
                totals += chosen if active.weight == 1 else chosen * active.weight
        return tuple(found), totals

    def pre_filter(self, active: Active) -> Refusal | None:
        errors: list[tuple[str, EvaluationError]] = []
        self.state[IgnoredErrors] = errors
        try:
            refusal: Refusal | None = active.ask.pre_filter(self.state, self.pod, self.snapshot)
        except Exception as error:  # the border between framework and plugin
            self.failures.append(_failure(active, Point.PRE_FILTER, describe(error)))
            return Refusal("", describe(error), Code.ERROR, failed(error))
        if refusal is not None and refusal.error is not None:
            errors.append((refusal.rule, refusal.error))
        self.failures += (_failure(active, Point.PRE_FILTER, error.message, rule) for rule, error in errors)
        return refusal

    def filter(self, active: Active, rows: Rows) -> Answer:
        size = self.snapshot.size
        try:
            answer: Answer = active.ask.filter(self.state, self.pod, self.snapshot, rows)
            _check_shape(answer.passed, np.bool_, size)
        except Exception as error:  # the border between framework and plugin
            self.failures.append(_failure(active, Point.FILTER, describe(error)))
            refusal = Refusal("", describe(error), Code.ERROR, failed(error))
            return _refusing_all(refusal, size)
        return answer

    def score(self, active: Active, rows: Rows) -> Scores:
        size = self.snapshot.size
        try:
            scores: Scores = active.ask.score(self.state, self.pod, self.snapshot, rows)
            _check_shape(scores.values, np.int64, size)
        except Exception as error:  # the border between framework and plugin
            self.failures.append(_failure(active, Point.SCORE, describe(error)))
            return Scores(np.zeros(size, np.int64))
        chosen = scores.values[rows]
        if chosen.min() < 0 or chosen.max() > HIGHEST_SCORE:
            return _without_outliers(scores, rows)
        return scores


def _check_shape(values: NDArray[Any], wanted: type[np.generic], size: int) -> None:
    if values.dtype != wanted or values.shape != (size,):
        raise TypeError(
            f"the answer must be {size} values of {wanted.__name__}, not {values.dtype} of shape {values.shape}"
        )


def _without_outliers(scores: Scores, rows: Rows) -> Scores:
    values = scores.values.copy()
    errors = dict(scores.errors.get("", {}))
    for row in rows[(values[rows] < 0) | (values[rows] > HIGHEST_SCORE)].tolist():
        message = f"the score {int(values[row])} is outside 0..{HIGHEST_SCORE}"
        errors[row] = EvaluationError(message, reason="ScoreRange")
        values[row] = 0
    return replace(scores, values=values, errors={**scores.errors, "": errors})


def _refusing_all(refusal: Refusal, size: int) -> Answer:
    return Answer(np.zeros(size, np.bool_), lambda _: refusal, reasons=lambda rows: {refusal.message: rows},
                  codes=lambda rows: {refusal.code: rows})


def _failure(active: Active, point: Point, message: str, rule: str = "") -> Failure:
    return Failure(active.name, active.plugin.origin, point, message, rule=rule)


def _split(passed: NDArray[np.bool_], asked: Rows) -> tuple[Rows, Rows]:
    """Return which of the rows were refused and which passed."""
    chosen = passed if len(asked) == len(passed) else passed[asked]
    if chosen.all():
        return asked[:0], asked
    return asked[~chosen], asked[chosen]


@lru_cache(maxsize=8)
def _all_rows(size: int) -> Rows:
    rows = np.arange(size, dtype=np.intp)
    rows.flags.writeable = False
    return rows


@dataclass(frozen=True, slots=True)
class Settings:
    """How a scheduler decides: its profiles (the first is for pods that name none of them), ties, and its seed."""

    profiles: tuple[ProfileSpec, ...] = (ProfileSpec(),)
    tie_break: str = "first"
    seed: int = 0
    """Of random tie-breaks, and of plugins that leave something to chance."""


@dataclass(slots=True)
class _Force:
    """What is in force: the registry, and the profiles made of it."""

    registry: Registry | None = None
    profiles: dict[str, Profile] = field(default_factory=dict)


class Scheduler:
    """Decides about pods and carries the decisions out on its cluster; for one thread, which owns both.

    The registry is looked at once per decision. A new generation whose plugins cannot be made changes nothing: the one
    before stays in force, and `fault` says why. Whoever replaces the registry may call `prepare` first, in a thread of
    its own: then no decision waits for plugins that are made and started.
    """

    def __init__(
        self, cluster: Cluster, live: Live, settings: Settings | None = None, *, clock: Callable[[], int] = lambda: 0,
        count: Count | None = None,
    ) -> None:
        """`clock` tells the time of a decision, in nanoseconds since the epoch; `count` takes the plugins' metrics.

        Raises:
            PolicyError: a plugin of the registry cannot be made for a profile.
        """
        self.cluster = cluster
        self.settings = settings or Settings()
        self.fault: PolicyError | None = None
        self.trouble: tuple[str, ...] = ()
        """What went wrong when plugins of earlier generations were closed."""
        self._live = live
        self._clock = clock
        self._tie_break = tie_break(self.settings.tie_break, self.settings.seed)
        self._count = count
        self._instances = Instances(self._handle, failed=self._close_failed)
        self._force = _Force()
        self._prepared = _Force()
        self._making: int | None = None
        self._refused: Registry | None = None
        self._adopt(live.registry)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles in force, in the order of the settings; may be asked from any thread."""
        prepared = self._prepared
        # What was prepared and put in force is adopted by the next decision only.
        force = prepared if prepared.registry is self._live.registry else self._force
        return tuple(force.profiles.values())

    def profile_of(self, pod: PodInfo) -> Profile:
        """Return the profile that decides about a pod: the one it names (`spec.schedulerName`), else the first."""
        self._refresh()
        named = self._force.profiles.get(str((pod.object.get("spec") or {}).get("schedulerName", "")))
        return named or next(iter(self._force.profiles.values()))

    def hold(self, pod: PodInfo) -> tuple[Profile, Lease]:
        """Return the profile that decides about a pod, which runs until its lease is released, whatever is reloaded."""
        profile = self.profile_of(pod)
        assert self._force.registry is not None
        return profile, self._instances.lease(self._force.registry)

    def decide(self, pod: PodInfo, *, exhaustive: bool = False) -> Verdict:
        """Decide about a pod and change nothing; see `decide`."""
        snapshot = self.cluster.snapshot(self._clock())
        return decide(self.profile_of(pod), pod, snapshot, tie_break=self._tie_break, exhaustive=exhaustive)

    def schedule(self, pod: PodInfo, *, explained: bool = False) -> Verdict:
        """Decide about a pod, reserve what it needs on the node, and assume it there.

        If a plugin refuses to reserve, what the others have reserved is given back and the pod stays without a node.
        With `explained` the verdict may be kept (see `Verdict.explained`). Without it, its reasons must be read before
        the next change of the cluster where the pod was *not* placed; where it was, they would describe the cluster
        with the pod on it.
        """
        snapshot = self.cluster.snapshot(self._clock())
        profile, state = self.profile_of(pod), CycleState()
        verdict = decide(profile, pod, snapshot, tie_break=self._tie_break, state=state)
        if explained:
            verdict = verdict.explained()
        if verdict.node is None:
            return verdict
        refusal = self._reserve(profile, state, pod, snapshot, verdict)
        if refusal is not None:
            return refusal
        devices: tuple[int, ...] = state.get(ReservedDevices, ())
        self.cluster.assume(pod, verdict.node, devices)
        return replace(verdict, devices=devices) if devices else verdict

    def prepare(self, registry: Registry) -> None:
        """Make and start the plugins of a registry that is about to be put in force; to be called from any one thread.

        Raises:
            PolicyError: a plugin cannot be made for a profile; then nothing has changed.
        """
        with self._instances.preparing(registry) as adoption:
            # One assignment, after all of it is there: the thread that decides may look at any moment.
            self._prepared = _Force(registry, self._made(registry, adoption))

    def close(self) -> None:
        """Close all plugins; the scheduler decides nothing any more."""
        self._force = _Force()
        self._instances.close()

    def _close_failed(self, key: tuple[str, Framework, str, str, str], error: Exception) -> None:
        self.trouble += (f"the scheduler plugin `{key[2]}` failed to close: {describe(error)}",)

    def _handle(self, profile: str) -> Handle:
        handle = Handle(profile, self._snapshot, self._clock,
                        logging.getLogger(f"koordpolicy.scheduler.{profile}"), seed=self.settings.seed)
        return handle if self._count is None else replace(handle, count=self._count)

    def _snapshot(self) -> Snapshot:
        if self._making == threading.get_ident():
            # Plugins are made beside running decisions, which own the cluster.
            raise RuntimeError("the cluster cannot be looked at while a plugin is made or started: ask for the "
                               "snapshot when the plugin is asked")
        return self.cluster.snapshot(self._clock())

    def _reserve(
        self, profile: Profile, state: CycleState, pod: PodInfo, snapshot: Snapshot, verdict: Verdict,
    ) -> Verdict | None:
        failures = list(verdict.failures)
        for place, active in enumerate(profile.reserves):
            try:
                refusal = active.ask.reserve(state, pod, snapshot, verdict.row)
            except Exception as error:  # the border between framework and plugin
                failures.append(_failure(active, Point.RESERVE, describe(error)))
                refusal = Refusal("", describe(error), Code.ERROR, failed(error))
            if refusal is None:
                continue
            for other in reversed(profile.reserves[: place + 1]):
                try:
                    other.ask.unreserve(state, pod, snapshot, verdict.row)
                except Exception as error:  # whoever fails to give back must not keep the others from it
                    failures.append(_failure(other, Point.RESERVE, f"cannot give back: {describe(error)}"))
            return replace(verdict, node=None, row=-1, failures=tuple(failures),
                           refusal=(active.name, Point.RESERVE, refusal))
        return None

    def _refresh(self) -> None:
        registry = self._live.registry
        if registry is self._force.registry or registry is self._refused:
            return
        prepared = self._prepared
        if prepared.registry is None or prepared.registry.generation < registry.generation:
            try:
                self._adopt(registry)
            except PolicyError as error:
                self.fault, self._refused = error, registry
        elif prepared.registry is registry:
            # Where a newer one has been prepared just now, it is in force in a moment: the next decision finds it.
            with contextlib.suppress(LookupError):
                self._instances.adopt(registry)
                self._force, self.fault, self._refused = prepared, None, None

    def _adopt(self, registry: Registry) -> None:
        # Everything is made before anything is replaced, and what nobody uses any more is closed after that.
        with self._instances.adopting(registry) as adoption:
            made = self._made(registry, adoption)
        self._force, self.fault, self._refused = _Force(registry, made), None, None

    def _made(self, registry: Registry, adoption: Adoption) -> dict[str, Profile]:
        self._making = threading.get_ident()
        try:
            return {spec.name: Profile.of(spec, registry, adoption) for spec in self.settings.profiles}
        finally:
            self._making = None
