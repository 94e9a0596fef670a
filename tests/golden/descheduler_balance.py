"""Golden cases of the Balance plugins of Kubernetes' descheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.builtin_plugins.descheduler.remove_pods_violating_topology_spread_constraint.args import default
from koordpolicy.builtin_plugins.descheduler.remove_pods_violating_topology_spread_constraint.constraints import (
    sort_pods,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo

Case = Mapping[str, Any]
Found = dict[str, Any]

_TOPOLOGY_SPREAD = "RemovePodsViolatingTopologySpreadConstraint"
_NAMES = ("RemoveDuplicates", _TOPOLOGY_SPREAD, "LowNodeUtilization", "HighNodeUtilization")


def runners(balance: Callable[[Case, Any], Found]) -> Mapping[tuple[str, str], Callable[[Case], Found]]:
    """Return the runners; `balance` runs an instance over the cluster of a case."""
    table: dict[tuple[str, str], Callable[[Case], Found]] = {
        (_TOPOLOGY_SPREAD, "config_default"): lambda case: {"config": default(case["args"])},
        (_TOPOLOGY_SPREAD, "sort_domains"): _sort_domains,
        ("DefaultEvictor", "config_validate"): _validate,
    }
    for name in _NAMES:
        table[name, "config_validate"] = _validate
        table[name, "balance"] = lambda case: balance(case, _made(case))
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


def _sort_domains(case: Case) -> Found:
    def is_evictable(pod: PodInfo) -> bool:
        return bool(pod.object["metadata"]["annotations"]["evictable"] == "true")

    def pods(given: list[Any]) -> list[PodInfo]:
        return [PodInfo.of({**pod, "spec": {"containers": [{"name": "c"}], **pod["spec"]}}) for pod in given]

    domains = case["input"]["constraintTopology"]
    return {"domains": {
        domain: [pod.name for pod in sort_pods(pods(given), is_evictable)] for domain, given in domains.items()
    }}
