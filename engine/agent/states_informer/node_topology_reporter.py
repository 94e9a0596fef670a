"""Reports of the node's topology as its NodeResourceTopology: created if absent, patched only when it has changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND, ObjectReference
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.framework.qos import Host

from .kubelet import KubeletError
from .node_objects import NODE_TOPOLOGY
from .node_topology import ANNOTATIONS, KubeletCpus, is_same, node_annotations, node_zones
from .states_informer import StatesInformer

_LOG: Final = logging.getLogger(__name__)

INTERVAL_S: Final = 3.0
_CONFIG_S: Final = 60.0
_LARGEST: Final = 4 << 20
_LABELS: Final = {"app.kubernetes.io/managed-by": "Koordinator"}


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """The sources of the topology besides the host, and the interval in seconds."""

    interval: float = INTERVAL_S
    cpu_manager_state: Path = Path("/var/lib/kubelet/cpu_manager_state")
    numa_nodes: Path = Path("/sys/devices/system/node")
    query_kubelet: bool = True
    """True to read the kubelet's configuration from `/configz`."""


class NodeTopologyReporter:
    """Reports until it is cancelled. Belongs to the event loop of `states`."""

    def __init__(
        self, states: StatesInformer, writer: ClusterWriter, host: Callable[[], Host],
        settings: TopologySettings | None = None, *, clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host` returns the facts of the machine; `clock` measures intervals."""
        self.settings = settings or TopologySettings()
        self.writes = 0
        """The number of writes that succeeded."""
        self._states = states
        self._writer = writer
        self._host = host
        self._clock = clock
        self._faults = RepeatedFaults()
        self._config: Mapping[str, Any] | None = None
        self._configured = float("-inf")
        self._inputs: tuple[object, ...] = ()

    async def run(self) -> None:
        """Compare every interval, and write what differs."""
        while True:
            await self.report()
            await asyncio.sleep(self.settings.interval)

    async def report(self) -> WriteResult | None:
        """Compare now; return the result of a write, or None if nothing is to be written or known."""
        node, host = self._states.node, self._host()
        if node is None or not host.processors or self._states.age(NODE_TOPOLOGY) == float("inf"):
            return None
        await self._read_config(node)
        known = self._states.topology
        inputs = (node, self._states.pods, host, known, self._config, self._state())
        if len(self._inputs) == len(inputs) and all(
                one is other or (isinstance(one, str) and one == other)
                for one, other in zip(inputs, self._inputs, strict=True)):
            return None
        try:
            kubelet = KubeletCpus.of(str(inputs[-1]), self._config, host.processors)
        except (ValueError, RecursionError) as error:
            self._log(f"the state of the kubelet's CPU manager in `{self.settings.cpu_manager_state}` is malformed, "
                      f"and the topology stays as it is: {error}")
            return None
        result = await self._write(node, known, node_annotations(
            host.processors, self._states.pods, node, kubelet), kubelet.topology_policy, host)
        if result is None or result.done:
            self._inputs = inputs
        if result is not None:
            self._note(result)
        return result

    async def _write(
        self, node: Mapping[str, Any], known: Mapping[str, Any] | None, annotations: Mapping[str, str], policy: str,
        host: Host,
    ) -> WriteResult | None:
        current = known or {}
        zones = node_zones(host.processors, numa_memory(self.settings.numa_nodes), current.get("zones"))
        if known is None:
            metadata: dict[str, Any] = {"name": self._states.settings.node, "labels": _LABELS,
                                        "annotations": annotations}
            uid = node.get("metadata", {}).get("uid")
            if uid:
                # So that it is deleted with its Node.
                metadata["ownerReferences"] = [
                    {"apiVersion": "v1", "kind": "Node", "name": self._states.settings.node, "uid": uid}]
            return await self._writer.create(BY_KIND[NODE_TOPOLOGY], {
                "metadata": metadata, "topologyPolicies": [policy], "zones": zones})
        metadata = current.get("metadata") or {}
        current_annotations = metadata.get("annotations") or {}
        changed: dict[str, str | None] = {
            name: annotations.get(name) for name in ANNOTATIONS
            if (name in current_annotations or name in annotations)
            and not is_same(current_annotations.get(name), annotations.get(name))}
        patch: dict[str, Any] = {"metadata": {"annotations": changed}} if changed else {}
        if current.get("topologyPolicies") != [policy]:
            patch["topologyPolicies"] = [policy]
        if not is_same(current.get("zones"), zones):
            patch["zones"] = zones
        if not patch:
            return None
        target = ObjectReference(BY_KIND[NODE_TOPOLOGY], "", self._states.settings.node)
        # A list is replaced as a whole: the manager's resources in zones must not be lost.
        version = metadata.get("resourceVersion") if "zones" in patch else None
        return await self._writer.merge_patch(target, patch, resource_version=version)

    async def _read_config(self, node: Mapping[str, Any]) -> None:
        if not self.settings.query_kubelet or self._clock() - self._configured < _CONFIG_S:
            return
        self._configured = self._clock()
        try:
            config = await self._states.kubelet_configuration(node)
        except KubeletError as error:
            self._log(f"the kubelet's configuration cannot be read, and the last one is used: {error}")
            return
        if config != self._config:
            self._config = config

    def _state(self) -> str:
        try:
            with self.settings.cpu_manager_state.open("rb") as file:
                return file.read(_LARGEST).decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            self._log(f"`{self.settings.cpu_manager_state}` cannot be read: {error.strerror or error}")
            return ""

    def _note(self, result: WriteResult) -> None:
        if result.done:
            self.writes += 1
        elif result.status is not WriteStatus.CONFLICT:  # by a change that is not seen yet: the next round knows it
            advice = ": grant `create` and `patch` on `noderesourcetopologies`" if (
                result.status is WriteStatus.FORBIDDEN) else ""
            self._log(f"the topology of the node could not be reported: {result.message}{advice}")

    def _log(self, message: str) -> None:
        if self._faults.is_due(message, self._states.settings.node):
            _LOG.warning("%s", message)


def numa_memory(directory: Path) -> dict[int, int]:
    """Return the memory of NUMA nodes in bytes by number, from sysfs; nodes that cannot be read are left out."""
    found: dict[int, int] = {}
    for path in sorted(directory.glob("node[0-9]*")):
        try:
            number = int(path.name.removeprefix("node"))
            for line in (path / "meminfo").read_text("ascii").splitlines():
                parts = line.split()
                if len(parts) >= 4 and parts[2] == "MemTotal:":
                    found[number] = int(parts[3]) * 1024
        except (OSError, ValueError):
            continue
    return found
