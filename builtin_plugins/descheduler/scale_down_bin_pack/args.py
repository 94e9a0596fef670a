"""ScaleDownBinPackArgs as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from koordpolicy.engine.descheduler.arguments import complete
from koordpolicy.engine.descheduler.target_pods import TargetPods


@dataclass(frozen=True, slots=True)
class ScaleDownBinPackArgs:
    """The internal form of ScaleDownBinPackArgs."""

    paused: bool = False
    evicts: bool = False
    """True if pods are evicted (`EvictDirectly`); otherwise only their deletion costs are set."""
    most_evictions: int | None = None
    """Per cycle; None for all."""
    node_selector: Mapping[str, Any] | None = None
    targets: TargetPods = TargetPods()  # noqa: RUF009 - frozen
    weights: Mapping[str, float] = field(default_factory=dict)
    """By resource; empty for 1 of cpu and of memory."""


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1alpha2 arguments in internal form with defaults; raise `ValueError` with all faults."""
    return complete("ScaleDownBinPack", args)


def read_args(internal: Mapping[str, Any]) -> ScaleDownBinPackArgs:
    """Return valid arguments in internal form as a frozen value; absent fields are zero."""
    most = internal.get("maxPodsToEvict") or 0
    return ScaleDownBinPackArgs(
        paused=internal.get("paused", False),
        evicts=internal.get("strategy") == "EvictDirectly",
        most_evictions=most if most > 0 else None,
        node_selector=internal.get("nodeSelector"),
        targets=TargetPods.of(internal),
        weights=dict(internal.get("resourceWeights") or {}),
    )
