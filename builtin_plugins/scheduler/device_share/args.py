"""DeviceShareArgs: strict reading of version v1, its defaults, conversion to the internal form, validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.kubernetes.vocabulary import FPGA, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA

from ..allocation.resource_scoring import LEAST, AllocationScorer, allocation_faults, read_allocation_strategy
from ..allocation.strict_args import boolean, listed, nested, raise_faults, read_args, text, texts
from .requests import NPU_CORE

KIND: Final = "DeviceShareArgs"

_FIELDS: Final = {
    "allocator": text,
    "scoringStrategy": read_allocation_strategy,
    "disableDeviceNUMATopologyAlignment": boolean,
    "gpuSharedResourceTemplatesConfig": nested({
        "configMapNamespace": text, "configMapName": text, "matchedResources": texts,
    }),
    "gpuShareUnsupportedModels": listed(nested({"vendor": text, "model": text})),
}
_STRATEGY: Final[Mapping[str, Any]] = {
    "type": LEAST,
    "resources": [{"name": name, "weight": 1} for name in (GPU_MEMORY_RATIO, GPU_MEMORY, RDMA, FPGA)],
}
_TEMPLATES: Final[Mapping[str, Any]] = {
    "configMapNamespace": "koordinator-system", "configMapName": "gpu-shared-resource-templates",
    "matchedResources": (NPU_CORE,),
}


@dataclass(frozen=True, slots=True)
class DeviceShareArgs:
    """The internal form; `templates` is the key of the ConfigMap with the templates of shared GPUs.

    `templated` are the resources that need one, `unsharable` the (vendor, model) of GPUs that cannot be shared.
    """

    scorer: AllocationScorer
    aligned: bool
    templates: str
    templated: frozenset[str]
    unsharable: frozenset[tuple[str, str]]


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults; raises `ValueError` with all faults and the fields' paths."""
    full = default_args(args)
    raise_faults(validate(full))
    return full


def ignored_args(args: Mapping[str, Any]) -> Mapping[str, str]:  # noqa: ARG001 - the signature that every plugin has
    """Return the valid v1 arguments without effect, with the reasons."""
    return {"allocator": "it is deprecated, and does nothing in koord-scheduler either"}


def default_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1 arguments with their defaults filled in; raises `ValueError` like `read_args`."""
    return {
        "scoringStrategy": _STRATEGY, "gpuSharedResourceTemplatesConfig": _TEMPLATES,
        "disableDeviceNUMATopologyAlignment": False, **read_args(args, KIND, _FIELDS),
    }


def convert(full: Mapping[str, Any]) -> DeviceShareArgs:
    """Return the internal form of v1 arguments that are complete and valid."""
    templates = full["gpuSharedResourceTemplatesConfig"]
    return DeviceShareArgs(
        AllocationScorer.of(full["scoringStrategy"]),
        not full["disableDeviceNUMATopologyAlignment"],
        f"{templates.get('configMapNamespace', '')}/{templates.get('configMapName', '')}",
        frozenset(templates.get("matchedResources", ())),
        frozenset(
            (each.get("vendor", ""), each.get("model", "")) for each in full.get("gpuShareUnsupportedModels") or ()
        ),
    )


def validate(full: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of arguments, each with the field's path."""
    yield from allocation_faults(full["scoringStrategy"], "scoringStrategy")
