"""The request of a pod for bound cpus and for NUMA nodes; it is read once per scheduling cycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList
from koordpolicy.engine.framework.points import Code, Refusal
from koordpolicy.engine.kubernetes.vocabulary import (
    LSE,
    LSR,
    NUMA_TOPOLOGY_SPEC_ANNOTATION,
    PROD,
    RESOURCE_SPEC_ANNOTATION,
    raw_qos_class,
)
from koordpolicy.engine.scheduler.extensions.topology import EXCLUSIVE_REQUIRED

from ..allocation.annotations import annotations_of, is_hinted, json_object, text_in
from ..reservation.holdings import ignores_reservations, needs_reservation
from .allocation import NumaDemand, PodAllocation, allocation_in
from .args import NumaArgs
from .cpus import FULL_PCPUS, SPREAD_BY_PCPUS
from .topology import NodeTopology, amplify, known_policy

DEFAULT_BIND_POLICY: Final = "Default"
NOT_INTEGER: Final = Refusal("cpus", "the requested CPUs must be integer", Code.UNRESOLVABLE)

_CPUSET_POLICIES: Final = (FULL_PCPUS, SPREAD_BY_PCPUS)


@dataclass(frozen=True, slots=True)
class NumaRequest:
    """The request of a pod, the same for all nodes; a key of the cycle state.

    `cpus` is the number of requested whole cpus, `bind` whether they are bound to the pod on any node, `required` and
    `preferred` are its CPU bind policies; `designated` is the recorded allocation that the pod has to get again.
    """

    requests: ResourceList
    cpus: int = 0
    bind: bool = False
    required: str = ""
    preferred: str = ""
    exclusive: str = ""
    numa_policy: str = ""
    numa_exclusive: str = ""
    needs_reservation: bool = False
    ignores_reservations: bool = False
    designated: PodAllocation | None = None

    @property
    def milli_cpu(self) -> int:
        """The requested cpu in milli-cores."""
        return self.requests["cpu"]

    def binds(self, topology: NodeTopology | None) -> bool:
        """Return whether cpus are bound to the pod on a node: the pod requests it, or the node requires it."""
        return self.bind or bool(self.milli_cpu and topology is not None and topology.bind)

    def binding(self, bind: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return by row whether cpus are bound to the pod; `bind` holds the nodes' bind policies (see `bind_code`)."""
        if self.bind:
            return np.ones(len(bind), np.bool_)
        return bind != 0 if self.milli_cpu else np.zeros(len(bind), np.bool_)

    def policy_on(self, topology: NodeTopology | None) -> str:
        """Return the NUMA topology policy that applies on a node: the node's, else the pod's."""
        return (topology.policy if topology is not None else "") or self.numa_policy

    def bind_policy_on(self, topology: NodeTopology) -> tuple[str, bool]:
        """Return the CPU bind policy that applies on a node, and whether it is required."""
        if self.required:
            return self.required, True
        return (topology.bind, True) if topology.bind else (self.preferred, False)

    def demand_on(self, topology: NodeTopology, strategy: str) -> NumaDemand:
        """Return the cpus and amounts that the pod requests of a node; `strategy` applies where the node names none."""
        policy, required = self.bind_policy_on(topology)
        return NumaDemand(
            self.requests, self.cpus if self.binds(topology) else 0, policy, required, self.exclusive,
            topology.strategy or strategy,
        )

    def amplified_on(self, topology: NodeTopology) -> Mapping[str, int]:
        """Return the requests as a node counts them: bound cpu is amplified."""
        if topology.ratio <= 1 or not self.binds(topology):
            return self.requests
        return {**self.requests, "cpu": amplify(self.milli_cpu, topology.ratio)}

    @property
    def exclusively(self) -> str:
        """The exclusive policy for NUMA nodes; Required for a pod that names a NUMA policy and no exclusive policy."""
        return self.numa_exclusive or (EXCLUSIVE_REQUIRED if self.numa_policy else "")

    @property
    def kind(self) -> object:
        """The cache key that pods with equal results share."""
        return (
            tuple(sorted(self.requests.items())), self.bind, self.required, self.preferred, self.exclusive,
            self.numa_policy, self.numa_exclusive, self.needs_reservation, self.ignores_reservations,
        )


def read_numa_request(pod: PodInfo, args: NumaArgs, plugin: str) -> NumaRequest | Refusal | None:
    """Return the request of a pod, None for a pod that requests no resources, or why it is invalid.

    `plugin` is the name under which scheduling hints address the plugin.
    """
    annotations = annotations_of(pod.object)
    try:
        spec = json_object(annotations, RESOURCE_SPEC_ANNOTATION)
        preferred, required, exclusive = (text_in(spec, field, RESOURCE_SPEC_ANNOTATION) for field in (
            "preferredCPUBindPolicy", "requiredCPUBindPolicy", "preferredCPUExclusivePolicy",
        ))
        numa = json_object(annotations, NUMA_TOPOLOGY_SPEC_ANNOTATION)
        numa_policy, numa_exclusive = (text_in(numa, field, NUMA_TOPOLOGY_SPEC_ANNOTATION) for field in (
            "numaTopologyPolicy", "singleNUMANodeExclusive",
        ))
    except ValueError as error:
        return Refusal("annotations", str(error), Code.ERROR)
    if not any(pod.requests.values()):
        return None
    try:
        needs = needs_reservation(pod)
        designated = allocation_in(annotations) if is_hinted(pod, plugin) else None
    except ValueError as error:
        return Refusal("annotations", str(error), Code.UNRESOLVABLE)
    request = NumaRequest(
        pod.requests, pod.requests["cpu"] // 1000, numa_policy=known_policy(numa_policy),
        numa_exclusive=numa_exclusive, needs_reservation=needs, ignores_reservations=ignores_reservations(pod),
        designated=designated or None,
    )
    if raw_qos_class(pod.object) not in (LSE, LSR) or pod.priority_band != PROD:
        return request
    default = args.default_bind
    preferred = default if preferred in ("", DEFAULT_BIND_POLICY) else preferred
    required = default if required == DEFAULT_BIND_POLICY else required
    preferred = required or preferred
    if preferred not in _CPUSET_POLICIES:
        return request
    if request.milli_cpu % 1000:
        return NOT_INTEGER
    if not request.milli_cpu:
        return request
    return replace(request, bind=True, required=required, preferred=preferred, exclusive=exclusive)
