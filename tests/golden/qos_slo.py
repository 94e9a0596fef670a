"""Golden cases of NodeSLOs: defaults, overlay, the ConfigMap and its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.engine.slo import config_map, effective
from koordpolicy.engine.slo.colocation import ColocationConfig
from koordpolicy.engine.slo.settings import RESOURCE_QOS, THRESHOLD

Case = Mapping[str, Any]


def _merge_threshold(case: Case) -> dict[str, Any]:
    return {"merged": effective.overlay_section(THRESHOLD, case["inputs"]["default"], case["inputs"]["new"])}


def _merge_qos(case: Case) -> dict[str, Any]:
    return {"merged": effective.overlay_section(RESOURCE_QOS, case["inputs"]["default"], case["inputs"]["new"])}


def _none_if_disabled(case: Case) -> dict[str, Any]:
    return {"strategy": effective.none_if_disabled(case["inputs"]["strategy"])}


def _merge_spec(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    return {"merged_spec": effective.merge_spec(inputs["previous_merged_spec"], inputs["received_spec"])}


def _effective_spec(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    return {"merged_spec": effective.effective_spec(inputs["received_spec"], inputs["previous_merged_spec"])}


def _configmap_merge(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    key = config_map.CHECKED_KEYS[inputs["key"]]
    try:
        return {"merged_config": config_map.merged_config(key, case.get("config")), "error": False}
    except config_map.ConfigFault:
        return {"merged_config": inputs["old_merged_config"], "error": True}


_KINDS = {
    "threshold": config_map.THRESHOLD_KEY, "qos": config_map.QOS_KEY, "system": config_map.SYSTEM_KEY,
    "hostapp": config_map.APPLICATIONS_KEY, **dict.fromkeys(("burst", "cpuburst", "cpu_burst"), config_map.BURST_KEY),
}


def _node_spec(case: Case) -> dict[str, Any]:
    return {"spec": config_map.section_of(_KINDS[case["inputs"]["kind"]], case["config"] or {}, case["node"])}


def _configmap_sync(case: Case) -> dict[str, Any]:
    before = case["inputs"]["cache_before"]
    found = ColocationConfig(before["config"], before["available"]).updated(case.get("config"))
    return {"changed": found.changed, "config": found.config, "available": found.available, "error_status": found.error}


RUNNERS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "node_slo_merge_threshold": _merge_threshold,
    "node_slo_merge_qos": _merge_qos,
    "node_slo_none_if_disabled": _none_if_disabled,
    "node_slo_merge_spec": _merge_spec,
    "node_slo_effective_spec": _effective_spec,
    "node_slo_configmap_merge": _configmap_merge,
    "node_slo_node_spec": _node_spec,
    "colocation_configmap_sync": _configmap_sync,
}
