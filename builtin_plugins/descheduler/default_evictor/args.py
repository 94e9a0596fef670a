"""Arguments of DefaultEvictor: decoding and validation, in the words of Kubernetes' descheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koordpolicy.engine.descheduler.argument_faults import Fault, refuse
from koordpolicy.engine.descheduler.plugin_args import check_label_selector, decode
from koordpolicy.engine.kubernetes.selectors import parse_selector

from .protections import CRITICAL, PROTECTED_BY_DEFAULT, PROTECTED_ON_REQUEST, PROTECTING, UNPROTECTING

Json = Mapping[str, Any]


def check_default_evictor(args: Json) -> Iterator[Fault]:
    """Yield the faults of decoded arguments."""
    threshold = args.get("priorityThreshold") or {}
    if threshold.get("value") is not None and threshold.get("name"):
        message = "priority threshold misconfigured, only one of priorityThreshold fields can be set"
        yield ("priorityThreshold",), message
    if (threshold.get("value") or 0) > CRITICAL:
        yield ("priorityThreshold", "value"), f"priority threshold can't be greater than {CRITICAL}"
    if args.get("noEvictionPolicy", "") not in ("", "Preferred", "Mandatory"):
        yield ("noEvictionPolicy",), 'noEvictionPolicy accepts only ["Preferred" "Mandatory"] values'
    yield from _check_protections(args)
    yield from check_label_selector(args)
    yield from check_label_selector(args, "namespaceLabelSelector")
    try:
        parse_selector(args.get("nodeSelector") or "")
    except ValueError as error:
        yield ("nodeSelector",), str(error)


def _check_protections(args: Json) -> Iterator[Fault]:
    lists = args.get("podProtections") or {}
    disabled, extra = list(lists.get("defaultDisabled") or ()), list(lists.get("extraEnabled") or ())
    flags = (*UNPROTECTING.values(), *PROTECTING.values())
    if (disabled or extra) and any(args.get(flag) for flag in flags):
        message = "cannot use Deprecated fields alongside PodProtections.ExtraEnabled or PodProtections.DefaultDisabled"
        yield ("podProtections",), message
    for field, title, given, known in (
        ("extraEnabled", "ExtraEnabled", extra, PROTECTED_ON_REQUEST),
        ("defaultDisabled", "DefaultDisabled", disabled, PROTECTED_BY_DEFAULT),
    ):
        for index, name in enumerate(given):
            if name not in known:
                valid = " ".join(known)
                message = f'invalid pod protection policy in {title}: "{name}". Valid options are: [{valid}]'
                yield ("podProtections", field, index), message
        if len(set(given)) != len(given):
            yield ("podProtections", field), f"PodProtections.{title} contains duplicate entries"
    classes = ((lists.get("config") or {}).get("PodsWithPVC") or {}).get("protectedStorageClasses") or ()
    for index, each in enumerate(classes):
        if not each.get("name"):
            yield ("podProtections", "config", "PodsWithPVC", "protectedStorageClasses", index), (
                f"PodProtections.Config.PodsWithPVC.ProtectedStorageClasses[{index}] name cannot be empty"
            )


def check_default_evictor_args(args: Json) -> Json:
    """Return valid arguments; raise `ArgumentError` with all faults."""
    given = decode(args, "DefaultEvictorArgs")
    refuse(check_default_evictor(given))
    return given
