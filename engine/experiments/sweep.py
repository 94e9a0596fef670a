"""The sweep: runs the experiments that are not finished, records their results, and returns all in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from .axes import Axis, Point
from .journal import ExperimentOutcome, Journal, key_of
from .runners import NotRun, Runner

Task_co = TypeVar("Task_co", covariant=True)
Task = TypeVar("Task")


class Space(Protocol[Task_co]):
    """The experiments of some axes: `replays.Replays`, `snapshots.Snapshots`, `recordings.Recordings`."""

    @property
    def axes(self) -> Sequence[Axis]:
        """The axes, including defaults."""
        ...

    def task(self, point: Point) -> Task_co:
        """Return the experiment at a point, self-contained and picklable."""
        ...

    def inputs(self, point: Point) -> str:
        """Return a fingerprint of everything but the point that determines an experiment's result."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """An experiment with its outcome."""

    point: Point
    outcome: ExperimentOutcome


@dataclass(frozen=True, slots=True)
class Swept:
    """The results of a sweep, in the order of its points; `failed` has the reason for each experiment that failed."""

    finished: tuple[Finished, ...]
    failed: tuple[tuple[Point, str], ...]
    finished_before: int
    """The number of experiments that an earlier run had finished."""


def sweep(
    points: Iterable[Point], space: Space[Task], function: Callable[[Task], ExperimentOutcome], *, runner: Runner,
    version: str, journal: Journal | None = None, progress: Callable[[int], None] = lambda _: None,
) -> Swept:
    """Run the experiments at the points that the journal does not hold yet, and return all of them.

    `version` is that of the program: another one runs them again. `progress` is called with the number finished.

    Raises:
        Lost: the runner's workers are lost; finished experiments are in the journal.
    """
    points = list(points)
    keys = [key_of(point, f"{version}/{space.inputs(point)}") for point in points]
    found: dict[str, ExperimentOutcome] = {}
    if journal is not None:
        found = {key: journal.finished[key] for key in keys if key in journal.finished}
    finished_before = len(found)
    progress(finished_before)
    by_task = {id(task): (key, point, task) for task, key, point in (
        (space.task(point), key, point) for key, point in zip(keys, points, strict=True) if key not in found)}
    failed: dict[str, str] = {}
    for task, outcome in runner.run(function, [each[2] for each in by_task.values()]):
        key, point, _ = by_task[id(task)]
        if isinstance(outcome, NotRun):
            failed[key] = str(outcome)
        else:
            found[key] = outcome
            if journal is not None:
                journal.add(key, point, outcome)
        progress(len(found) + len(failed))
    pairs: Mapping[str, Point] = dict(zip(keys, points, strict=True))
    return Swept(
        tuple(Finished(point, found[key]) for key, point in pairs.items() if key in found),
        tuple((point, failed[key]) for key, point in pairs.items() if key in failed), finished_before,
    )
