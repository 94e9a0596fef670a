"""Golden cases of the Deschedule plugins of Kubernetes' descheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.builtin_plugins.descheduler.remove_failed_pods.args import default_args
from koordpolicy.engine.kubernetes.selectors import tolerates

Case = Mapping[str, Any]
Found = dict[str, Any]

_NAMES = (
    "PodLifeTime", "RemoveFailedPods", "RemovePodsHavingTooManyRestarts", "RemovePodsViolatingNodeTaints",
    "RemovePodsViolatingNodeAffinity", "RemovePodsViolatingInterPodAntiAffinity",
)


def runners(deschedule: Callable[[Case, Any], Found]) -> Mapping[tuple[str, str], Callable[[Case], Found]]:
    """Return the runners; `deschedule` runs an instance over the cluster of a case."""
    table: dict[tuple[str, str], Callable[[Case], Found]] = {
        ("RemoveFailedPods", "config_default"): lambda case: {"config": default_args(case["args"])},
        ("RemovePodsViolatingNodeTaints", "tolerates_taint"): _tolerates_taint,
    }
    for name in _NAMES:
        table[name, "config_validate"] = _validate
        table[name, "deschedule"] = lambda case: deschedule(case, _made(case))
    return table


def _plugin(case: Case) -> Any:
    return next(each for each in PLUGINS if each.name == case["plugin"])


def _made(case: Case) -> Any:
    plugin = _plugin(case)
    return plugin.make(plugin.check_args(case.get("args") or {}), None)


def _validate(case: Case) -> Found:
    try:
        _plugin(case).check_args(case["args"])
    except ValueError as error:
        return {"error": str(error)}
    return {}


def _tolerates_taint(case: Case) -> Found:
    return {"tolerated": tolerates(case["input"]["toleration"], case["input"]["taint"])}
