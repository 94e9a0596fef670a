"""FragmentationAwareArgs as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.descheduler.arguments import complete
from koordpolicy.engine.descheduler.target_pods import TargetPods


@dataclass(frozen=True, slots=True)
class FragmentationAwareArgs:
    """The internal form of FragmentationAwareArgs; thresholds are standard deviations of allocated shares, 0..."""

    paused: bool = False
    dry_run: bool = False
    node_fit: bool = True
    node_selector: Mapping[str, Any] | None = None
    targets: TargetPods = TargetPods()  # noqa: RUF009 - frozen
    resources: tuple[str, ...] = ("cpu", "memory")
    imbalance_threshold: float = 0.15
    min_improvement: float = 0.02


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1alpha2 arguments in internal form with defaults; raise `ValueError` with all faults."""
    return complete("FragmentationAware", args)


def read_args(internal: Mapping[str, Any]) -> FragmentationAwareArgs:
    """Return valid arguments in internal form as a frozen value; absent fields are zero."""
    return FragmentationAwareArgs(
        paused=internal.get("paused", False),
        dry_run=internal.get("dryRun", False),
        node_fit=internal.get("nodeFit", False),
        node_selector=internal.get("nodeSelector"),
        targets=TargetPods.of(internal),
        resources=tuple(internal.get("resources") or ()),
        imbalance_threshold=internal.get("imbalanceThreshold", 0.0),
        min_improvement=internal.get("minImprovementThreshold", 0.0),
    )
