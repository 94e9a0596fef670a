"""Say why a pod would run on a node, and why not on the others.

The decision is made anew on the cluster as it is: a pod that runs already is looked at as if it were still pending.
Every filter is asked about every node, so that all reasons are shown and not only the first.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..cluster.pods import PodInfo
from ..cluster.snapshot import NodeChange
from ..points import Enforcement
from ..scheduler.cycle import Scheduler, Settings, decide, tie_break
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
from .terminal import add_output, heading, table, write, write_json
from .verdicts import (
    reason_of,
    refusal_json,
    request,
    show_choice,
    show_errors,
    show_refusals,
    show_scores,
    show_values,
    verdict_json,
)

if TYPE_CHECKING:
    from ..cluster.snapshot import Cluster
    from ..registry import Live
    from ..scheduler.profile import Profile
    from ..scheduler.verdict import Verdict
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
    settings = settings_of(options, live.registry, cluster)
    verdict, profile = explain(pod, cluster, live, now, settings)
    if options.node is not None:
        return _explain_node(verdict, profile, options)
    if options.output == "json":
        write_json(verdict_json(verdict))
    else:
        show(verdict, pod.node_name, options.best)
    return Exit.OK if verdict.scheduled else Exit.IMPOSSIBLE


def explain(
    pod: PodInfo, cluster: Cluster, live: Live, now: int, settings: Settings | None = None,
) -> tuple[Verdict, Profile]:
    """Decide about a pod with all reasons, as if it were pending; nothing changes. `now` is in ns since the epoch."""
    settings = settings or Settings()
    scheduler = Scheduler(cluster, live, settings, clock=lambda: now)
    snapshot = cluster.snapshot(now)
    if pod.node_name in cluster.index:
        snapshot = snapshot.overlay({pod.node_name: NodeChange(remove=[pod.key])})
    profile = scheduler.profile_of(pod)
    rule = tie_break(settings.tie_break, settings.seed)
    return decide(profile, unbound(pod), snapshot, tie_break=rule, exhaustive=True), profile


def unbound(pod: PodInfo) -> PodInfo:
    """Return the pod as it was before it had a node."""
    spec = {key: value for key, value in pod.object["spec"].items() if key != "nodeName"}
    return PodInfo.of({**pod.object, "spec": spec}) if pod.node_name else pod


def show(verdict: Verdict, current: str, best: int) -> None:
    """Print a decision: the choice, the scores of the best nodes, the refusals, the errors.

    `current` is the node that the pod is on, empty if it is pending.
    """
    pod = verdict.pod
    kind = " ".join(word for word in (pod.priority_band, pod.qos_class) if word)
    write(f"{pod.key}  {kind}  requests {request(pod)}")
    if current:
        write(f"it is on {current}; decided as if it were pending")
    write(f"profile {verdict.profile}")
    write()
    show_choice(verdict)
    if len(verdict.passed):
        heading("scores")
        show_scores(verdict, best)
    refused = len(verdict.names) - len(verdict.passed)
    if refused or verdict.refusal is not None or any(len(step.refused) for step in verdict.filters):
        heading(f"{refused} of {len(verdict.names)} nodes refused")
        show_refusals(verdict)
    show_errors(verdict)


def _explain_node(verdict: Verdict, profile: Profile, options: argparse.Namespace) -> int:
    node = options.node
    asked = _answers(verdict, profile, node)
    scores = verdict.score_of(node)
    passed = bool(scores) or any(name == node for name, _ in verdict.best())
    if options.output == "json":
        write_json({
            "pod": verdict.pod.key, "node": node, "passed": passed, "chosen": verdict.node == node,
            "filters": [
                {"plugin": plugin, "passed": refusal is None, "enforcement": enforcement.value}
                | ({} if refusal is None else refusal_json(plugin, refusal))
                for plugin, enforcement, refusal in asked
            ],
            "scores": scores,
        })
        return Exit.OK if passed else Exit.IMPOSSIBLE
    outcome = "is chosen for" if verdict.node == node else "could take" if passed else "is refused for"
    write(f"{node} {outcome} {verdict.pod.key}")
    if verdict.refusal is not None:
        show_refusals(verdict)
        return Exit.IMPOSSIBLE
    heading("filters")
    for plugin, enforcement, refusal in asked:
        mark = "" if enforcement is Enforcement.ENFORCE else f" [{enforcement.value.lower()} only]"
        if refusal is None:
            write(f"  passed   {plugin}{mark}")
        else:
            rule = f" ({refusal.rule})" if refusal.rule else ""
            write(f"  refused  {plugin}{rule}{mark}: {reason_of(refusal)}")
            show_values(refusal.values, " " * 11)
    if scores:
        heading("scores")
        table(["plugin", "weight", "score", "weighted", "items"], [
            [step.plugin, step.weight, scores[step.plugin], step.weight * scores[step.plugin],
             _items(step, verdict, node)]
            for step in verdict.scores
        ])
        totals = dict(verdict.best())
        best = verdict.best(1)[0]
        write(f"total {totals[node]}; the best node is {best[0]} with {best[1]}")
    show_errors(verdict)
    return Exit.OK if passed else Exit.IMPOSSIBLE


def _answers(verdict: Verdict, profile: Profile, node: str) -> list[tuple[str, Enforcement, Any]]:
    """Return for each filter of the profile its enforcement, and its refusal of the node or None."""
    row = list(verdict.names).index(node)
    refusing = {step.plugin: step for step in verdict.filters if row in step.refused}
    return [
        (active.name, active.plugin.enforcement,
         refusing[active.name].answer.explain(row) if active.name in refusing else None)
        for active in profile.filters
    ]


def _items(step: Any, verdict: Verdict, node: str) -> str:
    row = list(verdict.names).index(node)
    return ", ".join(f"{name} {int(values[row])}" for name, values in step.scores.items.items())
