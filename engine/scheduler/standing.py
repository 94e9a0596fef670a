"""Answers that stand: what filters and scores said of nodes, kept for all pods that ask the same.

A pod like one before costs what changed since, not what exists. There are two levels. Per plugin and question there is
a column of answers; per profile and set of questions there is who refused each node first, and the weighted total. Both
are brought up to date for the nodes on which something changed that the plugin reads. What cannot be kept (answers
that hang on other nodes, or on more than a plugin can say) is asked anew, and its place among the others stays.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..cel.checked import Path
from ..cel.frame import Rows
from ..cel.values import EvaluationError
from ..cluster.pods import PodInfo
from ..cluster.snapshot import NodeFrame, Snapshot
from ..plugins import CycleState, Question
from ..points import HIGHEST_SCORE, Answer, Code, Errors, Point, Refusal, Scores
from .profile import Active
from .verdict import Filtered

_KEPT: Final = "standing answers"
_PLUGIN_BYTES: Final = 32 * 1024 * 1024
_PROFILE_BYTES: Final = 128 * 1024 * 1024
"""Of the columns of one plugin, and of those that a profile's plugins come to together."""
_FEWEST: Final = 16
_MANY: Final = 4
"""Where more than one row in so many changed, all are asked about: that is not slower."""

_Booleans = NDArray[np.bool_]
_Entry = TypeVar("_Entry", "_Column", "_Whole")


@lru_cache(maxsize=8)
def all_rows(size: int) -> Rows:
    """Return the rows of so many nodes, not to be written."""
    rows = np.arange(size, dtype=np.intp)
    rows.flags.writeable = False
    return rows


class _Unkept(Exception):
    """A plugin's answer is not what its protocol says: it is asked the slow way, which says so."""


@dataclass(slots=True)
class _Column:
    """One plugin's answers to one question, brought up to date to `stamp`."""

    values: NDArray[Any]
    stamp: int
    epoch: Hashable
    errors: dict[str, dict[int, EvaluationError]] = field(default_factory=dict)

    def write(self, rows: Rows, values: NDArray[Any], errors: Errors, *, everywhere: bool) -> None:
        """Take over the answers about some rows, or about all of them."""
        if everywhere:
            self.errors.clear()
        elif self.errors:
            gone = rows.tolist()  # a few rows; those that stand may be thousands
            for rule, found in list(self.errors.items()):
                for row in gone:
                    found.pop(row, None)
                if not found:
                    del self.errors[rule]
        self.values[rows] = values[rows]
        for rule, added in errors.items():
            if added:
                self.errors.setdefault(rule, {}).update(added)


@dataclass(slots=True)
class _Whole:
    """What a set of questions comes to: who refused each node first, and the totals."""

    values: NDArray[Any]
    stamps: tuple[tuple[int, Hashable], ...]


class _Store:
    """All columns of one cluster, by plugin and by profile; of each the ones that were not used for longest go."""

    def __init__(self) -> None:
        self._columns: WeakKeyDictionary[Any, OrderedDict[Hashable, _Column]] = WeakKeyDictionary()
        self._wholes: WeakKeyDictionary[Any, OrderedDict[Hashable, _Whole]] = WeakKeyDictionary()

    def column(self, plugin: Any, key: Hashable) -> _Column | None:
        return _recent(self._columns.get(plugin), key)

    def keep(self, plugin: Any, key: Hashable, column: _Column) -> None:
        _keep(self._columns.setdefault(plugin, OrderedDict()), key, column, _PLUGIN_BYTES)

    def whole(self, profile: Any, key: Hashable) -> _Whole | None:
        return _recent(self._wholes.get(profile), key)

    def keep_whole(self, profile: Any, key: Hashable, whole: _Whole) -> None:
        _keep(self._wholes.setdefault(profile, OrderedDict()), key, whole, _PROFILE_BYTES)


def _recent(kept: OrderedDict[Hashable, _Entry] | None, key: Hashable) -> _Entry | None:
    found = None if kept is None else kept.get(key)
    if kept is not None and found is not None:
        kept.move_to_end(key)
    return found


def _keep(kept: OrderedDict[Hashable, _Entry], key: Hashable, entry: _Entry, most_bytes: int) -> None:
    most = max(_FEWEST, most_bytes // max(1, entry.values.nbytes))
    while len(kept) >= most:
        kept.popitem(last=False)
    kept[key] = entry


class Changes:
    """Which rows changed in what respect, looked up once per decision for all who read the same."""

    def __init__(self, frame: NodeFrame) -> None:
        self._frame = frame
        self._stamps: dict[frozenset[Path], int] = {}
        self._rows: dict[tuple[frozenset[Path], int], Rows | None] = {}

    def stamp(self, paths: frozenset[Path]) -> int:
        """Return a number that grows whenever a row may have changed at one of the paths."""
        found = self._stamps.get(paths)
        if found is None:
            found = self._stamps[paths] = self._frame.stamp(paths)
        return found

    def since(self, paths: frozenset[Path], stamp: int) -> Rows | None:
        """Return the rows that changed at one of the paths since then; None where that is not known any more."""
        key = paths, stamp
        if key not in self._rows:
            self._rows[key] = self._frame.changed(paths, stamp)
        return self._rows[key]


@dataclass(slots=True)
class Kept:
    """The plugins of one point of which the answers to a pod are kept, and the columns, up to date."""

    actives: list[Active]
    places: list[int]
    """Where they stand among all of the point's."""
    columns: list[_Column]
    questions: list[Question]
    changed: list[Rows | None]
    """What was asked anew in this decision; None for everything."""

    def __len__(self) -> int:
        """The number of plugins."""
        return len(self.actives)

    @property
    def asked(self) -> Hashable:
        """Who is asked what, and where each stands: that changes with the plugins that are skipped."""
        return tuple(
            (place, active.plugin.name, question.key)
            for place, active, question in zip(self.places, self.actives, self.questions, strict=True)
        )


class Standing:
    """The standing answers about one pod of one decision; see the module."""

    def __init__(self, state: CycleState, pod: PodInfo, snapshot: Snapshot) -> None:
        """`snapshot` is no overlay."""
        self._state = state
        self._pod = pod
        self._snapshot = snapshot
        frame = snapshot.frame({})
        self._changes = Changes(frame)
        store = frame.kept.get(_KEPT)
        if not isinstance(store, _Store):
            store = frame.kept[_KEPT] = _Store()
        self._store = store
        self._everything = all_rows(snapshot.size)

    def is_about(self, pod: PodInfo, snapshot: Snapshot) -> bool:
        """Whether that is the pod, and the moment."""
        return pod is self._pod and snapshot is self._snapshot

    def keep(self, point: Point, actives: Sequence[Active], among: frozenset[str]) -> Kept:
        """Return the plugins that say what their answers hang on, with their answers about all nodes.

        Only those `among` these names are asked for it.
        """
        kept = Kept([], [], [], [], [])
        for place, active in enumerate(actives):
            if active.plugin.name not in among:
                continue
            ask = active.ask
            try:
                question = ask.question(point, self._pod, self._snapshot)
                if question is None:
                    continue
                column, changed = self._column(point, ask, question)
            except Exception:  # noqa: S112 - asked the slow way, it fails there, and that is told
                continue
            kept.actives.append(active)
            kept.places.append(place)
            kept.columns.append(column)
            kept.questions.append(question)
            kept.changed.append(changed)
        return kept

    def first_refusals(self, profile: object, kept: Kept) -> NDArray[np.int16]:
        """Return for each node where among all filters the first kept one stands that refuses it; -1 where none does.

        Not to be written, and valid until the next decision.
        """
        key = Point.FILTER, kept.asked

        def combine(rows: Rows) -> NDArray[np.int16]:
            first = np.full(len(rows), -1, np.int16)
            for place, column in zip(reversed(kept.places), reversed(kept.columns), strict=True):
                first[~column.values[rows]] = place
            return first

        return self._whole(profile, key, kept, np.int16, combine)

    def totals(self, profile: object, kept: Kept) -> NDArray[np.int64]:
        """Return the weighted sums of the kept scores of all nodes. Not to be written."""
        key = Point.SCORE, kept.asked

        def combine(rows: Rows) -> NDArray[np.int64]:
            total = np.zeros(len(rows), np.int64)
            for active, column in zip(kept.actives, kept.columns, strict=True):
                total += column.values[rows].astype(np.int64) * active.weight
            return total

        return self._whole(profile, key, kept, np.int64, combine)

    def _whole(
        self, profile: object, key: Hashable, kept: Kept, dtype: type[np.generic],
        combine: Callable[[Rows], NDArray[Any]],
    ) -> NDArray[Any]:
        stamps = tuple((column.stamp, column.epoch) for column in kept.columns)
        found = self._store.whole(profile, key)
        if found is not None and found.stamps == stamps:
            return found.values
        if found is None:
            values = np.empty(self._snapshot.size, dtype)
            values[:] = combine(self._everything)
            self._store.keep_whole(profile, key, _Whole(values, stamps))
            return values
        rows = self._changed_since(kept, found.stamps)
        if rows is None:
            rows = self._everything
        found.values[rows] = combine(rows)
        found.stamps = stamps
        return found.values

    def _changed_since(self, kept: Kept, stamps: tuple[tuple[int, Hashable], ...]) -> Rows | None:
        """Return the rows in which one of the columns may have changed since it had that stamp."""
        parts: dict[tuple[frozenset[Path], int], Rows] = {}
        for question, column, (stamp, epoch) in zip(kept.questions, kept.columns, stamps, strict=True):
            if epoch != column.epoch:
                return None
            if stamp == column.stamp or (question.paths, stamp) in parts:
                continue
            rows = self._changes.since(question.paths, stamp)
            if rows is None or len(rows) * _MANY > self._snapshot.size:
                return None
            parts[question.paths, stamp] = rows
        found = list(parts.values())
        return found[0] if len(found) == 1 else np.unique(np.concatenate(found)) if found else self._everything[:0]

    def _column(self, point: Point, ask: Any, question: Question) -> tuple[_Column, Rows | None]:
        stamp = self._changes.stamp(question.paths)
        found = self._store.column(ask, (point, question.key))
        if found is not None and found.epoch == question.epoch:
            if found.stamp == stamp:
                return found, self._everything[:0]
            rows = self._changes.since(question.paths, found.stamp)
            if rows is not None and len(rows) * _MANY <= self._snapshot.size:
                if len(rows):
                    found.write(rows, *self._asked(point, ask, rows), everywhere=False)
                found.stamp = stamp
                return found, rows
        values, errors = self._asked(point, ask, self._everything)
        if found is None:
            found = _Column(values.copy(), stamp, question.epoch)
            self._store.keep(ask, (point, question.key), found)
        found.write(self._everything, values, errors, everywhere=True)
        found.stamp, found.epoch = stamp, question.epoch
        return found, None

    def _asked(self, point: Point, ask: Any, rows: Rows) -> tuple[NDArray[Any], Errors]:
        size = self._snapshot.size
        if point is Point.FILTER:
            answer: Answer = ask.filter(self._state, self._pod, self._snapshot, rows)
            if answer.passed.dtype != np.bool_ or answer.passed.shape != (size,):
                raise _Unkept
            return answer.passed, answer.errors
        scores: Scores = ask.score(self._state, self._pod, self._snapshot, rows)
        if scores.values.dtype != np.int64 or scores.values.shape != (size,):
            raise _Unkept
        chosen = scores.values[rows]
        if len(chosen) and (chosen.min() < 0 or chosen.max() > HIGHEST_SCORE):
            raise _Unkept
        return scores.values.astype(np.int8), scores.errors


class Steps(Sequence[Filtered]):
    """What filters answered, worked out when somebody reads it: most decisions are never read.

    Who refused which node is fixed; why, a kept filter is asked again, so that holds as long as its snapshot does.
    """

    def __init__(self, before: Sequence[Filtered], work_out: Callable[[], Iterator[Filtered]]) -> None:
        self._before = tuple(before)
        self._work_out: Callable[[], Iterator[Filtered]] | None = work_out
        self._steps: tuple[Filtered, ...] = ()

    def _all(self) -> tuple[Filtered, ...]:
        if self._work_out is not None:
            self._steps = (*self._before, *self._work_out())
            self._work_out = None
        return self._steps

    def __len__(self) -> int:
        """The number of steps."""
        return len(self._all())

    def __getitem__(self, index: Any) -> Any:
        """Return a step."""
        return self._all()[index]

    def __eq__(self, other: object) -> bool:
        """Whether the steps are the same."""
        return self._all() == (other._all() if isinstance(other, Steps) else other)

    __hash__ = None  # type: ignore[assignment]


def asked_again(active: Active, state: CycleState, pod: PodInfo, snapshot: Snapshot, refused: Rows) -> Answer:
    """Return a filter's answer in which `refused` are the nodes that it refused; it is asked why when that is read."""
    known: list[Answer] = []

    def real() -> Answer:
        if not known:
            # What the pod's own decision left in the state may be about another moment.
            known.append(active.ask.filter(CycleState(state), pod, snapshot, refused))
        return known[0]

    def explain(row: int) -> Refusal:
        answer = real()
        if answer.passed[row]:
            return Refusal("", "refused at the time of the decision; the cluster has changed since")
        return answer.explain(row)

    def grouped(rows: Rows, group: Callable[[Refusal], Any]) -> dict[Any, Rows]:
        found: dict[Any, list[int]] = {}
        for row in rows.tolist():
            found.setdefault(group(explain(row)), []).append(row)
        return {name: np.array(each, np.intp) for name, each in found.items()}

    def still(rows: Rows) -> bool:
        return not real().passed[rows].any()

    def reasons(rows: Rows) -> Mapping[str, Rows]:
        answer = real()
        if answer.reasons is not None and still(rows):
            return answer.reasons(rows)
        return grouped(rows, lambda refusal: refusal.message or refusal.rule)

    def codes(rows: Rows) -> Mapping[Code, Rows]:
        answer = real()
        if answer.codes is not None and still(rows):
            return answer.codes(rows)
        return grouped(rows, lambda refusal: refusal.code)

    def rules(rows: Rows) -> frozenset[str]:
        answer = real()
        if answer.rules is not None and still(rows):
            return answer.rules(rows)
        return frozenset(grouped(rows, lambda refusal: refusal.rule))

    def brief(rows: Rows) -> Mapping[str, Rows]:
        answer = real()
        return answer.brief(rows) if answer.brief is not None and still(rows) else reasons(rows)

    passed: _Booleans = np.ones(snapshot.size, np.bool_)
    passed[refused] = False
    return Answer(passed, explain, {}, reasons, codes, rules, brief)


def errors_among(column: _Column, rows: Rows) -> dict[str, Mapping[int, EvaluationError]]:
    """Return what failed at some rows."""
    return among(column.errors, rows) if column.errors else {}


def among(errors: Errors, rows: Rows) -> dict[str, Mapping[int, EvaluationError]]:
    """Return those of the errors that are of these rows."""
    if not errors:
        return {}
    wanted = set(rows.tolist())
    found = {rule: {row: error for row, error in failed.items() if row in wanted} for rule, failed in errors.items()}
    return {rule: failed for rule, failed in found.items() if failed}


def step_of(active: Active, answer: Answer, errors: Errors, asked: Rows, refused: Rows) -> Filtered:
    """Return what one filter said, with its errors."""
    plugin = active.plugin
    return Filtered(plugin.name, plugin.origin, replace(answer, errors=errors), asked, refused, plugin.enforcement)
