"""`PodFacts`: facts of the pods on a node that strategies need in every round, computed once per version of a pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from koordpolicy.engine.cluster.objects.pods import PodInfo

T = TypeVar("T")


class PodFacts(Generic[T]):
    """One fact of each pod. A pod that changes is another `PodInfo`, so that its fact is computed again.

    The facts of the pods of the last call are cached, and of no others. It must be used by one thread at a time.
    """

    def __init__(self, compute: Callable[[PodInfo], T]) -> None:
        """`compute` depends on the pod alone; what it raises is raised in each call."""
        self._compute = compute
        self._pods: tuple[PodInfo, ...] = ()
        self._facts: tuple[T, ...] = ()

    def of(self, pods: Iterable[PodInfo]) -> tuple[T, ...]:
        """Return the facts in the order of the pods."""
        pods = tuple(pods)
        if pods is not self._pods and pods != self._pods:  # pods are compared by identity
            known = dict(zip(self._pods, self._facts, strict=True))
            compute = self._compute
            self._facts = tuple(known[pod] if pod in known else compute(pod) for pod in pods)
            self._pods = pods
        return self._facts
