"""Selection of the pods that a document's `match` accepts, before any of its expressions runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.documents import PodMatch
from koordpolicy.engine.kubernetes.metadata import labels_of
from koordpolicy.engine.kubernetes.vocabulary import NAMESPACE_NAME_LABEL

SYSTEM_NAMESPACE: Final = "kube-system"
SYSTEM_CLASSES: Final = frozenset(("system-cluster-critical", "system-node-critical"))


class KnownObjects(Protocol):
    """Finds objects: a snapshot of the cluster, or what a node agent knows."""

    def object(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """Return an object by kind and key, or None."""
        ...


def accepts_pod(match: PodMatch | None, pod: PodInfo, objects: KnownObjects) -> bool:
    """Return whether a document matches the pod. An unknown namespace has its name as its only label."""
    if match is None:
        return True
    if match.namespaces is not None and pod.namespace not in match.namespaces:
        return False
    if match.qos_classes is not None and pod.qos_class not in match.qos_classes:
        return False
    if match.priority_classes is not None and not (
        priority_class(pod) in match.priority_classes or pod.priority_band in match.priority_classes
    ):
        return False
    if match.label_selector is not None and not match.label_selector.accepts(labels_of(pod.object)):
        return False
    if match.namespace_selector is None:
        return True
    namespace = objects.object("Namespace", pod.namespace) or {}
    return match.namespace_selector.accepts({NAMESPACE_NAME_LABEL: pod.namespace, **labels_of(namespace)})


def exempt(match: PodMatch | None, pod: PodInfo) -> bool:
    """Return whether the pod belongs to the system and the document does not name it: then no check applies to it.

    A document names it by its namespace or its priority class, in `match.pods`.
    """
    if not _is_of_the_system(pod):
        return False
    if match is None:
        return True
    own_class = priority_class(pod)
    named = match.namespaces is not None and pod.namespace in match.namespaces
    return not (named or (match.priority_classes is not None and own_class in match.priority_classes))


@lru_cache(maxsize=64)
def _is_of_the_system(pod: PodInfo) -> bool:
    return pod.namespace == SYSTEM_NAMESPACE or priority_class(pod) in SYSTEM_CLASSES


def priority_class(pod: PodInfo) -> str:
    """Return the name of the pod's PriorityClass, or an empty string."""
    return str((pod.object.get("spec") or {}).get("priorityClassName") or "")
