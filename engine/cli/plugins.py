"""List the active plugins, with their extension points, their origin and their state, or the fields that they read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from koordpolicy.engine.cluster.kinds import CLUSTER_READS, FieldPath, Read
from koordpolicy.engine.framework.points import Framework

from .composition import access_of, add_policies, registry_of
from .exits import Exit, Stop
from .terminal import add_output, table, warn, write, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from koordpolicy.engine.framework.registry import Plugin, Registry

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy plugins
  koord-policy plugins --policies policies/scheduler --framework scheduler
  koord-policy plugins --policies policies --output json
  koord-policy plugins --policies policies/scheduler --framework scheduler --reads

A plugin that is `waiting` is active only where a profile of a component configuration names it.

exit codes: 0 listed, 2 usage, 3 policies are invalid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_policies(parser)
    parser.add_argument("--framework", choices=[each.value for each in Framework],
                        help="only the plugins of this framework")
    parser.add_argument("--reads", action="store_true",
                        help="instead of the plugins, list the fields of objects that they and the scheduler itself "
                             "read: a live cluster is followed for these kinds, and these fields of them, only")
    parser.add_argument("--role", action="store_true",
                        help="instead of the plugins, print a ClusterRole with the rights that enabled ones need "
                             "beside those of deploy/scheduler, as YAML: to patch the fields that they declare")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    registry = registry_of(options.policies, builtins, access=access_of(options))
    frameworks = [each for each in Framework if options.framework in (None, each.value)]
    found = [plugin for framework in frameworks for plugin in registry.of_framework(framework)]
    if options.reads:
        _show_reads([plugin for plugin in found if plugin.enabled], options, registry)
        return Exit.OK
    if options.role:
        if options.framework not in (None, Framework.SCHEDULER.value):
            raise Stop(f"`--role` goes without `--framework {options.framework}`: it is the role of the scheduler")
        _show_role([plugin for plugin in found if plugin.enabled])
        return Exit.OK
    if options.output == "json":
        write_json({"digest": registry.digest, "plugins": [_plain(plugin) for plugin in found]})
        return Exit.OK
    table(["framework", "name", "points", "state", "origin and description"], [
        [plugin.framework.value, plugin.name, " ".join(point.value for point in plugin.points), _state(plugin),
         f"{plugin.origin}: {plugin.description}" if plugin.description else plugin.origin]
        for plugin in found
    ])
    write(f"\n{len(found)} plugins, digest {registry.digest}")
    return Exit.OK


def _show_reads(plugins: Sequence[Plugin], options: argparse.Namespace, registry: Registry) -> None:
    """Write the fields that are read of each kind, with their readers."""
    readers: dict[tuple[str, FieldPath | None], list[str]] = {}
    by_cluster = {read.kind: read for read in CLUSTER_READS}
    own = {(read.kind, path) for read in CLUSTER_READS if not read.refines for path in read.fields or ()}
    for plugin in plugins:
        named = {read.kind for read in plugin.reads}
        whole = [Read(kind) for kind in ("Node", "Pod") if kind not in named]
        for read in (*plugin.reads, *whole):
            paths: list[FieldPath | None] = [None] if read.fields is None else list(read.fields)
            if read.kind in by_cluster and by_cluster[read.kind].refines:
                # Such a kind is read for them only, mostly by what the cluster derives from it.
                paths += by_cluster[read.kind].fields or ()
            for path in paths:
                names = readers.setdefault((read.kind, path), [])
                if plugin.name not in names:
                    names.append(plugin.name)
    patched = _patched(plugins)
    rows = sorted({*readers, *own}, key=lambda row: (row[0], row[1] is not None, row[1] or ()))
    if options.output == "json":
        write_json({"digest": registry.digest, "reads": [
            {"kind": kind, "field": None if path is None else _dotted(path), "plugins": readers.get((kind, path), []),
             "scheduler": (kind, path) in own} for kind, path in rows],
            "patches": [{"kind": kind, "field": _dotted(path), "plugins": names}
                        for (kind, path), names in patched.items()]})
        return
    served = {read.kind: f"{read.kind} ({read.plural}.{read.group}/{read.version})" for plugin in plugins
              for read in plugin.reads if read.resource is not None}
    table(["kind", "field", "read by"], [
        [served.get(kind, kind), "(all)" if path is None else _dotted(path),
         ", ".join((["the scheduler"] if (kind, path) in own else []) + readers.get((kind, path), []))]
        for kind, path in rows])
    if patched:
        write()
        table(["kind", "field", "patched by"], [
            [kind, _dotted(path), ", ".join(names)] for (kind, path), names in patched.items()])
    write(f"\n{len(rows)} fields of {len({kind for kind, _ in rows})} kinds, digest {registry.digest}")


def _patched(plugins: Sequence[Plugin]) -> dict[tuple[str, FieldPath], list[str]]:
    """Return the plugins that patch a field, by kind and field."""
    found: dict[tuple[str, FieldPath], list[str]] = {}
    for kind, path, name in sorted(
            (each.kind, path, plugin.name) for plugin in plugins for each in plugin.patches for path in each.fields):
        found.setdefault((kind, path), []).append(name)
    return found


def _show_role(plugins: Sequence[Plugin]) -> None:
    """Write a ClusterRole with what plugins require beside the shipped role; without rules if that is nothing."""
    import yaml  # only this option writes YAML

    from koordpolicy.engine.scheduler.live.permissions import of_plugins, rules

    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "koord-policy-scheduler-plugins"}, "rules": rules(of_plugins(plugins))}
    if not role["rules"]:
        warn("no enabled plugin needs more rights than deploy/scheduler grants: the role has no rules")
    write(yaml.safe_dump(role, sort_keys=False).rstrip())


def _dotted(path: FieldPath) -> str:
    """Return a path as expressions write it."""
    return "".join(f".{step}" if step.isidentifier() else f"['{step}']" for step in path).removeprefix(".")


def _state(plugin: Plugin) -> str:
    state = plugin.enforcement.value if plugin.enabled else "waiting"
    profiles = f" in {', '.join(sorted(plugin.profiles))}" if plugin.profiles else ""
    return state + profiles


def _plain(plugin: Plugin) -> dict[str, object]:
    return {
        "framework": plugin.framework.value, "name": plugin.name, "points": [point.value for point in plugin.points],
        "origin": plugin.origin, "enabled": plugin.enabled, "enforcement": plugin.enforcement.value,
        "weight": plugin.weight, "order": plugin.order,
        "profiles": sorted(plugin.profiles) if plugin.profiles is not None else None,
        "description": plugin.description, "digest": plugin.digest,
    }
