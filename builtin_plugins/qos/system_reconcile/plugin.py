"""SystemConfig: settings of the kernel, from `spec.systemStrategy` of the node's NodeSLO.

The behaviour is koordlet's (system_config.go): a value that is out of range, or whose file does not exist, is left out.
Unlike there, a setting gets back its text from before the first change when its field is unset, when the section is
removed and when the strategy goes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.agent.qos_manager.node_slo import SLOSection, WarningLog, node_name, node_slo
from koordpolicy.engine.agent.qos_manager.rounds import read_interval
from koordpolicy.engine.agent.qos_manager.sysctl import (
    SCHED_FEATURES_FILE,
    OriginalTexts,
    feature_states,
    feature_text,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.explanation import Finding
from koordpolicy.engine.framework.qos import Adjustment, Readings
from koordpolicy.engine.kubernetes.kernel_settings import (
    KERNEL_SETTINGS,
    MEMCG_REAP_BACKGROUND,
    MIN_FREE_KBYTES,
    PAGECACHE_LIMIT_ENABLED,
    SCHED_GROUP_IDENTITY_ENABLED,
    SCHED_IDLE_SAVER_WMARK,
    WATERMARK_SCALE_FACTOR,
)

_FACTOR: Final = "minFreeKbytesFactor"
_NAMES: Final[Mapping[str, str]] = {
    _FACTOR: MIN_FREE_KBYTES,
    "watermarkScaleFactor": WATERMARK_SCALE_FACTOR,
    "memcgReapBackGround": MEMCG_REAP_BACKGROUND,
    "schedGroupIdentityEnabled": SCHED_GROUP_IDENTITY_ENABLED,
    "schedIdleSaverWmark": SCHED_IDLE_SAVER_WMARK,
    "pageCacheLimitEnabled": PAGECACHE_LIMIT_ENABLED,
}
_FEATURES: Final = "schedFeatures"
_FEATURE: Final = re.compile(r"[A-Z][A-Z0-9_]*")


class SystemConfig:
    """The strategy, with the original texts of the files that it has changed on each node."""

    name = "SystemConfig"

    def __init__(self, args: Mapping[str, Any], handle: Any = None) -> None:
        self._interval = read_interval(args)
        self._warnings = WarningLog.of(handle, self.name)
        self._originals = OriginalTexts()
        self._features: dict[tuple[str, str], bool] = {}
        """The original state of each scheduler feature that was changed, by node and name."""

    @property
    def interval(self) -> int:
        """The interval between two rounds, in nanoseconds."""
        return self._interval

    def adjust(self, readings: Readings) -> Sequence[Adjustment]:
        """Write the settings that differ, and restore those that are not configured any more."""
        section = node_slo(readings).sub("systemStrategy")
        if section is None:
            return self._restore(readings, "the NodeSLO has no `systemStrategy` any more")
        memory = _memory(readings)
        if memory <= 0:
            return ()
        warnings: dict[str, str] = {}
        found: list[Adjustment] = []
        for field, name in _NAMES.items():
            setting = KERNEL_SETTINGS[name]
            try:
                value = _value(section, field, memory)
            except EvaluationError as error:
                warnings[name] = error.message
                continue
            if value is None:
                reason = f"`{section.path}.{field}` is not set any more"
                found += _reverted(name, reason, self._originals.restore(readings, setting.file))
            elif not setting.accepts(value):
                warnings[name] = f"{value} is not in {setting.lowest} to {setting.largest}"
            elif writes := self._originals.write(readings, setting.file, str(value)):
                found.append(Adjustment(
                    "sysctl", name, f"`{section.path}.{field}` of the NodeSLO", values={"value": value}, writes=writes,
                ))
        try:
            found += self._switch_features(readings, section, warnings)
        except EvaluationError as error:
            warnings[_FEATURES] = error.message
        self._warnings.update(node_name(readings), warnings)
        return tuple(found)

    def recover(self, readings: Readings) -> Sequence[Adjustment]:
        """Restore all changed settings."""
        return self._restore(readings, "the strategy is removed")

    def explain_round(self, readings: Readings) -> Sequence[Finding]:
        """Return each configured setting with its value, its range and the present text of its file."""
        section, memory = node_slo(readings).sub("systemStrategy"), _memory(readings)
        if section is None or memory <= 0:
            return (Finding("state", "the NodeSLO has no `systemStrategy`" if section is None else
                            "the node's memory capacity is not known"),)
        found = []
        for field, name in _NAMES.items():
            setting = KERNEL_SETTINGS[name]
            try:
                value = _value(section, field, memory)
            except EvaluationError as error:
                found.append(Finding("target", f"{name}: {error.message}"))
                continue
            if value is not None:
                fits = "" if setting.accepts(value) else f", out of range {setting.lowest} to {setting.largest}"
                now = readings.files.get(setting.file, "no such file").strip()
                found.append(Finding("target", f"{name}: {value}{fits}; now {now}"))
        return found or (Finding("state", "no setting is configured"),)

    def _switch_features(
        self, readings: Readings, section: SLOSection, warnings: dict[str, str],
    ) -> Iterator[Adjustment]:
        text = readings.files.get(SCHED_FEATURES_FILE)
        if text is None:
            return
        configured, node, states = section.sub(_FEATURES), node_name(readings), feature_states(text)
        desired = configured.values if configured is not None else {}
        for name in [name for owner, name in self._features if owner == node and name not in desired]:
            yield from self._revert_feature(readings, name, f"`{_FEATURES}.{name}` is not set any more")
        for name, on in desired.items():
            subject = f"sched_features.{name}"
            if not isinstance(on, bool) or not _FEATURE.fullmatch(name) or name.startswith("NO_"):
                warnings[subject] = f"must be the name of a feature and true or false, not `{name}` and {on!r}"
            elif states.get(name) is not on:
                if name in states:
                    self._features.setdefault((node, name), states[name])
                writes = ((SCHED_FEATURES_FILE, feature_text(name, on)),)
                yield Adjustment("sysctl", subject, f"`{section.path}.{_FEATURES}` of the NodeSLO",
                                 values={"value": on}, writes=writes)

    def _revert_feature(self, readings: Readings, name: str, reason: str) -> Iterator[Adjustment]:
        original = self._features.pop((node_name(readings), name))
        if feature_states(readings.files.get(SCHED_FEATURES_FILE, "")).get(name) is not original:
            writes = ((SCHED_FEATURES_FILE, feature_text(name, original)),)
            yield from _reverted(f"sched_features.{name}", reason, writes)

    def _restore(self, readings: Readings, reason: str) -> tuple[Adjustment, ...]:
        names = {KERNEL_SETTINGS[name].file: name for name in _NAMES.values()}
        found: list[Adjustment] = []
        for file in self._originals.files(readings):
            found += _reverted(names[file], reason, self._originals.restore(readings, file))
        for name in [name for owner, name in self._features if owner == node_name(readings)]:
            found += self._revert_feature(readings, name, reason)
        return tuple(found)


def _reverted(subject: str, reason: str, writes: tuple[tuple[str, str], ...]) -> tuple[Adjustment, ...]:
    return (Adjustment("sysctl", subject, reason, writes=writes, recovers=True),) if writes else ()


def _memory(readings: Readings) -> int:
    """Return the node's memory capacity in bytes; 0 if it is not known."""
    capacity = (readings.node.get("status") or {}).get("capacity") or {}
    try:
        return canonical_amount("memory", capacity.get("memory", "0"), "status.capacity.memory")
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _value(section: SLOSection, field: str, memory: int) -> int | None:
    value = section.whole(field)
    return memory // 1024 * value // 10_000 if value is not None and field == _FACTOR else value


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments; raise `ValueError` if they are invalid."""
    read_interval(args)
    return args


def make(args: Mapping[str, Any], handle: object) -> SystemConfig:
    """Make the strategy for one profile."""
    return SystemConfig(args, handle)
