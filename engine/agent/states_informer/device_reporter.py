"""Reports of the node's GPUs and RDMA adapters as its Device: created if absent, patched only when it has changed."""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.framework.qos import Processor
from koordpolicy.engine.kubernetes.vocabulary import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_VENDOR_LABEL
from koordpolicy.engine.kubernetes.vocabulary import RDMA as RDMA_RESOURCE

from ..host.devices import GPU, RDMA, HostDevice
from .node_objects import DEVICE, metadata_of
from .node_topology import is_same
from .states_informer import StatesInformer

_LOG: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 3.0
_WHOLE: Final = "100"
"""Percent: what a device offers of itself."""
_LABELS: Final = {"app.kubernetes.io/managed-by": "Koordinator"}
_VENDORS: Final = {"nvidia": "nvidia", "amdgpu": "amd"}
"""The values of the label of the vendor, by driver."""
_UNKNOWN: Final = -1

Entry = Mapping[str, Any]


class DeviceReporter:
    """Reports until it is cancelled. Belongs to the event loop of `states`, which must follow Device."""

    def __init__(
        self, states: StatesInformer, writer: ClusterWriter, devices: Callable[[], Sequence[HostDevice] | None],
        processors: Callable[[], Iterable[Processor]], types: frozenset[str], *, interval: float = INTERVAL_S,
    ) -> None:
        """`devices` returns those of the machine, None as long as they were not listed; `processors` its CPUs.

        `types` are the types of devices that are reported; entries of others stay as they are.
        """
        self.interval = interval
        self.writes = 0
        """The number of writes that succeeded."""
        self._states = states
        self._writer = writer
        self._devices = devices
        self._processors = processors
        self._types = types
        self._faults = RepeatedFaults()
        self._inputs: tuple[object, ...] = ()

    async def run(self) -> None:
        """Compare every interval, and write what differs."""
        while True:
            await self.report()
            await asyncio.sleep(self.interval)

    async def report(self) -> WriteResult | None:
        """Compare now; return the result of a write, or None if nothing is to be written or known."""
        node, listed = self._states.node, self._devices()
        if node is None or listed is None or self._states.age(DEVICE) == float("inf"):
            return None
        inputs = (node, listed, self._states.device, self._processors())
        if len(inputs) == len(self._inputs) and all(map(operator.is_, inputs, self._inputs)):
            return None
        result = await self._write(node, [each for each in listed if each.type in self._types])
        if result is None or result.done:
            self._inputs = inputs
        if result is not None and result.done:
            self.writes += 1
        elif result is not None and result.status is not WriteStatus.CONFLICT:  # the next round knows the change
            advice = ": grant `create` and `patch` on `devices`" if result.status is WriteStatus.FORBIDDEN else ""
            self._log(f"the devices of the node could not be reported: {result.message}{advice}")
        return result

    async def _write(self, node: Mapping[str, Any], found: Sequence[HostDevice]) -> WriteResult | None:
        name, known = self._states.settings.node, self._states.device
        sockets = {each.numa_node: each.socket for each in self._processors()}
        labels = _labels(found)
        if known is None:
            if not found:
                return None
            metadata: dict[str, Any] = {"name": name, "labels": {**_LABELS, **labels}}
            uid = node.get("metadata", {}).get("uid")
            if uid:
                # So that it is deleted with its Node.
                metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}]
            return await self._writer.create(BY_KIND[DEVICE], {
                "metadata": metadata, "spec": {"devices": device_entries(found, (), self._types, sockets)}})
        metadata_known = metadata_of(known)
        current_labels = metadata_known.get("labels") or {}
        listed = (known.get("spec") or {}).get("devices")
        entries = device_entries(found, listed if isinstance(listed, list) else (), self._types, sockets)
        patch: dict[str, Any] = {}
        if changed := {label: value for label, value in labels.items() if current_labels.get(label) != value}:
            patch["metadata"] = {"labels": changed}
        if not is_same(listed or [], entries):
            patch["spec"] = {"devices": entries}
        if not patch:
            return None
        # A list is replaced as a whole: what others have changed in it must not be lost.
        version = metadata_known.get("resourceVersion") if "spec" in patch else None
        return await self._writer.merge_patch(
            ObjectReference(BY_KIND[DEVICE], "", name), patch, resource_version=version)

    def _log(self, message: str) -> None:
        if self._faults.is_due(message, self._states.settings.node):
            _LOG.warning("%s", message)


def device_entries(
    found: Iterable[HostDevice], known: Sequence[Entry], types: frozenset[str], sockets: Mapping[int, int],
) -> list[dict[str, Any]]:
    """Return the entries of a Device object: of each type, and in it by minor.

    An entry that is known keeps its minor, so that a device which went away does not give its number, and with it its
    pods, to another one: it stays as unhealthy. Fields, and amounts of resources, that the machine does not say stay.
    `sockets` are those of NUMA nodes. Entries of other types than `types` stay as they are.
    """
    others = [dict(each) for each in known if isinstance(each, Mapping) and each.get("type") not in types]
    entries: list[dict[str, Any]] = []
    for kind in sorted(types):
        free = [each for each in known if isinstance(each, Mapping) and each.get("type") == kind]
        pairs: list[tuple[HostDevice, Entry | None]] = []
        for device in (each for each in found if each.type == kind):
            match = next((each for each in free if _is_of(each, device)), None)
            if match is not None:
                free.remove(match)
            pairs.append((device, match))
        taken = {each.get("minor") for each in (*free, *(match for _, match in pairs if match is not None))}
        numbers = (minor for minor in range(len(pairs) + len(taken)) if minor not in taken)
        of_kind = [
            _entry(device, match or {"minor": next(numbers)}, sockets) for device, match in pairs]
        of_kind += [{**each, "health": False} for each in free]
        entries += sorted(of_kind, key=_minor)
    return others + entries


def _minor(entry: Entry) -> int:
    minor = entry.get("minor")
    return minor if isinstance(minor, int) else _UNKNOWN


def _is_of(entry: Entry, device: HostDevice) -> bool:
    """Return whether an entry is that of a device: by its address, else by its identity, else by its minor."""
    topology = entry.get("topology")
    address = topology.get("busID") if isinstance(topology, Mapping) else None
    if address:
        return bool(address == device.address)
    identity = entry.get("id")
    return identity in (device.identity, device.address, device.name) if identity else (
        entry.get("minor") == device.minor)


def _entry(device: HostDevice, known: Entry, sockets: Mapping[int, int]) -> dict[str, Any]:
    resources = dict(known.get("resources") or {})
    for name, amount in _resources(device).items():
        if not _is_amount(name, resources.get(name), amount):
            resources[name] = amount
    entry: dict[str, Any] = {
        **known, "type": device.type, "id": device.identity or known.get("id") or device.address or device.name,
        "health": device.healthy, "resources": resources,
        "topology": {**(known.get("topology") or {}), "socketID": sockets.get(device.numa_node, _UNKNOWN),
                     "nodeID": device.numa_node, "pcieID": device.root, "busID": device.address}}
    if device.functions or "vfGroups" in known:
        entry["vfGroups"] = _groups(device, known.get("vfGroups"))
    return entry


def _resources(device: HostDevice) -> dict[str, str]:
    if device.type == RDMA:
        return {RDMA_RESOURCE: _WHOLE}
    found = {GPU_CORE: _WHOLE, GPU_MEMORY_RATIO: _WHOLE}
    if device.memory:
        found[GPU_MEMORY] = str(device.memory)
    return found


def _is_amount(name: str, text: object, amount: str) -> bool:
    try:
        return canonical_amount(name, text, name) == canonical_amount(name, amount, name)
    except (ValueError, TypeError):
        return False


def _groups(device: HostDevice, known: object) -> list[dict[str, Any]]:
    """Return the groups of virtual functions: the known ones without those that are gone; new ones have no labels."""
    numbers = {address: minor for minor, address in enumerate(device.functions)}
    groups = []
    for each in known if isinstance(known, list) else ():
        members = [vf for vf in each.get("vfs") or () if vf.get("busID") in numbers]
        for vf in members:
            numbers.pop(vf["busID"], None)
        if members:
            groups.append({**each, "vfs": members})
    new = [{"minor": minor, "busID": address} for address, minor in numbers.items()]
    if not new:
        return groups
    plain = next((each for each in groups if not each.get("labels")), None)
    if plain is None:
        return [*groups, {"vfs": new}]
    plain["vfs"] = [*plain["vfs"], *new]
    return groups


def _labels(found: Iterable[HostDevice]) -> dict[str, str]:
    """Return the label of the vendor if all GPUs are of one that has a label."""
    vendors = {_VENDORS.get(each.driver) for each in found if each.type == GPU}
    vendor = vendors.pop() if len(vendors) == 1 else None
    return {} if vendor is None else {GPU_VENDOR_LABEL: vendor}
