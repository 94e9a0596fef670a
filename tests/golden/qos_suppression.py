"""Golden cases of BECPUSuppress, and of the helpers that split a node's usage."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.builtin_plugins.qos.cpu_suppress.plugin import (
    BECPUSuppress,
    application_counts,
    pod_counts,
    reserved_milli,
    split_usage,
    suppress_amount,
)
from koordpolicy.engine.agent.qos_manager.suppression import (
    Processor,
    Topology,
    choose_best_effort_cpus,
    choose_cpus,
    owned_cpus,
    parse_cpuset,
    read_topology,
    recover_cpus,
    recover_quota,
    set_cpus,
    set_quota,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo, canonical_amount
from koordpolicy.engine.framework.qos import Host
from koordpolicy.engine.kubernetes.vocabulary import priority_band, qos_class

Case = Mapping[str, Any]


# What a case holds


def _processors(rows: list[list[int]]) -> tuple[Processor, ...]:
    return tuple(Processor(*row) for row in rows)


def _topology_object(case: Case) -> dict[str, Any]:
    return {"metadata": {"annotations": _node(case).get("node_resource_topology_annotations") or {}}}


def _topology(case: Case) -> Topology:
    rows = (_node(case).get("topology") or {}).get("processors") or []
    found = read_topology(_topology_object(case), map(owned_cpus, case.get("pods") or []), _processors(rows))
    policy = (case.get("inputs") or {}).get("kubelet_cpu_manager_policy")
    if policy is None:
        return found
    return Topology(found.processors, found.reserved, found.system_exclusive, found.owners, policy == "static")


def _node(case: Case) -> Mapping[str, Any]:
    return case.get("node") or {}


def _after(files: Mapping[str, str], writes: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return {**files, **dict(writes)}


def _capacity(case: Case) -> int:
    return canonical_amount("cpu", ((_node(case).get("status") or {}).get("capacity") or {}).get("cpu", "0"), "cpu")


# Runners


def _suppress_cpu(case: Case) -> dict[str, Any]:
    config, metrics = case["config"], case["metrics"]
    pods = {pod["metadata"]["uid"]: pod for pod in case.get("pods") or []}
    split = split_usage(
        metrics["node_cpu_used"], reserved_milli(_node(case)) / 1000,
        [(used, uid not in pods or pod_counts(pods[uid])) for uid, used in metrics["pod_cpu_used"].items()],
        _applications(config.get("hostApplications"), metrics.get("host_app_cpu_used")),
    )
    percent, least = config["cpuSuppressThresholdPercent"], config.get("cpuSuppressMinPercent")
    return {"suppress_milli_cpu": suppress_amount(_capacity(case), percent, split, least)}


def _applications(declared: Any, used: Any) -> list[tuple[float, bool]]:
    return [(used[each["name"]], application_counts(each)) for each in declared or [] if each["name"] in (used or {})]


def _be_cpuset_policy(case: Case) -> dict[str, Any]:
    return {"cpus_in_pick_order": choose_cpus(case["inputs"]["cpus"], _processors(case["inputs"]["processors"]))}


def _adjust_cpuset(case: Case) -> dict[str, Any]:
    files, topology = case["inputs"]["files_before"], _topology(case)
    current = parse_cpuset(files["besteffort/cpuset.cpus"])
    cpus = choose_best_effort_cpus(case["inputs"]["suppress_milli_cpu"], current, topology)
    return {"files": _after(files, set_cpus(cpus, files, topology) if cpus else ())}


def _apply_cpuset(case: Case) -> dict[str, Any]:
    files = case["inputs"]["files_before"]
    return {"files": _after(files, set_cpus(case["inputs"]["be_cpus"], files, _topology(case)))}


def _cfs_quota(case: Case) -> dict[str, Any]:
    files = case["inputs"]["files_before"]
    return {"files": _after(files, set_quota(case["inputs"]["suppress_milli_cpu"], files, _capacity(case)))}


def _recover_cpuset(case: Case) -> dict[str, Any]:
    files = case["inputs"]["files_before"]
    return {"files": _after(files, recover_cpus(files, _topology(case))), "policy_status": "recovered"}


def _recover_cfs_quota(case: Case) -> dict[str, Any]:
    files = case["inputs"]["files_before"]
    recovered = case["inputs"]["policy_status_before"] == "recovered"
    return {"files": _after(files, () if recovered else recover_quota(files)), "policy_status": "recovered"}


class _CaseReadings:
    """The readings of one round, from a case."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.now = 0
        self.node = _node(case)
        self.pods = tuple(PodInfo.of(pod) for pod in case.get("pods") or [])
        self.files = case["inputs"]["files_before"]
        self.host = Host()
        rows = (_node(case).get("topology") or {}).get("processors") or []
        self._topology = _topology_object(case)
        detail = [dict(zip(("id", "core", "socket", "node"), row, strict=True)) for row in rows]
        self._topology["metadata"]["annotations"] = {
            **self._topology["metadata"]["annotations"],
            "node.koordinator.sh/cpu-topology": json.dumps({"detail": detail}),
        }

    def directory(self, pod: PodInfo, container: str = "") -> str:
        return f"besteffort/{pod.uid}" + (f"/{container}" if container else "")

    def object(self, kind: str) -> Mapping[str, Any] | None:
        config = self._case["config"]
        return {"NodeSLO": {"spec": config}, "NodeResourceTopology": self._topology}.get(kind)

    def node_usage(self, resource: str, statistic: str = "last", window: int = 0) -> float:
        return self._read(self._case["metrics"].get("node_cpu_used"))

    def pod_usage(self, key: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        uid = next(pod.uid for pod in self.pods if pod.key == key)
        return self._read((self._case["metrics"].get("pod_cpu_used") or {}).get(uid))

    def application_usage(self, name: str, resource: str, statistic: str = "last", window: int = 0) -> float:
        return self._read((self._case["metrics"].get("host_app_cpu_used") or {}).get(name))

    @staticmethod
    def _read(cores: float | None) -> float:
        if cores is None:
            raise EvaluationError("not measured", reason="NoMetric")
        return cores * 1000


def _suppress_round(case: Case) -> dict[str, Any]:
    gates = case["config"].get("featureGates") or {}
    strategy = BECPUSuppress({"cpuManager": gates.get("BECPUManager", False)})
    readings: Any = _CaseReadings(case)
    try:
        done = strategy.adjust(readings)
    except EvaluationError:
        done = ()
    files = readings.files
    for adjustment in done:
        files = _after(files, adjustment.writes)
    name = (_node(case).get("metadata") or {}).get("name", "")
    return {"files": files, "policy_status": {key: strategy.status.get((name, key)) for key in ("cfsQuota", "cpuset")}}


def _filter_pods_used(case: Case) -> dict[str, Any]:
    metrics, inputs = case["metrics"], case["inputs"]
    keeps_pod: Mapping[str, Callable[[Case], bool]] = {
        "none": lambda _: True, "non_be": pod_counts,
        "not_batch_or_free": lambda pod: priority_band(pod) not in ("koord-batch", "koord-free"),
    }
    keeps_application: Mapping[str, Callable[[Case], bool]] = {
        "none": lambda _: True, "non_be": application_counts,
        "not_batch_or_free": lambda each: each.get("priority") not in ("koord-batch", "koord-free"),
    }
    pods = {pod["metadata"]["uid"]: pod for pod in case.get("pods") or []}
    keep = keeps_pod[inputs["pod_filter"]]
    used = metrics["host_app_used"]
    split = split_usage(
        metrics["node_used"], metrics["node_reserved"],
        [(value, uid not in pods or keep(pods[uid])) for uid, value in metrics["pod_used"].items()],
        [(used[each["name"]], keeps_application[inputs["host_app_filter"]](each))
         for each in inputs["host_applications"] if each["name"] in used],
    )
    return {
        "filtered_pods_used": split.filtered_pods, "filtered_host_apps_used": split.filtered_applications,
        "system_used": split.system,
    }


def _pod_qos_class(case: Case) -> dict[str, Any]:
    classes = {"LSE": "lsrClass", "LSR": "lsrClass", "LS": "lsClass", "BE": "beClass", "SYSTEM": "systemClass"}
    return {"class": classes[qos_class(case["pods"][0])]}


RUNNERS: Mapping[str, Callable[[Case], dict[str, Any]]] = {
    "suppress_cpu": _suppress_cpu,
    "be_cpuset_policy": _be_cpuset_policy,
    "adjust_cpuset": _adjust_cpuset,
    "apply_cpuset": _apply_cpuset,
    "cfs_quota": _cfs_quota,
    "recover_cpuset": _recover_cpuset,
    "recover_cfs_quota": _recover_cfs_quota,
    "suppress_round": _suppress_round,
    "filter_pods_used": _filter_pods_used,
    "pod_qos_class": _pod_qos_class,
}
