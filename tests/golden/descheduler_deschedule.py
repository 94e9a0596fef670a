"""Golden cases of the Deschedule plugins of Kubernetes' descheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler.remove_failed_pods.args import default_args
from koordpolicy.engine.kubernetes.selectors import tolerates

from .descheduler_plugins import Case, Found, instance_of, validate

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
        table[name, "config_validate"] = validate
        table[name, "deschedule"] = lambda case: deschedule(case, instance_of(case))
    return table


def _tolerates_taint(case: Case) -> Found:
    return {"tolerated": tolerates(case["input"]["toleration"], case["input"]["taint"])}
