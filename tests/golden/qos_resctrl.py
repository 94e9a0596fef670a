"""Golden cases of RdtResctrl and SystemConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from koordpolicy.builtin_plugins.qos.system_reconcile.plugin import SystemConfig
from koordpolicy.engine.agent.qos_manager.resctrl import bandwidth_writes, cache_writes, l3_mask, mba_value
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.framework.qos import Host

Case = Mapping[str, Any]

_SYSTEM_FILES: Final = {
    "vm.min_free_kbytes": "proc/sys/vm/min_free_kbytes",
    "vm.watermark_scale_factor": "proc/sys/vm/watermark_scale_factor",
    "memcg.reap_background": "sys/kernel/mm/memcg_reaper/reap_background",
    "kernel.sched_group_identity_enabled": "proc/sys/kernel/sched_group_identity_enabled",
    "kernel.sched_idle_saver_wmark": "proc/sys/kernel/sched_idle_saver_wmark",
    "pagecache_limit.enabled": "sys/kernel/mm/pagecache_limit/enabled",
    "sched_features": "sys/kernel/debug/sched_features",
}


def _l3_mask(case: Case) -> dict[str, Any]:
    config = case["config"]
    try:
        mask = l3_mask(case["inputs"]["cbm"], config["catRangeStartPercent"], config["catRangeEndPercent"])
    except ValueError:
        return {"mask_hex": "", "error": True}
    return {"mask_hex": f"{mask:x}", "error": False}


def _mba_value(case: Case) -> dict[str, Any]:
    value = mba_value(case["inputs"]["vendor"], case["config"].get("mbaPercent"))
    return {"value": "" if value is None else str(value)}


def _schemata(case: Case) -> dict[str, Any]:
    config, inputs = case["config"], case["inputs"]
    host = Host(
        vendor=inputs.get("vendor", ""), cbm_mask=f"{inputs.get('cbm', 0):x}", l3_caches=tuple(inputs["cache_ids"]),
    )
    files = inputs.get("files_before") or {}
    try:
        if inputs["line"] == "L3":
            start, end = config["catRangeStartPercent"], config["catRangeEndPercent"]
            writes = cache_writes(inputs["group"], start, end, host, files)
        else:
            writes = bandwidth_writes(inputs["group"], config["mbaPercent"], host, files)
    except EvaluationError:
        writes = ()
    return {"files": {**files, **dict(writes)}}


class _SystemReadings:
    """The readings of one round, from a case."""

    def __init__(self, case: Case) -> None:
        self.node = case.get("node") or {}
        self.files = {_SYSTEM_FILES.get(name, name): text for name, text in case["inputs"]["files_before"].items()}
        self._strategy = case["config"]

    def object(self, kind: str) -> Mapping[str, Any] | None:
        return {"spec": {"systemStrategy": self._strategy}} if kind == "NodeSLO" else None


def _system_config(case: Case) -> dict[str, Any]:
    readings: Any = _SystemReadings(case)
    files: dict[str, str] = dict(readings.files)
    for adjustment in SystemConfig({}).adjust(readings):
        files.update(adjustment.writes)
    names = {file: name for name, file in _SYSTEM_FILES.items()}
    return {"files": {names.get(file, file): text for file, text in files.items()}}


RUNNERS: Mapping[str, Callable[[Case], dict[str, Any]]] = {
    "resctrl_l3_mask": _l3_mask,
    "resctrl_mba_value": _mba_value,
    "resctrl_schemata": _schemata,
    "system_config": _system_config,
}
