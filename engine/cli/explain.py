"""Say why a pod would run on a node and why not on the others, and what would have to change.

The decision is made anew on the cluster as it is: a pod that runs already is looked at as if it were still pending.
Every filter is asked about every node, so that all reasons are shown and not only the first. Changes that would let the
pod run are tried before they are told.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..cluster.pods import PodInfo
from ..cluster.snapshot import NodeChange
from ..scheduler.cycle import Scheduler, Settings, decide, tie_break
from ..scheduler.explanation import Explained, explain_decision, explain_node
from .composition import (
    add_choice,
    add_cluster,
    add_policies,
    cluster_of,
    count,
    live_of,
    moment_of,
    node_of,
    pod_of,
    settings_of,
)
from .exits import Exit
from .terminal import add_output, write_finding, write_json
from .verdicts import verdict_json

if TYPE_CHECKING:
    from ..cluster.snapshot import Cluster
    from ..registry import Live
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy explain shop/web-101 --cluster examples/cluster --policies policies/scheduler
  koord-policy explain web-101 --cluster examples/cluster --policies policies/scheduler --node general-03
  koord-policy explain shop/web-101 --cluster kube --policies policies/scheduler --output json

exit codes: 0 a node was found (with --node: that node passes), 2 usage, 3 policies or the dump are invalid,
5 no node fits the pod (with --node: that node is refused)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("pod", metavar="POD", help="namespace/name, or the name alone where that is enough")
    add_cluster(parser)
    add_policies(parser)
    parser.add_argument("--node", metavar="NAME", help="explain this node only, plugin by plugin")
    parser.add_argument("--best", type=count, default=5, metavar="N",
                        help="show the scores of so many nodes (default: 5)")
    add_choice(parser)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    live = live_of(options.policies, builtins)
    cluster = cluster_of(options.cluster)
    pod = pod_of(cluster, options.pod)
    if options.node is not None:
        node_of(cluster, options.node)
    now = moment_of(options.now, options.cluster, cluster)
    explained = explain(pod, cluster, live, now, settings_of(options, live.registry, cluster))
    verdict = explained.verdict
    if options.node is not None:
        finding = explain_node(explained, options.node)
        passed = next(finding.find("choice")).facts["passed"]
        if options.output == "json":
            write_json({
                "pod": pod.key, "node": options.node, "passed": passed, "chosen": verdict.node == options.node,
                "scores": verdict.score_of(options.node), "explanation": finding.to_json(),
            })
        else:
            write_finding(finding)
        return Exit.OK if passed else Exit.IMPOSSIBLE
    finding = explain_decision(explained, best=options.best)
    if options.output == "json":
        write_json(verdict_json(verdict) | {"explanation": finding.to_json()})
    else:
        write_finding(finding)
    return Exit.OK if verdict.scheduled else Exit.IMPOSSIBLE


def explain(pod: PodInfo, cluster: Cluster, live: Live, now: int, settings: Settings | None = None) -> Explained:
    """Decide about a pod with all reasons, as if it were pending; nothing changes. `now` is in ns since the epoch."""
    settings = settings or Settings()
    scheduler = Scheduler(cluster, live, settings, clock=lambda: now)
    snapshot = cluster.snapshot(now)
    if pod.node_name in cluster.index:
        snapshot = snapshot.overlay({pod.node_name: NodeChange(remove=[pod.key])})
    profile = scheduler.profile_of(pod)
    rule = tie_break(settings.tie_break, settings.seed)
    verdict = decide(profile, unbound(pod), snapshot, tie_break=rule, exhaustive=True)
    return Explained(verdict, profile, snapshot, pod.node_name)


def unbound(pod: PodInfo) -> PodInfo:
    """Return the pod as it was before it had a node."""
    spec = {key: value for key, value in pod.object["spec"].items() if key != "nodeName"}
    return PodInfo.of({**pod.object, "spec": spec}) if pod.node_name else pod
