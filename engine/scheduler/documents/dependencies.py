"""The dependencies of a document's results, as cache keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from numpy.typing import NDArray

from koordpolicy.engine.cel.check.checked_ast import Path
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.vector.encoding import key_of, value_at
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cel.vector.plan import plan_of
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.pod_variables import pending_pod_values
from koordpolicy.engine.cluster.snapshot import NodeFrame, Snapshot
from koordpolicy.engine.framework.points import CacheKey, Refusal

RowEvaluator: TypeAlias = Callable[[Snapshot, Rows], "NDArray[Any] | None"]
"""Computes the results of rows: one bool or int64 for each, or None; see `CacheKey.vectorized`."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The dependencies of one point's results: what they are computed from."""

    of_pod: tuple[Path, ...]
    """The paths of the pod that the programs read."""
    programs: tuple[Program, ...]
    always: frozenset[Path]
    """The paths of the node that are read for every pod."""
    evaluator_of: Callable[[NodeFrame], RowEvaluator | None]
    """Returns the row evaluator of all pods with the values at `of_pod` that a frame has; None if there is none."""
    stable_for_shape: bool
    """True if a pod's shape alone decides its cache key."""
    refusal: Refusal | None = None
    """The refusal that all refused rows share, without values, if the document has one rule with a fixed message."""
    cache_keys: dict[Hashable, CacheKey | None] = field(default_factory=dict)
    """The computed cache keys, by the pod's values at `of_pod`."""

    def cache_key(self, key: Hashable, frame: NodeFrame) -> CacheKey | None:
        """Return the cache key of pods with these values at `of_pod`; None if the results depend on the time too.

        The pod's values may decide an expression before it reads the age of a metric: its result does not depend on the
        time then.
        """
        paths = self.always.union(*(plan_of(program.checked).reads(frame) for program in self.programs))
        if any(path[0] == "metricAge" or path == ("nodeInfo",) for path in paths):
            return None
        return CacheKey(key, paths, vectorized=self.evaluator_of(frame), stable_for_shape=self.stable_for_shape,
                        refusal=self.refusal)


def no_evaluator(_: NodeFrame) -> None:
    """Return None: these results are not computed from columns."""
    return


@lru_cache(maxsize=256)
def key_at(pod: PodInfo, path: Path) -> Hashable:
    """Return the key of a value of the pod; cached, because many documents read the same values in turn."""
    return key_of(value_at(pending_pod_values(pod)[path[0]], path[1:]))
