"""The profile for the pods of a trace, which share GPUs: Kubernetes' default profile does not support that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError

from .cycle.schedule_one import Settings
from .extensions.fragmentation import TypicalPod
from .profiles.profile import PluginChoice, ProfileSpec

TRACE_PLUGINS: Final = (
    PluginChoice("NodeUnschedulable"),
    PluginChoice("NodeName"),
    PluginChoice("TaintToleration"),
    PluginChoice("NodeAffinity"),
    PluginChoice("NodeResourcesFit", points=frozenset({Point.FILTER})),
    PluginChoice("GpuShare"),
)
"""The plugins for the pods of a trace, in addition to enabled ones and documents."""
_TYPICAL: Final = "typicalPods"


def trace_profile(
    profile: ProfileSpec, typical: Sequence[TypicalPod], plugins: Iterable[Plugin],
) -> ProfileSpec:
    """Return the profile for the pods of a trace: with GPU sharing and filters of nodes.

    Kubernetes' other default plugins cannot distinguish the nodes of a trace; they are disabled unless the profile
    names them. Active plugins that take `typicalPods` get the trace's: as an argument of a Python plugin, or a param of
    a document; one that the profile sets is unchanged.
    """
    plugins = tuple(plugins)
    known, named = {plugin.name for plugin in plugins}, {choice.name for choice in profile.enabled}
    enabled = (*profile.enabled, *(each for each in TRACE_PLUGINS if each.name in known - named))
    default = frozenset(plugin.name for plugin in plugins if plugin.default_weight is not None)
    disabled = {**profile.disabled, None: profile.disabled.get(None, frozenset()) | default}
    active = {choice.name for choice in enabled}
    shared = {_TYPICAL: [each.to_json() for each in typical]}
    found = {plugin.name: {**shared, **profile.args.get(plugin.name, {})} for plugin in plugins
             if (plugin.enabled or plugin.name in active) and _takes(plugin, shared)}
    return replace(profile, enabled=enabled, disabled=disabled, args={**profile.args, **found})


def _takes(plugin: Plugin, args: Mapping[str, object]) -> bool:
    try:
        return plugin.check_args is not None and args.keys() <= plugin.check_args(args).keys()
    except (PolicyError, ValueError):
        return False


def trace_settings(registry: Registry) -> Settings:
    """Return the default settings of a replay: one profile for all pods, see `trace_profile`."""
    return Settings((trace_profile(ProfileSpec(), (), registry.of_framework(Framework.SCHEDULER)),))
