"""The plugin's cache of the devices of each node, the holdings of pods and reservations, and the grants.

It corresponds to nodeDeviceCache of Koordinator's pkg/scheduler/plugins/deviceshare.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.derived import DerivedObjects
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.kubernetes.vocabulary import GPU_MODEL_LABEL, GPU_PARTITION_POLICY_LABEL, GPU_VENDOR_LABEL
from koordpolicy.plugin import CycleState

from ..allocation.annotations import labels_of
from ..allocation.grants import Grants
from .adapters import ISOLATION_LABEL
from .allocation import Allocation
from .devices import Holding, Holdings, NodeDevices, holding_in, of_pod

_DEVICE_PATHS: Final = frozenset({("objects", "Device")})
_HOLDING_PATHS: Final = _DEVICE_PATHS | {("requested",)}
_LABELS: Final = (GPU_VENDOR_LABEL, GPU_MODEL_LABEL, GPU_PARTITION_POLICY_LABEL, ISOLATION_LABEL)


def label_paths(*labels: str) -> frozenset[tuple[str, ...]]:
    """Return the paths of node labels."""
    return frozenset(("node", "metadata", "labels", label) for label in labels)


OUTCOME_PATHS: Final = _HOLDING_PATHS | label_paths(*_LABELS)
"""The paths of a node that results of this plugin depend on."""


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """The devices reserved for a pod on a node until its annotations record them; also a key of the cycle state."""

    uid: str
    node: str
    allocation: Allocation
    held: Holding


class DeviceCache:
    """The devices of each node and their holders, recomputed when the node's Device, pods or grants change."""

    def __init__(self) -> None:
        self._devices: DerivedObjects[NodeDevices | None] = DerivedObjects(
            _DEVICE_PATHS, _devices_of, lambda devices: (devices is not None,), 1)
        self._holdings: DerivedObjects[Holdings | None] = DerivedObjects(_HOLDING_PATHS, self._compute_holdings)
        self.granted: Grants[DeviceGrant, Holding] = Grants(
            holding_in, of_pod, Holding(), self._holdings.forget,
        )
        """The grants whose pods do not record them yet."""

    def nodes_with_devices(self, snapshot: Snapshot) -> NDArray[np.bool_]:
        """Return bool[nodes]: whether a node has a Device object."""
        result: NDArray[np.bool_] = self._devices.of(snapshot).numbers[:, 0] != 0
        return result

    def devices(self, snapshot: Snapshot, row: int) -> NodeDevices | None:
        """Return the devices of a node; None without a Device object."""
        return self._devices.at(snapshot, row)

    def holdings(self, snapshot: Snapshot, row: int) -> Holdings | None:
        """Return the holdings on a node; None without a Device object."""
        return self._holdings.at(snapshot, row)

    def holdings_in_cycle(self, state: CycleState, snapshot: Snapshot, row: int) -> Holdings | None:
        """Return the holdings on a node, including reservations whose reserve pods the snapshot does not contain."""
        held = self._holdings.at(snapshot, row)
        return None if held is None else held.with_claims(self.granted.claims(state, snapshot.names[row]))

    def likeness(self, snapshot: Snapshot, row: int) -> Hashable:
        """Return a value that is equal for two nodes on which pods of one kind get equal results."""
        holdings = self._holdings.at(snapshot, row)
        labels: Mapping[str, Any] = labels_of(snapshot.node(row))
        return (
            id(self._devices.at(snapshot, row)), None if holdings is None else holdings.likeness,
            *(labels.get(label) for label in _LABELS),
        )

    def _compute_holdings(self, snapshot: Snapshot, row: int) -> Holdings | None:
        node = snapshot.names[row]
        if snapshot.object("Device", node) is None:
            return None
        held, claims = self.granted.held_on(node, snapshot.pods(row))
        return Holdings(held).with_claims(claims)


def _devices_of(snapshot: Snapshot, row: int) -> NodeDevices | None:
    device = snapshot.object("Device", snapshot.names[row])
    return None if device is None else NodeDevices.shared(device)
