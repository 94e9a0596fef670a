"""Golden cases of the evicting strategies: one function per point, in the table `EVICTIONS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from koordpolicy.builtin_plugins.qos.cpu_evict import plugin as cpu
from koordpolicy.builtin_plugins.qos.eviction_strategy import (
    EvictionStrategy,
    NodeCooling,
    SettingError,
    ThresholdSection,
)
from koordpolicy.builtin_plugins.qos.memory_evict import plugin as memory
from koordpolicy.engine.agent.qos_manager.evictions import (
    EvictionCandidate,
    EvictionTask,
    PriorityOrder,
    ReleaseTarget,
    band_request,
    eviction_allowed,
    execute_tasks,
    priority_request,
    request_contribution,
    request_of,
    requested_up_to,
    usage_release,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Evictions
from koordpolicy.engine.kubernetes.vocabulary import BATCH, MID, priority_band

Case = Mapping[str, Any]
_NOW: Final = 1_000_000_000_000
_SECOND: Final = 1_000_000_000


class _EvictionReadings:
    """The input of one round out of a case: usages of pods are by UID, cpu in cores, memory in bytes."""

    def __init__(self, case: Case) -> None:
        self._metrics: Mapping[str, Any] = case.get("metrics") or {}
        self._config = case.get("config")
        self.now = _NOW
        self.collect_interval = int(self._metrics.get("collect_interval_seconds", 1) * _SECOND)
        self.node: Mapping[str, Any] = case.get("node") or {}
        self.pods = tuple(map(PodInfo.of, case.get("pods") or []))
        self.evictions = Evictions()

    def object(self, kind: str) -> Mapping[str, Any] | None:
        return {"spec": {"resourceUsedThresholdWithBE": self._config}} if kind == "NodeSLO" else None

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        return self._read(resource, self._metrics.get(f"node_{resource}_used"))

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        uid = next(pod.uid for pod in self.pods if pod.key == key)
        return self._read(resource, (self._metrics.get(f"pod_{resource}_used") or {}).get(uid))

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float:
        given = self._metrics.get("be_current" if statistic == "last" else "be_avg")
        if given is None:
            raise EvaluationError("not measured", reason="NoMetric")
        name = {"usage": "used", "request": "request", "realLimit": "real_limit"}[allocation]
        value: float = given["count" if statistic == "count" else name]
        return value

    @staticmethod
    def _read(resource: str, value: float | None) -> float:
        if value is None:
            raise EvaluationError("not measured", reason="NoMetric")
        return value * 1000 if resource == "cpu" else value


def _module(case: Case) -> Any:
    return memory if case["plugin"] == "memoryevict" else cpu


def _resource(case: Case) -> str:
    return "memory" if case["plugin"] == "memoryevict" else "cpu"


def _amounts(amounts: Mapping[str, int]) -> dict[str, int]:
    return {"cpu_milli" if name == "cpu" else name: amount for name, amount in amounts.items()}


def _capacity(case: Case) -> int:
    resource = _resource(case)
    return canonical_amount(resource, case["node"]["status"]["capacity"][resource], resource)


def _evict_config_check(case: Case) -> dict[str, Any]:
    section = ThresholdSection(None if case["inputs"].get("strategy_is_nil") else case.get("config") or {})
    try:
        _module(case).check_settings(case["inputs"]["feature"], section)
    except SettingError as error:
        return {"error": str(error)}
    return {"error": None}


def _release_be_satisfaction(case: Case) -> dict[str, Any]:
    task = cpu.CPUEvict({}).task("BECPUEvict", ThresholdSection(case["config"]), _EvictionReadings(case), 1)  # type: ignore[arg-type]
    return {"release": dict(task.to_release) if task is not None else {}}


def _release_used(case: Case) -> dict[str, Any]:
    config, resource = case["config"], _resource(case)
    prefix = "cpuEvict" if resource == "cpu" else "memoryEvict"
    threshold = config[f"{prefix}ThresholdPercent"]
    lower = config.get(f"{prefix}LowerPercent", threshold - 2)
    try:
        used = _EvictionReadings(case).node_usage(resource)
    except EvaluationError:
        return {"release": {}}
    amount = usage_release(used, _capacity(case), threshold, lower)
    return {"release": _amounts({resource: amount}) if amount else {}}


def _release_allocatable(case: Case) -> dict[str, Any]:
    config, resource = case["config"], _resource(case)
    pods = tuple(map(PodInfo.of, case["pods"]))
    release = _module(case).request_release(
        requested_up_to((priority_request(pod, resource) for pod in pods),
                        config["allocatableEvictPriorityThreshold"]),
        case["node"]["status"].get("allocatable") or {},
        config[f"{resource}AllocatableEvictThresholdPercent"], config[f"{resource}AllocatableEvictLowerPercent"],
    )
    contribution = request_contribution(resource, release)
    wanted = case["expect"].get("pod_contribution") or {}
    return {
        "release": _amounts(release),
        "pod_contribution": {
            pod.name: _amounts(contribution(EvictionCandidate(pod))) or None for pod in pods if pod.name in wanted
        },
    }


def _sort_be(case: Case) -> dict[str, Any]:
    candidates = _module(case).best_effort_candidates(_EvictionReadings(case))
    return {
        "order": [each.pod.name for each in candidates],
        "cpu_usage": {each.pod.name: cpu.usage_share(each) for each in candidates},
        "milli_cpu_request": candidates[0].requested if candidates else None,
        "milli_cpu_used": {each.pod.name: each.used for each in candidates},
    }


def _sort_priority(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    ties = ReleaseTarget.USAGE if "used" in inputs["tie_break"] else ReleaseTarget.REQUESTS
    order = PriorityOrder(inputs["feature"], _resource(case), inputs["priority_threshold"], ties)
    found = order.candidates(_EvictionReadings(case))  # type: ignore[arg-type]
    return {"order": [each.pod.name for each in found]}


def _round(case: Case) -> dict[str, Any]:
    kind: type[EvictionStrategy] = memory.MemoryEvict if case["plugin"] == "memoryevict" else cpu.CPUEvict
    strategy = kind({"features": case["inputs"]["features"]})
    readings = _EvictionReadings(case)
    last = _NOW - int(case["inputs"]["seconds_since_last_evict"] * _SECOND)
    strategy.states[(readings.node.get("metadata") or {}).get("name", "")] = NodeCooling(last, last)
    names = {pod.key: pod.name for pod in readings.pods}
    try:
        evicted = [names[each.subject] for each in strategy.adjust(readings)]  # type: ignore[arg-type]
    except EvaluationError:
        evicted = []
    wanted = case["expect"]
    return {
        "evicted_contains": [name for name in wanted.get("evicted_contains") or [] if name in evicted],
        "not_evicted": [name for name in wanted.get("not_evicted") or [] if name not in evicted],
        "evicted_in_order": evicted,
    }


def _kill_and_evict(case: Case) -> dict[str, Any]:
    readings, inputs = _EvictionReadings(case), case["inputs"]
    pods = {pod.name: pod for pod in readings.pods}
    already, calls = set(inputs.get("already_evicted") or []), []

    def measured(pod: PodInfo, resource: str) -> int:
        try:
            return int(readings.pod_usage(pod.key, resource))
        except EvaluationError:
            return 0

    def contribution(text: str) -> Callable[[EvictionCandidate], Mapping[str, int]]:
        resources = [resource for resource in ("cpu", "memory") if resource in text]
        if "request" in text:
            return lambda each: dict(request_of(each.pod, resource) for resource in resources)
        return lambda each: {resource: measured(each.pod, resource) for resource in resources}

    def evict(_task: EvictionTask, candidate: EvictionCandidate) -> bool:
        calls.append(candidate.pod.name)
        return True

    tasks = [
        EvictionTask(
            given["reason"], tuple(EvictionCandidate(pods[name]) for name in given["sorted_pods"]),
            {"cpu" if name == "cpu_milli" else name: amount for name, amount in given["to_release"].items()},
            ReleaseTarget(given["release_target"]), contribution(given["pod_contribution"]))
        for given in inputs["tasks"]
    ]
    result = execute_tasks(tasks, lambda pod: pod.name in already, evict)
    return {
        "newly_evicted": bool(result.evictions), "evict_calls": calls,
        "released": {target.value: _amounts(amounts) for target, amounts in result.released.items()},
    }


def _evict_policy_allowed(case: Case) -> dict[str, Any]:
    return {"allowed": eviction_allowed(case["pods"][0], case["inputs"]["policy"])}


def _evict_pod_request(case: Case) -> dict[str, Any]:
    pod, resource = case["pods"][0], case["inputs"]["resource"]
    band = priority_band(pod)
    # No API server has a pod with a request below 0, as cases do; so there is no `PodInfo` of it.
    found = band_request(pod, band, resource) if band in (BATCH, MID) else request_of(PodInfo.of(pod), resource)
    return {"request": _amounts(dict([found]))}


EVICTIONS: Final[Mapping[str, Callable[[Case], dict[str, Any]]]] = {
    "evict_config_check": _evict_config_check,
    "release_be_satisfaction": _release_be_satisfaction,
    "release_used": _release_used,
    "release_allocatable": _release_allocatable,
    "sort_be": _sort_be,
    "sort_priority": _sort_priority,
    "cpu_evict": _round,
    "memory_evict": _round,
    "kill_and_evict": _kill_and_evict,
    "evict_policy_allowed": _evict_policy_allowed,
    "evict_pod_request": _evict_pod_request,
}
