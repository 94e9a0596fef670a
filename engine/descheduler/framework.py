"""One descheduling cycle over a snapshot: profiles, their plugins, the evictor that they receive, and the result.

All Deschedule plugins of all profiles run before all Balance plugins; every candidate's outcome is recorded, so that a
cycle reports for each pod what would evict it or what stopped that. (Koordinator pkg/descheduler semantics.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.border import must_be_survived, text_of
from koordpolicy.engine.framework.descheduler import DecidesPerNode
from koordpolicy.engine.framework.handle import Client
from koordpolicy.engine.framework.points import Proof
from koordpolicy.engine.kubernetes.selectors import matches_labels

from .background import BackgroundEvictions
from .evictor import CycleEvictor, SharedEvictions
from .ledger import CycleLedger, LedgerEntry
from .limits import CycleLimits, EvictionLimiter
from .node_clearing import clears_of
from .profile import DeschedulerProfile, RunningPlugin, lacks_of
from .proof.prove import CycleProof, Proving
from .results import CycleRecord, CycleResult
from .workload_limits import PodOwners, WorkloadBudget

TOO_SMALL: Final = "the cluster size is 0 or 1 meaning eviction causes service disruption or degradation"
_NO_LIMITS: Final = CycleLimits()


@dataclass(frozen=True, slots=True)
class CyclePart:
    """The part of a cycle that one of several replicas runs, counting its evictions in a ledger with them."""

    ledger: CycleLedger
    owns: Callable[[str], bool] | None = None
    """The nodes of its share, by name, for Deschedule plugins that decide per node; None for all other plugins."""

    def of(self, profile: DeschedulerProfile) -> DeschedulerProfile:
        """Return a profile with the plugins that this part runs."""
        shares = self.owns is not None
        return replace(profile, deschedule=tuple(each for each in profile.deschedule if is_shared(each) is shares),
                       balance=() if shares else profile.balance)

    def rows(self, snapshot: Snapshot, rows: Rows) -> Rows:
        """Return the rows of the nodes that its plugins look at."""
        owns = self.owns
        if owns is None:
            return rows
        return np.array([row for row in map(int, rows) if owns(snapshot.names[row])], dtype=np.intp)


def is_shared(plugin: RunningPlugin) -> bool:
    """Return whether replicas may run a Deschedule plugin each on its share of the nodes."""
    return isinstance(plugin.instance, DecidesPerNode) and plugin.instance.decides_per_node


def run_cycle(
    profiles: Sequence[DeschedulerProfile],
    snapshot: Snapshot,
    *,
    limits: CycleLimits = _NO_LIMITS,
    dry_run: bool = True,
    node_selector: Mapping[str, Any] | None = None,
    generation: int = 0,
    client: Client | None = None,
    background: BackgroundEvictions | None = None,
    proving: Proving | None = None,
    part: CyclePart | None = None,
    interval: int = 0,
) -> CycleResult:
    """Run one cycle, or the part of one that is this replica's, over a snapshot, at the snapshot's time.

    Changes of plugins besides evictions are written by the `client`; without one they fail, except in a dry run.
    `background` remembers from cycle to cycle which pods other components were requested to remove.
    Without `proving` no eviction is proved. `interval` is the time between cycles in nanoseconds, 0 for a single one.

    A plugin that raises does not stop the others of its point; but then the cycle ends after its profile, so that no
    balancing follows an incomplete descheduling.
    """
    rows = ready_rows(snapshot, node_selector)
    if len(rows) < 2:
        return CycleResult(generation, dry_run, len(rows), error=TOO_SMALL,
                           memory=None if proving is None else proving.memory)
    own = rows
    if part is not None:
        profiles, own = [part.of(profile) for profile in profiles], part.rows(snapshot, rows)
    limiter, record = EvictionLimiter(limits), CycleRecord(dry_run=dry_run)
    background = background or BackgroundEvictions()
    workloads = WorkloadBudget(limits.workloads, PodOwners(snapshot))
    for pod in background.pods(snapshot):
        limiter.done(pod.node_name, pod.namespace)
        if not pod.object["metadata"].get("deletionTimestamp"):
            workloads.done(pod)  # they count those that terminate already
    proof = None if proving is None else CycleProof(snapshot, proving)
    # A dry run reserves nothing: each replica counts by itself.
    shared = None if part is None or dry_run else _shared(part.ledger, snapshot, limiter, workloads, record)
    error = ""
    for point in ("deschedule", "balance"):
        for profile in profiles:
            evictor = CycleEvictor(profile, snapshot, limiter, record, client, background=background,
                                   workloads=workloads, proof=proof, shared=shared, interval=interval)
            error = run_plugins(profile, point, snapshot, select_rows(snapshot, own, profile.node_selector), evictor)
            if error:
                break
        if error:
            break
    return CycleResult(
        generation, dry_run, len(rows), record.decisions, tuple(dict.fromkeys(record.failures)),
        tuple(record.notes.values()), error,
        tuple(dict.fromkeys(lack for profile in profiles for lack in lacks_of(profile, snapshot.cluster))),
        tuple(record.changes), None if proof is None else proof.remembered(),
        frozenset((profile.name, each.name) for profile in profiles for each in (*profile.deschedule, *profile.balance)
                  if each.proof is not Proof.OFF),
    )


def _shared(
    ledger: CycleLedger, snapshot: Snapshot, limiter: EvictionLimiter, workloads: WorkloadBudget, record: CycleRecord,
) -> SharedEvictions:
    """Return the evictions of all replicas, those before this part counted against the limits."""
    def count(entry: LedgerEntry) -> None:
        limiter.done(entry.node, entry.namespace)
        item = snapshot.objects("Pod").get(entry.pod)
        pod = None if item is None else PodInfo.of(item)
        record.note_elsewhere(entry.pod, pod)
        metadata = {} if item is None else item["metadata"]
        # The workloads count the pods that the snapshot shows as terminating.
        if pod is not None and metadata.get("uid") == entry.uid and not metadata.get("deletionTimestamp"):
            workloads.done(pod)

    ledger.begin(count)
    return SharedEvictions(ledger, count)


def run_plugins(profile: DeschedulerProfile, point: str, snapshot: Snapshot, rows: Rows, evictor: CycleEvictor) -> str:
    """Run a profile's plugins at `deschedule` or `balance`; return their errors as one text, empty for none."""
    errors: list[str] = []
    for each in profile.deschedule if point == "deschedule" else profile.balance:
        run = each.instance.deschedule if point == "deschedule" else each.instance.balance
        try:
            run(snapshot, rows, evictor.hand_to(each, clears_of(profile, each, point, rows)))
        except BaseException as error:
            must_be_survived(error)
            evictor.fail("", "", text_of(error) or type(error).__name__)
            errors.append(text_of(error) or type(error).__name__)
    return aggregate(errors)


def aggregate(errors: Iterable[str]) -> str:
    """Return several errors as one text: a single one as it is, several in brackets, each once (Kubernetes'
    aggregate).
    """
    unique = list(dict.fromkeys(errors))
    return unique[0] if len(unique) == 1 else f"[{', '.join(unique)}]" if unique else ""


def ready_rows(snapshot: Snapshot, selector: Mapping[str, Any] | None = None) -> Rows:
    """Return the rows of nodes that are ready by their conditions and match a selector, including cordoned ones."""
    ready = np.array([row for row in range(snapshot.size) if is_ready(snapshot.node(row))], dtype=np.intp)
    return select_rows(snapshot, ready, selector)


def is_ready(node: Mapping[str, Any]) -> bool:
    """Return whether no condition reports the node as not ready."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    return all(each.get("status") == "True" for each in conditions if each.get("type") == "Ready")


def select_rows(snapshot: Snapshot, rows: Rows, selector: Mapping[str, Any] | None) -> Rows:
    """Return the rows whose nodes match a label selector; all of them without one."""
    if selector is None:
        return rows
    labels = {row: snapshot.node(row)["metadata"].get("labels") or {} for row in rows.tolist()}
    return np.array([row for row, of_row in labels.items() if matches_labels(selector, of_row)], dtype=np.intp)
