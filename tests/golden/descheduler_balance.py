"""Golden cases of the Balance plugins of Kubernetes' descheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.builtin_plugins.descheduler.remove_pods_violating_topology_spread_constraint.args import default
from koordpolicy.builtin_plugins.descheduler.remove_pods_violating_topology_spread_constraint.constraints import (
    sort_pods,
)
from koordpolicy.engine.cluster.objects.pods import PodInfo

from .descheduler_plugins import Case, Found, instance_of, validate

_TOPOLOGY_SPREAD = "RemovePodsViolatingTopologySpreadConstraint"
_NAMES = ("RemoveDuplicates", _TOPOLOGY_SPREAD, "LowNodeUtilization", "HighNodeUtilization")


def runners(balance: Callable[[Case, Any], Found]) -> Mapping[tuple[str, str], Callable[[Case], Found]]:
    """Return the runners; `balance` runs an instance over the cluster of a case."""
    table: dict[tuple[str, str], Callable[[Case], Found]] = {
        (_TOPOLOGY_SPREAD, "config_default"): lambda case: {"config": default(case["args"])},
        (_TOPOLOGY_SPREAD, "sort_domains"): _sort_domains,
        ("DefaultEvictor", "config_validate"): validate,
    }
    for name in _NAMES:
        table[name, "config_validate"] = validate
        table[name, "balance"] = lambda case: balance(case, instance_of(case))
    return table


def _sort_domains(case: Case) -> Found:
    def is_evictable(pod: PodInfo) -> bool:
        return bool(pod.object["metadata"]["annotations"]["evictable"] == "true")

    def pods(given: list[Any]) -> list[PodInfo]:
        return [PodInfo.of({**pod, "spec": {"containers": [{"name": "c"}], **pod["spec"]}}) for pod in given]

    domains = case["input"]["constraintTopology"]
    return {"domains": {
        domain: [pod.name for pod in sort_pods(pods(given), is_evictable)] for domain, given in domains.items()
    }}
