"""Golden cases of CPU burst and memory QoS."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from koordpolicy.builtin_plugins.qos.cpu_burst.plugin import CPUBurst
from koordpolicy.engine.agent.qos_manager.bursting import (
    BurstConfig,
    BurstLimiter,
    BurstLimiters,
    QuotaBurst,
    burst_pod,
    burst_writes,
    excluded_cpu,
    limiter_capacity,
    node_state,
    overlay_config,
    shared_usage,
)
from koordpolicy.engine.agent.qos_manager.memory_qos import (
    PodMemory,
    class_of,
    is_active,
    pod_amounts,
    pod_files,
    pod_memory,
    pod_settings,
    tier_files,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Evictions, Host, Processor
from koordpolicy.engine.kubernetes.vocabulary import MEMORY_QOS_ANNOTATION, qos_class

Case = Mapping[str, Any]

_SECOND = 1_000_000_000


class CaseReadings:
    """The readings of a case: its pods, files and last samples, at time 0."""

    def __init__(self, case: Case, objects: Mapping[str, Any] | None = None) -> None:
        inputs, node = case.get("inputs") or {}, case.get("node") or {}
        self._metrics = case.get("metrics") or {}
        self._objects = objects or {}
        self.now = 0
        self.node = node
        self.pods = tuple(PodInfo.of(pod) for pod in case.get("pods") or [])
        self.files: dict[str, str] = dict(inputs.get("files_before") or {})
        self.evictions = Evictions()
        rows = (node.get("topology") or {}).get("processors") or []
        self.host = Host(
            processors=tuple(Processor(*row) for row in rows), cgroup_version=inputs.get("cgroup_version", 1),
            page_size=inputs.get("page_size", 4096),
        )

    def directory(self, pod: PodInfo, container: str = "") -> str:
        """Return `pod`, or the pod's name where the files of several pods are told apart by it."""
        named = any(name.startswith(f"{pod.name}/") for name in self.files)
        of_pod = pod.name if named else "pod"
        return f"{of_pod}/{container}" if container else of_pod

    def object(self, kind: str) -> Mapping[str, Any] | None:
        return self._objects.get(kind)

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        return self._milli(self._metrics.get("node_cpu_used"))

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        uid = next(pod.uid for pod in self.pods if pod.key == key)
        return self._milli((self._metrics.get("pod_cpu_used") or {}).get(uid))

    def container_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        name = key.rpartition("/")[2]
        if resource == "throttled":
            return self._measured((self._metrics.get("container_throttled_ratio_last") or {}).get(name))
        return self._milli((self._metrics.get("container_cpu_used") or {}).get(name))

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        return self._measured(None)

    def best_effort_cpu(self, allocation: str, statistic: str = "last", window: int = 0) -> float:
        return self._measured(None)

    def _milli(self, cores: float | None) -> float:
        return self._measured(cores) * 1000

    @staticmethod
    def _measured(value: float | None) -> float:
        if value is None:
            raise EvaluationError("not measured", reason="NoMetric")
        return value


def _node_state(case: Case) -> dict[str, Any]:
    readings = CaseReadings(case)
    excluded = [(pod.key, cpu) for pod in readings.pods if (cpu := excluded_cpu(pod)) is not None]
    usage, total = shared_usage(readings, excluded, _SECOND)
    return {"state": node_state(usage, total, case["config"]["sharePoolThresholdPercent"])}


def _pod_config(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    given = inputs.get("pod_annotation_koordinator.sh/cpuBurst")
    if given is None:
        given = next((value for name, value in inputs.items() if "grey" in name and value is not None), None)
    text = given if given is None or isinstance(given, str) else json.dumps(given)
    return {"config": overlay_config(case.get("config") or {}, text)}


def _cfs_burst(case: Case) -> dict[str, Any]:
    readings = CaseReadings(case)
    pod = burst_pod(readings.pods[0], readings.directory)
    writes = burst_writes(pod, BurstConfig.of(case["config"]), readings.files, readings.host.cgroup_version)
    return {"files": {**readings.files, **dict(writes)}}


def _cfs_quota(case: Case) -> dict[str, Any]:
    readings = CaseReadings(case)
    pod, state = burst_pod(readings.pods[0], readings.directory), case["inputs"]["node_state"]
    for change in QuotaBurst().changes(pod, BurstConfig.of(case["config"]), state, BurstLimiters(), readings):
        readings.files |= dict(change.writes)
    return {"files": readings.files}


def _limiter(case: Case) -> dict[str, Any]:
    config, inputs = BurstConfig.of(case["config"]), case["inputs"]
    capacity = limiter_capacity(config)
    if capacity is None:
        return {"allowed": True, "tokens": inputs.get("tokens_before")}
    bucket = BurstLimiter(capacity, config.cfs_quota_burst_period or 0, inputs["tokens_before"], 0)
    allowed = bucket.allow(inputs["seconds_since_last_update"] * _SECOND, inputs["usage_percent_of_limit"])
    return {"allowed": allowed, "tokens": bucket.tokens}


def _limiter_update(case: Case) -> dict[str, Any]:
    limiters = BurstLimiters()
    limiters.bucket("c", BurstConfig.of(case["inputs"]["old"]), 0)
    bucket = limiters.bucket("c", BurstConfig.of(case["config"]), 0)
    return {"capacity": None if bucket is None else bucket.capacity}


def _limiter_recycle(case: Case) -> dict[str, Any]:
    limiters, config = BurstLimiters(), BurstConfig.of(case["config"])
    limiters.bucket("c", config, 0)
    elapsed = next(value for name, value in case["inputs"].items() if "second" in name)
    limiters.recycle(elapsed * _SECOND)
    return {"kept": len(limiters) == 1}


def _round(case: Case) -> dict[str, Any]:
    config = case["config"]
    spec = config if "cpuBurstStrategy" in config else {"cpuBurstStrategy": config}
    readings = CaseReadings(case, {"NodeSLO": {"spec": spec}})
    for adjustment in CPUBurst({}).adjust(readings):
        readings.files |= dict(adjustment.writes)
    return {"files": readings.files}


def _memory_pods(case: Case) -> tuple[CaseReadings, dict[str, Any], list[PodMemory]]:
    readings = CaseReadings(case)
    classes = {name: (section or {}).get("memoryQOS") or {} for name, section in case["config"].items()}
    found = []
    for pod in readings.pods:
        if is_active(pod):
            annotation = pod.object["metadata"].get("annotations", {}).get(MEMORY_QOS_ANNOTATION)
            settings = pod_settings(classes.get(class_of(pod)) or {}, qos_class(pod.object), annotation)
            found.append(pod_memory(pod, settings, readings))
    return readings, classes, found


def _memory_qos_resources(case: Case) -> dict[str, Any]:
    _, classes, pods = _memory_pods(case)

    def rows(files: Iterable[tuple[str, str]]) -> list[list[str]]:
        return [[path.rpartition("/")[0], path.rpartition("/")[2], text] for path, text in files]

    return {
        "qos_level": rows(tier_files(pods, classes)),
        "pod_level": rows(file for pod in pods for file in pod.pod),
        "container_level": rows(file for pod in pods for file in pod.containers),
    }


def _memory_qos_pod_merge(case: Case) -> dict[str, Any]:
    config, pod = case["config"] or {}, case["pods"][0]
    annotation = pod["metadata"].get("annotations", {}).get(MEMORY_QOS_ANNOTATION)
    settings = pod_settings(config.get("memoryQOS") or {}, qos_class(pod), annotation)
    return {"merged_class": {**config, "memoryQOS": dict(settings)}}


def _page_cache_limit(case: Case) -> dict[str, Any]:
    amounts = pod_amounts(CaseReadings(case).pods[0])
    files = dict(pod_files(amounts, case["config"]["memoryQOS"], case["inputs"]["cgroup_version"]))
    return {name: files.get(f"memory.pagecache_limit.{name}") for name in ("enable", "size", "sync")}


RUNNERS: Mapping[str, Callable[[Case], dict[str, Any]]] = {
    "cpu_burst_node_state": _node_state,
    "cpu_burst_pod_config": _pod_config,
    "cpu_burst_cfs_burst": _cfs_burst,
    "cpu_burst_cfs_quota": _cfs_quota,
    "cpu_burst_limiter": _limiter,
    "cpu_burst_limiter_update": _limiter_update,
    "cpu_burst_limiter_recycle": _limiter_recycle,
    "cpu_burst_round": _round,
    "memory_qos_resources": _memory_qos_resources,
    "memory_qos_pod_merge": _memory_qos_pod_merge,
    "page_cache_limit": _page_cache_limit,
}
