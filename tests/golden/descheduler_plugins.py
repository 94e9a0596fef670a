"""The built-in plugins that golden cases of the descheduler name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.framework.registry import Plugin

Case = Mapping[str, Any]
Found = dict[str, Any]


def plugin_of(case: Case) -> Plugin:
    """Return the plugin that a case names."""
    return next(each for each in PLUGINS if each.name == case["plugin"])


def instance_of(case: Case) -> Any:
    """Return an instance of it, with the arguments of the case."""
    plugin = plugin_of(case)
    return plugin.make(plugin.check_args(case.get("args") or {}), None)


def validate(case: Case) -> Found:
    """Return the error that its arguments are refused with, if they are."""
    try:
        plugin_of(case).check_args(case["args"])
    except ValueError as error:
        return {"error": str(error)}
    return {}
