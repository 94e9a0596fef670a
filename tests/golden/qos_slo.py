"""Golden cases of NodeSLOs: defaults, overlay, the ConfigMap and its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.engine.slo import effective
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


RUNNERS: dict[str, Callable[[Case], dict[str, Any]]] = {
    "node_slo_merge_threshold": _merge_threshold,
    "node_slo_merge_qos": _merge_qos,
    "node_slo_none_if_disabled": _none_if_disabled,
    "node_slo_merge_spec": _merge_spec,
    "node_slo_effective_spec": _effective_spec,
}
