"""Replay a recording with its arrivals and departures, in virtual time, and report waits, usage and evictions.

With `--recorded` it is a flight recording, as `scheduler --record` writes it: what would have happened under these
policies, beside what happened. Policies that read fields which were not recorded are refused.

With `--trace` it is a list of pods, with the columns `creation_time` and `deletion_time`, in seconds. An unschedulable
pod waits in the scheduling queue and is tried again when a departure may help it. If the policies contain a
DeschedulerPlugin, or `--descheduler-config` names a configuration, a descheduler runs periodically; evicted pods return
to the queue. Its evictions are proved by the profile that places the pods; those that `proof: Enforce` stops are listed
by themselves.

The same files and options give the same result.
"""

from __future__ import annotations

import argparse
import csv
import io
import time
from collections import Counter
from dataclasses import astuple, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources import trace as traces
from koordpolicy.engine.documents.specs import parse_duration
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.recorded.figures import COLUMNS, SECOND, RecordingResult, TimeSpan, Waits
from koordpolicy.engine.recorded.replay import Descheduling, Leave, replay, stretched, thinned
from koordpolicy.engine.scheduler.cycle.tie_break import TIE_BREAKS
from koordpolicy.engine.scheduler.extensions.fragmentation import typical_pods

from .cluster_loading import all_lacks, warn_of_lacks
from .composition import access_of, add_policies, count, descheduler_configuration, live_of
from .exits import Exit, Stop, refuse_given
from .numbers import number, whole
from .pages import check_page
from .sparks import spark, time_of
from .terminal import add_output, heading, progress, table, write, write_file, write_json
from .traces import add_trace, made_by, need_trace, settings_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from koordpolicy.engine.framework.registry import Live

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy replay --trace openb_pod_list_default.csv --node-share 0.01
  koord-policy replay --trace openb_pod_list_default.csv --policies policies/trace/best-fit --stretch 60 --output json
  koord-policy replay --trace pods.csv --nodes nodes.csv --policies my-policies/ --descheduling-interval 10m
  koord-policy replay --trace pods.csv --nodes nodes.csv --points 1000 --series use.csv --report report.html
  koord-policy replay --recorded /var/lib/koord-policy/flight --policies policies/scheduler
  koord-policy replay --recorded flight --policies my-policies/ --config scheduler.yaml --output json

exit codes: 0 replayed, whatever was placed, 2 usage, 3 policies, trace, recording or configuration are invalid, or the
policies read what was not recorded
"""

_HOUR: Final = 3600
_SHOWN: Final = 10
_DEFAULTS: Final = {"node_share": 1.0, "stretch": 1.0, "leave": Leave.RECORDED.value, "tie_break": "first", "seed": 0}
"""Of a trace."""
_ONLY_TRACE: Final = ("nodes", "node_share", "stretch", "leave", "limit", "descheduler_config",
                      "descheduling_interval", "report")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_trace(parser, required=False)
    parser.add_argument("--recorded", metavar="DIR", type=Path,
                        help="a flight recording, instead of `--trace`: the directory of `scheduler --record`")
    parser.add_argument("--config", metavar="FILE", type=Path,
                        help="with `--recorded`: a KubeSchedulerConfiguration with the profiles (default: those of the "
                             "recording)")
    parser.add_argument("--node-share", type=_share, metavar="X",
                        help="replay on this share of the nodes (above 0, at most 1), rounded up for each kind of "
                             "node; the first by name (default: 1)")
    parser.add_argument("--stretch", type=_factor, metavar="X",
                        help="multiply the time that pods run by this factor (default: 1)")
    parser.add_argument("--leave", choices=[each.value for each in Leave],
                        help="when a pod leaves: at its recorded deletion, even if it is pending; or after it has run "
                             "for its recorded lifetime in all, interrupted by evictions "
                             f"(default: {Leave.RECORDED.value})")
    parser.add_argument("--limit", type=count, metavar="N", help="replay the first N pods")
    add_policies(parser)
    parser.add_argument("--enable", metavar="PLUGIN[={ARGS}]", action="append", default=[],
                        help="enable a built-in scheduler plugin, or set arguments of an active one; may be "
                             "repeated. `typicalPods` of plugins that have it defaults to the trace's")
    parser.add_argument("--tie-break", choices=TIE_BREAKS,
                        help="choose among the best nodes the first by name, or a random one (default: first, or as "
                             "recorded)")
    parser.add_argument("--seed", type=whole, help="seed of random choices (default: 0, or as recorded)")
    parser.add_argument("--descheduler-config", metavar="FILE", type=Path,
                        help="a DeschedulerConfiguration (descheduler/v1alpha2)")
    parser.add_argument("--descheduling-interval", type=_interval, metavar="TIME",
                        help="between two cycles of the descheduler, such as 10m (default: that of the "
                             "configuration, else 1h)")
    parser.add_argument("--points", type=count, default=60, metavar="N",
                        help="number of intervals of the series (default: 60)")
    parser.add_argument("--series", metavar="FILE", type=Path, help="write the series as CSV")
    parser.add_argument("--report", metavar="FILE", type=Path,
                        help="write a page (.html) with allocation, pending pods and waiting times over time")
    add_output(parser)


def _share(text: str) -> float:
    return number(text, "share above 0 and up to 1", lambda value: 0 < value <= 1)


def _factor(text: str) -> float:
    return number(text, "factor from 0 to 10000", lambda value: 0 <= value <= 10_000)


def _interval(text: str) -> int:
    try:
        seconds = parse_duration(text) // SECOND
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 1:
        raise argparse.ArgumentTypeError(f"`{text}` is less than a second")
    return seconds


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if options.trace is not None and options.recorded is not None:
        raise Stop("`--trace` and `--recorded` exclude each other: give one")
    if options.trace is None and options.recorded is None:
        raise Stop("replay what? name a trace with `--trace`, or a flight recording with `--recorded`")
    if options.recorded is not None:
        from . import recorded_replay  # a trace does without it

        refuse_given(options, _ONLY_TRACE, "goes with `--trace`")
        return recorded_replay.run(options, builtins)
    if options.config is not None:
        raise Stop("`--config` goes with `--recorded`: for a trace there is `--enable`")
    for name, value in _DEFAULTS.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    need_trace(options)
    assert options.trace is not None
    check_page(options.report)
    live = live_of(options.policies, builtins, access=access_of(options))
    recording = traces.load_recording(options.trace, options.nodes)
    typical = typical_pods(recording.pods)
    recording = stretched(replace(recording, nodes=thinned(recording.nodes, options.node_share)), options.stretch)
    if options.limit is not None:
        recording = replace(recording, stays=recording.stays[: options.limit])
    settings = settings_with(options, live.registry, typical)
    lacks = warn_of_lacks(all_lacks(settings, live.registry, Cluster(kinds=traces.KINDS)))
    with progress("replaying", len(recording.stays)) as done:
        result = replay(recording, live, settings, leave=Leave(options.leave), clock=time.perf_counter, progress=done,
                        descheduling=_descheduling(options, live))
    spans = result.series(options.points)
    if options.series is not None:
        _write_series(options.series, spans)
    if options.report is not None:
        _write_report(options, result, len(recording.nodes))
    if options.output == "json":
        write_json({**result.to_json(options.points), "run": _run_of(options, len(recording.nodes)), **lacks})
    else:
        _show(result, spans, len(recording.nodes))
    return Exit.OK


def _descheduling(options: argparse.Namespace, live: Live) -> Descheduling | None:
    """Return the descheduler of the replay; None if there is none."""
    documents = [plugin for plugin in live.registry.of_framework(Framework.DESCHEDULER) if plugin.span is not None]
    if options.descheduler_config is None and not documents:
        return None
    configuration = descheduler_configuration(options.descheduler_config, "--descheduler-config")
    interval = options.descheduling_interval or configuration.interval // SECOND or _HOUR
    return Descheduling(configuration, interval)


def _run_of(options: argparse.Namespace, nodes: int) -> dict[str, object]:
    return {"trace": str(options.trace), "nodes": nodes, "nodeShare": options.node_share, "stretch": options.stretch,
            "leave": options.leave, "tieBreak": options.tie_break, "seed": options.seed}


def _write_report(options: argparse.Namespace, result: RecordingResult, nodes: int) -> None:
    from koordpolicy.engine.reports.recording import recording_page  # not every run writes one

    about = (f"{made_by(options)}; {nodes:,} nodes (share {options.node_share:g}), "
             f"stays stretched by {options.stretch:g}, pods leave: {options.leave}")
    title = f"Recording of {options.trace}"
    write_file(options.report, recording_page(title, about, result, options.points, time_of))


def _write_series(path: Path, spans: Iterable[TimeSpan]) -> None:
    file = io.StringIO()
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows(astuple(span) for span in spans)
    write_file(path, file.getvalue())


# As text


def _show(result: RecordingResult, spans: Sequence[TimeSpan], nodes: int) -> None:
    heading("waiting, from creation to the first node")
    table(["", "pods", "mean", "p50", "p90", "p95", "p99", "most"], [
        _waits("ran", result.waits),
        *([_waits("ran again after an eviction", result.waits_again)] if result.evictions else []),
    ])
    heading("taken, in percent of the cluster, and pods")
    mean, most = result.use(), result.most()
    rows = [[name, getattr(mean, name), getattr(most, name), spark([getattr(span, name) for span in spans], 100)]
            for name in ("cpu", "memory", "gpu")]
    for name, highest in (("running", max((step.running for step in result.steps), default=0)),
                          ("pending", max((step.pending for step in result.steps), default=0))):
        values = [getattr(span, name) for span in spans]
        rows.append([name, _mean(spans, name), float(highest), spark(values, max(values, default=0))])
    if result.evictions:
        values = [span.evicted for span in spans]
        rows.append(["evicted", float(len(result.evictions)), float(max(values)), spark(values, max(values))])
    table(["", "mean", "most", f"over time ({time_of(result.start / SECOND)} to {time_of(result.end / SECOND)})"], rows)
    if result.evictions:
        heading(f"{len(result.evictions)} evictions in {result.cycles} cycles of the descheduler")
        why = Counter((each.plugin, each.rule, each.proved) for each in result.evictions)
        table(["pods", "plugin", "rule", "proof"], [[number, *names] for names, number in why.most_common(_SHOWN)])
    elif result.cycles:
        write(f"\nnobody was evicted in {result.cycles} cycles of the descheduler")
    if result.useless:
        heading(f"{counted(len(result.useless), 'eviction')} would not have helped, and "
                f"{'was' if len(result.useless) == 1 else 'were'} not made")
        table(["pod", "node", "plugin", "rule", "since", "cycles", "proof"], [
            [each.pod, each.node, each.plugin, each.rule, time_of(each.time), each.cycles, each.proof.message]
            for each in result.useless[:_SHOWN]
        ])
        if len(result.useless) > _SHOWN:
            write(f"and {len(result.useless) - _SHOWN} more")
    if result.never_ran:
        left = sum(each.left for each in result.never_ran)
        heading(f"{len(result.never_ran)} of {result.arrivals} pods never ran: {left} left, "
                f"{len(result.never_ran) - left} wait for ever")
        reasons = Counter(reason for each in result.never_ran for reason in each.reasons)
        table(["pods", "reason at first (a pod may have several)"],
              [[number, reason] for reason, number in reasons.most_common(_SHOWN)])
    for error in result.errors:
        write(f"error: `{error.plugin}` at {error.point.value}: {error.message}")
    for text in result.descheduler_errors:
        write(f"error: {text}")
    write(f"\n{result.arrivals} pods came to {nodes} nodes in {time_of((result.end - result.start) / SECOND)}; "
          f"{result.decisions} decisions, {result.seconds:.2f} s")


def _waits(name: str, waits: Waits) -> list[object]:
    pods, *seconds = astuple(waits)
    return [name, pods, *map(time_of, seconds)]


def _mean(spans: Sequence[TimeSpan], name: str) -> float:
    length = sum(span.end - span.start for span in spans)
    return sum(getattr(span, name) * (span.end - span.start) for span in spans) / length if length else 0.0
