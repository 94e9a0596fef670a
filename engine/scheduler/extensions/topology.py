"""The NUMA topology manager: merges the topology hints of plugins into the NUMA nodes of a pod.

Every plugin with topology hints returns per resource the sets of NUMA nodes that suffice; one set for all of them is
chosen by the policy of node or pod, and every one of these plugins then tries to allocate from it. (Koordinator
frameworkext/topologymanager semantics.)
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final, Protocol, runtime_checkable

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cluster.objects.node_rows import NodeRow
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Refusal
from koordpolicy.engine.framework.scheduler import CycleState, TopologyHint, TopologyHints

NO_POLICY: Final = ""
BEST_EFFORT: Final = "BestEffort"
RESTRICTED: Final = "Restricted"
SINGLE_NUMA_NODE: Final = "SingleNUMANode"
POLICIES: Final = (BEST_EFFORT, RESTRICTED, SINGLE_NUMA_NODE)
"""The policies; any other text means no policy."""

EXCLUSIVE_REQUIRED: Final = "Required"

_MOST_COMBINATIONS: Final = 4_096
"""The number of combinations above which equal hints are merged before hints are combined."""


class NumaState(enum.Enum):
    """The use of a NUMA node's cpus: idle, by pods on this NUMA node alone, or by a pod that spans several."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class TopologyDemand:
    """The demand on the manager for one node; NUMA nodes are numbers, states default to idle."""

    numa_nodes: Sequence[int]
    policy: str
    exclusive: str = ""
    states: Mapping[int, NumaState] = field(default_factory=dict)


@runtime_checkable
class KeepableHints(Protocol):
    """Topology hints that are equal for all pods of a kind, until the node changes at some paths."""

    def topology_kind(
        self, state: CycleState, pod: PodInfo, snapshot: Snapshot,
    ) -> tuple[Hashable, frozenset[Path]] | None:
        """Return the pod's kind and these paths; None if the hints depend on anything else."""
        ...


class Affinities:
    """The affinities that were chosen for one pod, each for one view of a node; a key of the cycle state."""

    __slots__ = ("_chosen", "_known", "_version")

    def __init__(self) -> None:
        self._chosen: dict[str, tuple[TopologyHint, NodeRow, int]] = {}
        self._known: Mapping[int, TopologyHint] = {}
        self._version = -1

    def clone(self) -> Affinities:
        """Return an independent copy."""
        twin = Affinities()
        twin._chosen, twin._known, twin._version = dict(self._chosen), self._known, self._version
        return twin

    def of(self, snapshot: Snapshot, row: int) -> TopologyHint | None:
        """Return the affinity for the node in this snapshot, or None."""
        found = self._chosen.get(snapshot.names[row])
        if found is not None and found[1] is snapshot.row(row) and found[2] == snapshot.version:
            return found[0]
        if self._version != snapshot.version or row in snapshot.overridden:
            return None
        return self._known.get(row)

    def rows(self, snapshot: Snapshot) -> list[int]:
        """Return the rows that have an affinity in this snapshot."""
        rows = {snapshot.index[name] for name in self._chosen if name in snapshot.index}
        if self._version == snapshot.version:
            rows.update(self._known)
        return [row for row in sorted(rows) if self.of(snapshot, row) is not None]

    def note(self, snapshot: Snapshot, row: int, affinity: TopologyHint) -> None:
        """Store the affinity for the node in this snapshot."""
        self._chosen[snapshot.names[row]] = (affinity, snapshot.row(row), snapshot.version)

    def note_known(self, snapshot: Snapshot, known: Mapping[int, TopologyHint]) -> None:
        """Store cached affinities of the pod's kind, by row; they are valid until the cluster changes."""
        self._known, self._version = known, snapshot.version


def affinities_of(state: CycleState) -> Affinities:
    """Return the affinities that were chosen for the pod."""
    found = state.get(Affinities)
    if not isinstance(found, Affinities):
        found = state[Affinities] = Affinities()
    return found


def affinity_of(state: CycleState, snapshot: Snapshot, row: int) -> TopologyHint | None:
    """Return the affinity that was chosen for the node in this snapshot, or None."""
    return affinities_of(state).of(snapshot, row)


def admit(
    state: CycleState, pod: PodInfo, snapshot: Snapshot, row: int, *, providers: Sequence[TopologyHints],
    demand: TopologyDemand,
) -> Refusal | None:
    """Choose an affinity for the pod on the node and store it; return why there is none.

    An affinity for the same row of the snapshot is reused.
    """
    affinity = affinity_of(state, snapshot, row)
    if affinity is None:
        hints: list[Mapping[str, Sequence[TopologyHint] | None]] = []
        reasons: list[str] = []
        for provider in providers:
            found = provider.topology_hints(state, pod, snapshot, row)
            if isinstance(found, Refusal):
                reasons.append(found.message)
            else:
                hints.append(found)
        if reasons:
            return Refusal("topology", ", ".join(reasons))
        affinity, reasons = merge(hints, demand)
        if reasons:
            return Refusal("topology", ", ".join(reasons))
    for provider in providers:
        refusal = provider.allocate_by_topology(state, pod, snapshot, row, affinity)
        if refusal is not None:
            return refusal
    affinities_of(state).note(snapshot, row, affinity)
    return None


def merge(
    hints: Iterable[Mapping[str, Sequence[TopologyHint] | None]], demand: TopologyDemand,
) -> tuple[TopologyHint, list[str]]:
    """Return the best affinity under the policy, and why it is not admitted (empty if it is)."""
    choices, unsatisfied, summary = _choices(hints)
    everything = mask_of(demand.numa_nodes)
    if demand.policy == SINGLE_NUMA_NODE:
        if unsatisfied:
            return TopologyHint(None, False), unsatisfied
        single = [[each for each in choice if _is_single(each.hint)] for choice in choices]
        best = _best(single, everything, demand).hint
        if best.mask == everything:
            best = TopologyHint(None, best.preferred)
        return best, [] if best.preferred else [_unaligned(summary, ",")]
    if demand.policy == RESTRICTED:
        if unsatisfied:
            return TopologyHint(everything, False), unsatisfied
        best = _best(choices, everything, demand).hint
        return best, [] if best.preferred else [_unaligned(summary, " & ")]
    found = _best(choices, everything, demand)
    return (found.hint if found.satisfied else TopologyHint(everything, False)), []


def mask_of(numa_nodes: Iterable[int]) -> int:
    """Return the bit mask of these NUMA nodes."""
    mask = 0
    for node in numa_nodes:
        mask |= 1 << node
    return mask


def nodes_of(mask: int) -> list[int]:
    """Return the NUMA nodes of a bit mask, ascending."""
    return [node for node in range(mask.bit_length()) if mask >> node & 1]


def masks(numa_nodes: Sequence[int]) -> Iterator[int]:
    """Yield all non-empty sets of NUMA nodes: by size, then in ascending order of the nodes."""
    for size in range(1, len(numa_nodes) + 1):
        for chosen in combinations(numa_nodes, size):
            yield mask_of(chosen)


@dataclass(frozen=True, slots=True)
class _MergedHint:
    """A hint, or none (`satisfied` is false)."""

    hint: TopologyHint
    satisfied: bool = True


@dataclass(frozen=True, slots=True)
class _Partial:
    """One hint each of the first resources, merged.

    `first` is the first mask, -1 before there is one; `score` sums those whose mask is the merged one.
    """

    mask: int
    first: int = -1
    widest: int = 0
    preferred: bool = True
    satisfied: bool = True
    score: int = 0

    def with_(self, choice: _MergedHint) -> _Partial:
        hint = choice.hint
        preferred, satisfied = self.preferred and hint.preferred, self.satisfied and choice.satisfied
        if hint.mask is None:
            return replace(self, preferred=preferred, satisfied=satisfied)
        mask = self.mask & hint.mask
        # Earlier masks are supersets of their merged mask, so none is narrower.
        score = self.score if mask == self.mask else 0
        return _Partial(
            mask, hint.mask if self.first < 0 else self.first, max(self.widest, hint.mask.bit_count()),
            preferred and self.first in (-1, hint.mask), satisfied, score + (hint.score if mask == hint.mask else 0),
        )


def _best(choices: Sequence[Sequence[_MergedHint]], everything: int, demand: TopologyDemand) -> _MergedHint:
    """Return the best of all combinations of one hint per resource; it is satisfied if it suits all of them."""
    partials = [_Partial(everything)]
    for choice in choices:
        partials = [partial.with_(each) for partial in partials for each in choice]
        if len(partials) > _MOST_COMBINATIONS:
            # In the order of enumeration, which decides among equally good hints.
            partials = list(dict.fromkeys(partials))
    best = _MergedHint(TopologyHint(everything, False))
    for partial in partials:
        if not partial.mask:
            continue
        satisfied = partial.satisfied and (partial.first < 0 or partial.widest == partial.mask.bit_count())
        preferred = partial.preferred and not _violates(partial.mask, demand)
        found = _MergedHint(TopologyHint(partial.mask, preferred, partial.score), satisfied)
        if _is_better(found.hint, best.hint):
            best = found
    return best


def _is_better(hint: TopologyHint, best: TopologyHint) -> bool:
    if hint.preferred != best.preferred:
        return hint.preferred
    mask, other = hint.mask or 0, best.mask or 0
    if mask.bit_count() != other.bit_count():
        return mask.bit_count() < other.bit_count()
    return mask < other or hint.score > best.score


def _violates(mask: int, demand: TopologyDemand) -> bool:
    """Return whether a pod that requires exclusive NUMA nodes must not share these."""
    if demand.exclusive != EXCLUSIVE_REQUIRED:
        return False
    unwanted = NumaState.SINGLE if mask.bit_count() > 1 else NumaState.SHARED
    return any(demand.states.get(node, NumaState.IDLE) is unwanted for node in nodes_of(mask))


def _choices(
    hints: Iterable[Mapping[str, Sequence[TopologyHint] | None]],
) -> tuple[list[list[_MergedHint]], list[str], list[str]]:
    """Return the hints to combine, the reasons of resources that no NUMA node satisfies, and a summary of the rest."""
    choices: list[list[_MergedHint]] = []
    unsatisfied: list[str] = []
    summary: list[str] = []
    neutral = [_MergedHint(TopologyHint(None, True))]
    for of_provider in hints:
        if not of_provider:
            choices.append(neutral)
        for resource, found in of_provider.items():
            if found is None:
                choices.append(neutral)
            elif not found:
                choices.append([_MergedHint(TopologyHint(None, False), satisfied=False)])
                unsatisfied.append(f"Unsatisfied NUMA {resource}")
            else:
                choices.append([_MergedHint(hint) for hint in found])
                summary.append(_summary(resource, found))
    return choices, unsatisfied, sorted(summary)


def _is_single(hint: TopologyHint) -> bool:
    return hint.preferred and (hint.mask is None or hint.mask.bit_count() == 1)


def _summary(resource: str, hints: Sequence[TopologyHint]) -> str:
    preferred = " ".join(_text(hint.mask) for hint in hints if hint.preferred)
    return f"{resource} prefer [{preferred}] among [{' '.join(_text(hint.mask) for hint in hints)}]"


def _unaligned(summary: Sequence[str], joiner: str) -> str:
    return f"Unaligned NUMA Hint cause {joiner.join(summary)}"


def _text(mask: int | None) -> str:
    """Return a mask as Koordinator prints it: binary, at least two digits, and pairs of digits from 5 on."""
    if mask is None:
        return "<nil>"
    width = next((shift + 2 for shift in range(62, 0, -2) if mask > 1 << shift), 2)
    return f"{mask:0{width}b}"
