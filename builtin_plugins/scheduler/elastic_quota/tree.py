"""A tree of quotas: the requests, the usage and the runtime (the current limit) of each.

The sums of a quota's own pods are stored by name; everything else is computed from them and the specifications, so
that a changed specification costs the number of quotas, not of pods. (Koordinator's group_quota_manager.go.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo, ResourceList, mapping_at, resource_list

from .amounts import added, largest, masked, quantities, subtracted, together
from .fair_share import Share, redistribute, scale_minimums

ROOT: Final = "koordinator-root-quota"
SYSTEM: Final = "koordinator-system-quota"
DEFAULT: Final = "koordinator-default-quota"
BUILT_IN: Final = frozenset({ROOT, SYSTEM, DEFAULT})

DOMAIN: Final = "quota.scheduling.koordinator.sh/"
_PARENT: Final = DOMAIN + "parent"
_IS_PARENT: Final = DOMAIN + "is-parent"
_LENDS: Final = DOMAIN + "allow-lent-resource"
_WEIGHT: Final = DOMAIN + "shared-weight"
_NAMESPACES: Final = DOMAIN + "namespaces"
_TREE: Final = DOMAIN + "tree-id"
_IS_ROOT: Final = DOMAIN + "is-root"
_TOTAL: Final = DOMAIN + "total-resource"
_APART: Final = DOMAIN + "ignore-default-tree"


@dataclass(slots=True)
class Counted:
    """A pod, as counted in the sums."""

    pod: PodInfo
    quota: str
    tree: str
    request: ResourceList
    fixed: bool
    assigned: bool


@dataclass(frozen=True, slots=True)
class QuotaSpec:
    """The specification of an ElasticQuota object; amounts in canonical units."""

    name: str
    namespace: str = ""
    parent: str = ROOT
    is_parent: bool = False
    lends: bool = True
    minimum: ResourceList = field(default_factory=ResourceList)
    maximum: ResourceList = field(default_factory=ResourceList)
    weight: ResourceList = field(default_factory=ResourceList)
    namespaces: tuple[str, ...] = ()
    """Further namespaces whose pods use the quota."""
    tree: str = ""
    is_root: bool = False
    """True if it is the root of a separate tree."""
    total: ResourceList = field(default_factory=ResourceList)
    """The total resources of a root's tree."""
    apart: bool = False
    """True if a root's total is not deducted from the default tree."""

    @staticmethod
    def of(item: Mapping[str, Any]) -> QuotaSpec:
        """Read an ElasticQuota; malformed annotations are ignored.

        Raises:
            ValueError: a quantity is malformed; the message begins with its path.
        """
        metadata = mapping_at(item, "metadata")
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        spec = mapping_at(item, "spec", optional=True)
        maximum = resource_list(spec, "max", "spec")
        namespaces = _json(annotations.get(_NAMESPACES), [])
        return QuotaSpec(
            name=metadata["name"],
            namespace=metadata.get("namespace") or "",
            parent=labels.get(_PARENT) or ROOT,
            is_parent=labels.get(_IS_PARENT) == "true",
            lends=labels.get(_LENDS) != "false",
            minimum=resource_list(spec, "min", "spec"),
            maximum=maximum,
            weight=_amounts(annotations.get(_WEIGHT)) or maximum,
            namespaces=tuple(each for each in namespaces if isinstance(each, str)),
            tree=labels.get(_TREE) or "",
            is_root=labels.get(_IS_ROOT) == "true",
            total=_amounts(annotations.get(_TOTAL)) or ResourceList(),
            apart=labels.get(_APART) == "true",
        )


def _json(text: Any, default: Any) -> Any:
    if not isinstance(text, str) or not text:
        return default
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return default
    return found if isinstance(found, type(default)) else default


def _amounts(text: Any) -> ResourceList | None:
    try:
        return resource_list({"amounts": _json(text, {})}, "amounts", "") or None
    except ValueError:
        return None


@dataclass(slots=True)
class Sums:
    """The requests and usage of a quota's own pods, of all resources."""

    request: ResourceList = field(default_factory=ResourceList)
    used: ResourceList = field(default_factory=ResourceList)
    fixed_request: ResourceList = field(default_factory=ResourceList)
    """The requests of non-preemptible pods."""
    fixed_used: ResourceList = field(default_factory=ResourceList)


@dataclass(slots=True, eq=False)
class Quota:
    """One quota of a tree; amounts are masked to the names of its maximum."""

    spec: QuotaSpec
    own: Sums
    parent: Quota | None = None
    children: dict[str, Quota] = field(default_factory=dict)
    child_request: ResourceList = field(default_factory=ResourceList)
    """The requests of its own pods and its children (each capped at its maximum)."""
    request: ResourceList = field(default_factory=ResourceList)
    limited: ResourceList = field(default_factory=ResourceList)
    """The request, limited to the maximum."""
    used: ResourceList = field(default_factory=ResourceList)
    fixed_request: ResourceList = field(default_factory=ResourceList)
    fixed_used: ResourceList = field(default_factory=ResourceList)
    allocated: ResourceList = field(default_factory=ResourceList)
    guaranteed: ResourceList = field(default_factory=ResourceList)
    scaled_minimum: ResourceList = field(default_factory=ResourceList)
    runtime: ResourceList = field(default_factory=ResourceList)
    shared_for: ResourceList | None = None
    """The total that was last shared among the children; None if it is out of date."""

    @property
    def name(self) -> str:
        """The quota's name."""
        return self.spec.name


class QuotaTree:
    """The quotas of one tree.

    `guarantees` is the gate ElasticQuotaGuaranteeUsage: the usage of a quota is not shared again, and nothing is lent.
    """

    def __init__(
        self, *, scale_minimums: bool = True, guarantees: bool = False,
        default_maximum: ResourceList | None = None, system_maximum: ResourceList | None = None,
    ) -> None:
        self._scales = scale_minimums
        self._guarantees = guarantees
        self._built_in: tuple[QuotaSpec, ...] = (
            QuotaSpec(ROOT, is_parent=True), QuotaSpec(DEFAULT, maximum=default_maximum or ResourceList()),
            QuotaSpec(SYSTEM, maximum=system_maximum or ResourceList()),
        )
        self._sums: dict[str, Sums] = {}
        self._total = ResourceList()
        self._quotas: dict[str, Quota] = {}
        self.replace(())

    # Reading

    def __contains__(self, name: str) -> bool:
        return name in self._quotas

    def quota(self, name: str) -> Quota:
        """Return a quota, with everything but its runtime up to date; raises KeyError for an unknown name."""
        return self._quotas[name]

    def quotas(self) -> tuple[Quota, ...]:
        """Return all quotas, by name."""
        return tuple(self._quotas[name] for name in sorted(self._quotas))

    def path(self, name: str) -> Iterator[Quota]:
        """Yield a quota and those above it, the root excluded."""
        quota: Quota | None = self._quotas[name]
        while quota is not None and quota.name != ROOT:
            yield quota
            quota = quota.parent

    @property
    def total(self) -> ResourceList:
        """The resources to share: the total less the usage of the system and the default quota."""
        used = together((self._quotas[SYSTEM].used, self._quotas[DEFAULT].used))
        return subtracted(self._total, used) if used else self._total

    def runtime(self, name: str) -> ResourceList:
        """Return the runtime of a quota, in the resources of its maximum.

        That of the default and the system quota stays empty, as in Koordinator: they are not limited.
        """
        quota = self._quotas[name]
        if name == ROOT:
            return self.total
        if name in BUILT_IN:
            return quota.runtime
        total = self.total
        for each in reversed(tuple(self.path(name))):
            assert each.parent is not None
            self._share(each.parent, total)
            total = each.runtime
        return masked(quota.runtime, quota.spec.maximum)

    # Changes

    def replace(self, specs: Iterable[QuotaSpec]) -> None:
        """Replace the specifications; the sums of pods stay, including those of deleted quotas.

        A quota whose parent is unknown (or its own descendant) is attached to the root until it is known.
        """
        by_name = {spec.name: spec for spec in self._built_in} | {
            spec.name: spec for spec in specs if spec.name not in BUILT_IN
        }
        self._quotas = {name: Quota(spec, self._sums.setdefault(name, Sums())) for name, spec in by_name.items()}
        for name in sorted(self._quotas):
            if name == ROOT:
                continue
            parent = self._quotas.get(self._quotas[name].spec.parent)
            if parent is None or parent.name in (DEFAULT, SYSTEM) or self._is_below(parent, name):
                parent = self._quotas[ROOT]
            self._quotas[name].parent = parent
            parent.children[name] = self._quotas[name]
        self._compute(self._quotas[ROOT])

    def change_maximum(self, name: str, maximum: ResourceList) -> None:
        """Set the maximum of the default or the system quota."""
        self._built_in = tuple(
            QuotaSpec(spec.name, is_parent=spec.is_parent, maximum=maximum) if spec.name == name else spec
            for spec in self._built_in
        )

    def set_total(self, total: Mapping[str, int]) -> None:
        """Set the total resources of the tree."""
        self._total = ResourceList(total)

    def add_total(self, change: Mapping[str, int]) -> None:
        """Add a change to the total resources of the tree."""
        self._total = added(self._total, change)

    def ask(self, name: str, change: Mapping[str, int], *, fixed: bool = False) -> None:
        """Add to the requests of a quota's own pods; `fixed` for non-preemptible pods."""
        sums = self._sums.setdefault(name, Sums())
        sums.request = subtracted(added(sums.request, change), {}, least=0)
        if fixed:
            sums.fixed_request = subtracted(added(sums.fixed_request, change), {}, least=0)
        quota = self._quotas.get(name)
        if quota is None:
            return
        delta = masked(change, quota.spec.maximum)
        if fixed:
            for each in self.path(name):
                each.fixed_request = _grown(each.fixed_request, change, each.spec)
        for each in self.path(name):
            before = each.limited
            each.child_request = _grown(each.child_request, delta, each.spec)
            self._limit(each)
            delta = ResourceList({
                name: each.limited[name] - before[name] for name in each.limited if each.limited[name] != before[name]
            })
            if not delta:
                return
            assert each.parent is not None
            each.parent.shared_for = None
            delta = delta if each.parent.name == ROOT else masked(delta, each.parent.spec.maximum)

    def use(self, name: str, change: Mapping[str, int], *, fixed: bool = False) -> None:
        """Add to the usage of a quota's own pods; `fixed` for non-preemptible pods."""
        sums = self._sums.setdefault(name, Sums())
        sums.used = subtracted(added(sums.used, change), {}, least=0)
        if fixed:
            sums.fixed_used = subtracted(added(sums.fixed_used, change), {}, least=0)
        if name not in self._quotas:
            return
        for each in self.path(name):
            each.used = _grown(each.used, change, each.spec)
            if fixed:
                each.fixed_used = _grown(each.fixed_used, change, each.spec)
        if self._guarantees:
            for each in self.path(name):
                self._guarantee(each)

    # Computation of runtimes

    def _is_below(self, quota: Quota, name: str) -> bool:
        seen: set[str] = set()
        while quota.name not in seen:
            seen.add(quota.name)
            if quota.name == name:
                return True
            parent = self._quotas.get(quota.spec.parent)
            if parent is None or quota.name == ROOT:
                return False
            quota = parent
        return False

    def _compute(self, quota: Quota) -> None:
        for child in quota.children.values():
            self._compute(child)
        names = quota.spec.maximum
        children = [child for child in quota.children.values() if child.name not in BUILT_IN]
        quota.child_request = masked(together((quota.own.request, *(each.limited for each in children))), names)
        quota.used = masked(together((quota.own.used, *(each.used for each in children))), names)
        quota.fixed_request = masked(
            together((quota.own.fixed_request, *(each.fixed_request for each in children))), names)
        quota.fixed_used = masked(together((quota.own.fixed_used, *(each.fixed_used for each in children))), names)
        quota.scaled_minimum = quota.spec.minimum
        self._limit(quota)
        self._guarantee(quota)

    def _limit(self, quota: Quota) -> None:
        spec = quota.spec
        lends = spec.lends and not self._guarantees
        quota.request = (
            quota.child_request if lends else largest(quota.child_request, masked(spec.minimum, spec.maximum))
        )
        quota.limited = ResourceList({name: min(amount, spec.maximum[name]) for name, amount in quota.request.items()})

    def _guarantee(self, quota: Quota) -> None:
        if not self._guarantees:
            return
        children = (child.guaranteed for child in quota.children.values() if child.name not in BUILT_IN)
        quota.allocated = masked(together((quota.own.used, *children)), quota.spec.maximum)
        quota.guaranteed = largest(quota.allocated, quota.spec.minimum)
        if quota.parent is not None:
            quota.parent.shared_for = None

    def _share(self, parent: Quota, total: ResourceList) -> None:
        """Share `total` among the children of a quota, unless that was done already."""
        if parent.shared_for == total:
            return
        children = [child for name, child in sorted(parent.children.items()) if name not in BUILT_IN]
        if self._scales:
            scaled = scale_minimums(
                total, {child.name: child.spec.minimum for child in children},
                {child.name: True for child in children},
            )
            for child in children:
                child.scaled_minimum = scaled[child.name] or child.spec.minimum
        names = sorted({name for child in children for name in child.spec.maximum})
        for child in children:
            child.runtime = ResourceList()
        for name in names:
            runtime = redistribute(total[name], [
                Share(
                    child.name, child.limited[name], child.scaled_minimum[name], child.spec.weight[name],
                    child.guaranteed[name], child.spec.lends and not self._guarantees,
                )
                for child in children if name in child.spec.maximum
            ])
            for child in children:
                if child.name in runtime:
                    child.runtime[name] = runtime[child.name]
        parent.shared_for = ResourceList(total)


def _grown(amounts: ResourceList, change: Mapping[str, int], spec: QuotaSpec) -> ResourceList:
    return subtracted(added(amounts, masked(change, spec.maximum)), {}, least=0)


def summary(tree: QuotaTree, quota: Quota) -> dict[str, Any]:
    """Return a summary of a quota as plain data with quantities."""
    runtime = tree.runtime(quota.name)
    return {
        "name": quota.name, "parentName": "" if quota.parent is None else quota.parent.name,
        "isParent": quota.spec.is_parent, "allowLentResource": quota.spec.lends, "tree": quota.spec.tree,
        "max": quantities(quota.spec.maximum), "min": quantities(quota.spec.minimum),
        "autoScaleMin": quantities(quota.scaled_minimum), "sharedWeight": quantities(quota.spec.weight),
        "used": quantities(quota.used), "nonPreemptibleUsed": quantities(quota.fixed_used),
        "request": quantities(quota.request), "nonPreemptibleRequest": quantities(quota.fixed_request),
        "childRequest": quantities(quota.child_request), "selfRequest": quantities(quota.own.request),
        "selfUsed": quantities(quota.own.used), "allocated": quantities(quota.allocated),
        "guaranteed": quantities(quota.guaranteed),
        "runtime": quantities(quota.spec.maximum if quota.name in (DEFAULT, SYSTEM) else runtime),
    }
