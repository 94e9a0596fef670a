"""Experiments over flight recordings: one replay for each point.

Axes: `recording` (a directory below the one of `--recorded`, `*` for all), `policy` (a path), `params.NAME`, `seed` and
`tieBreak`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from koordpolicy.engine.flight_recorder.fields import NotRecorded, check_recorded
from koordpolicy.engine.flight_recorder.recording import FlightRecording
from koordpolicy.engine.flight_recorder.replay import replay
from koordpolicy.engine.flight_recorder.segments import segments_in
from koordpolicy.engine.flight_recorder.settings import settings_from, with_named_profiles
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.source import PolicyError, did_you_mean

from .axes import Axis, Point, Value, show
from .axis_checks import ANY, TIE_BREAK, WHOLE_NUMBER, AxisCheck, check_axis
from .inputs import POLICY, Builtins, PolicyTexts, Texts, registry_of
from .journal import ExperimentOutcome
from .params import params_of
from .runners import NotRun

FIGURES: Final[Mapping[str, str]] = {
    "pods": "pods that were to be scheduled",
    "same": "pods that are placed on the same node at the same time",
    "elsewhere": "pods that are placed on another node",
    "later": "pods that are placed later",
    "never": "pods that are not placed any more",
    "only_replayed": "pods that are placed in the replay only",
    "evictions": "pods that are evicted",
    "wait_mean_s": "mean time from arrival to the first node, in seconds",
    "wait_p99_s": "99th percentile of that",
    "cpu_requested_pct": "mean of the CPU requests, in percent of what is allocatable",
    "memory_requested_pct": "mean of the memory requests, in percent of what is allocatable",
    "gpu_requested_pct": "mean of the GPU requests, in percent of what is allocatable",
    "recorded_cpu_requested_pct": "mean of the CPU requests as it was",
    "errors": "kinds of errors in plugins and expressions",
}

_RECORDING: Final = "recording"
_SEED: Final = "seed"
_TIE_BREAK: Final = "tieBreak"
_EVERY: Final = "*"
_ITSELF: Final = "."
"""The value of the axis for the directory itself."""


@dataclass(frozen=True, slots=True)
class RecordingExperiment:
    """One experiment. Segments are named, not sent: workers elsewhere need the same directory, on shared storage."""

    point: Point
    texts: Texts
    segments: tuple[str, ...]
    builtins: Builtins = field(repr=False)


class Recordings:
    """The experiments that some axes span over the flight recordings in a directory."""

    def __init__(
        self, axes: Sequence[Axis], folder: Path, *, builtins: Builtins, policies: Sequence[str] = (),
    ) -> None:
        """The folder is a recording, or has a folder for each.

        Raises:
            ValueError: an axis or one of its values does not exist.
            PolicyError: policies cannot be read.
        """
        for axis in axes:
            check_axis(axis, _CHECKS, "flight recordings")
        known = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and segments_in(path)}
        if segments_in(folder):
            known[_ITSELF] = folder
        if not known:
            raise ValueError(f"there is no segment of a flight recording in `{folder}`: name the directory that "
                             "`scheduler --record` wrote to, or one that holds several")
        self.axes = _expanded(axes, known, folder)
        names = next(axis.values for axis in self.axes if axis.name == _RECORDING)
        self._segments = {name: tuple(map(str, FlightRecording.open(known[show(name)]).segments)) for name in names}
        self._digests = {name: _digest(paths) for name, paths in self._segments.items()}
        self._policies = PolicyTexts(axes, policies, builtins)

    def task(self, point: Point) -> RecordingExperiment:
        """Return the experiment at a point."""
        return RecordingExperiment(point, self._policies.at(point), self._segments[point[_RECORDING]],
                                   self._policies.builtins)

    def inputs(self, point: Point) -> str:
        """Return a fingerprint of everything but the point that determines an experiment's result."""
        return f"{self._policies.at(point).digest}/{self._digests[point[_RECORDING]]}"

    def check(self, points: Iterable[Point]) -> None:
        """Compile the policies of all points.

        Raises:
            ValueError: no policy has such a param.
            PolicyError: policies are invalid, as they are or with such params.
        """
        self._policies.check(points)


def run(task: RecordingExperiment) -> ExperimentOutcome:
    """Run an experiment.

    Raises:
        NotRun: its policies are invalid with its params, read what was not recorded, or the segments cannot be read.
    """
    point = task.point
    start = time.perf_counter()
    recording = FlightRecording([Path(path) for path in task.segments])
    try:
        overview = recording.overview()
        registry = registry_of(task.texts, task.builtins, tuple(params_of(point).items()))
        settings = with_named_profiles(settings_from(overview.first.settings), registry)
        seed = point.get(_SEED, settings.seed)
        assert isinstance(seed, int)
        settings = replace(settings, seed=seed, tie_break=str(point.get(_TIE_BREAK, settings.tie_break)))
        for fields in overview.fields:
            check_recorded(fields, settings.profiles, registry)
        found = replay(recording, overview, Live(registry), settings, clock=time.perf_counter, points=1)
    except (PolicyError, ValueError, NotRecorded, OSError) as error:
        raise NotRun(str(error)) from None
    counts, (_, waits) = found.counts(), found.waits()
    return ExperimentOutcome({
        "pods": len(found.pods), "same": counts["same"], "elsewhere": counts["elsewhere"], "later": counts["later"],
        "never": counts["never"], "only_replayed": counts["onlyReplayed"], "evictions": len(found.evictions),
        "wait_mean_s": waits.mean, "wait_p99_s": waits.p99, "cpu_requested_pct": found.use.cpu,
        "memory_requested_pct": found.use.memory, "gpu_requested_pct": found.use.gpu,
        "recorded_cpu_requested_pct": found.recorded_use.cpu, "errors": len(found.errors),
    }, {}, time.perf_counter() - start)


def _digest(paths: Iterable[str]) -> str:
    """Return a fingerprint of segments: they are never changed once they are complete."""
    facts = [(Path(path).name, Path(path).stat().st_size) for path in paths]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _expanded(axes: Sequence[Axis], known: Mapping[str, Path], folder: Path) -> tuple[Axis, ...]:
    """Return the axes with that of recordings, whose `*` is replaced by all names."""
    given = next((axis for axis in axes if axis.name == _RECORDING), None)
    if given is None:
        names: tuple[Value, ...] = (_ITSELF,) if _ITSELF in known else tuple(known)
        return (Axis(_RECORDING, names), *axes)
    names = tuple(known) if given.values == (_EVERY,) else given.values
    for name in names:
        if show(name) not in known:
            hint = did_you_mean(show(name), known) or f"there {'is' if len(known) == 1 else 'are'} " + ", ".join(
                f"`{each}`" for each in known)
            raise ValueError(f"there is no recording `{show(name)}` in `{folder}`: {hint}")
    return tuple(Axis(_RECORDING, names) if axis is given else axis for axis in axes)


_CHECKS: Final[Mapping[str, AxisCheck]] = {
    _RECORDING: ANY, POLICY: ANY, _SEED: WHOLE_NUMBER, _TIE_BREAK: TIE_BREAK}
