"""slo-controller-config: its keys as merged configurations, and the spec of each node's NodeSLO.

Keys are independent: one that cannot be read leaves its previous configuration, and the others are applied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine import strict_json
from koordpolicy.engine.kubernetes.objects import json_kind, parse_fault
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.kubernetes.selectors import check_selector, matches_labels
from koordpolicy.engine.kubernetes.vocabulary import NETWORK_BANDWIDTH_ANNOTATION

from . import defaults
from .effective import overlay, overlay_section
from .settings import (
    APPLICATIONS,
    COLOCATION,
    CPU_BURST,
    RESOURCE_QOS,
    SELECTOR,
    SYSTEM,
    TEXT,
    THRESHOLD,
    MalformedSetting,
    Setting,
    SettingType,
    decode,
)

CLUSTER: Final = "clusterStrategy"
NAME: Final = "name"
NODE_SELECTOR: Final = "nodeSelector"
_BANDWIDTH: Final = "totalNetworkBandwidth"


class ConfigFault(ValueError):
    """The text of a key cannot be used; the message follows the key's name. `line` and `column` count from 1."""

    def __init__(self, message: str, line: int = 0, column: int = 0) -> None:
        """Without a place, both are 0."""
        super().__init__(message)
        self.line = line
        self.column = column


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of the ConfigMap whose value is a strategy of the cluster and entries for some nodes.

    `section` is the field of a NodeSLO's spec that it sets. The cluster's strategy is the field `cluster` of the value,
    or the value itself where that is empty; `entries` is the field with the node entries.
    """

    name: str
    section: str
    declared: Setting
    default: Callable[[], dict[str, Any]]
    cluster: str = CLUSTER
    entries: str = "nodeStrategies"

    @property
    def shape(self) -> Setting:
        """The declaration of the whole value."""
        entry = Setting(SettingType.OBJECT, fields={NAME: TEXT, NODE_SELECTOR: SELECTOR, **self.declared.fields})
        inside = {self.cluster: self.declared} if self.cluster else self.declared.fields
        return Setting(SettingType.OBJECT, fields={
            **inside, self.entries: Setting(SettingType.LIST, item=entry)})


_APPLICATIONS: Final = "applications"
THRESHOLD_KEY: Final = ConfigKey(
    "resource-threshold-config", "resourceUsedThresholdWithBE", THRESHOLD, defaults.threshold)
QOS_KEY: Final = ConfigKey("resource-qos-config", "resourceQOSStrategy", RESOURCE_QOS, dict)
BURST_KEY: Final = ConfigKey("cpu-burst-config", "cpuBurstStrategy", CPU_BURST, defaults.cpu_burst)
SYSTEM_KEY: Final = ConfigKey("system-config", "systemStrategy", SYSTEM, defaults.system)
APPLICATIONS_KEY: Final = ConfigKey(
    "host-application-config", "hostApplications",
    Setting(SettingType.OBJECT, fields={_APPLICATIONS: APPLICATIONS}), dict, cluster="", entries="nodeConfigs")
COLOCATION_KEY: Final = ConfigKey(
    "colocation-config", "", COLOCATION, defaults.colocation, cluster="", entries="nodeConfigs")

NODE_SLO_KEYS: Final = (THRESHOLD_KEY, QOS_KEY, BURST_KEY, SYSTEM_KEY, APPLICATIONS_KEY)
"""The keys that NodeSLOs are made of."""
CHECKED_KEYS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in (*NODE_SLO_KEYS, COLOCATION_KEY)}
"""The keys whose values are known, by name."""


def parse(text: str) -> Mapping[str, Any]:
    """Return the JSON object of a key's text; `null` is an empty one.

    Raises:
        ConfigFault: it is no JSON object.
    """
    try:
        value = strict_json.decode(text)
    except json.JSONDecodeError as error:
        raise ConfigFault(f"is not JSON: {error}", error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:
        raise ConfigFault(f"is not JSON: {parse_fault(error)}") from None
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigFault(f"must be an object, not {json_kind(value)}")
    return value


def merged_config(key: ConfigKey, data: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the merged configuration of a key: the cluster's strategy over the default, and entries over that.

    Host applications are not merged. Without the key, or the ConfigMap, it is the default.

    Raises:
        ConfigFault: the text cannot be used: the previous configuration should stay then.
    """
    text = (data or {}).get(key.name)
    if text is None:
        return with_cluster(key, key.default())
    if not isinstance(text, str):
        raise ConfigFault(f"must be a string with JSON in it, not {json_kind(text)}")
    try:
        value = decode(key.shape, parse(text))
        if key is APPLICATIONS_KEY:
            found: dict[str, Any] = value
            return found
        cluster = overlay_section(key.declared, key.default(), cluster_of(key, value) or None)
        entries = [merged_entry(key, cluster, entry or {}) for entry in value.get(key.entries) or ()]
    except MalformedSetting as error:
        raise ConfigFault(str(error).removeprefix("it ")) from None
    return with_cluster(key, cluster) | ({key.entries: entries} if entries else {})


def cluster_of(key: ConfigKey, value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster's strategy of a decoded value."""
    if key.cluster:
        return dict(value.get(key.cluster) or {})
    return {name: each for name, each in value.items() if name != key.entries}


def with_cluster(key: ConfigKey, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with that strategy of the cluster and no entries."""
    return {key.cluster: dict(cluster)} if key.cluster else dict(cluster)


def merged_entry(key: ConfigKey, cluster: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node entry over the cluster's strategy; name and selector stay.

    Raises:
        MalformedSetting: a setting has the wrong JSON type.
    """
    identity = {name: entry[name] for name in (NAME, NODE_SELECTOR) if name in entry}
    settings = {name: each for name, each in entry.items() if name not in identity}
    return {**overlay_section(key.declared, cluster, settings or None), **identity}


@dataclass(frozen=True, slots=True)
class SloConfig:
    """The merged configurations of all keys that NodeSLOs are made of, by key.

    `faults` has why a key's text could not be used, by key; its previous configuration is in `configs`.
    """

    configs: Mapping[str, Mapping[str, Any]] = field(
        default_factory=lambda: {key.name: merged_config(key, None) for key in NODE_SLO_KEYS})
    faults: Mapping[str, ConfigFault] = field(default_factory=dict)

    def updated(self, data: Mapping[str, str] | None) -> SloConfig:
        """Return the configurations for new data of the ConfigMap; None: there is none."""
        configs, faults = dict(self.configs), {}
        for key in NODE_SLO_KEYS:
            try:
                configs[key.name] = merged_config(key, data)
            except ConfigFault as fault:
                faults[key.name] = fault
        return SloConfig(configs, faults)

    def node_spec(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return the spec of the node's NodeSLO."""
        found = {}
        for key in NODE_SLO_KEYS:
            section = section_of(key, self.configs[key.name], node)
            if section is not None and (section or key is not APPLICATIONS_KEY):
                found[key.section] = section
        return found


def first_match(entries: Sequence[Mapping[str, Any]], labels: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the first entry whose selector matches the labels; None if there is none.

    An absent selector matches nothing, an empty one everything; an entry with an invalid one is left out.
    """
    for entry in entries:
        selector = entry.get(NODE_SELECTOR)
        try:
            check_selector(selector)
            if matches_labels(selector, labels, absent=False):
                return entry
        except (ValueError, TypeError, AttributeError):
            continue  # reported when the ConfigMap is validated
    return None


def section_of(key: ConfigKey, config: Mapping[str, Any], node: Mapping[str, Any]) -> Any:
    """Return the section of a key for a node: that of the first entry that matches it, else the cluster's.

    None if the node has an annotation with a network bandwidth that cannot be read, for the system's section.
    """
    metadata = node.get("metadata") or {}
    entry = first_match(config.get(key.entries) or (), metadata.get("labels") or {})
    source = cluster_of(key, config) if entry is None else {
        name: each for name, each in entry.items() if name not in (NAME, NODE_SELECTOR)}
    found = overlay(source, None)
    if key is APPLICATIONS_KEY:
        return found.get(_APPLICATIONS) or []
    annotation = (metadata.get("annotations") or {}).get(NETWORK_BANDWIDTH_ANNOTATION)
    if key is SYSTEM_KEY and annotation is not None:
        try:
            Quantity.parse(annotation)
        except ValueError:
            return None
        found[_BANDWIDTH] = annotation
    return found
