"""Schedule the pods of a cluster under policies.

Of a dump, or a live cluster with `--dry-run`, the pending pods are scheduled once, and the node of each is reported
with the reasons: pods are bound in memory, in kube-scheduler's order (by priority, then by arrival), and each placement
counts for later pods. For a live cluster without `--dry-run` this command is a scheduler like kube-scheduler: it
watches the cluster, binds pods, and follows changes of the policies until SIGTERM. With `--extender`, kube-scheduler
places the pods and calls this command for decisions.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from koordpolicy.engine.framework.points import Framework

from . import extender, live, observing, reloading, serving
from .cluster_loading import (
    LIVE_CLUSTER,
    cluster_of,
    moment_of,
    preemption_lacks,
    scheduling_lacks,
    warn_of_lacks,
)
from .composition import access_of, add_choice, add_cluster, add_policies, count, live_of, settings_of
from .exits import Exit, Stop
from .logs import log_level, start_logs
from .terminal import add_output, heading, progress, table, write, write_json
from .verdicts import names, reason_of, show_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.framework.registry import Live
    from koordpolicy.engine.scheduler.cycle.schedule_one import Debug, Settings
    from koordpolicy.engine.scheduler.verdict.verdict import Verdict

    from . import Builtins
    from .observing import Observing

EXAMPLES = f"""\
examples:
  koord-policy scheduler --cluster examples/cluster --policies policies/scheduler
  koord-policy scheduler --cluster kube:staging --policies policies/scheduler --dry-run
  kubectl get nodes,pods,nodemetrics -A -o json > dump.json && koord-policy scheduler --cluster dump.json --output json

{live.EXAMPLES}
{extender.EXAMPLES}
{observing.EXAMPLES}
exit codes: 0 whatever was placed, or after SIGTERM, 1 the Lease was lost, 2 usage, 3 policies, the dump or the
kubeconfig are invalid
"""

_NODES_SCORED = 5
"""The number of nodes for which the JSON has the scores by plugin; `scoresLeftOut` counts the others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_cluster(parser, required=False, live="whose pods are bound unless `--dry-run` is given")
    add_policies(parser)
    parser.add_argument("--dry-run", action="store_true",
                        help="of a live cluster: schedule its pending pods once, in memory only")
    add_choice(parser)
    parser.add_argument("--log", metavar="PLUGIN=LEVEL", action="append", default=[], type=log_level,
                        help="write the log of a plugin from this level on (debug, info, warning, error) to standard"
                             " error; may be repeated; `*` for all plugins")
    parser.add_argument("--trace", action="store_true",
                        help="write each call of a plugin to standard error, in order, with its result and time; "
                             "results are not cached")
    parser.add_argument("--debug-scores", metavar="N", type=count, default=0,
                        help="write the scores of the N best nodes of every pod to standard error")
    parser.add_argument("--debug-filters", action="store_true",
                        help="write the nodes that each plugin refused to standard error, for every pod")
    parser.add_argument("--debug-diagnosis", action="store_true",
                        help="write the diagnosis of every pod without a node to standard error, as JSON")
    add_output(parser)
    live.add_arguments(parser)
    observing.add_arguments(parser)
    extender.add_arguments(parser)
    serving.add_arguments(parser)
    reloading.add_arguments(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if options.extender:
        live.refuse_options(options)
        observing.refuse_options(options)
        return extender.run(options, builtins)
    extender.refuse_options(options)
    observing.check_options(options)
    if options.cluster is None:
        raise Stop("which cluster? name a dump or kube[:CONTEXT] with `--cluster` (only `--extender` can do without)")
    if options.cluster.partition(":")[0] == LIVE_CLUSTER and not options.dry_run:
        return live.run(options, builtins)
    # Not above: a server starts the process that compiles policies before it imports what schedules.
    from koordpolicy.engine.scheduler.cycle.schedule_one import Debug
    from koordpolicy.engine.scheduler.verdict.diagnosis import diagnosis_of

    live.refuse_options(options)
    serving.refuse_options(options)
    reloading.refuse_options(options)
    debug = Debug(options.debug_scores, options.debug_filters, options.trace, options.debug_diagnosis)
    policies = live_of(options.policies, builtins, access=access_of(options))
    plugins = [plugin.name for plugin in policies.registry.of_framework(Framework.SCHEDULER)]
    start_logs(options.log, plugins, enabled=bool(
        options.trace or options.debug_filters or options.debug_scores or options.debug_diagnosis))
    cluster = cluster_of(options.cluster)
    now = moment_of(options.now, options.cluster, cluster)
    settings = settings_of(options, policies.registry, cluster)
    lacks = scheduling_lacks(settings, policies.registry, cluster)
    observed = observing.observing_of(options, policies, settings, lambda: now)
    verdicts = schedule_pending(cluster, policies, now, settings, debug, observed=observed)
    lacking = warn_of_lacks((*lacks, *preemption_lacks(verdicts, cluster)))
    if options.output == "json":
        write_json({
            **lacking,
            "pending": len(verdicts),
            "placed": sum(verdict.scheduled for verdict in verdicts),
            "decisions": [
                verdict.to_json(nodes=_NODES_SCORED)
                | ({} if verdict.scheduled else {"diagnosis": diagnosis_of(verdict, now)})
                for verdict in verdicts
            ],
        })
    else:
        show(verdicts, len(cluster.names))
    return Exit.OK


def schedule_pending(
    cluster: Cluster, live: Live, now: int, settings: Settings | None = None, debug: Debug | None = None,
    *, observed: Observing | None = None,
) -> list[Verdict]:
    """Try each pending pod once, and return the decisions; the cluster has the placed ones afterwards.

    `now` is in nanoseconds since the epoch. The verdicts of pods that still wait for a permit at the end have a node
    and are marked `waiting`. `observed` is closed at the end.
    """
    from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
    from koordpolicy.engine.scheduler.cycle.schedule_one import Debug

    concluded: dict[str, Verdict] = {}

    def conclude(verdict: Verdict) -> None:
        concluded[verdict.pod.key] = verdict

    loop = SchedulingLoop(cluster, live, settings, clock=lambda: now, concluded=conclude, explained=True,
                          cycle_observers=() if observed is None else observed.observers)
    if observed is not None:
        observed.start(cluster)
    loop.scheduler.debug = debug or Debug()
    with progress("scheduling", len(loop.queue)) as done:
        verdicts: list[Verdict] = []
        for number, verdict in enumerate(loop.schedule_all(), start=1):
            verdicts.append(verdict)
            done(number)
    gated = loop.gated_verdicts()
    if observed is not None:
        observed.close()
    loop.close()
    return [concluded.get(verdict.pod.key, verdict) for verdict in verdicts] + list(gated)


def show(verdicts: Sequence[Verdict], nodes: int) -> None:
    """Print placements, then the pods without a node with their reasons."""
    placed = [verdict for verdict in verdicts if verdict.node is not None]
    show_placements(placed, nodes)
    show_unplaced([verdict for verdict in verdicts if verdict.node is None])
    show_errors(*verdicts)
    write(f"\n{len(placed)} of {len(verdicts)} pending pods placed on {nodes} nodes")


def show_placements(placed: Sequence[Verdict], nodes: int) -> None:
    """Print the nodes of pods, each with its score and the number of feasible nodes."""
    from koordpolicy.engine.scheduler.explain.explanation import requested

    if not placed:
        return
    heading("placed")
    rows = []
    for verdict in placed:
        best = verdict.best(1)[0][1] if verdict.scores else "-"
        devices = f" gpu {','.join(map(str, verdict.devices))}" if verdict.devices else ""
        pod = verdict.pod
        kind = " ".join(word for word in (pod.priority_band, pod.qos_class) if word)
        rows.append([pod.key, kind, requested(pod), f"{verdict.node}{devices}", best,
                     f"{len(verdict.passed)} of {nodes}"])
    table(["pod", "band", "requests", "node", "score", "passed"], rows)


def show_unplaced(unplaced: Sequence[Verdict], *, messages: bool = True) -> None:
    """Print the pods without a node, with the refused nodes by plugin and reason; pods with equal results once.

    With `messages` each ends with the message of kube-scheduler's pod condition, in one line.
    """
    from koordpolicy.engine.scheduler.explain.explanation import requested, room_of

    if not unplaced:
        return
    heading("not placed")
    alike: dict[object, list[Verdict]] = {}
    for verdict in unplaced:
        pod = verdict.pod
        room = "" if verdict.nomination is None else room_of(verdict.nomination)
        fate = verdict.message(), verdict.refusals(), room
        alike.setdefault((pod.namespace, pod.priority_band, requested(pod), repr(fate)), []).append(verdict)
    for verdict, *others in alike.values():
        pod = verdict.pod
        like = f" (and {len(others)} like it, up to {others[-1].pod.name})" if others else ""
        write(f"{pod.key}{like}  {pod.priority_band} {pod.qos_class}  {requested(pod)}")
        if verdict.refusal is not None:
            plugin, _, refusal = verdict.refusal
            write(f"  the pod as a whole is refused by {plugin}: {reason_of(refusal)}")
            if messages:
                write(f"  {verdict.message()}")
            continue
        size, refusals = len(verdict.names), verdict.refusals()
        width = max((len(refused.plugin) for refused in refusals), default=0)
        for refused in refusals:
            which = names(refused.nodes, 1, all_of=size)
            write(f"{len(refused.nodes):>5}  {refused.plugin:<{width}}  {reason_of(refused)}: {which}")
        if messages:
            write(f"  {verdict.message()}")
        if verdict.nomination is not None:
            write(f"  {room_of(verdict.nomination)}")
