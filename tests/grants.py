"""Helpers for tests of plugins that grant resources of nodes: DeviceShare and NodeNUMAResource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.scheduler.cycle.schedule_one import ReservedDevices
from koordpolicy.plugin import SKIP, CycleState

from .fake_framework import FakeFramework


def passes(
    plugin: Any, asked: PodInfo, snapshot: Snapshot, row: int = 0, state: CycleState | None = None,
) -> tuple[Code, str] | None:
    """Return None where the pod may run there, else code and message."""
    state = CycleState() if state is None else state
    found = plugin.pre_filter(state, asked, snapshot)
    if isinstance(found, Refusal):
        return found.code, found.message
    if found is SKIP:
        return None
    answer = plugin.filter(state, asked, snapshot, np.array([row]))
    if answer.passed[row]:
        return None
    refusal = answer.explain(row)
    return refusal.code, refusal.message


def place(framework: FakeFramework, plugin: Any, asked: PodInfo, row: int = 0, *, annotation: str) -> Any:
    """Do with a pod what the scheduler does; return what the annotation records, or why it gets nothing."""
    snapshot, state = framework.snapshot(), CycleState()
    refused = passes(plugin, asked, snapshot, row, state)
    if refused is not None:
        return refused[1]
    refusal = plugin.reserve(state, asked, snapshot, row)
    if refusal is not None:
        return refusal.message
    name = snapshot.names[row]
    framework.cluster.assume(asked, name, state.get(ReservedDevices, ()))
    draft = {"metadata": {"annotations": dict(asked.object["metadata"].get("annotations") or {})}}
    assert plugin.pre_bind(state, asked, draft, name) is None
    return json.loads(draft["metadata"]["annotations"].get(annotation, "{}"))


@dataclass
class SeenReservation:
    """A reservation as the plugins see it in a cycle."""

    uid: str
    object: Mapping[str, Any]
    policy: str = ""
    consumers: tuple[str, ...] = ()

    @property
    def pod(self) -> PodInfo:
        """The pod that holds its resources."""
        return PodInfo.of({"metadata": {"name": self.uid, "namespace": "default", "uid": f"uid-{self.uid}"},
                           "spec": {"containers": [{"name": "c"}]}})


class FakeReservations:
    """Nominates the reservation that it is told to."""

    def __init__(self, chosen: SeenReservation | None = None) -> None:
        self.chosen = chosen

    def nominate_reservation(self, *_: object) -> None:
        """Nominate nothing by itself."""

    def forget_nomination(self, _: PodInfo) -> None:
        """Forget nothing."""

    def nominate(self, *_: object) -> SeenReservation | None:
        """Return the chosen one."""
        return self.chosen
