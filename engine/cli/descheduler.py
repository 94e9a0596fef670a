"""Deschedule a cluster under policies: evict pods that violate them, or that make nodes unbalanced.

Of a dump, or a live cluster with `--once --dry-run`, one cycle is run, and the evictions are reported with their
criteria, and what stopped the others. For a live cluster without these this command is a descheduler like
koord-descheduler: it watches the cluster, evicts pods in cycles, and follows changes of the policies and of the
configuration until SIGTERM.

All Deschedule plugins of all profiles run before all Balance plugins. `--config` defines the plugins and their
arguments: a `DeschedulerConfiguration` of `descheduler/v1alpha2` as koord-descheduler reads it, or a
`DeschedulerPolicy` of Kubernetes' descheduler; without it one profile with the policy documents runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from koordpolicy.engine.descheduler.documents import SourceStreaks
from koordpolicy.engine.descheduler.framework import run_cycle
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.descheduler.results import WAITING, CycleResult
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.framework.points import Framework

from . import live_descheduler, reloading, serving
from .cluster_loading import LIVE_CLUSTER, cluster_of, moment_of, warn_of_lacks
from .composition import (
    access_of,
    add_cluster,
    add_policies,
    add_proving,
    count,
    descheduler_configuration,
    registry_of,
)
from .exits import Exit, Stop, refuse_given
from .proving import how_to_prove, proving, save_memory, warn_of_proofs
from .terminal import add_output, heading, table, warn, write, write_json
from .verdicts import names

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = f"""\
examples:
  koord-policy descheduler --once --dry-run --cluster examples/cluster --policies policies/descheduler
  koord-policy descheduler --once --dry-run --cluster kube --config descheduler.yaml --output json
  koord-policy descheduler --once --dry-run --cluster examples/cluster --policies policies/descheduler --cycles 5
  koord-policy descheduler --once --dry-run --cluster examples/cluster --policies policies/descheduler \\
      --scheduler-config scheduler.yaml --memory evictions.json

{live_descheduler.EXAMPLES}
exit codes: 0 the cycle completed, or after SIGTERM, 1 the Lease was lost, 2 usage, 3 policies, configuration, dump or
kubeconfig are invalid, or rights are missing, 5 the cycle ended early
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_cluster(parser, live="from which pods are evicted unless `--dry-run` is given")
    add_policies(parser)
    parser.add_argument("--config", metavar="FILE", type=Path,
                        help="a DeschedulerConfiguration or a DeschedulerPolicy (descheduler/v1alpha2)")
    parser.add_argument("--once", action="store_true", help="run one cycle and end; required for a dump")
    parser.add_argument("--dry-run", action="store_true",
                        help="evict nothing; required for a dump. With `--once` the evictions are reported here, else "
                             "in metrics and /status")
    parser.add_argument("--cycles", type=count, default=1, metavar="N",
                        help="run this many cycles over the same cluster and print the last one, for conditions "
                             "that must hold several times in a row (`anomaly`; default: 1)")
    add_proving(parser)
    add_output(parser)
    live_descheduler.add_arguments(parser)
    serving.add_arguments(parser, server="a descheduler of a live cluster")
    reloading.add_arguments(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if not (options.once and options.dry_run):
        if options.cluster.partition(":")[0] == LIVE_CLUSTER:
            return live_descheduler.run(options, builtins)
        raise Stop("no pod of a dump can be evicted: say `--once --dry-run` to see what would be evicted, or name a "
                   "live cluster with `--cluster kube[:CONTEXT]`")
    refuse_given(options, (*live_descheduler.OPTIONS, *serving.OPTIONS, *reloading.OPTIONS),
                 "goes with a live cluster, without `--once --dry-run`")
    configuration = descheduler_configuration(options.config, "--config")
    registry = registry_of(options.policies, builtins, Framework.DESCHEDULER, access=access_of(options))
    cluster = cluster_of(options.cluster)
    snapshot = cluster.snapshot(moment_of(options.now, options.cluster, cluster))
    profiles = build_profiles(
        configuration.profiles, registry, dry_run=True, snapshot=lambda: snapshot, memory=SourceStreaks(),
    )
    if not any(profile.deschedule or profile.balance for profile in profiles):
        warn("no plugin is active: name documents with `--policies`, or plugins in a `--config`")
    for spec in configuration.profiles:
        if spec.has_plugins and not spec.evict:
            warn(f"warning: profile `{spec.name}`: no evict plugin is enabled: outside of a dry run it is refused")
    result = CycleResult(registry.generation, dry_run=True, nodes=0)
    with proving(options, registry, cluster, snapshot.now) as means:
        for _ in range(options.cycles):
            result = run_cycle(profiles, snapshot, limits=configuration.limits, generation=registry.generation,
                               node_selector=configuration.node_selector, proving=means)
    save_memory(options, result.memory)
    warn_of_lacks(result.lacks)
    warn_of_proofs(result.outcomes)
    if options.output == "json":
        write_json(result.to_json())
    else:
        _show(result, options.cycles)
        if result.unproved and (means is None or means.placements is None):
            write(how_to_prove("--scheduler-config", "with `--policies`"))
    return Exit.IMPOSSIBLE if result.error else Exit.OK


def _show(result: CycleResult, cycles: int) -> None:
    if result.evicted:
        heading("would be evicted")
        table(["pod", "node", "plugin", "rule", "mode", "reason"], [
            [pod, node, of.plugin, of.rule, of.mode, of.reason] for pod, node, of in result.evicted
        ])
    if result.requested:
        heading("moved by other components")
        table(["pod", "node", "plugin", "rule", "reason", "state"], [
            [pod, node, of.plugin, of.rule, of.reason, of.message] for pod, node, of in result.requested
        ])
    proved = [(each, each.decision.proof) for each in result.evicted if each.decision.proof is not None]
    if proved:
        heading("proofs of the evictions")
        table(["pod", "result", "effect", "why"], [
            [each.pod, proof.result.value, proof.effect.value, proof.message] for each, proof in proved
        ])
    if result.staying:
        heading("candidates that stay")
        staying: dict[tuple[str, str, str, str], list[str]] = {}
        for pod, node, of in result.staying:
            stopper = _stopper(of.stopped_by, of.stopped_rule)
            staying.setdefault((of.plugin, of.rule, stopper, of.message), []).append(f"{pod} on {node}")
        table(["plugin", "rule", "stopped by", "pods", "which", "why"], [
            [plugin, rule, stopper, len(pods), names(pods), message]
            for (plugin, rule, stopper, message), pods in staying.items()
        ])
    if result.node_notes:
        heading("nodes")
        groups: dict[tuple[str, str, str], list[str]] = {}
        for note in result.node_notes:
            groups.setdefault((note.plugin, note.role, note.message), []).append(note.node)
        table(["plugin", "found", "nodes", "which", "why"], [
            [plugin, role, len(nodes), names(nodes), message] for (plugin, role, message), nodes in groups.items()
        ])
        _advise(result, cycles)
    if result.changes:
        heading("would be changed")
        changed: dict[tuple[str, str], list[str]] = {}
        for change in result.changes:
            changed.setdefault((change.plugin, change.kind), []).append(f"{change.key} ({change.message})")
        table(["plugin", "kind", "objects", "which"], [
            [plugin, kind, len(objects), names(objects)] for (plugin, kind), objects in changed.items()
        ])
    if result.failures:
        heading("failures")
        failed: dict[tuple[str, str, str], list[str]] = {}
        for failure in result.failures:
            failed.setdefault((failure.plugin, failure.rule, failure.message), []).append(failure.subject)
        table(["plugin", "rule", "times", "on", "what failed"], [
            [plugin, rule, len(subjects), names(subjects), message]
            for (plugin, rule, message), subjects in failed.items()
        ])
    evicted = len(result.evicted)
    write(f"\n{evicted} pod{'' if evicted == 1 else 's'} of {len(result.outcomes)} candidates would be evicted "
          f"from {result.nodes} nodes")
    if result.error:
        write(f"the cycle ended early: {result.error}")


def _advise(result: CycleResult, cycles: int) -> None:
    """Say how to see what happens to nodes that wait for more cycles."""
    waiting = len({note.node for note in result.node_notes if note.role == WAITING})
    if waiting:
        write(f"{counted(waiting, 'node')} {'waits' if waiting == 1 else 'wait'} for more cycles in a row: run more "
              f"than {counted(cycles, 'cycle')} over this cluster with `--cycles`")


def _stopper(plugin: str, rule: str) -> str:
    return f"{plugin} ({rule})" if rule else plugin
