"""The logical directories of pods and containers, as readings name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.vocabulary import kubernetes_qos_class

_TIERS: Final[Mapping[str, str]] = {"Guaranteed": "guaranteed", "Burstable": "burstable", "BestEffort": "besteffort"}


def logical_directory(pod: PodInfo, container: str = "") -> str:
    """Return the logical directory of a pod or of one of its containers: `besteffort/podUID/CONTAINER`.

    The class is Kubernetes' (never the label's), as kubelet places the pod.
    """
    uid = (pod.object.get("metadata") or {}).get("uid") or pod.key.replace("/", "_")
    of_pod = f"{_TIERS[kubernetes_qos_class(pod.object)]}/pod{uid}"
    return f"{of_pod}/{container}" if container else of_pod
