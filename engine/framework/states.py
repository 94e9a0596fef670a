"""The states of a node that plugins read, and the callbacks of their changes."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from koordpolicy.engine.cluster.objects.pods import PodInfo


class StateType(enum.StrEnum):
    """The states of a node that callbacks are registered for, by koordlet's names."""

    NODE_SLO = "NodeSLOSpec"
    """The spec of the effective NodeSLO; sent after each merge."""
    PODS = "AllPods"
    """The pods on the node; sent after each list of the kubelet. The object is None: the pods are in the target."""
    NODE_TOPOLOGY = "NodeTopology"
    """The NodeResourceTopology; sent after a change."""
    NODE_METADATA = "NodeMetadata"
    """The Node; sent after a change of its labels or annotations."""


@dataclass(frozen=True, slots=True)
class CallbackTarget:
    """The subjects of a state: the pods on the node, and the host applications that its NodeSLO declares."""

    pods: tuple[PodInfo, ...] = ()
    host_applications: tuple[Mapping[str, Any], ...] = ()


StateCallback: TypeAlias = Callable[[StateType, Mapping[str, Any] | None, CallbackTarget], None]


class States(Protocol):
    """The objects that a node agent follows. What is returned is shared: copy it before changing it.

    Each state may be read from any thread. Ages are in seconds since the state was last heard of, `math.inf` if never;
    states that were restored from the disk at start have the age that they had there, and the time since.
    """

    @property
    def node(self) -> Mapping[str, Any] | None:
        """The Node; None until it is known."""
        ...

    @property
    def node_slo(self) -> Mapping[str, Any] | None:
        """The NodeSLO of the node with its effective spec; None until there is one."""
        ...

    @property
    def pods(self) -> tuple[PodInfo, ...]:
        """The pods on the node, by key."""
        ...

    @property
    def topology(self) -> Mapping[str, Any] | None:
        """The NodeResourceTopology of the node; None until there is one."""
        ...

    @property
    def claims(self) -> Mapping[str, str]:
        """The names of the volumes that the claims (`namespace/name`) of these pods are bound to."""
        ...

    @property
    def pods_age(self) -> float:
        """The age of `pods`."""
        ...

    @property
    def pods_stale(self) -> bool:
        """True if `pods` is too old to evict by it."""
        ...

    def age(self, kind: str) -> float:
        """Return the age of the state of a kind: `Node`, `NodeSLO`, `NodeMetric`, `NodeResourceTopology` or `Pod`."""
        ...

    def register_callback(self, state_type: StateType, name: str, description: str, callback: StateCallback) -> None:
        """Call a function after each change of a state, in the agent's thread; changes that follow closely are one.

        If the state is known already, it is called soon. Callbacks of a type are called in the order of their
        registration. An exception of one is logged, and costs only itself.

        Raises:
            ValueError: the type is unknown, or has a callback of this name.
        """
        ...

    def unregister_callback(self, state_type: StateType, name: str) -> None:
        """Call the callback of this name no longer; without one nothing is done."""
        ...
