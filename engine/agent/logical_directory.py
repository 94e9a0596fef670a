"""The logical directories of pods and containers, as readings name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.cluster.objects.pods import PodInfo

_TIERS: Final[Mapping[str, str]] = {"Guaranteed": "guaranteed", "Burstable": "burstable", "BestEffort": "besteffort"}


def logical_directory(pod: PodInfo, container: str = "") -> str:
    """Return the logical directory of a pod or of one of its containers: `besteffort/podUID/CONTAINER`.

    The class is Kubernetes' (never the label's), as kubelet places the pod.
    """
    of_pod = f"{_TIERS[pod.kubernetes_qos]}/pod{pod.uid or pod.key.replace('/', '_')}"
    return f"{of_pod}/{container}" if container else of_pod
