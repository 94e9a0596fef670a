"""The binding of pods by the extender, for a `bindVerb`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from koordpolicy.engine.client.connection import Connection
from koordpolicy.engine.client.io_thread import IoThread
from koordpolicy.engine.client.resources import pod_reference
from koordpolicy.engine.client.transport import Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteStatus
from koordpolicy.engine.cluster.sources.watched_cluster import EXTENDER
from koordpolicy.engine.source import PolicyError, Problem

_HELP: Final[Mapping[WriteStatus, str]] = {
    WriteStatus.FORBIDDEN: "grant `create` on `pods/binding`",
    WriteStatus.THROTTLED: "kube-scheduler tries it again; see the load of the API server",
    WriteStatus.UNREACHABLE: "check the address and the network",
    WriteStatus.UNKNOWN: "kube-scheduler tries it again, and finds out whether the pod was bound",
}
_NOTHING: Final = "nothing: kube-scheduler decides on what the pod is now"


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of a pod to a node."""

    namespace: str
    name: str
    uid: str
    node: str


class PodBinder:
    """Binds pods through connections of its own; may be called from several threads at once."""

    def __init__(self, connection: Connection) -> None:
        """Start the thread of the requests."""
        self._io = IoThread("binder")
        self._transport = Transport(connection, user_agent=EXTENDER, rate=0)
        self._writer = ClusterWriter(self._transport)
        self._io.start()
        self._io.on_close(self._transport.close)

    def __call__(self, binding: Binding) -> None:
        """Bind a pod, and return when the API server has answered.

        The pod must have the UID of the binding: another one of its name is left alone.

        Raises `PolicyError` if it is not bound, or no answer arrives.
        """
        pod = pod_reference(binding.namespace, binding.name, binding.uid)
        result = self._io.submit(self._writer.bind(pod, binding.node)).result()
        # A repeated request may find that the first one was carried out.
        if result.done or (result.status is WriteStatus.ALREADY_ASSIGNED and result.node == binding.node):
            return
        raise PolicyError([Problem(f"{binding.namespace}/{binding.name}: {result.message}", code="cluster",
                                   help=_HELP.get(result.status, _NOTHING))])

    def close(self) -> None:
        """End the requests."""
        self._io.close()
