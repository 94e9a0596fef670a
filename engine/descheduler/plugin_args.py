"""Shared parts of the arguments of Kubernetes' descheduling plugins: decoding, namespaces, label selectors.

Arguments are decoded strictly against `schemas/v1alpha2/NAMEArgs.json`; null counts as absent. The words of faults that
are about values are those of Kubernetes' descheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.documents.validation import validate_plain
from koordpolicy.engine.framework.descheduler import Evictor
from koordpolicy.engine.kubernetes.label_syntax import selector_faults
from koordpolicy.engine.kubernetes.selectors import matches_labels

from .argument_faults import Fault, refuse
from .pod_columns import PodColumns, Positions
from .pods import labels_of


def decode(args: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return arguments without nulls, `apiVersion` and `kind`.

    Raises:
        ArgumentError: they are not valid against the schema of the kind.
    """
    given = {key: value for key, value in args.items() if value is not None}
    refuse(((), message.removeprefix("``: ")) for message in validate_plain(given, kind, "v1alpha2"))
    return {key: value for key, value in given.items() if key not in ("apiVersion", "kind")}


def check_lists(args: Mapping[str, Any], field: str = "namespaces") -> Iterator[Fault]:
    """Yield the fault of an argument of which both lists are set."""
    lists = args.get(field) or {}
    if lists.get("include") and lists.get("exclude"):
        what = "namespaces" if field.lower().endswith("namespaces") else field
        yield (field,), f"only one of Include/Exclude {what} can be set"


def check_label_selector(args: Mapping[str, Any], field: str = "labelSelector") -> Iterator[Fault]:
    """Yield the faults of a label selector: operators, and the syntax of keys and values."""
    found = next(selector_faults(args.get(field)), None)
    if found is not None:
        yield (field,), f"failed to get label selectors from strategy's params: {found}"


@dataclass(frozen=True, slots=True)
class PodSelection:
    """The pods that a plugin may evict, by namespace and labels."""

    included: frozenset[str] = frozenset()
    """Only these namespaces; all if it is empty."""
    excluded: frozenset[str] = frozenset()
    selector: Mapping[str, Any] | None = None

    @staticmethod
    def of(args: Mapping[str, Any]) -> PodSelection:
        """Return the selection of valid arguments, their fields `namespaces` and `labelSelector`."""
        namespaces = args.get("namespaces") or {}
        return PodSelection(
            frozenset(namespaces.get("include") or ()), frozenset(namespaces.get("exclude") or ()),
            args.get("labelSelector"),
        )

    def takes(self, pod: PodInfo) -> bool:
        """Return whether the pod is selected: the same for all pods of a template."""
        if (self.included and pod.namespace not in self.included) or pod.namespace in self.excluded:
            return False
        return self.selector is None or matches_labels(self.selector, labels_of(pod))

    def candidate(self, pod: PodInfo, evictor: Evictor) -> bool:
        """Return whether the pod is selected, no other plugin evicts it in this cycle, and no filter vetoes it."""
        return (
            self.takes(pod) and not evictor.is_leaving(pod)
            and evictor.filter(pod) is None and evictor.pre_eviction_filter(pod) is None
        )

    def candidates(
        self, columns: PodColumns, places: Positions, evictor: Evictor, *, now: bool = True,
    ) -> NDArray[np.bool_]:
        """Return for each of the pods at these places whether it is a candidate, as `candidate` does for one.

        Without `now`, pre-eviction filters are not called.

        Filters are called, in the order of the places, only for pods that may differ from others of their template.
        """
        codes = columns.codes[places]
        is_taken, passes = np.zeros((2, len(columns.templates)), np.bool_)
        for code in np.unique(codes).tolist():
            pod = columns.templates[code].pod
            is_taken[code] = self.takes(pod)
            passes[code] = is_taken[code] and evictor.passes_template(pod, now=False) and (
                not now or evictor.passes_template(pod, now=True))
        found: NDArray[np.bool_] = is_taken[codes]
        leaving = evictor.leaving_pods()
        if leaving:
            found &= ~columns.are_among(leaving)[places]
        single = np.flatnonzero(found & ~passes[codes])
        found[single] = ~np.array(evictor.refused(columns.listed(places[single]), now=now), np.bool_)
        return found
