"""Report what another set of policies would change in a cluster, for the same pods, time and seed.

The report lists pods that change node, nodes that pods lose or gain and by which rule, pods that become pending, would
be evicted or throttled, and shifts of scores. OLD and NEW are files or directories, or REF:PATH for a path in a git
commit (`git:REF:PATH` if a file has such a name); /dev/null means no policies. Nothing is changed in the cluster.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.kinds import Objects
from koordpolicy.engine.comparison.difference import BUDGETS, ChangeBudget, difference, spend
from koordpolicy.engine.comparison.outcome import HOT_PERCENT, outcome
from koordpolicy.engine.documents import Documents
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.source import PolicyError, Problem, in_order

from .changes import documents_at
from .cluster_loading import (
    all_lacks,
    cluster_from,
    cluster_of,
    moment_of,
    settings_in,
    warn_of_lacks,
    warn_of_settings,
)
from .composition import (
    access_of,
    add_choice,
    add_cluster,
    count,
    descheduler_configuration,
    knows_scheduler,
    load_documents,
    need_policies,
    registry_from,
    settings_of,
)
from .differences import markdown, show
from .exits import Exit, Stop, refuse_given
from .policy_sources import PolicyAccess, add_bundle_options, bundle_options, is_elsewhere, need_bundle
from .proving import how_to_prove
from .terminal import progress, write_json
from .terminal import write as write_line
from .traces import need_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koordpolicy.engine.cluster.cluster import Cluster
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.framework.registry import Registry

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy diff policies new-policies --cluster cluster.yaml
  koord-policy diff main:policies policies --cluster cluster.yaml --output markdown
  koord-policy diff crd policies --cluster kube
  koord-policy diff oci:registry.example.org/team/policies:prod policies --cluster kube --verify-key sign.pub
  koord-policy diff policies new-policies --cluster cluster.yaml --max-moved 1% --max-pending 0
  koord-policy diff policies/trace/best-fit policies/trace/dot-product --trace openb/ --limit 1000

exit codes: 0 compared (and within all budgets), 2 usage, 3 policies, configuration or dump are invalid (then nothing
is compared), 6 a budget does not hold
"""

NOTHING: Final = "/dev/null"
_GIT: Final = "git:"
_STEPS: Final = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("old", metavar="OLD", help="the policies as they are: a file, a directory, REF:PATH, "
                                                   "`oci:REGISTRY/REPOSITORY:TAG`, `configmap:NAMESPACE/NAME` or "
                                                   "`crd`")
    parser.add_argument("new", metavar="NEW", help="the policies as they would be")
    add_bundle_options(parser)
    add_cluster(parser, required=False)
    parser.add_argument("--trace", metavar="PATH", type=Path,
                        help="place the pods of this trace, in its order, instead of those that are pending: a list "
                             "of pods, or a directory that holds one (see `simulate`). Without `--cluster` onto the "
                             "trace's nodes, which are empty")
    parser.add_argument("--nodes", metavar="FILE", type=Path, help="the trace's list of nodes, where it is elsewhere")
    parser.add_argument("--limit", type=count, metavar="N", help="place so many pods only")
    add_choice(parser)
    parser.add_argument("--descheduler-config", metavar="FILE", type=Path,
                        help="a DeschedulerConfiguration (descheduler/v1alpha2; default: one profile of the policies)")
    parser.add_argument("--cycles", type=count, default=1, metavar="N",
                        help="let descheduling plugins in Python that count for themselves look so often (default: 1; "
                             "documents always see what has been so for long)")
    parser.add_argument("--hot", type=_percent, default=HOT_PERCENT, metavar="PERCENT",
                        help=f"from which share of its cpu on a node counts as hot (default: {HOT_PERCENT})")
    for name, (counted, _) in BUDGETS.items():
        parser.add_argument(f"--max-{name}", type=_budget, metavar="N|N%", help=f"a budget: at most so many {counted}")
    parser.add_argument("--top", type=count, default=10, metavar="N", help="show so many of each list (default: 10)")
    parser.add_argument("--output", "-o", choices=("text", "json", "markdown", "table"), default="text",
                        help="text (or table, the same) for people, json (with everything) for machines, markdown for "
                             "a pull request")


def _percent(text: str) -> int:
    value = count(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f"`{text}` is not a percentage from 1 to 100")
    return value


def _budget(text: str) -> ChangeBudget:
    try:
        return ChangeBudget.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if options.cluster is None and options.trace is None:
        raise Stop("there is nothing to compare over: name a dump with `--cluster`, or a trace with `--trace`")
    if options.trace is None:
        refuse_given(options, ("nodes",), "goes with `--trace`")
    need_bundle((options.old, options.new), bundle_options(options))
    old, new = _both(options.old, options.new, builtins, access_of(options))
    configuration = None
    if options.descheduler_config is not None:
        configuration = descheduler_configuration(options.descheduler_config, "--descheduler-config")
    cluster, pods, now = _inputs(options)
    settings = settings_of(options, old, cluster, new)
    if options.trace is not None and options.config is None:
        from koordpolicy.engine.scheduler.trace_profile import (  # only where one is given
            trace_profile,
        )

        known = {plugin.name: plugin for each in (old, new) for plugin in each.of_framework(Framework.SCHEDULER)}
        profiles = tuple(trace_profile(each, (), known.values()) for each in settings.profiles)
        settings = replace(settings, profiles=profiles)
    lacks = warn_of_lacks(lack for each in (old, new) for lack in all_lacks(settings, each, cluster))
    warn_of_settings(settings_in(cluster), (old, new))
    proves = knows_scheduler(options.config, old, new)
    with progress("comparing", 2 * _STEPS) as done:
        before = outcome(
            old, cluster, pods, now=now, settings=settings, descheduler=configuration, cycles=options.cycles,
            hot_percent=options.hot, proves=proves, progress=lambda part: done(int(part * _STEPS)),
        )
        after = outcome(
            new, cluster, pods, now=now, settings=settings, descheduler=configuration, cycles=options.cycles,
            hot_percent=options.hot, proves=proves, before=before, progress=lambda part: done(int((1 + part) * _STEPS)),
        )
    found = difference(before, after)
    hint = "" if proves or not (before.cycle.unproved or after.cycle.unproved) else how_to_prove(
        "--config", "among the policies")
    given = {name: getattr(options, f"max_{name}") for name in BUDGETS}
    spent = spend(found, {name: budget for name, budget in given.items() if budget is not None})
    numbers, at = after.summary, f", at {Timestamp(now)}" if now else ""
    about = (f"{options.old} against {options.new}: {numbers.nodes:,} nodes, {numbers.running:,} running pods, "
             f"{numbers.to_place:,} to be placed, seed {options.seed}{at}")
    if options.output == "json":
        write_json({
            "old": options.old, "new": options.new, "seed": options.seed,
            **({"now": str(Timestamp(now))} if now else {}),
            "difference": found.to_json(), "budgets": [each.to_json() for each in spent], **lacks,
        })
    elif options.output == "markdown":
        write_line(markdown(found, spent, options.top, about, hint).rstrip("\n"))
    else:
        write_line(f"{about}\n")
        show(found, spent, options.top, hint)
    return Exit.OK if all(each.within for each in spent) else Exit.EXCEEDED


def _both(old: str, new: str, builtins: Builtins, access: PolicyAccess) -> tuple[Registry, Registry]:
    """Return the registries of both sets; `access` leads to policies that are not on the disk.

    Raises:
        PolicyError: documents of one are invalid, with all problems of both.
    """
    registries: list[Registry] = []
    problems: list[Problem] = []
    for name in (old, new):
        try:
            registries.append(registry_from(_documents(name, access), builtins))
        except PolicyError as error:
            problems.extend(error.problems)
    if problems:
        raise PolicyError(in_order(dict.fromkeys(problems)))
    return registries[0], registries[1]


def _documents(name: str, access: PolicyAccess) -> Documents:
    if name == NOTHING:
        return Documents()
    reference, colon, path = name.removeprefix(_GIT).partition(":")
    if is_elsewhere(name) or (not name.startswith(_GIT) and (Path(name).exists() or not colon)):
        loaded = load_documents([name], access=access)
    elif not (reference and path):
        raise Stop(f"`{name}` is neither a file nor REF:PATH of git")
    else:
        loaded = documents_at(reference, path, Path.cwd(), source_name=name)
    if not loaded.problems:
        need_policies(loaded, name, f"{NOTHING} stands for no policies")
    return loaded


def _inputs(options: argparse.Namespace) -> tuple[Cluster, Sequence[PodInfo] | None, int]:
    """Return the cluster, the pods to place (None for its pending ones) and the time."""
    if options.trace is None:
        cluster = cluster_of(options.cluster)
        now = moment_of(options.now, options.cluster, cluster)
        pods: list[PodInfo] | None = None
        if options.limit is not None:
            pods = sorted(cluster.pending, key=lambda pod: -pod.priority)[: options.limit]
        return cluster, pods, now
    from koordpolicy.engine.cluster.objects.pods import PodInfo
    from koordpolicy.engine.cluster.sources import trace as traces  # only where one is given

    need_trace(options)
    recorded = traces.load(options.trace, options.nodes)
    if options.cluster is None:
        cluster = cluster_from(Objects.of((node.object() for node in recorded.nodes), traces.KINDS), str(options.trace))
    else:
        cluster = cluster_of(options.cluster)
    now = moment_of(options.now, options.cluster or "", cluster)
    chosen = recorded.pods[: options.limit]
    found = [PodInfo.of(each.object()) for each in chosen]
    known = next((pod.key for pod in found if cluster.pod(pod.key) is not None), None)
    if known is not None:
        raise Stop(f"the pod `{known}` of the trace is in the cluster already", Exit.INVALID)
    return cluster, found, now
