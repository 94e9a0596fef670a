"""colocation-config: its synchronisation from the ConfigMap, and the strategy of each node."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.kubernetes.objects import parse_fault
from koordpolicy.engine.kubernetes.vocabulary import (
    COLOCATION_STRATEGY_ANNOTATION,
    CPU_RECLAIM_RATIO_LABEL,
    MEMORY_RECLAIM_RATIO_LABEL,
    MID_STATIC_CPU_RATIO_LABEL,
    MID_STATIC_MEMORY_RATIO_LABEL,
)

from . import defaults
from .config_map import COLOCATION_KEY, NAME, NODE_SELECTOR, ConfigFault, cluster_of, first_match, merged_entry, parse
from .effective import overlay_section
from .settings import COLOCATION, MalformedSetting, SettingFault, decode

_LOG: Final = logging.getLogger(__name__)
_POSITIVE: Final = (
    "metricAggregateDurationSeconds", "metricReportIntervalSeconds", "degradeTimeMinutes", "updateTimeThresholdSeconds",
    "resourceDiffThreshold",
)
_NOT_NEGATIVE: Final = (
    "cpuReclaimThresholdPercent", "memoryReclaimThresholdPercent", "midStaticCPUReservedPercent",
    "midStaticMemoryReservedPercent", "batchCPUThresholdPercent", "batchMemoryThresholdPercent",
)
_PERCENTS: Final = ("midCPUThresholdPercent", "midMemoryThresholdPercent", "midUnallocatedPercent")
_RATIO_LABELS: Final = {
    CPU_RECLAIM_RATIO_LABEL: "cpuReclaimThresholdPercent", MEMORY_RECLAIM_RATIO_LABEL: "memoryReclaimThresholdPercent",
    MID_STATIC_CPU_RATIO_LABEL: "midStaticCPUReservedPercent",
    MID_STATIC_MEMORY_RATIO_LABEL: "midStaticMemoryReservedPercent",
}


def strategy_faults(strategy: Mapping[str, Any]) -> Iterator[SettingFault]:
    """Yield why a strategy is invalid; settings that are absent are not judged (Koordinator's
    IsColocationStrategyValid).
    """
    for name in _POSITIVE:
        if name in strategy and not strategy[name] > 0:
            yield SettingFault((name,), f"is {strategy[name]}: it must be above 0")
    for name in _NOT_NEGATIVE:
        if name in strategy and strategy[name] < 0:
            yield SettingFault((name,), f"is {strategy[name]}: it must be 0 or more")
    for name in _PERCENTS:
        if name in strategy and not 0 <= strategy[name] <= 100:
            yield SettingFault((name,), f"is {strategy[name]}: it must be from 0 to 100")
    if strategy.get("metricMemoryCollectPolicy") == "":
        yield SettingFault(("metricMemoryCollectPolicy",), "must not be empty")


@dataclass(frozen=True, slots=True)
class ColocationConfig:
    """The state of colocation-config.

    `config` is the merged one: the cluster's strategy, and `nodeConfigs`. It is `available` once it was valid or
    absent. `error` is True while the ConfigMap or its text cannot be used, `fault` says why; `changed` compares with
    the state before.
    """

    config: Mapping[str, Any] = field(default_factory=defaults.colocation)
    available: bool = False
    error: bool = False
    changed: bool = False
    fault: str = ""

    def updated(self, data: Mapping[str, str] | None) -> ColocationConfig:
        """Return the state for new data of the ConfigMap; None: there is none, which is an error status too."""
        if data is None:
            return self._with(defaults.colocation(), error=True, fault="there is no ConfigMap")
        text = data.get(COLOCATION_KEY.name)
        if text is None:
            return self._with(defaults.colocation())
        try:
            if not isinstance(text, str):
                raise ConfigFault("must be a string with JSON in it")  # noqa: TRY301 - as all other faults
            config = _merged(text)
        except (ConfigFault, MalformedSetting) as fault:
            return ColocationConfig(self.config, self.available, error=True, fault=str(fault).removeprefix("it "))
        return self._with(config)

    def _with(self, config: dict[str, Any], *, error: bool = False, fault: str = "") -> ColocationConfig:
        return ColocationConfig(config, available=True, error=error, changed=config != self.config, fault=fault)

    def of_node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the strategy of a node: the cluster's or the first entry's that matches it, then the node's own.

        The node's are an annotation with a strategy and labels with ratios; what cannot be read of them is left out.
        """
        metadata = node.get("metadata") or {}
        labels = metadata.get("labels") or {}
        cluster = cluster_of(COLOCATION_KEY, self.config)
        entry = first_match(self.config.get(COLOCATION_KEY.entries) or (), labels)
        found = cluster if entry is None else {
            name: each for name, each in entry.items() if name not in (NAME, NODE_SELECTOR)}
        annotation = (metadata.get("annotations") or {}).get(COLOCATION_STRATEGY_ANNOTATION)
        if annotation is not None:
            found = _annotated(found, annotation, str(metadata.get("name")))
        for label, name in _RATIO_LABELS.items():
            percent = _percent(labels.get(label))
            if percent is not None:
                found[name] = percent
        return found


def _merged(text: str) -> dict[str, Any]:
    value = decode(COLOCATION_KEY.shape, parse(text))
    cluster = overlay_section(COLOCATION, defaults.colocation(), cluster_of(COLOCATION_KEY, value) or None)
    for fault in strategy_faults(cluster):
        raise ConfigFault(str(fault))
    entries = []
    for each in value.get(COLOCATION_KEY.entries) or ():
        entry = each or {}
        merged = merged_entry(COLOCATION_KEY, cluster, entry)
        if any(strategy_faults(merged)):
            merged = merged_entry(COLOCATION_KEY, cluster, {
                name: entry[name] for name in (NAME, NODE_SELECTOR) if name in entry})
        entries.append(merged)
    return cluster | ({COLOCATION_KEY.entries: entries} if entries else {})


def _annotated(strategy: dict[str, Any], annotation: str, node: str) -> dict[str, Any]:
    try:
        found = overlay_section(COLOCATION, strategy, json.loads(annotation))
    except (ValueError, TypeError, RecursionError) as error:
        _LOG.warning("node %s: the annotation %s cannot be read, and is left out: %s", node,
                     COLOCATION_STRATEGY_ANNOTATION, parse_fault(error))
        return strategy
    return found


def _percent(ratio: str | None) -> int | None:
    """Return a ratio as whole percents; None if it is no number of 0 or more."""
    try:
        value = float(ratio or "")
    except ValueError:
        return None
    return int(value * 100) if value >= 0 and math.isfinite(value) else None
