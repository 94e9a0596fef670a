"""Run many experiments at once, one for each combination of the axes' values, and put their figures into one table.

Over a trace (`--trace`) each experiment is one replay, as `simulate` runs it; the axes are `policy` (Random, DotProd,
GpuClustering, GpuPacking, BestFit and FGD as the openb study has them, a folder of policies/trace, or a path),
`workload` (NAME of a list openb_pod_list_NAME.csv; `*` for all), `seed`, `tune`, `tieBreak` and `params.NAME`. Over a
snapshot (`--cluster`) each counts hot nodes and the pods that would be pending or evicted, and measures how even the
load is; the axes are `params.NAME`, `policy` (a path), `seed`, `tieBreak` and `hotPercent`. Over
flight recordings (`--recorded`) each is a replay under other policies; the axes are `recording` (a directory in it; `*`
for all), `policy` (a path), `params.NAME`, `seed` and `tieBreak`.

Finished experiments are saved next to the table of `--out`: a sweep that is started again continues there.
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from koordpolicy import __version__
from koordpolicy.engine.files import reason_of

from .cluster_loading import moment_of, objects_of
from .composition import add_cluster, add_policies, count
from .exits import Exit, Stop
from .policy_sources import is_elsewhere
from .terminal import add_output, progress, table, warn, write, write_file, write_json
from .time_limit import compile_limit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from koordpolicy.engine.experiments.axes import Axis, Point
    from koordpolicy.engine.experiments.journal import Journal
    from koordpolicy.engine.experiments.presentation import Manner
    from koordpolicy.engine.experiments.recordings import Recordings
    from koordpolicy.engine.experiments.replays import Replays
    from koordpolicy.engine.experiments.runners import Runner
    from koordpolicy.engine.experiments.snapshots import Snapshots
    from koordpolicy.engine.experiments.sweep import Swept

    from . import Builtins

    _AnySpace: TypeAlias = Replays | Snapshots | Recordings

EXAMPLES = """\
examples:
  koord-policy sweep policy=Random,FGD seed=42..51 --trace openb/ --out results.csv --report results.html
  koord-policy sweep 'policy=BestFit,FGD' 'workload=*' seed=42..51 --trace openb/ --out results.parquet
  koord-policy sweep params.cpuPercent=55..90:5 --cluster cluster.yaml --policies policies/ --plot sweep.svg
  koord-policy sweep 'recording=*' policy=policies/,candidate/ --recorded flights/ --out results.csv
  koord-policy sweep seed=42..51 --trace openb/ --scheduler-address tcp://10.0.0.5:8786 --out results.csv

exit codes: 0 all experiments are finished, 1 workers were lost (what is finished is kept), 2 usage, 3 policies, trace
or dump are invalid, or an experiment could not be run
"""

_MOST_EXPERIMENTS: Final = 1_000_000
_STEP: Final = 10
_EXTRAS: Final = {"matplotlib": "plots", "pyarrow": "parquet", "distributed": "distributed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("axes", metavar="AXIS", nargs="*",
                        help="NAME=VALUE[,VALUE...]; a value may be FIRST..LAST[:STEP], both ends included. Every "
                             "combination of the axes' values is an experiment")
    parser.add_argument("--trace", metavar="DIR", type=Path,
                        help="a directory of lists of pods (openb_pod_list_NAME.csv), or one such list")
    parser.add_argument("--nodes", metavar="FILE", type=Path, help="the trace's list of nodes, where it is elsewhere")
    add_cluster(parser, required=False)
    parser.add_argument("--recorded", metavar="DIR", type=Path,
                        help="a flight recording of `scheduler --record`, or a directory of several; workers of "
                             "another machine need it at the same path")
    add_policies(parser)
    parser.add_argument("--enable", metavar="PLUGIN[={ARGS}]", action="append", default=[],
                        help="a built-in plugin that takes part in every replay, as for `simulate`; may be repeated")
    parser.add_argument("--limit", type=count, metavar="N", help="stop each replay after N pods")
    parser.add_argument("--out", metavar="FILE", type=Path,
                        help="the table of results: .csv or .parquet. Finished experiments are saved in "
                             "FILE.runs.jsonl beside it")
    parser.add_argument("--every", type=count, default=_STEP, metavar="PERCENT",
                        help=f"at which loads the table has each figure of a replay (default: every {_STEP} percent)")
    parser.add_argument("--report", metavar="FILE", type=Path, help="a page (.html) with means and plots")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="the plots alone: .png or .svg")
    parser.add_argument("--fresh", action="store_true", help="run all experiments again, also finished ones")
    parser.add_argument("--processes", type=count, metavar="N", default=os.cpu_count() or 1,
                        help="how many experiments run at a time on this machine (default: one per processor)")
    parser.add_argument("--scheduler-address", metavar="ADDRESS",
                        help="run on the workers of this Dask scheduler instead, such as tcp://10.0.0.5:8786; they "
                             "need the same version of koord-policy")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if [options.trace, options.cluster, options.recorded].count(None) != 2:
        raise Stop("over what? name a trace with `--trace`, a snapshot of a cluster with `--cluster`, or flight "
                   "recordings with `--recorded`")
    _check_paths(options)
    from koordpolicy.engine.experiments import axes as reading  # numpy and the engine come with these

    try:
        axes = [reading.parse(text) for text in options.axes]
        twice = next((axis.name for axis in axes if [each.name for each in axes].count(axis.name) > 1), None)
        if twice is not None:
            raise Stop(f"the axis `{twice}` is named twice: give it all its values at once")
        space = _space(axes, options, builtins)
        if reading.count(space.axes) > _MOST_EXPERIMENTS:
            raise Stop(f"these are {reading.count(space.axes):,} experiments: at most {_MOST_EXPERIMENTS:,} are run")
        points = list(reading.points(space.axes))
        with compile_limit():
            space.check(points)
    except ValueError as error:
        raise Stop(str(error)) from None
    try:
        swept = _swept(points, space, options)
        manner = _manner(options)
        _write_files(swept, space, manner, options)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise Stop(f"`{error.name}` is not installed: pip install 'koord-policy[{extra}]'") from None
    if options.output == "json":
        write_json(_json(swept, space))
    else:
        _show(swept, manner, options)
    return Exit.INVALID if swept.failed else Exit.OK


def _check_paths(options: argparse.Namespace) -> None:
    from koordpolicy.engine.experiments.tables import CSV, PARQUET

    for name, endings in (("out", (CSV, PARQUET)), ("report", (".html", ".htm")), ("plot", (".png", ".svg"))):
        path: Path | None = getattr(options, name)
        if path is None:
            continue
        if path.suffix not in endings:
            raise Stop(f"`--{name} {path}`: the name must end with {' or '.join(endings)}")
        if not path.absolute().parent.is_dir():
            raise Stop(f"`--{name} {path}`: there is no directory `{path.parent}`")
    for given in (options.trace, options.nodes, options.recorded):
        if given is not None and not given.exists():
            raise Stop(f"there is no file or directory `{given}`")
    for text in options.policies:
        if is_elsewhere(text):
            raise Stop(f"`{text}`: a sweep reads files: `koord-policy pull` writes those of a bundle")
        if not Path(text).exists():
            raise Stop(f"there is no file or directory `{text}`: name the policies with `--policies PATH`")


def _space(axes: Sequence[Axis], options: argparse.Namespace, builtins: Builtins) -> _AnySpace:
    if options.trace is not None:
        return _replays(axes, options, builtins)
    if options.recorded is None:
        return _snapshots(axes, options, builtins)
    from koordpolicy.engine.experiments.recordings import Recordings

    if not options.recorded.is_dir():
        raise Stop(f"`{options.recorded}` is not a directory: `--recorded` takes that of `scheduler --record`")
    return Recordings(axes, options.recorded, builtins=builtins, policies=options.policies)


def _replays(axes: Sequence[Axis], options: argparse.Namespace, builtins: Builtins) -> Replays:
    from koordpolicy.engine.experiments.replays import Replays

    from .composition import choice_of

    return Replays(axes, options.trace, builtins=builtins, nodes=options.nodes, policies=options.policies,
                   enabled=tuple(map(choice_of, options.enable)), limit=options.limit)


def _snapshots(axes: Sequence[Axis], options: argparse.Namespace, builtins: Builtins) -> Snapshots:
    from koordpolicy.engine.experiments.snapshots import Snapshots
    from koordpolicy.engine.scheduler.cycle.schedule_one import Settings

    from .cluster_loading import all_lacks, cluster_from, settings_in, warn_of_lacks, warn_of_settings
    from .composition import registry_of

    if not axes:
        raise Stop("vary what? name an axis, such as params.cpuPercent=55..90:5")
    objects = objects_of(options.cluster)
    cluster = cluster_from(objects, options.cluster)
    now = moment_of(options.now, options.cluster, cluster)
    registry = registry_of(options.policies, builtins)
    warn_of_lacks(all_lacks(Settings(), registry, cluster))
    warn_of_settings(settings_in(cluster), (registry,))
    return Snapshots(axes, objects, now=now, builtins=builtins, policies=options.policies)


def _manner(options: argparse.Namespace) -> Manner:
    from koordpolicy.engine.experiments import presentation as shown

    if options.recorded is not None:
        return shown.RECORDINGS
    return shown.REPLAYS if options.trace is not None else shown.SNAPSHOTS


def _swept(points: Sequence[Point], space: _AnySpace, options: argparse.Namespace) -> Swept:
    from koordpolicy.engine.experiments import recordings, replays, snapshots
    from koordpolicy.engine.experiments.recordings import Recordings
    from koordpolicy.engine.experiments.replays import Replays
    from koordpolicy.engine.experiments.runners import Lost
    from koordpolicy.engine.experiments.sweep import sweep

    runner = _runner(options, len(points))
    with _journal(options) as journal, progress("running experiments", len(points)) as done:
        try:
            if isinstance(space, Replays):
                return sweep(points, space, replays.run, runner=runner, version=__version__, journal=journal,
                             progress=done)
            if isinstance(space, Recordings):
                return sweep(points, space, recordings.run, runner=runner, version=__version__, journal=journal,
                             progress=done)
            return sweep(points, space, snapshots.run, runner=runner, version=__version__, journal=journal,
                         progress=done)
        except Lost as error:
            hint = "" if journal is None else f"; {len(journal.finished)} are finished: run the same again to go on"
            raise Stop(f"{error}{hint}", Exit.UNEXPECTED) from None


def _runner(options: argparse.Namespace, experiments: int) -> Runner:
    from koordpolicy.engine.experiments.runners import Distributed, Here, Processes

    if options.scheduler_address is not None:
        return Distributed(options.scheduler_address)
    processes = min(options.processes, experiments)
    return Processes(processes) if processes > 1 else Here()


def _journal(options: argparse.Namespace) -> Journal | nullcontext[None]:
    from koordpolicy.engine.experiments.journal import Busy, Journal

    if options.out is None:
        return nullcontext()
    path = options.out.with_name(f"{options.out.name}.runs.jsonl")
    try:
        return Journal(path, fresh=options.fresh)
    except Busy:
        raise Stop(f"another sweep is writing `{path}`: wait for it, or name another `--out`") from None
    except OSError as error:
        raise Stop(f"cannot write `{path}`: {reason_of(error)}") from None


def _write_files(
    swept: Swept, space: _AnySpace, manner: Manner, options: argparse.Namespace,
) -> None:
    from koordpolicy.engine.experiments.tables import rows_of, write_table

    if options.out is not None:
        write_table(options.out, rows_of(swept.finished, step=options.every))
    if options.report is not None:
        from koordpolicy.engine.experiments.report import page  # matplotlib comes with it

        title = f"{len(swept.finished):,} experiments over {options.trace or options.cluster or options.recorded}"
        text = page(swept, space.axes, manner, title=title, about=f"koord-policy {__version__}")
        write_file(options.report, text)
    if options.plot is not None:
        from koordpolicy.engine.experiments import plots
        from koordpolicy.engine.experiments import presentation as shown

        drawn = [panel for group in shown.panels(swept.finished, manner).values() for panel in group]
        if not drawn:
            warn(f"warning: there is nothing to draw, and no `{options.plot}`: vary something that is a number")
            options.plot = None
        elif options.plot.suffix == ".png":
            write_file(options.plot, plots.png(drawn))
        else:
            write_file(options.plot, '<?xml version="1.0" encoding="utf-8"?>\n' + plots.svg(drawn))


def _json(swept: Swept, space: _AnySpace) -> dict[str, Any]:
    return {
        "axes": {axis.name: list(axis.values) for axis in space.axes},
        "experiments": [{**each.point, **each.outcome.to_json()} for each in swept.finished],
        "finishedBefore": swept.finished_before,
        "failed": [{"experiment": dict(point), "message": message} for point, message in swept.failed],
    }


def _show(swept: Swept, manner: Manner, options: argparse.Namespace) -> None:
    from koordpolicy.engine.experiments.axes import describe, show
    from koordpolicy.engine.experiments.presentation import summary
    from koordpolicy.engine.explanation import counted

    if swept.finished:
        found = summary(swept.finished, manner)
        repeated = any(runs > 1 for _, runs, _ in found.rows)
        headings = [*found.axes, *(["runs"] if repeated else []), *found.figures]
        rows = []
        for values, runs, figures in found.rows:
            cells = [_cell(each, repeated, name in found.counts)
                     for name, each in zip(found.figures, figures, strict=True)]
            rows.append([*map(show, values), *([runs] if repeated else []), *cells])
        table(headings, rows)
    for point, message in swept.failed:
        warn(f"not run: {describe(point)}: {message}")
    faulty = sum(bool(each.outcome.figures.get("errors")) for each in swept.finished)
    if faulty:
        command = "simulate" if options.trace is not None else "audit" if options.cluster is not None else "replay"
        where = f" (column `errors` of `{options.out}`)" if options.out is not None else ""
        warn(f"warning: plugins or expressions failed in {counted(faulty, 'experiment')}{where}: "
             f"`koord-policy {command}` says what")
    before = f", {swept.finished_before} of them in an earlier run" if swept.finished_before else ""
    count = len(swept.finished)
    are = "experiment is" if count == 1 else "experiments are"
    write(f"\n{count:,} {are} finished{before}" + "".join(_written_files(options)))


def _cell(each: tuple[float, float] | None, repeated: bool, counts: bool) -> object:
    if each is None:
        return "-"
    if repeated:
        return f"{each[0]:.2f} ± {each[1]:.2f}"
    return int(each[0]) if counts else each[0]


def _written_files(options: argparse.Namespace) -> Iterator[str]:
    written = [str(path) for path in (options.out, options.report, options.plot) if path is not None]
    if written:
        yield f"; written: {', '.join(f'`{path}`' for path in written)}"
