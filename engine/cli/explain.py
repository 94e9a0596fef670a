"""Explain why a pod would run on a node and why not on the others, and which changes would help.

With `--eviction` the command explains why a pod is not evicted, with `--qos` why a node was adjusted or not. A
scheduling decision is made for the current cluster, as if a running pod were still pending. Every filter runs on every
node, so that all reasons are shown and not only the first. Changes that would let the pod run are tried before they are
printed. With `--eviction` dry descheduling cycles are run; with `--qos` a recording is replayed up to a time.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.cel.values.deadline import Deadline, OverdueError
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.scheduler.cycle.schedule_one import Scheduler, Settings
from koordpolicy.engine.scheduler.cycle.tie_break import tie_break
from koordpolicy.engine.scheduler.explain.explanation import Explained, explain_decision, explain_node, explain_pod
from koordpolicy.engine.serving.console_links import ConsoleLinks
from koordpolicy.engine.source import did_you_mean

from .cluster_loading import (
    cluster_of,
    moment_of,
    node_of,
    pod_of,
    preemption_lacks,
    scheduling_lacks,
    warn_of_lacks,
    warn_of_settings,
)
from .composition import (
    access_of,
    add_choice,
    add_cluster,
    add_policies,
    add_proving,
    count,
    descheduler_configuration,
    live_of,
    need_file,
    one_of,
    registry_of,
    settings_of,
)
from .exits import Exit, Stop
from .serving import add_console_url
from .terminal import add_output, write, write_finding, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.explanation import Finding
    from koordpolicy.engine.framework.registry import Live

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy explain shop/web-101 --cluster examples/cluster --policies policies/scheduler
  koord-policy explain web-101 --cluster examples/cluster --policies policies/scheduler --node general-03
  koord-policy explain shop/web-101 --cluster kube --policies policies/scheduler --output json
  koord-policy explain shop/web-16 --eviction --cluster examples/cluster --policies policies/descheduler
  koord-policy explain --qos worker-1 --replay examples/09-qos-replay/metrics.yaml --at 30s --policies policies/qos

exit codes: 0 a node was found (with --node: that node passes; with --eviction: the pod would be evicted; with --qos:
always), 2 usage, 3 policies, dump or recording are invalid, 5 no node fits the pod (with --node: that node is refused;
with --eviction: the pod stays), 6 the explanation takes longer than a minute
"""


_LONGEST_S: Final = 60.0
_DEFAULTS: Final = {"best": 5, "tie_break": "first", "seed": 0}
"""The default values of options; that of all others is None."""
_OF_SCHEDULING: Final = frozenset(("node", "profile", "config", *_DEFAULTS))
_OF_EVICTION: Final = frozenset(("config", "cycles", "scheduler_config", "memory"))
_OF_QOS: Final = frozenset(("replay", "at", "plugin", "feature_gates"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("pod", metavar="POD", nargs="?", help="namespace/name, or the name alone if it is unique")
    add_cluster(parser, required=False)
    add_policies(parser)
    parser.add_argument("--node", metavar="NAME", help="explain this node only, plugin by plugin")
    parser.add_argument("--best", type=count, default=_DEFAULTS["best"], metavar="N",
                        help=f"number of nodes whose scores are shown (default: {_DEFAULTS['best']})")
    add_choice(parser)
    add_console_url(parser, "print the address of the decision in this console, too")
    eviction = parser.add_argument_group("eviction", "why the pod is still there, plugin by plugin")
    eviction.add_argument("--eviction", action="store_true",
                          help="explain what the descheduler decides about the pod; then `--config` is a "
                               "DeschedulerConfiguration (descheduler/v1alpha2)")
    eviction.add_argument("--cycles", type=count, metavar="N",
                          help="run this many cycles over the same cluster, for conditions that must hold several "
                               "times in a row (default: 1)")
    add_proving(eviction)
    qos = parser.add_argument_group("QoS", "why a node was adjusted or not, threshold by threshold")
    qos.add_argument("--qos", metavar="NODE", help="explain what the QoS plugins found on this node")
    qos.add_argument("--replay", metavar="FILE", type=Path, help="a recording (YAML, or JSON lines)")
    qos.add_argument("--at", metavar="DURATION", help="time after the start of the recording, such as 1m30s "
                                                      "(default: its end)")
    qos.add_argument("--plugin", metavar="NAME", help="this plugin only")
    qos.add_argument("--feature-gates", metavar="NAME=true|false,...",
                     help="gates that differ from koordlet's defaults")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if options.qos is not None:
        _only(options, "--qos", _OF_QOS)
        return _explain_qos(options, builtins)
    if options.pod is None:
        raise Stop("which pod? name it, or with `--qos` a node")
    if options.cluster is None:
        raise Stop("`--cluster` is missing: it says where the pod and the nodes are")
    if options.eviction:
        _only(options, "--eviction", _OF_EVICTION)
        return _explain_eviction(options, builtins)
    _only(options, "a scheduling decision", _OF_SCHEDULING)
    live = live_of(options.policies, builtins, access=access_of(options))
    cluster = cluster_of(options.cluster)
    pod = pod_of(cluster, options.pod)
    if options.node is not None:
        node_of(cluster, options.node)
    now = moment_of(options.now, options.cluster, cluster)
    settings = settings_of(options, live.registry, cluster)
    lacking = scheduling_lacks(settings, live.registry, cluster)
    explained, finding = _within_limit(options, lambda: explain(pod, cluster, live, now, settings))
    verdict = explained.verdict
    lacks = warn_of_lacks((*lacking, *preemption_lacks((verdict,), cluster)))
    if options.node is not None:
        passed = next(finding.find("choice")).facts["passed"]
        _write_explanation(options, {
            "pod": pod.key, "node": options.node, "passed": passed, "chosen": verdict.node == options.node,
            "scores": verdict.score_of(options.node), **lacks,
        }, finding, _links(options).pod(pod.key, options.node))
        return Exit.OK if passed else Exit.IMPOSSIBLE
    head = {**verdict.to_json(), **lacks} if options.output == "json" else {}
    _write_explanation(options, head, finding, _links(options).pod(pod.key))
    return Exit.OK if verdict.scheduled else Exit.IMPOSSIBLE


def _only(options: argparse.Namespace, what: str, own: frozenset[str]) -> None:
    """Reject options without effect on this kind of explanation."""
    foreign = (_OF_SCHEDULING | _OF_EVICTION | _OF_QOS) - own
    if own is _OF_QOS:
        foreign |= {"pod", "cluster", "now"}
    for name in sorted(foreign):
        if getattr(options, name) != _DEFAULTS.get(name):
            shown = "a pod" if name == "pod" else f"`--{name.replace('_', '-')}`"
            raise Stop(f"{shown} means nothing to {what if ' ' in what else f'`{what}`'}")


def _explain_eviction(options: argparse.Namespace, builtins: Builtins) -> int:
    # Explanations of scheduling do not need these imports.
    from koordpolicy.engine.descheduler.documents import SourceStreaks
    from koordpolicy.engine.descheduler.explanation import ExplainEvictionRequest, explain_eviction
    from koordpolicy.engine.descheduler.profile import build_profiles, lacks_of

    from .proving import proving

    configuration = descheduler_configuration(options.config, "--config")
    registry = registry_of(options.policies, builtins, Framework.DESCHEDULER, access=access_of(options))
    cluster = cluster_of(options.cluster)
    pod = pod_of(cluster, options.pod)
    snapshot = cluster.snapshot(moment_of(options.now, options.cluster, cluster))
    profiles = build_profiles(
        configuration.profiles, registry, dry_run=True, snapshot=lambda: snapshot, memory=SourceStreaks(),
    )
    lacks = warn_of_lacks(lack for profile in profiles for lack in lacks_of(profile, cluster))
    with proving(options, registry, cluster, snapshot.now) as means:
        evicted, finding = explain_eviction(ExplainEvictionRequest(
            pod, profiles, snapshot, configuration.limits, configuration.node_selector, options.cycles or 1, means,
        ))
    _write_explanation(options, {"pod": pod.key, "evicted": evicted, **lacks}, finding, _links(options).pod(pod.key))
    return Exit.OK if evicted else Exit.IMPOSSIBLE


def _explain_qos(options: argparse.Namespace, builtins: Builtins) -> int:
    from koordpolicy.engine.agent.qos_manager.explanation import explain_round
    from koordpolicy.engine.agent.recording import load
    from koordpolicy.engine.cluster.kinds import lacking
    from koordpolicy.engine.documents import parse_duration

    from .qos import enabled_strategies, gates_from_option, read_gates, warn_of_gates

    if options.replay is None:
        raise Stop("`--qos` needs a recording: name it with `--replay`")
    need_file(options.replay, "`--replay` takes a recording")
    try:
        at = None if options.at is None else parse_duration(options.at)
    except ValueError as error:
        raise Stop(f"`--at`: {error}") from None
    if at is not None and at < 0:
        raise Stop("`--at` counts from the start of the recording: it cannot be negative")
    registry = registry_of(options.policies, builtins, Framework.QOS, access=access_of(options))
    gates = dict(read_gates(options.feature_gates or ""))
    enable = enabled_strategies(options.enable or (), gates, registry.plugins.values())
    if options.plugin is not None and (Framework.QOS, options.plugin) not in registry.plugins:
        known = [plugin.name for plugin in registry.of_framework(Framework.QOS)]
        raise Stop(f"there is no QoS plugin `{options.plugin}`: {one_of(options.plugin, known)}")
    recording = load(options.replay)
    if options.qos not in recording.nodes:
        hint = did_you_mean(options.qos, recording.nodes) or f"it has {', '.join(sorted(recording.nodes)[:5])}"
        raise Stop(f"there is no node `{options.qos}` in the recording: {hint}")
    reads = {plugin.name: plugin.reads for plugin in registry.of_framework(Framework.QOS) if plugin.enabled}
    lacks = warn_of_lacks(lacking(reads, recording.snapshot.cluster))
    with gates_from_option():
        warn_of_gates(gates, registry)
        warn_of_settings(recording.settings, (registry,), gates, enable)
        finding = explain_round(recording, registry, options.qos, at=at, plugin=options.plugin or "", gates=gates,
                                enable=enable)
    _write_explanation(options, {"node": options.qos, **lacks}, finding, _links(options).node(options.qos))
    return Exit.OK


def _links(options: argparse.Namespace) -> ConsoleLinks:
    return options.console_url or ConsoleLinks()


def _write_explanation(options: argparse.Namespace, head: Mapping[str, object], finding: Finding, link: str) -> None:
    if options.output == "json":
        write_json({**head, **({"console": link} if link else {}), "explanation": finding.to_json()})
        return
    write_finding(finding)
    if link:
        write(f"\nin the console: {link}")


def _within_limit(options: argparse.Namespace, make: Callable[[], Explained]) -> tuple[Explained, Finding]:
    """Explain a decision; raise `Stop` if that takes too long."""
    with Deadline(_LONGEST_S) as deadline, contextlib.suppress(OverdueError):
        explained = make()
        Deadline.poll()
        finding = (explain_decision(explained, best=options.best) if options.node is None else
                   explain_node(explained, options.node))
        # After the deadline, failures of expressions are errors, not reasons.
        if deadline.stopped is None or not deadline.passed:
            return explained, finding
    where = f", and an expression of `{deadline.stopped.name}` was stopped" if deadline.stopped else ""
    advice = ", or name one node with `--node`" if options.node is None else ""
    raise Stop(f"the explanation took longer than {_LONGEST_S:g} s{where}: make the policies simpler{advice}",
               Exit.EXCEEDED)


def explain(pod: PodInfo, cluster: Cluster, live: Live, now: int, settings: Settings | None = None) -> Explained:
    """Decide about a pod with all reasons, as if it were pending; nothing changes. `now` is in ns since the epoch."""
    settings = settings or Settings()
    scheduler = Scheduler(cluster, live, settings, clock=lambda: now)
    rule = tie_break(settings.tie_break, settings.seed)
    return explain_pod(scheduler.profile_of(pod), pod, cluster.snapshot(now), rule=rule)
