"""Making room on a node: which pods would have to go, and on which node that hurts least.

Kubernetes' default preemption (pkg/scheduler/framework/preemption) over what-if views of the cluster: all pods that may
be taken are taken off a node, and then put back, the most important first, as long as the pod still fits. Plugins say
which pods may be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cluster.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import NodeChange, Snapshot
from koordpolicy.engine.kubernetes.selectors import matches_labels
from koordpolicy.engine.plugins import Nomination, Nominator, Refused
from koordpolicy.engine.points import Refusal

PREFIX: Final = "preemption: "


@dataclass(frozen=True, slots=True)
class CandidateLimits:
    """How many nodes are tried: a percentage of all, but at least an absolute number."""

    percentage: int = 10
    absolute: int = 100

    def of(self, nodes: int) -> int:
        """Return the number for so many nodes."""
        return min(nodes, max(nodes * self.percentage // 100, self.absolute))


@dataclass(frozen=True, slots=True)
class _Candidate:
    row: int
    victims: tuple[PodInfo, ...]
    violations: int

    def cost(self) -> tuple[int, int, int, int, tuple[int, ...]]:
        """Kubernetes' order: fewest violated budgets, lowest top priority, lowest sum, fewest, latest started."""
        top = max((victim.priority for victim in self.victims), default=-(2**31))
        # As upstream: shifted, so that many pods of a low priority weigh more than a few.
        total = sum(victim.priority + 2**31 for victim in self.victims)
        started = min((_started(victim) for victim in self.victims if victim.priority == top), default="")
        return self.violations, top, total, len(self.victims), tuple(-ord(letter) for letter in started)


def preempt(
    pod: PodInfo, snapshot: Snapshot, refused: Refused, may_take: Callable[[PodInfo], bool], nominator: Nominator,
    *, limits: CandidateLimits | None = None,
) -> Nomination | Refusal:
    """Return the node and the victims that hurt least, or why taking pods does not help.

    `may_take` says which pods of a node may be victims of this pod. Budgets (PodDisruptionBudget) are broken only
    where nothing else helps.
    """
    if why := ineligible(pod, snapshot, nominator):
        return Refusal("preemption", f"{PREFIX}{why}")
    rows = refused.resolvable()
    budgets = [item for _, item in sorted(snapshot.objects("PodDisruptionBudget").items())]
    most = (limits or CandidateLimits()).of(snapshot.size)
    best: _Candidate | None = None
    tried = 0
    for row in rows.tolist():
        victims = [each for each in snapshot.pods(row) if may_take(each)]
        if not victims:
            continue
        candidate = _select(snapshot, refused, row, victims, budgets)
        if candidate is None:
            continue
        if best is None or candidate.cost() < best.cost():
            best = candidate
        tried += 1
        if tried >= most:
            break
    if best is None:
        nodes = f"0/{snapshot.size} nodes are available"
        return Refusal("preemption", f"{PREFIX}{nodes}: no preemption victims found for incoming pod")
    return Nomination(snapshot.names[best.row], best.victims)


def ineligible(pod: PodInfo, snapshot: Snapshot, nominator: Nominator) -> str:
    """Return why a pod may not take others' places now; empty where it may.

    It may not where it says so, nor while pods that it took the place of are still leaving.
    """
    if (pod.object.get("spec") or {}).get("preemptionPolicy") == "Never":
        return "not eligible due to preemptionPolicy=Never."
    node = (pod.object.get("status") or {}).get("nominatedNodeName")
    row = snapshot.index.get(node) if node else None
    if row is not None and any(each.key == pod.key for each in nominator.nominated(str(node))):
        for each in snapshot.pods(row):
            if each.priority < pod.priority and each.object["metadata"].get("deletionTimestamp"):
                return "not eligible due to terminating pod on the nominated node."
    return ""


def _select(
    snapshot: Snapshot, refused: Refused, row: int, victims: list[PodInfo], budgets: list[Mapping[str, Any]],
) -> _Candidate | None:
    """Return the fewest victims of a node that suffice, or None where even all of them do not."""
    name = snapshot.names[row]
    here = np.array([row], dtype=np.intp)

    def fits(gone: Iterable[PodInfo]) -> bool:
        changed = snapshot.overlay({name: NodeChange(remove=[each.key for each in gone])})
        return bool(len(refused.passes(changed, here)))

    if not fits(victims):
        return None
    violating, others = _by_budget(sorted(victims, key=_importance), budgets)
    gone = {each.key: each for each in victims}
    violations = 0
    for group in (violating, others):
        for each in group:
            del gone[each.key]
            if not fits(gone.values()):
                gone[each.key] = each
                violations += group is violating
    return _Candidate(row, tuple(sorted(gone.values(), key=_importance)), violations)


def _importance(pod: PodInfo) -> tuple[int, str, str]:
    """Sort key: the most important first, by priority, then by how long it runs."""
    return -pod.priority, _started(pod), pod.key


def _started(pod: PodInfo) -> str:
    status = pod.object.get("status") or {}
    return str(status.get("startTime") or pod.object["metadata"].get("creationTimestamp") or "")


def _by_budget(
    pods: Iterable[PodInfo], budgets: list[Mapping[str, Any]],
) -> tuple[list[PodInfo], list[PodInfo]]:
    """Split pods into those whose eviction would break a budget, and the others, in their order."""
    allowed = [(budget.get("status") or {}).get("disruptionsAllowed") or 0 for budget in budgets]
    violating: list[PodInfo] = []
    others: list[PodInfo] = []
    for pod in pods:
        broken = False
        labels = pod.object["metadata"].get("labels") or {}
        for index, budget in enumerate(budgets):
            metadata, selector = budget["metadata"], (budget.get("spec") or {}).get("selector")
            disrupted = (budget.get("status") or {}).get("disruptedPods") or {}
            if metadata.get("namespace", "") != pod.namespace or not selector or pod.name in disrupted:
                continue
            if matches_labels(selector, labels):
                allowed[index] -= 1
                broken = broken or allowed[index] < 0
        (violating if broken else others).append(pod)
    return violating, others


