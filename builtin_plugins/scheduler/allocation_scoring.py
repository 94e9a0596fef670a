"""Scores by how much of some resources is allocated: the strategies that several plugins take as an argument.

(Koordinator's and Kubernetes' LeastAllocated and MostAllocated.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.points import HIGHEST_SCORE

from .strict_args import Read, integer, listed, nested, text

LEAST_ALLOCATED: Final = "LeastAllocated"
MOST_ALLOCATED: Final = "MostAllocated"

strategy: Final[Read] = nested({"type": text, "resources": listed(nested({"name": text, "weight": integer}))})
"""Reads `{type, resources[{name, weight}]}`."""

_NATIVE: Final = ("cpu", "memory", "ephemeral-storage")
_Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AllocationScorer:
    """A strategy with the weights of the resources that it looks at; a score is within 0..100."""

    kind: str
    weights: Mapping[str, int]

    @staticmethod
    def of(given: Mapping[str, Any], kind: str = "") -> AllocationScorer:
        """Return the scorer of a strategy argument; `kind` names another strategy for its resources."""
        resources = given.get("resources") or ()
        weights = {each.get("name", ""): each.get("weight", 0) for each in resources}
        return AllocationScorer(kind or given.get("type", ""), weights)

    def share(self, requested: int, capacity: int) -> int:
        """Return the score of one resource; a capacity of 0 scores 0."""
        if capacity == 0:
            return 0
        if self.kind == MOST_ALLOCATED:
            return min(requested, capacity) * HIGHEST_SCORE // capacity
        return 0 if requested > capacity else (capacity - requested) * HIGHEST_SCORE // capacity

    def score(self, requested: Mapping[str, int], capacity: Mapping[str, int], asked: Mapping[str, int]) -> int:
        """Return the weighted mean over the resources that there are, `asked` added to what is requested.

        Extended resources that nobody asks for do not count.
        """
        total = weights = 0
        for name, weight in self.weights.items():
            size = capacity.get(name, 0)
            if size and (name in _NATIVE or asked.get(name, 0)):
                total += self.share(requested.get(name, 0) + asked.get(name, 0), size) * weight
                weights += weight
        return total // weights if weights else 0

    def score_as_is(self, requested: Mapping[str, int], capacity: Mapping[str, int]) -> int:
        """Return the weighted mean over the resources that there are."""
        total = weights = 0
        for name, weight in self.weights.items():
            size = capacity.get(name, 0)
            if size:
                total += self.share(requested.get(name, 0), size) * weight
                weights += weight
        return total // weights if weights else 0

    def scores(
        self, requested: Mapping[str, _Integers], capacity: Mapping[str, _Integers], asked: Mapping[str, _Integers],
    ) -> _Integers | None:
        """Return `score` of many at once, resource by resource in columns; None where no resource counts at all."""
        total: _Integers | None = None
        weights: _Integers | None = None
        for name, weight in self.weights.items():
            if name not in asked:
                continue
            size, wanted = capacity[name], requested[name] + asked[name]
            if self.kind == MOST_ALLOCATED:
                share = np.minimum(wanted, size) * HIGHEST_SCORE // np.maximum(size, 1)
            else:
                share = np.where(wanted > size, 0, (size - wanted) * HIGHEST_SCORE // np.maximum(size, 1))
            counted = (size != 0) * weight
            total = share * counted if total is None else total + share * counted
            weights = counted if weights is None else weights + counted
        if total is None or weights is None:
            return None
        return total // np.maximum(weights, 1)

    def counts(self, name: str, asked: Mapping[str, int]) -> bool:
        """Return whether a resource plays a part for a pod that asks for these amounts."""
        return name in _NATIVE or bool(asked.get(name, 0))


def faults_of(given: Any, path: str) -> Iterator[str]:
    """Yield what is wrong with a strategy argument, each with the field's path."""
    if given is None:
        yield f"`{path}` is missing"
        return
    kind = given.get("type", "")
    if kind not in (LEAST_ALLOCATED, MOST_ALLOCATED):
        yield f"`{path}.type` is `{kind}`: write `{LEAST_ALLOCATED}` or `{MOST_ALLOCATED}`"
    for index, each in enumerate(given.get("resources") or ()):
        weight = each.get("weight", 0)
        if not each.get("name"):
            yield f"`{path}.resources[{index}].name` is missing"
        if not 1 <= weight <= HIGHEST_SCORE:
            yield f"`{path}.resources[{index}].weight` is {weight}: it must lie within 1 and {HIGHEST_SCORE}"
