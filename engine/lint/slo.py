"""The ConfigMap slo-controller-config: thresholds that are compared with documents, and all that is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.documents import YamlNode, read, to_plain
from koordpolicy.engine.kubernetes.objects import json_kind
from koordpolicy.engine.kubernetes.unread import unread_fields
from koordpolicy.engine.kubernetes.vocabulary import SLO_CONFIG
from koordpolicy.engine.slo.config_map import CHECKED_KEYS
from koordpolicy.engine.slo.settings import path_text, unknown_names
from koordpolicy.engine.slo.validation import value_faults
from koordpolicy.engine.source import Problems, Span, did_you_mean
from koordpolicy.engine.texts import quoted_list

from .subject import Violation, Whole

COMPARED: Final = ("cpuSuppressThresholdPercent", "cpuEvictThresholdPercent", "memoryEvictThresholdPercent")
"""The fields of the cluster's threshold strategy that rules compare with documents."""

_THRESHOLDS: Final = "resource-threshold-config"
_CLUSTER: Final = "clusterStrategy"
_NODES: Final = "nodeStrategies"
_ENABLE: Final = "enable"
_STRATEGY: Final = Type("koordinator.ResourceThresholdStrategy")
_FIELDS: Final = ("apiVersion", "binaryData", "data", "immutable", "kind", "metadata")
KEYS: Final = (
    "colocation-config", "cpu-burst-config", "cpu-normalization-config", "host-application-config",
    "resource-amplification-config", "resource-qos-config", _THRESHOLDS, "system-config",
)
"""The keys of the ConfigMap; the value of each is JSON."""


def thresholds(node: YamlNode) -> Iterator[tuple[str, int, Span]]:
    """Yield each of `COMPARED` that a ConfigMap sets and enables, in percent, with its place."""
    held = node.at("data", _THRESHOLDS)
    strategy = None if held is None or _fault(held) else _json(held).at(_CLUSTER)
    if strategy is None or ((enable := strategy.at(_ENABLE)) is not None and enable.scalar is False):
        return
    for name in COMPARED:
        value = strategy.at(name)
        if value is not None and isinstance(value.scalar, int) and not isinstance(value.scalar, bool):
            yield name, value.scalar, value.span


def settings_without_effect(whole: Whole) -> Iterator[Violation]:
    """Find settings that no rule reads, and those that there are not."""
    for node in _config_maps(whole):
        for field, each in node.fields.items():
            if field not in _FIELDS:
                yield _unknown(field, "a ConfigMap", each, _FIELDS)
            elif field == "binaryData" and each.fields:
                yield _no_effect(field, each)
        for key, held in _data(node):
            yield from _of_key(key, held)


def invalid_settings(whole: Whole) -> Iterator[Violation]:
    """Find settings of the wrong type or out of their range, and node entries that select wrongly."""
    for node in _config_maps(whole):
        for name, held in _data(node):
            key = CHECKED_KEYS.get(name)
            if key is None or not isinstance(held.scalar, str) or not held.text.strip() or _fault(held):
                continue
            inside = _json(held)
            for fault in value_faults(key, json.loads(held.text)):
                place = inside.at(*fault.path) or held
                yield Violation(
                    f"`{path_text(fault.path)}` of `{name}` {fault.message}", place.place,
                    "Koordinator's webhook refuses the ConfigMap, if it is installed")


def values(node: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    """Yield the keys of a configuration that is slo-controller-config, with their values that are JSON objects."""
    if is_slo_config(node):
        yield from ((key, _json(held)) for key, held in _data(node) if not _fault(held))


def _config_maps(whole: Whole) -> Iterator[YamlNode]:
    return filter(is_slo_config, whole.configurations)


def is_slo_config(node: YamlNode) -> bool:
    """Return whether a document is the ConfigMap slo-controller-config."""
    kind, name = node.at("kind"), node.at("metadata", "name")
    return kind is not None and kind.scalar == "ConfigMap" and name is not None and name.scalar == SLO_CONFIG


def _data(node: YamlNode) -> Iterator[tuple[str, YamlNode]]:
    data = node.at("data")
    yield from (data.fields if data is not None else {}).items()


def _of_key(key: str, held: YamlNode) -> Iterator[Violation]:
    if key not in KEYS:
        yield _unknown(key, SLO_CONFIG, held, KEYS)
    elif not held.text.strip() and held.scalar is not None:
        return
    elif fault := _fault(held):
        yield Violation(f"`{key}` {fault}", held.place, "until it is, koord-manager uses the previous value")
    elif key != _THRESHOLDS:
        yield _no_effect(key, held)
        yield from _unknown_names(key, held)
    else:
        yield from _unknown_names(key, held, below=_NODES)
        for name, each in _json(held).fields.items():
            if name == _CLUSTER:
                yield from _of_strategy(each)
            elif name != _NODES:
                yield _unknown(name, f"`{key}`", each, (_CLUSTER, _NODES))
            elif each.items:
                yield _no_effect(name, each)


def _unknown_names(key: str, held: YamlNode, below: str = "") -> Iterator[Violation]:
    """Yield the fields of a key's value that there are not, all or those of one field of it."""
    if key in CHECKED_KEYS:
        inside = _json(held)
        for path, known in unknown_names(CHECKED_KEYS[key].shape, json.loads(held.text)):
            if not below or (path[0] == below and len(path) > 1):
                where = f"`{path_text(path[:-1])}` of `{key}`" if path[:-1] else f"`{key}`"
                yield _unknown(str(path[-1]), where, inside.at(*path) or held, known)


def _of_strategy(strategy: YamlNode) -> Iterator[Violation]:
    for field in unread_fields(to_plain(strategy), _STRATEGY, [(name,) for name in (_ENABLE, *COMPARED)]):
        name, node = field.names[-1], strategy.at(*field.path) or strategy
        yield _unknown(name, f"`{_CLUSTER}`", node, field.known) if field.known else _no_effect(name, node)


def _json(held: YamlNode) -> YamlNode:
    """Return the value of a key, which is JSON; of what the YAML reader refuses, a node without fields."""
    found = read(held.part, Problems())
    return found[0] if found else held


def _fault(held: YamlNode) -> str:
    """Return why the value of a key is not a JSON object; empty where it is one."""
    if not isinstance(held.scalar, str):
        return "must be a string with JSON in it"
    try:
        value = json.loads(held.text)
    except (ValueError, RecursionError) as error:
        return f"is not JSON: {error}"
    return "" if isinstance(value, Mapping) else f"must be an object, not {json_kind(value)}"


def _unknown(name: str, where: str, node: YamlNode, known: tuple[str, ...]) -> Violation:
    return Violation(
        f"there is no field `{name}` in {where}", node.place,
        did_you_mean(name, known) or f"there are {quoted_list(known)}",
    )


def _no_effect(name: str, node: YamlNode) -> Violation:
    return Violation(
        f"`{name}` of {SLO_CONFIG} has no effect here: no rule reads it", node.place,
        f"of `{_THRESHOLDS}`, `{_CLUSTER}` is read: {', '.join(map('`{}`'.format, COMPARED))}",
    )
