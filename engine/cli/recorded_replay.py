"""The part of `koord-policy replay` that replays a flight recording."""

from __future__ import annotations

import csv
import io
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.flight_recorder.fields import need_recorded
from koordpolicy.engine.flight_recorder.figures import Eviction, PodOutcome, RecordedReplay, Span
from koordpolicy.engine.flight_recorder.recording import FlightRecording, Overview
from koordpolicy.engine.flight_recorder.replay import replay
from koordpolicy.engine.flight_recorder.settings import replay_settings
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.kubernetes.times import rfc3339
from koordpolicy.engine.scheduler.profiles import configuration
from koordpolicy.engine.source import in_order, render

from .cluster_loading import scheduling_lacks, warn_of_lacks
from .composition import access_of, check_enabled, choice_of, live_of, need_file, report_idle
from .exits import Exit, Stop
from .sparks import spark, time_of
from .terminal import heading, progress, table, warn, write, write_file, write_json

if TYPE_CHECKING:
    import argparse

    from koordpolicy.engine.framework.registry import Registry
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings

    from . import Builtins

_SHOWN: Final = 10
_WORDS: Final = {
    "same": "placed on the same node at the same time", "elsewhere": "placed on another node",
    "later": "placed later", "sooner": "placed sooner", "never": "not placed any more",
    "onlyReplayed": "placed now, but not in the recording", "neither": "placed in neither",
}
_PERCENTAGES: Final = ("cpu", "memory", "gpu")
_FIGURES: Final = (*_PERCENTAGES, "running", "pending")


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Replay the flight recording of `--recorded`."""
    if not options.recorded.is_dir():
        raise Stop(f"there is no directory `{options.recorded}`: `--recorded` takes that of `scheduler --record`")
    live = live_of(options.policies, builtins, access=access_of(options))
    recording = FlightRecording.open(options.recorded)
    overview = recording.overview()
    settings = settings_of(options, live.registry, overview)
    need_recorded(overview.fields, settings.profiles, live.registry)
    kinds = overview.first.kinds
    lacks = warn_of_lacks(scheduling_lacks(
        settings, live.registry, Cluster(kinds=None if kinds is None else frozenset(kinds))))
    for line in _warnings(overview):
        warn(f"warning: {line}")
    with progress("replaying", overview.decisions) as done:
        result = replay(recording, overview, live, settings, clock=time.perf_counter, points=options.points,
                        progress=done)
    for text in result.problems:
        warn(f"warning: {text}")
    if result.problems_left_out:
        warn(f"warning: {counted(result.problems_left_out, 'more report')} of malformed objects")
    if options.series is not None:
        _write_series(options.series, result)
    if options.output == "json":
        write_json({
            **result.to_json(), **lacks,
            "policies": {"recorded": overview.digests, "replayed": live.registry.digest},
            "run": {"recorded": str(options.recorded), "tieBreak": settings.tie_break, "seed": settings.seed},
        })
    else:
        _show(result, same=overview.digests == [live.registry.digest])
    return Exit.OK


def settings_of(options: argparse.Namespace, registry: Registry, overview: Overview) -> Settings:
    """Return the settings of the recording, changed by the options.

    Raises:
        PolicyError: the recording has none that can be used, or the configuration is invalid.
        Stop: there is no plugin that `--enable` names.
    """
    settings = replay_settings(overview.first.settings, registry)
    profiles = settings.profiles
    if options.config is not None:
        need_file(options.config, "`--config` takes a KubeSchedulerConfiguration")
        found = configuration.load(options.config, registry)
        if found.warnings:
            warn(render(in_order(found.warnings)))
        profiles = found.profiles
    enabled = tuple(map(choice_of, options.enable))
    plugins = registry.of_framework(Framework.SCHEDULER)
    check_enabled((choice.name for choice in enabled), plugins)
    report_idle(registry, {spec.name for spec in profiles}, [choice.name for choice in enabled])
    return replace(
        settings, profiles=tuple(replace(spec, enabled=(*spec.enabled, *enabled)) for spec in profiles),
        tie_break=options.tie_break or settings.tie_break,
        seed=settings.seed if options.seed is None else options.seed,
    )


def _warnings(overview: Overview) -> Iterable[str]:
    yield from overview.notes
    for gap in overview.gaps:
        lost = f", {gap.dropped} records" if gap.dropped else ""
        yield (f"nothing is known from {rfc3339(gap.start)} to {rfc3339(gap.end)} ({gap.why}{lost}): what changed "
               "meanwhile changes at its end")


def _write_series(path: Path, result: RecordedReplay) -> None:
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(["start", "end", *(f"{of}_{name}" for of in ("recorded", "replayed") for name in _FIGURES)])
    for before, after in zip(result.recorded_series, result.series, strict=True):
        lines.writerow([rfc3339(before.start), rfc3339(before.end),
                        *(getattr(span, name) for span in (before, after) for name in _FIGURES)])
    write_file(path, file.getvalue())


# As text


def _show(result: RecordedReplay, *, same: bool) -> None:
    recorded, replayed = result.waits()
    heading("waiting, from arrival to the first node")
    table(["", "pods", "mean", "p50", "p90", "p99", "most"], [
        [name, each.pods, *map(time_of, (each.mean, each.p50, each.p90, each.p99, each.most))]
        for name, each in (("recorded", recorded), ("replayed", replayed))
    ])
    heading("requested, in percent of what is allocatable, and pods")
    table(["", "recorded", "replayed", "recorded over time", "replayed over time"], list(_use(result)))
    heading("pods")
    table(["pods", "were"], [[number, _WORDS[name]] for name, number in result.counts().items() if number])
    differing = result.differing
    if differing:
        heading(f"the first of {len(differing)} pods that differ" if len(differing) > _SHOWN else "pods that differ")
        table(["pod", "recorded", "replayed", "later by", "why at first"], [
            [pod.pod, pod.recorded[0] if pod.recorded else "-", pod.replayed[0] if pod.replayed else "-",
             _delay(pod), _reasons(pod)]
            for pod in sorted(differing, key=_weight)[:_SHOWN]
        ])
    for name, evictions in (("recorded", result.recorded_evictions), ("replayed", result.evictions)):
        if evictions:
            _show_evictions(name, evictions)
    for error in result.errors:
        write(f"error: `{error.plugin}` at {error.point.value}: {error.message}")
    policies = "the recorded policies" if same else "other policies"
    write(f"\n{len(result.pods)} pods from {rfc3339(result.start)} to {rfc3339(result.end)} under {policies}; "
          f"{result.recorded_decisions} recorded and {result.decisions} replayed decisions, {result.seconds:.2f} s")


def _use(result: RecordedReplay) -> Iterable[list[object]]:
    for name in _FIGURES:
        series = [[getattr(span, name) for span in spans] for spans in (result.recorded_series, result.series)]
        most = 100.0 if name in _PERCENTAGES else max((value for each in series for value in each), default=0)
        lines = (spark(each, most) for each in series)
        yield [name, _figure(result.recorded_use, name), _figure(result.use, name), *lines]


def _figure(span: Span, name: str) -> float:
    value: float = getattr(span, name)
    return value


def _delay(pod: PodOutcome) -> str:
    if pod.recorded is None or pod.replayed is None or not {"later", "sooner"}.intersection(pod.changes):
        return "-"
    return time_of(pod.delay) if pod.delay > 0 else f"-{time_of(-pod.delay)}"


def _reasons(pod: PodOutcome) -> str:
    reasons = pod.reasons if pod.replayed is None or "later" in pod.changes else pod.recorded_reasons
    return ", ".join(f"{nodes} {reason}" for reason, nodes in list((reasons or {}).items())[:2]) or "-"


def _weight(pod: PodOutcome) -> tuple[int, float]:
    """Return the place of a pod among those that differ: the worst first."""
    worst = min(("never", "later", "onlyReplayed", "sooner", "elsewhere").index(change) for change in pod.changes)
    return worst, -abs(pod.delay)


def _show_evictions(name: str, evictions: Sequence[Eviction]) -> None:
    heading(f"{len(evictions)} {name} evictions")
    why = Counter((each.by or "-", each.reason) for each in evictions)
    table(["pods", "by", "reason"], [[number, *words] for words, number in why.most_common(_SHOWN)])
