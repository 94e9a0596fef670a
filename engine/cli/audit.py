"""Find the policies and rules that have no effect in a cluster, refuse everything, or fail, and what each matches.

Every rule is evaluated alone on all nodes, for every kind of running or pending pod; QoS and descheduling plugins run
one dry round. Nothing is changed in the cluster.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from koordpolicy.engine.comparison.audit import FEW_PERCENT, audit
from koordpolicy.engine.comparison.audit_results import Audit, AuditFinding, AuditLevel, PolicyCoverage

from .cluster_loading import all_lacks, cluster_of, moment_of, settings_in, warn_of_lacks, warn_of_settings
from .composition import (
    access_of,
    add_choice,
    add_cluster,
    descheduler_configuration,
    knows_scheduler,
    registry_of,
    settings_of,
)
from .exits import Exit, Stop
from .numbers import percent
from .policy_sources import FORMS, add_bundle_options
from .proving import how_to_prove
from .terminal import add_output, heading, progress, table, write, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy audit policies --cluster cluster.yaml
  koord-policy audit policies/scheduler policies/qos --cluster kube --output json
  koord-policy audit policies --cluster cluster.yaml --few 5 --strict

exit codes: 0 audited, whatever was found, 2 usage, 3 policies, configuration or dump are invalid, 6 there are warnings
(with --strict)
"""

_STEPS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("paths", metavar="PATH", nargs="+", help=f"a policy file or a directory of them, {FORMS}")
    add_bundle_options(parser)
    add_cluster(parser)
    parser.add_argument("--few", type=percent, default=FEW_PERCENT, metavar="PERCENT",
                        help="report policies that match less than this percentage of the nodes or pods "
                             f"(default: {FEW_PERCENT:g})")
    parser.add_argument("--strict", action="store_true", help="exit with 6 if there are warnings")
    parser.add_argument("--descheduler-config", metavar="FILE", type=Path,
                        help="a DeschedulerConfiguration (descheduler/v1alpha2; default: one profile of the policies)")
    add_choice(parser)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    configuration = None
    if options.descheduler_config is not None:
        configuration = descheduler_configuration(options.descheduler_config, "--descheduler-config")
    registry = registry_of(options.paths, builtins, access=access_of(options))
    if not any(plugin.source for plugin in registry.plugins.values()):
        raise Stop(f"there is no plugin in {', '.join(f'`{path}`' for path in options.paths)}: nothing to audit",
                   Exit.INVALID)
    cluster = cluster_of(options.cluster)
    now = moment_of(options.now, options.cluster, cluster)
    settings = settings_of(options, registry, cluster)
    lacks = warn_of_lacks(all_lacks(settings, registry, cluster))
    warn_of_settings(settings_in(cluster), (registry,))
    proves = knows_scheduler(options.config, registry)
    with progress("auditing", _STEPS) as done:
        found = audit(registry, cluster, now=now, settings=settings, descheduler=configuration,
                      few_percent=options.few, proves=proves,
                      progress=lambda part: done(int(part * _STEPS)))
    if options.output == "json":
        write_json(found.to_json() | lacks)
    else:
        _show(found)
        if found.has_unproved and not proves:
            write(how_to_prove("--config", "among the policies"))
    return Exit.EXCEEDED if options.strict and found.warnings else Exit.OK


def _show(found: Audit) -> None:
    from koordpolicy.engine.explanation import counted

    for level, title in ((AuditLevel.WARNING, "warnings"), (AuditLevel.NOTE, "notes: they may be meant so")):
        findings = [each for each in found.findings if each.level is level]
        if findings:
            heading(title)
            table(["policy", "rule", "finding", "what was found"], [_finding_row(each) for each in findings])
    heading("what each policy is about")
    table(["policy", "framework", "pods", "nodes", "rules: evaluated, refused, failed (pairs of a pod and a node)"],
          [_coverage_row(each, found) for each in found.policies])
    notes = len(found.findings) - found.warnings
    policies = f"{len(found.policies):,} {'policy' if len(found.policies) == 1 else 'policies'}"
    write(f"\n{counted(found.warnings, 'warning')} and {counted(notes, 'note')} about {policies} "
          f"over {counted(found.nodes, 'node')} and {counted(found.pods, 'pod')}")


def _finding_row(each: AuditFinding) -> list[str]:
    examples = f" (such as {', '.join(each.examples)})" if each.examples else ""
    return [each.policy or "-", each.rule, each.what.value, each.message + examples]


def _coverage_row(each: PolicyCoverage, found: Audit) -> Sequence[Any]:
    mark = "" if each.enforcement.value == "Enforce" else f" [{each.enforcement.value.lower()} only]"
    rules = ", ".join(f"{use.name} {use.evaluated:,} {use.refused:,} {use.failed:,}" for use in each.rules)
    pods = "not active" if not each.active else f"{each.pods:,} of {found.pods:,}"
    return [each.policy + mark, each.framework, pods, f"{each.nodes:,} of {found.nodes:,}", rules]
