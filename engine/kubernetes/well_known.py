"""Keys of Kubernetes' own labels, annotations and taints.

Those of Koordinator are in `vocabulary`. The lists are not complete: an unknown key may exist, but one that is similar
to a listed one is probably misspelt.
"""

from __future__ import annotations

from typing import Final

LABELS: Final = frozenset((
    "kubernetes.io/arch", "kubernetes.io/os", "kubernetes.io/hostname", "kubernetes.io/metadata.name",
    "kubernetes.io/role", "kubernetes.io/cluster-service", "kubernetes.io/service-name",
    "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type", "node.kubernetes.io/windows-build",
    "node.kubernetes.io/exclude-from-external-load-balancers",
    "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/worker",
    "beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type",
    "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
    "app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version",
    "app.kubernetes.io/component", "app.kubernetes.io/part-of", "app.kubernetes.io/managed-by",
    "apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name", "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/controller-uid",
    "endpointslice.kubernetes.io/managed-by", "service.kubernetes.io/headless",
    "service.kubernetes.io/service-proxy-name", "pod-security.kubernetes.io/enforce",
    "pod-security.kubernetes.io/audit", "pod-security.kubernetes.io/warn",
))

ANNOTATIONS: Final = frozenset((
    "cluster-autoscaler.kubernetes.io/safe-to-evict", "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes",
    "controller.kubernetes.io/pod-deletion-cost", "deployment.kubernetes.io/revision",
    "descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction",
    "container.apparmor.security.beta.kubernetes.io", "kubectl.kubernetes.io/last-applied-configuration",
    "kubectl.kubernetes.io/default-container", "kubectl.kubernetes.io/restartedAt",
    "kubernetes.io/config.source", "kubernetes.io/config.hash", "kubernetes.io/config.mirror",
    "kubernetes.io/config.seen", "kubernetes.io/description", "kubernetes.io/change-cause",
    "kubernetes.io/limit-ranger", "kubernetes.io/psp", "kubernetes.io/ingress-bandwidth",
    "kubernetes.io/egress-bandwidth", "kubernetes.io/enforce-mountable-secrets",
    "node.alpha.kubernetes.io/ttl", "scheduler.alpha.kubernetes.io/critical-pod",
    "scheduler.alpha.kubernetes.io/node-selector", "scheduler.alpha.kubernetes.io/defaultTolerations",
    "scheduler.alpha.kubernetes.io/tolerationsWhitelist", "scheduler.alpha.kubernetes.io/preferAvoidPods",
    "volumes.kubernetes.io/controller-managed-attach-detach", "volume.kubernetes.io/selected-node",
    "pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller",
    "storageclass.kubernetes.io/is-default-class",
))

TAINTS: Final = frozenset((
    "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure", "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable", "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/uninitialized", "node.cloudprovider.kubernetes.io/shutdown",
    "ToBeDeletedByClusterAutoscaler", "DeletionCandidateOfClusterAutoscaler",
))

RESOURCES: Final = frozenset(("cpu", "memory", "ephemeral-storage", "pods", "nvidia.com/gpu", "amd.com/gpu"))

KEYS: Final = LABELS | ANNOTATIONS | TAINTS
"""All keys in one set: the key of a taint may also be that of a label."""
