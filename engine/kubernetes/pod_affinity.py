"""Pod affinity and anti-affinity as comparable terms, and the host ports of pods.

All functions read objects as the API server serves them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .selectors import Json, check_selector, matches_labels

NamespaceLabels = Callable[[str], Mapping[str, str]]
"""Returns the labels of a namespace."""

HOSTNAME: Final = "kubernetes.io/hostname"

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """One term: pods that `selector` matches, in some namespaces, and the node label whose values are the domains.

    `weight` is 0 for a required term. Equivalent terms are equal.
    """

    topology_key: str
    namespaces: frozenset[str]
    selector_text: str
    namespace_selector_text: str
    weight: int
    selector: Json | None = field(compare=False)
    namespace_selector: Json | None = field(compare=False)

    @property
    def reads_namespaces(self) -> bool:
        """True if the labels of namespaces are read."""
        return bool(self.namespace_selector)

    def takes(self, namespace: str, labels: Mapping[str, str], namespace_labels: NamespaceLabels) -> bool:
        """Return whether the term matches a pod of that namespace with those labels."""
        if namespace not in self.namespaces and (
            self.namespace_selector is None or not matches_labels(self.namespace_selector, namespace_labels(namespace))
        ):
            return False
        return matches_labels(self.selector, labels, absent=False)


@dataclass(frozen=True, slots=True, eq=False)
class AffinityTerms:
    """All terms of a pod. Equal only to itself: to compare pods, compare the terms."""

    required_affinity: tuple[AffinityTerm, ...] = ()
    required_anti_affinity: tuple[AffinityTerm, ...] = ()
    preferred_affinity: tuple[AffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[AffinityTerm, ...] = ()
    problem: str = ""
    """The fault of invalid terms, which are omitted."""

    @property
    def has_any(self) -> bool:
        """True if there are any terms."""
        return bool(self.required_affinity or self.required_anti_affinity or self.preferred_affinity
                    or self.preferred_anti_affinity)

    @staticmethod
    def of(affinity: Json, namespace: str, labels: Mapping[str, str]) -> AffinityTerms:
        """Read `podAffinity` and `podAntiAffinity` of a pod with that namespace and those labels.

        `matchLabelKeys` and `mismatchLabelKeys` are merged into the selectors, as the API server does.
        """
        try:
            near, apart = affinity.get("podAffinity") or {}, affinity.get("podAntiAffinity") or {}
            return AffinityTerms(
                tuple(_terms(near, _REQUIRED, namespace, labels)), tuple(_terms(apart, _REQUIRED, namespace, labels)),
                tuple(_terms(near, _PREFERRED, namespace, labels)), tuple(_terms(apart, _PREFERRED, namespace, labels)),
            )
        except ValueError as error:
            return AffinityTerms(problem=str(error))
        except (AttributeError, TypeError, KeyError):
            return AffinityTerms(problem="`spec.affinity` is malformed")


NO_TERMS: Final = AffinityTerms()


def _terms(holder: Json, which: str, namespace: str, labels: Mapping[str, str]) -> Iterator[AffinityTerm]:
    for each in holder.get(which) or ():
        if which == _REQUIRED:
            yield _term(each, 0, namespace, labels)
        else:
            yield _term(each["podAffinityTerm"], int(each["weight"]), namespace, labels)


def _term(term: Json, weight: int, namespace: str, labels: Mapping[str, str]) -> AffinityTerm:
    own: Json | None = term.get("namespaceSelector")
    named = frozenset(term.get("namespaces") or ())
    selector = merge_label_keys(term.get("labelSelector"), term.get("matchLabelKeys") or (), "In", labels)
    selector = merge_label_keys(selector, term.get("mismatchLabelKeys") or (), "NotIn", labels)
    check_selector(selector)
    check_selector(own)
    return AffinityTerm(
        str(term.get("topologyKey") or ""), named if named or own is not None else frozenset((namespace,)),
        _text(selector), _text(own), weight, selector, own,
    )


def merge_label_keys(
    selector: Json | None, keys: Sequence[str], operator: str, labels: Mapping[str, str],
) -> Json | None:
    """Return the selector extended by requirements of the pod's own values (`In`), or of other values (`NotIn`), for
    keys. Keys that the pod lacks, or that the selector already has in that form, are skipped.
    """
    if selector is None:
        return None
    expressions = list(selector.get("matchExpressions") or ())
    present = {each.get("key") for each in expressions if each.get("operator") == operator}
    added = [{"key": key, "operator": operator, "values": [labels[key]]}
             for key in keys if key in labels and key not in present]
    return {**selector, "matchExpressions": expressions + added} if added else selector


def _text(selector: Json | None) -> str:
    return "" if selector is None else json.dumps(selector, sort_keys=True)


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host port of a pod; the address 0.0.0.0 means all addresses."""

    address: str
    protocol: str
    port: int

    def conflicts(self, other: HostPort) -> bool:
        """Return whether the two ports cannot be on one node."""
        return self.port == other.port and self.protocol == other.protocol and (
            self.address == other.address or _ANY_ADDRESS in (self.address, other.address)
        )


def host_ports(pod: Json) -> frozenset[HostPort]:
    """Return the host ports of a pod's containers and of its restartable init containers."""
    spec = pod.get("spec") or {}
    found: list[HostPort] = []
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            ports: Any = container.get("ports")
            if not ports or (kind == "initContainers" and container.get("restartPolicy") != "Always"):
                continue
            found += (HostPort(port.get("hostIP") or _ANY_ADDRESS, port.get("protocol") or "TCP", port["hostPort"])
                      for port in ports if port.get("hostPort"))
    return frozenset(found)
