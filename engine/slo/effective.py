"""The effective spec of a node's NodeSLO: the received one over the defaults, with the values of what is off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.kubernetes.objects import json_kind

from . import defaults
from .settings import APPLICATIONS, CPU_BURST, RESOURCE_QOS, SYSTEM, THRESHOLD, MalformedSetting, Setting, decode

SECTIONS: Final[Mapping[str, Setting]] = {
    "resourceUsedThresholdWithBE": THRESHOLD, "resourceQOSStrategy": RESOURCE_QOS, "cpuBurstStrategy": CPU_BURST,
    "systemStrategy": SYSTEM,
}
"""The sections of a NodeSLO's spec that are merged."""

_BANDWIDTH: Final = "totalNetworkBandwidth"
_RESET: Final = {
    "cpuQOS": defaults.cpu_qos, "resctrlQOS": defaults.resctrl_qos, "memoryQOS": defaults.memory_qos,
}
_RESET_CLASSES: Final = ("lsrClass", "lsClass", "beClass")


def overlay(old: Any, new: Any) -> Any:
    """Return `new` over `old`: objects are merged, all else is replaced, and None in `new` leaves `old`.

    (Koordinator's MergeCfg.) The result shares no object or list with either.
    """
    if new is None:
        return _copy(old)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**{key: _copy(each) for key, each in old.items()},
                **{key: overlay(old.get(key), each) for key, each in new.items()}}
    return _copy(new)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list | tuple) else value


def overlay_section(declared: Setting, old: Mapping[str, Any], new: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a section over another, decoded; None leaves `old`.

    A system strategy that does not mention the network bandwidth resets it to 0, as Koordinator's field is no pointer.

    Raises:
        MalformedSetting: a setting of `new` has the wrong JSON type.
    """
    decoded = decode(declared, new)
    if decoded is not None and declared is SYSTEM:
        decoded.setdefault(_BANDWIDTH, "0")
    merged: dict[str, Any] = overlay(old, decoded)
    return merged


def none_if_disabled(strategy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `resourceQOSStrategy` in which what is disabled has the values of the kernel's defaults.

    These are written, which restores a node whose QoS was switched off. The settings of CPU, cache and memory of the
    classes LSR, LS and BE are treated so; `enable` must be false, not absent.
    """
    found: dict[str, Any] = _copy(strategy)
    for name in _RESET_CLASSES:
        section = found.get(name)
        if not isinstance(section, dict):
            continue
        for kind, values in _RESET.items():
            if isinstance(section.get(kind), Mapping) and section[kind].get("enable") is False:
                section[kind] = values("")
    return found


def merge_spec(held: Mapping[str, Any] | None, received: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the spec `received` over `held`, with the values of what is disabled.

    If either is None, `held` is returned unchanged: no object was received, or there is nothing to merge it into.

    Raises:
        MalformedSetting: a setting has the wrong JSON type; the path begins at the spec.
    """
    if held is None or received is None:
        return None if held is None else _copy(held)
    if not isinstance(received, Mapping):
        raise MalformedSetting((), f"must be an object, not {json_kind(received)}")
    found: dict[str, Any] = _copy(held)
    for name, declared in SECTIONS.items():
        try:
            found[name] = overlay_section(declared, found.get(name) or {}, received.get(name))
        except MalformedSetting as error:
            raise MalformedSetting((name, *error.fault.path), error.fault.message) from None
    found["resourceQOSStrategy"] = none_if_disabled(found["resourceQOSStrategy"])
    if found.get("extensions") is not None or received.get("extensions") is not None:
        found["extensions"] = overlay(found.get("extensions") or {}, received.get("extensions"))
    found.pop("hostApplications", None)
    applications = decode(APPLICATIONS, received.get("hostApplications"), ("hostApplications",))
    if applications:
        found["hostApplications"] = [each or {} for each in applications]  # null is an object without fields
    return found


def effective_spec(
    received: Mapping[str, Any] | None, previous: Mapping[str, Any] | None = None,
) -> dict[str, Any] | None:
    """Return the effective spec of a received NodeSLO spec: it over the defaults, never over the previous result.

    `previous` is the result for the last object, and the result if none was received. None until the first object.

    Raises:
        MalformedSetting: a setting has the wrong JSON type; the previous spec should stay then.
    """
    if received is None:
        return None if previous is None else _copy(previous)
    return merge_spec(defaults.node_slo_spec(), received)
