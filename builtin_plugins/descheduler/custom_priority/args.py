"""CustomPriorityArgs as a frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koordpolicy.engine.descheduler.arguments import complete
from koordpolicy.engine.descheduler.koordinator_args import DRAIN_NODE
from koordpolicy.engine.descheduler.target_pods import TargetPods


@dataclass(frozen=True, slots=True)
class NodeLevel:
    """A level of nodes in `evictionOrder`: pods leave them for the nodes of later levels."""

    name: str
    selector: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CustomPriorityArgs:
    """The internal form of CustomPriorityArgs."""

    paused: bool = False
    dry_run: bool = False
    node_fit: bool = True
    node_selector: Mapping[str, Any] | None = None
    targets: TargetPods = TargetPods()  # noqa: RUF009 - frozen
    levels: tuple[NodeLevel, ...] = ()
    """The most expensive first."""
    drains: bool = False
    """True if nodes are drained as a whole or not at all (`DrainNode`)."""
    cordons: bool = False
    """True if nodes are cordoned before they are drained."""


def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return v1alpha2 arguments in internal form with defaults; raise `ValueError` with all faults."""
    return complete("CustomPriority", args)


def read_args(internal: Mapping[str, Any]) -> CustomPriorityArgs:
    """Return valid arguments in internal form as a frozen value; absent fields are zero."""
    return CustomPriorityArgs(
        paused=internal.get("paused", False),
        dry_run=internal.get("dryRun", False),
        node_fit=internal.get("nodeFit", False),
        node_selector=internal.get("nodeSelector"),
        targets=TargetPods.of(internal),
        levels=tuple(
            NodeLevel(each["name"], each["nodeSelector"]) for each in internal.get("evictionOrder") or ()
            if each.get("nodeSelector") is not None
        ),
        drains=internal.get("mode") == DRAIN_NODE,
        cordons=internal.get("autoCordon", False),
    )
