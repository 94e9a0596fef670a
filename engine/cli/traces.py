"""Options and settings of the commands that replay a trace, with its typical pods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from koordpolicy import __version__
from koordpolicy.engine.cluster.sources.trace import NODE_LIST, POD_LIST
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.profile import ProfileSpec
from koordpolicy.engine.scheduler.trace_profile import trace_profile

from .composition import check_enabled, choice_of, report_idle
from .exits import Stop

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from koordpolicy.engine.framework.registry import Registry
    from koordpolicy.engine.scheduler.extensions.fragmentation import TypicalPod


def add_trace(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare `--trace` and `--nodes`."""
    parser.add_argument("--trace", metavar="FILE", type=Path, required=required,
                        help=f"the list of pods, or a directory that holds {POD_LIST}")
    parser.add_argument("--nodes", metavar="FILE", type=Path,
                        help=f"the list of nodes (default: {NODE_LIST} beside the pods)")


def need_trace(options: argparse.Namespace) -> None:
    """Raise `Stop` if one of the two lists does not exist."""
    for path in filter(None, (options.trace, options.nodes)):
        if not path.exists():
            raise Stop(f"there is no file `{path}`")
    folder = options.trace if options.trace.is_dir() else options.trace.parent
    if options.nodes is None and not (beside := folder / NODE_LIST).exists():
        raise Stop(f"there is no list of nodes `{beside}` beside the pods: name one with `--nodes`")


def settings_with(options: argparse.Namespace, registry: Registry, typical: Sequence[TypicalPod]) -> Settings:
    """Return the settings of `--enable`, `--tie-break` and `--seed`; plugins that nothing enables are reported.

    `typical` are the arguments `typicalPods` of plugins that are given none.
    """
    plugins = registry.of_framework(Framework.SCHEDULER)
    profile = trace_profile(ProfileSpec(enabled=tuple(map(choice_of, options.enable))), typical, plugins)
    enabled = [choice.name for choice in profile.enabled]
    check_enabled(enabled, plugins)
    report_idle(registry, {profile.name}, enabled)
    return Settings((profile,), tie_break=options.tie_break, seed=options.seed)


def made_by(options: argparse.Namespace) -> str:
    """Return the version and the policies of a run, for the head of a page."""
    by = [*map(str, options.policies), *options.enable]
    return f"koord-policy {__version__}, by {', '.join(by) if by else 'the built-in plugins'}"
