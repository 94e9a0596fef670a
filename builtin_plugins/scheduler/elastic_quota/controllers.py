"""The controllers of ElasticQuota: they write the status of quotas, and evict pods of quotas above their runtime."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import ResourceList
from koordpolicy.engine.scheduler.extensions.status_writes import StatusWrites
from koordpolicy.plugin import Handle

from .amounts import added, exceeded, masked, quantities, subtracted
from .tree import DOMAIN, Counted, Quota, QuotaSpec, QuotaTree

_STATUS_PERIOD: Final = 1_000_000_000
_USED: Final = "used"


class QuotaStatus:
    """Writes `status.used` and the annotations of ElasticQuota objects (Koordinator's quota status controller)."""

    name = "ElasticQuotaStatus"
    period = _STATUS_PERIOD
    """Nanoseconds between two runs."""

    def __init__(self, handle: Handle, trees: Mapping[str, QuotaTree], specs: Mapping[str, QuotaSpec]) -> None:
        self._handle = handle
        self._trees = trees
        self._specs = specs
        self._writes = StatusWrites(handle)
        self._right: dict[str, tuple[Mapping[str, Any], Mapping[str, ResourceList]]] = {}
        """The objects that say these amounts, by key: neither is written out again while both stay."""

    def run(self, now: int) -> None:
        """Write changed statuses; a resource that is missing there and 0 here is not a change."""
        snapshot = self._handle.snapshot()
        before, self._right = self._right, {}
        for key in sorted(self._specs):
            item = snapshot.object("ElasticQuota", key)
            tree = next((tree for tree in self._trees.values() if self._specs[key].name in tree), None)
            if item is None or tree is None:
                continue
            amounts = status_amounts(tree.quota(self._specs[key].name), tree)
            known = before.get(key)
            if known is None or known[0] is not item or known[1] != amounts:
                modified = with_status(item, amounts)
                if modified is not item:
                    self._writes.patch(item, modified)
                    continue
            self._right[key] = item, amounts


def status_amounts(quota: Quota, tree: QuotaTree) -> dict[str, ResourceList]:
    """Return the amounts that the object of a quota says, `used` and those of annotations."""
    return {
        _USED: quota.used, "runtime": tree.runtime(quota.name), "request": quota.request,
        "child-request": quota.child_request, "guaranteed": quota.guaranteed, "allocated": quota.allocated,
        "non-preemptible-request": quota.fixed_request, "non-preemptible-used": quota.fixed_used,
    }


def with_status(item: Mapping[str, Any], of_quota: Mapping[str, ResourceList]) -> Mapping[str, Any]:
    """Return the object with these amounts (see `status_amounts`); the object itself if it says them."""
    annotations = dict(item["metadata"].get("annotations") or {})
    before = dict(annotations)
    for name, amounts in of_quota.items():
        if name == _USED:
            continue
        if not _says(annotations.get(DOMAIN + name), amounts):
            annotations[DOMAIN + name] = json.dumps(quantities(amounts), separators=(",", ":"), sort_keys=True)
    status = dict(item.get("status") or {})
    same = _as_written(status.get("used") or {}) == _as_written(quantities(of_quota[_USED]))
    if same and annotations == before:
        return item
    if not same:
        status["used"] = quantities(of_quota[_USED])
    return {**item, "metadata": {**item["metadata"], "annotations": annotations}, "status": status}


def _says(text: Any, amounts: ResourceList) -> bool:
    try:
        recorded = json.loads(text) if isinstance(text, str) else {}
    except ValueError:
        return False
    return isinstance(recorded, dict) and _as_written(recorded) == _as_written(quantities(amounts))


def _as_written(amounts: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items() if str(amount) != "0"}


class RevokeOverused:
    """Evicts pods of quotas that use more than their runtime for too long (Koordinator's overuse revoke controller)."""

    name = "ElasticQuotaRevoke"

    def __init__(
        self, handle: Handle, trees: Mapping[str, QuotaTree], pods: Mapping[str, Counted], delay: int, period: int,
    ) -> None:
        self._handle = handle
        self._trees = trees
        self._pods = pods
        self._delay = delay
        self.period = period
        """Nanoseconds between two runs."""
        self._within: dict[tuple[str, str], int] = {}

    def run(self, now: int) -> None:
        """Evict pods of quotas above their runtime; a quota that is within its runtime again starts over."""
        known: dict[tuple[str, str], int] = {}
        for tree_id, tree in sorted(self._trees.items()):
            for quota in tree.quotas():
                key = (tree_id, quota.name)
                runtime = tree.runtime(quota.name)
                known[key] = self._within.get(key, now) if exceeded(quota.used, runtime) else now
                if now - known[key] > self._delay:
                    known[key] = now
                    self._revoke(tree_id, quota, runtime)
        self._within = known

    def _revoke(self, tree_id: str, quota: Quota, runtime: ResourceList) -> None:
        for counted in self.victims(tree_id, quota, runtime):
            try:
                self._handle.client.evict(counted.pod, f"quota `{quota.name}` uses more than its runtime")
            except OSError as error:
                self._handle.log.warning("pod `%s` was not evicted: %s", counted.pod.key, error)

    def victims(self, tree_id: str, quota: Quota, runtime: ResourceList) -> list[Counted]:
        """Return the fewest pods whose eviction brings a quota back to its runtime, lowest priority first."""
        candidates = sorted(
            (each for each in self._pods.values()
             if each.assigned and each.tree == tree_id and each.quota == quota.name and not each.fixed),
            key=lambda each: (each.pod.priority, each.pod.key),
        )
        used, chosen = quota.used, []
        for counted in candidates:
            if not exceeded(used, runtime):
                break
            used = subtracted(used, masked(counted.request, quota.spec.maximum), least=0)
            chosen.append(counted)
        for counted in reversed(tuple(chosen)):
            with_it = added(used, masked(counted.request, quota.spec.maximum))
            if not exceeded(with_it, runtime):
                used = with_it
                chosen.remove(counted)
        return chosen
