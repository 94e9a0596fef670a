"""Replay a trace of pods over its cluster under a set of policies, and print the results.

The trace is the openb trace of alibaba/clusterdata, or two lists with the same columns. The workload is made as the
public simulator makes it: shuffled by the seed, then brought to `--tune` times the cluster's GPU capacity. Pods arrive
one by one, none departs, and an unschedulable pod is not tried again. The load is the GPU request of all pods that have
arrived, in percent of the cluster's GPUs; at each ten percent the allocation is printed, and the fragmentation: how
much idle GPU the next pod could not use, in percent of the cluster's GPU and of its idle GPU.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.sources import trace as traces
from koordpolicy.engine.experiments.frozen_heap import frozen_heap
from koordpolicy.engine.explanation import shown
from koordpolicy.engine.scheduler.cycle.tie_break import TIE_BREAKS
from koordpolicy.engine.scheduler.extensions.fragmentation import typical_pods
from koordpolicy.engine.scheduler.profiling import DecisionMeter, Measurements
from koordpolicy.engine.scheduler.simulate import SimulationResult, UnplacedPods, simulate

from .cluster_loading import scheduling_lacks, warn_of_lacks
from .composition import access_of, add_policies, count, live_of
from .exits import Exit
from .numbers import number, whole
from .pages import check_page
from .terminal import add_output, heading, progress, table, write, write_file, write_json
from .traces import add_trace, made_by, need_trace, settings_with

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy simulate --trace openb_pod_list_default.csv --policies policies/trace/best-fit --seed 42 --tune 1.3
  koord-policy simulate --trace openb_pod_list_default.csv --enable FragmentationGradient
  koord-policy simulate --trace openb_pod_list_default.csv --enable RandomScore --enable 'GpuShare={select: random}'
  koord-policy simulate --trace pods.csv --nodes nodes.csv --policies my-policies/ --limit 1000 --output json
  koord-policy simulate --trace openb/ --policies policies/trace/best-fit --report report.html

The same seed gives the same workload as the public simulator, and with `--tie-break first` the same figures.

exit codes: 0 replayed, whatever was placed, 2 usage, 3 policies or trace are invalid
"""

_REASONS_SHOWN = 10
_SHAPES_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_trace(parser)
    add_policies(parser)
    parser.add_argument("--seed", type=whole, default=42,
                        help="seed of the workload and of random choices (default: 42)")
    parser.add_argument("--tune", type=_ratio, default=1.3, metavar="X",
                        help="GPU requests of the workload, as a multiple of the cluster's GPUs; 0 leaves the trace "
                             "unchanged (default: 1.3)")
    parser.add_argument("--tie-break", choices=TIE_BREAKS, default="first",
                        help="choose among the best nodes the first by name, or a random one (default: first, as the"
                             " public simulator does)")
    parser.add_argument("--enable", metavar="PLUGIN[={ARGS}]", action="append", default=[],
                        help="enable a built-in plugin, or set arguments of an active one; may be repeated. "
                             "`typicalPods` of plugins that have it defaults to the trace's")
    parser.add_argument("--fragmentation", action=argparse.BooleanOptionalAction, default=True,
                        help="measure after each arrival how much idle GPU the next pods could not use (default: yes)")
    parser.add_argument("--limit", type=count, metavar="N", help="stop after N pods")
    parser.add_argument("--report", metavar="FILE", type=Path,
                        help="write a page (.html) with curves, a map of the nodes, refusals and times by plugin; "
                             "measuring slows the replay down a little")
    add_output(parser)


def _ratio(text: str) -> float:
    return number(text, "ratio from 0 to 100", lambda value: 0 <= value <= 100)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    need_trace(options)
    check_page(options.report)
    live = live_of(options.policies, builtins, access=access_of(options))
    recorded = traces.load(options.trace, options.nodes)
    workload = traces.generate(recorded, seed=options.seed, tune=options.tune)
    typical = typical_pods(recorded.pods)
    if options.limit is not None:
        workload = replace(workload, pods=workload.pods[: options.limit])
    settings = settings_with(options, live.registry, typical)
    lacks = warn_of_lacks(scheduling_lacks(settings, live.registry, Cluster(kinds=traces.KINDS)))
    # Processor time, so that other load of the machine does not count.
    meter = DecisionMeter(time.thread_time) if options.report is not None else None
    with progress("replaying", len(workload.pods)) as done, frozen_heap():
        result = simulate(workload, live, settings, clock=time.perf_counter, progress=done,
                          typical=typical if options.fragmentation else (), meter=meter)
    if meter is not None:
        _write_report(options, workload, result, meter.measured())
    if options.output == "json":
        write_json(_json(result, options) | lacks)
    else:
        _show(result, len(workload.nodes))
    return Exit.OK


def _write_report(
    options: argparse.Namespace, workload: traces.Workload, result: SimulationResult, measured: Measurements,
) -> None:
    from koordpolicy.engine.reports.simulation import Replayed, simulation_page

    about = (f"{made_by(options)}; seed {options.seed}, requests tuned to {options.tune:g}, "
             f"ties: {options.tie_break}")
    title = f"Replay of {options.trace}"
    write_file(options.report, simulation_page(Replayed(title, about, workload, result, measured)))


def _json(result: SimulationResult, options: argparse.Namespace) -> dict[str, Any]:
    run_of = {"trace": str(options.trace), "seed": options.seed, "tune": options.tune, "tieBreak": options.tie_break}
    return {**result.to_json(), "run": run_of}


def _show(result: SimulationResult, nodes: int) -> None:
    heading("allocation in percent of the cluster, by arrived load")
    rows: list[list[object]] = [
        [f"{percent}%", each.cpu, each.memory, each.gpu] for percent, each in result.allocations().items()
    ]
    headings = ["load", "cpu", "memory", "gpu"]
    if any(record.fragmented is not None for record in result.records):
        headings += ["gpu fragmented", "of the idle gpu"]
        rows = [[*row, *(result.fragmentation(percent) or ("-", "-"))]
                for row, percent in zip(rows, result.allocations(), strict=True)]
    if rows:
        table(headings, rows)
    else:
        end = result.final
        write(f"the replay ended below 10% of load, at cpu {end.cpu:.2f}, memory {end.memory:.2f}, gpu {end.gpu:.2f}")
    if result.failed:
        heading(f"{result.failed} of {result.arrivals} pods found no node")
        reasons = list(result.reasons.items())
        table(["pods", "reason (a pod may have several)"], [[count, text] for text, count in reasons[:_REASONS_SHOWN]])
        _more(len(reasons) - _REASONS_SHOWN, "reasons")
        write()
        shapes = result.failed_shapes
        table(["pods", "cpu", "memory", "gpu", "model", "first of them"],
              [_shape(each) for each in shapes[:_SHAPES_SHOWN]])
        _more(len(shapes) - _SHAPES_SHOWN, "shapes")
    for error in result.errors:
        write(f"error: `{error.plugin}` at {error.point.value}: {error.message}")
    write(f"\n{result.arrivals} pods arrived at {nodes} nodes, {result.failed} failed; "
          f"{result.pods_per_second:,.0f} pods/s ({result.seconds:.2f} s)")


def _shape(failed: UnplacedPods) -> list[object]:
    gpu = f"{failed.gpus} x {failed.gpu_milli / 1000:g}" if failed.gpus else "-"
    cpu = shown(failed.cpu_milli, "milli-cores").partition(" ")[0]
    return [failed.count, cpu, shown(failed.memory_mib << 20, "bytes"), gpu,
            "|".join(failed.models) or "any", failed.first]


def _more(count: int, what: str) -> None:
    if count > 0:
        write(f"... and {count} more {what}")
