"""List the active plugins, with their extension points, their origin and their state."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from koordpolicy.engine.framework.points import Framework

from .composition import add_policies, registry_of
from .exits import Exit
from .terminal import add_output, table, write, write_json

if TYPE_CHECKING:
    from koordpolicy.engine.framework.registry import Plugin

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy plugins
  koord-policy plugins --policies policies/scheduler --framework scheduler
  koord-policy plugins --policies policies --output json

A plugin that is `waiting` is active only where a profile of a component configuration names it.

exit codes: 0 listed, 2 usage, 3 policies are invalid
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_policies(parser)
    parser.add_argument("--framework", choices=[each.value for each in Framework],
                        help="only the plugins of this framework")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    registry = registry_of(options.policies, builtins)
    frameworks = [each for each in Framework if options.framework in (None, each.value)]
    found = [plugin for framework in frameworks for plugin in registry.of_framework(framework)]
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
