"""The pods that arguments of Koordinator's plugins select: `podSelectors` and `evictableNamespaces`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.kubernetes.selectors import matches_labels

from .pods import labels_of

_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class TargetPods:
    """The pods that a plugin may evict, by labels and namespace."""

    selectors: tuple[Mapping[str, Any], ...] = ()
    """A pod must match one of them; all pods do if there is none."""
    has_open_selector: bool = False
    """True if an entry of `podSelectors` has no selector; only `has_labels_of_target` reads such entries."""
    included: frozenset[str] = frozenset()
    """Only these namespaces; all if it is empty."""
    excluded: frozenset[str] = frozenset()

    @staticmethod
    def of(internal: Mapping[str, Any]) -> TargetPods:
        """Return the target pods of valid arguments in internal form."""
        given = [each.get("selector") for each in internal.get("podSelectors") or ()]
        namespaces = internal.get("evictableNamespaces") or {}
        return TargetPods(
            tuple(each for each in given if each is not None), None in given,
            frozenset(namespaces.get("include") or ()), frozenset(namespaces.get("exclude") or ()),
        )

    def selects(self, pod: PodInfo) -> bool:
        """Return whether a selector matches the pod, or there is none; entries without a selector are ignored."""
        if not self.selectors:
            return True
        labels = labels_of(pod)
        return any(_matches(each, labels) for each in self.selectors)

    def has_labels_of_target(self, pod: PodInfo) -> bool:
        """Return whether the pod is a target by its labels, evictable or not; an entry without a selector takes all."""
        return self.has_open_selector or self.selects(pod)

    def has_namespace(self, pod: PodInfo) -> bool:
        """Return whether the pod's namespace is selected."""
        return (not self.included or pod.namespace in self.included) and pod.namespace not in self.excluded

    def candidate(self, pod: PodInfo, evictor: Evictor) -> bool:
        """Return whether the pod is selected and no filter of the profile vetoes its eviction."""
        return self.has_namespace(pod) and self.selects(pod) and evictor.filter(pod) is None


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if selector.get("matchExpressions"):
        return matches_labels(selector, labels)
    # One comparison in C: a cycle asks about every pod of the cluster.
    return (selector.get("matchLabels") or _NONE).items() <= labels.items()
