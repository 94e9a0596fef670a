"""DeviceShare's HTTP endpoints: the devices of nodes, their holders, and the free amounts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from koordpolicy.engine.cluster.objects.pods import ResourceList
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.plugin import Handle

from .cache import DeviceCache
from .devices import AllocationScope, pool_of
from .requests import PodDeviceRequest


def endpoints(cache: DeviceCache, handle: Handle) -> Mapping[str, Callable[..., Any]]:
    """Return the endpoints `nodes` and `nodes/{name}`."""

    def node(name: str) -> Any:
        return _describe(cache, handle.snapshot(), name)

    def nodes() -> Any:
        snapshot = handle.snapshot()
        return {name: found for name in snapshot.names if (found := _describe(cache, snapshot, name)) is not None}

    return {"nodes/{name}": node, "nodes": nodes}


def _describe(cache: DeviceCache, snapshot: Snapshot, name: str) -> Any:
    row = snapshot.index.get(name)
    devices = None if row is None else cache.devices(snapshot, row)
    holdings = None if row is None else cache.holdings(snapshot, row)
    if devices is None or holdings is None:
        return None
    everything = PodDeviceRequest(dict.fromkeys(devices.devices, ResourceList()))
    pool = pool_of(devices, holdings, everything, AllocationScope())
    return {
        "total": {
            device_type: {str(minor): dict(info.resources) for minor, info in infos.items()}
            for device_type, infos in devices.devices.items()
        },
        "free": _plain(pool.free),
        "pods": {key: _plain(each.amounts) for key, each in sorted(holdings.pods.items())},
        "reservations": {uid: _plain(each.amounts) for uid, each in sorted(holdings.reservations.items())},
    }


def _plain(amounts: Mapping[str, Mapping[int, Mapping[str, int]]]) -> dict[str, dict[str, dict[str, int]]]:
    return {
        device_type: {str(minor): dict(held) for minor, held in minors.items()}
        for device_type, minors in amounts.items()
    }
