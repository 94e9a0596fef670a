"""The requests that a node agent makes, as the permissions that it needs: the shipped role is made of them.

All nodes' agents share one service account, so that no permission can be limited to the object of the own node.
"""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.client.permissions import REVIEWS, Permission

_SLO: Final = "slo.koordinator.sh"
_SCHEDULING: Final = "scheduling.koordinator.sh"
_TOPOLOGY: Final = "topology.node.k8s.io"

STATES: Final = (
    Permission("", "nodes", ("list", "watch"), "the own Node"),
    Permission(_SLO, "nodeslos", ("list", "watch"), "the own NodeSLO"),
    Permission(_SLO, "nodemetrics", ("list", "watch"), "the policy of reports"),
    Permission(_SLO, "nodemetrics/status", ("patch",), "reports of usage"),
    Permission(_TOPOLOGY, "noderesourcetopologies", ("list", "watch", "create", "patch"), "reports of the topology"),
    Permission("", "nodes/pods", ("get",), "the pods of the kubelet, from Kubernetes 1.36 on"),
    Permission("", "nodes/configz", ("get",), "the kubelet's configuration, from Kubernetes 1.36 on"),
)
"""Of an agent that reads pods from its kubelet."""

KUBELET_PROXY: Final = (Permission("", "nodes/proxy", ("get",), "the kubelet before Kubernetes 1.36"),)
"""Instead of `nodes/pods` and `nodes/configz` on older clusters; it permits to run commands in pods, too."""

PODS_FROM_API: Final = (Permission("", "pods", ("list", "watch"), "pods of the API server (`--pods-from api`)"),)
"""Instead of the kubelet's pods."""

CLAIMS: Final = (Permission("", "persistentvolumeclaims", ("get",), "the volumes of pods whose I/O is limited"),)
"""With policies or a strategy (BlkIOReconcile) that limit the I/O of volumes of claims."""

DEVICES: Final = (
    Permission(_SCHEDULING, "devices", ("list", "watch", "create", "patch"), "reports of GPUs and RDMA adapters"),
)
"""With the collector of devices (Accelerators, RDMADevices, or `--collect devices`)."""

EVICTIONS: Final = (
    Permission("", "pods/eviction", ("create",), "evictions"),
    Permission("", "pods", ("delete",), "evictions above a hard threshold (`hardThresholdPercent`)"),
    Permission("events.k8s.io", "events", ("create", "patch"), "events"),
    Permission("", "events", ("patch",), "the note of an event series"),
)
"""With strategies that evict."""

AGENT: Final = (*STATES, *CLAIMS, *DEVICES, *EVICTIONS, *REVIEWS)
"""Of the shipped DaemonSet, cluster-wide."""
