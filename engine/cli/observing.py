"""The flight recorder and the decision log of `koord-policy scheduler`: their options, and what these make."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy import __version__
from koordpolicy.engine.cluster.kinds import Read
from koordpolicy.engine.files import reason_of

from .composition import count
from .durations import seconds
from .exits import Stop, refuse_given
from .numbers import number

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.flight_recorder.decision_log import DecisionLog
    from koordpolicy.engine.flight_recorder.fields import Fields
    from koordpolicy.engine.flight_recorder.recorder import FlightRecorder
    from koordpolicy.engine.framework.registry import Live, Registry
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
    from koordpolicy.engine.scheduler.observe.cycle_observer import CycleObserver

EXAMPLES: Final = """\
with a flight recorder and a decision log:
  koord-policy scheduler --cluster kube --policies policies/scheduler --record /var/lib/koord-policy/flight
  koord-policy scheduler --cluster dump.json --record flight --record-fields Pod.spec.volumes,Namespace
  koord-policy scheduler --cluster kube --policies policies/scheduler --decision-log decisions.jsonl \\
      --decision-log-sample 0.1
"""

_RECORD_OPTIONS: Final = ("record_fields", "record_segment_size", "record_segment_age", "record_size")
_LOG_OPTIONS: Final = ("decision_log_sample", "decision_log_size", "decision_log_files")
OPTIONS: Final = ("record", *_RECORD_OPTIONS, "decision_log", *_LOG_OPTIONS)
_UNITS: Final = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_LEAST_SIZE: Final = 64 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group(
        "flight recorder and decision log", "what the scheduler saw and decided, for `koord-policy replay --recorded` "
        "and for audits. See docs/flight-recorder.md")
    group.add_argument("--record", metavar="DIR", type=Path,
                       help="record changes of the cluster and decisions into segments in this directory")
    group.add_argument("--record-fields", metavar="FIELDS", action="append",
                       help="record these too, in addition to what the policies read: kinds (Namespace) and fields "
                            "(Pod.spec.volumes) with commas between them, or `all`; may be repeated")
    group.add_argument("--record-segment-size", metavar="SIZE", type=_size,
                       help="begin another segment at this size (default: 64Mi)")
    group.add_argument("--record-segment-age", metavar="TIME", type=seconds,
                       help="begin another segment after this time (default: 1h)")
    group.add_argument("--record-size", metavar="SIZE", type=_size,
                       help="remove the oldest segments beyond this size of all (default: 1Gi)")
    group.add_argument("--decision-log", metavar="FILE", type=Path,
                       help="append a line of JSON per decision: pod, node or refusals, scores, policies, duration")
    group.add_argument("--decision-log-sample", metavar="SHARE", type=_share,
                       help="log the decisions about this share of the pods, from 0 to 1 (default: 1)")
    group.add_argument("--decision-log-size", metavar="SIZE", type=_size,
                       help="rotate the log at this size (default: 100Mi)")
    group.add_argument("--decision-log-files", metavar="N", type=count,
                       help="how many rotated logs stay, FILE.1 the newest (default: 5)")


def refuse_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options that mean nothing to an extender."""
    refuse_given(options, OPTIONS, "means nothing with `--extender`: kube-scheduler decides")


class Observing:
    """The observers of a scheduling loop that the options ask for."""

    def __init__(self, recorder: FlightRecorder | None, log: DecisionLog | None) -> None:
        self._recorder, self._log = recorder, log

    @property
    def observers(self) -> Sequence[CycleObserver]:
        """The observers, for `SchedulingLoop`."""
        return [each for each in (self._recorder, self._log) if each is not None]

    def start(self, cluster: Cluster) -> None:
        """Record the cluster from now on: when the loop is made, and before its first cycle."""
        if self._recorder is not None:
            self._recorder.start(cluster)

    def close(self) -> None:
        """Write what is left, and close the files; in the deciding thread, before the loop is closed."""
        for each in (self._recorder, self._log):
            if each is not None:
                each.close()


def check_options(options: argparse.Namespace) -> None:
    """Raise `Stop` for options without the one that they belong to."""
    for of, names in (("record", _RECORD_OPTIONS), ("decision_log", _LOG_OPTIONS)):
        if getattr(options, of) is None:
            refuse_given(options, names, f"goes with `--{of.replace('_', '-')}`")


def observing_of(options: argparse.Namespace, live: Live, settings: Settings, clock: Callable[[], int]) -> Observing:
    """Return the observers of the options; `clock` is that of the loop.

    Raises:
        Stop: files cannot be written, fields are malformed, or there are none of that name.
    """
    return Observing(_recorder_of(options, live, settings, clock), _log_of(options, live, clock))


def recorded_reads(options: argparse.Namespace, registry: Registry) -> list[Read]:
    """Return the reads of `--record-fields`: what a live scheduler has to follow beside what its policies read.

    Raises:
        Stop: fields are malformed, or there are none of that name.
    """
    fields = _fields_of(options)
    if fields.kinds is not None:
        return [Read(kind, fields=paths) for kind, paths in fields.kinds.items()]
    kinds = {read.kind for plugin in registry.plugins.values() for read in plugin.reads}
    return [Read(kind) for kind in sorted({"Node", "Pod", "Namespace"} | kinds)]


def _fields_of(options: argparse.Namespace) -> Fields:
    from koordpolicy.engine.flight_recorder.fields import Fields, check_declared  # few runs record

    try:
        fields = Fields.parse(options.record_fields or ())
        check_declared(fields)
    except ValueError as error:
        raise Stop(f"`--record-fields`: {error}") from None
    return fields


def _recorder_of(
    options: argparse.Namespace, live: Live, settings: Settings, clock: Callable[[], int],
) -> FlightRecorder | None:
    if options.record is None:
        return None
    from koordpolicy.engine.flight_recorder.recorder import (  # few runs record
        FlightRecorder,
        RecorderSettings,
    )
    from koordpolicy.engine.flight_recorder.segments import Busy, Limits

    fields = _fields_of(options)
    default = Limits()
    segment = options.record_segment_size or default.segment_bytes
    limits = Limits(segment, options.record_segment_age or default.segment_seconds,
                    options.record_size or default.total_bytes)
    if limits.total_bytes < 2 * limits.segment_bytes:
        raise Stop("`--record-size` must hold two segments at least: a segment is removed as a whole")
    try:
        return FlightRecorder(options.record, RecorderSettings(__version__, settings, fields), live, clock=clock,
                              limits=limits)
    except Busy:
        raise Stop(f"another process records into `{options.record}`: name another directory") from None
    except OSError as error:
        raise Stop(f"cannot record into `{options.record}`: {reason_of(error)}") from None


def _log_of(options: argparse.Namespace, live: Live, clock: Callable[[], int]) -> DecisionLog | None:
    if options.decision_log is None:
        return None
    from koordpolicy.engine.flight_recorder.decision_log import DecisionLog, LogLimits

    default = LogLimits()
    limits = LogLimits(options.decision_log_size or default.bytes, options.decision_log_files or default.files)
    sample = 1.0 if options.decision_log_sample is None else options.decision_log_sample
    try:
        return DecisionLog(options.decision_log, live, sample=sample, limits=limits, clock=clock)
    except OSError as error:
        raise Stop(f"cannot write `{options.decision_log}`: {reason_of(error)}") from None


def _size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,6})(|Ki|Mi|Gi|Ti)", text)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if size < _LEAST_SIZE:
        raise argparse.ArgumentTypeError(f"`{text}` is not a size of 64Ki or more, such as 64Mi")
    return size


def _share(text: str) -> float:
    return number(text, "share from 0 to 1", lambda value: 0 <= value <= 1)
