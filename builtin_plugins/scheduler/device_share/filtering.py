"""DeviceShare's filter: nodes whose devices do not suffice, or that do not support sharing them."""

from __future__ import annotations

from typing import Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.derived import Derived
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import Answer, Code, Refusal
from koordpolicy.engine.kubernetes.vocabulary import GPU_MODEL_LABEL, GPU_VENDOR_LABEL
from koordpolicy.engine.scheduler.extensions.topology import affinities_of
from koordpolicy.plugin import CycleState

from ..allocation.annotations import labels_of
from ..allocation.row_refusals import RowRefusals
from ..allocation.trials import derived_outcomes, refuse_one_by_one
from .adapters import ISOLATION_LABEL
from .args import DeviceShareArgs
from .cache import OUTCOME_PATHS, DeviceCache, label_paths
from .candidates import Candidates

_NO_ISOLATION: Final = Refusal("isolation", "GPUIsolationProviderHAMICore not found on the node", Code.ERROR)
_ISOLATION_PATHS: Final = label_paths(ISOLATION_LABEL)
_MODEL_PATHS: Final = label_paths(GPU_VENDOR_LABEL, GPU_MODEL_LABEL)


class DeviceFilter:
    """The filter, with cached results for pods of the same kind."""

    def __init__(self, args: DeviceShareArgs, cache: DeviceCache, candidates: Candidates) -> None:
        self._args = args
        self._cache = cache
        self._candidates = candidates
        self._outcomes = derived_outcomes(OUTCOME_PATHS)
        self._by_labels = Derived(_ISOLATION_PATHS | _MODEL_PATHS, np.bool_, distinct=True)

    def filter(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Answer:
        """Refuse nodes whose devices do not suffice; nodes without a Device object pass."""
        refusals = RowRefusals(snapshot.size, rows)
        pod_devices = self._candidates.pod_devices(state, pod, snapshot)
        if pod_devices is None:
            return refusals.answer()
        if pod_devices.request.shared:
            self._refuse_unsharable(refusals, pod, snapshot)
        tried = self._cache.nodes_with_devices(snapshot)
        for row in affinities_of(state).rows(snapshot):
            tried[row] = False  # the topology manager has already tried to allocate

        def attempt(row: int) -> Refusal | None:
            candidate = self._candidates.of(state, pod, snapshot, row)
            return None if candidate is None else candidate.check(self._args.scorer)

        trials = self._candidates.trials(self._outcomes, state, snapshot, pod_devices)
        refuse_one_by_one(refusals, snapshot, tried, attempt, trials)
        return refusals.answer()

    def _refuse_unsharable(self, refusals: RowRefusals, pod: PodInfo, snapshot: Snapshot) -> None:
        """Refuse nodes without the isolation provider that the pod requires, and GPU models that cannot be shared."""
        provider = labels_of(pod.object).get(ISOLATION_LABEL)
        if provider:
            refusals.refuse(self._by_labels.of(
                snapshot, ("isolation", provider),
                lambda view, row: labels_of(view.node(row)).get(ISOLATION_LABEL) != provider,
                paths=_ISOLATION_PATHS,
            ), _NO_ISOLATION)
        for vendor, model in sorted(self._args.unsharable):
            def is_one(view: Snapshot, row: int, vendor: str = vendor, model: str = model) -> bool:
                labels = labels_of(view.node(row))
                return (labels.get(GPU_VENDOR_LABEL, ""), labels.get(GPU_MODEL_LABEL, "")) == (vendor, model)

            message = f'model "{model}" of vendor "{vendor}" does not support GPU Share'
            refusals.refuse(self._by_labels.of(
                snapshot, ("unsharable", vendor, model), is_one, paths=_MODEL_PATHS,
            ), Refusal("unsharable", message, Code.UNRESOLVABLE))
