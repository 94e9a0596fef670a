"""Assumed placements that no listing shows yet: estimated from the extender's responses, known where it binds.

kube-scheduler does not report where it places a pod. It adds its own scores to the response, so the best node of the
response is only likely. Without an assumption all pods until the next listing would be decided on the same cluster,
and go to the emptiest node. An assumption is dropped when the pod is sent again (it was not bound), when a listing
shows that the pod is on a node, pending or deleted, and when it expires. A pod counts once: the assumed pod has its
key, and the pod of a listing replaces it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.metadata import uid_of

ASSUMED_SECONDS: Final = 60.0
"""The time for which a placement without a listing is assumed."""
BINDING_SECONDS: Final = 10.0
"""The maximum time of a binding: a pod that is pending in a listing that began later was not placed."""
MOST_SENT: Final = 1024
"""The number of pods that are stored between their decision and their binding here."""
MOST_ASSUMED: Final = 4096
"""The maximum number of assumed placements; the oldest are dropped."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""The maximum memory of stored pods, and also that of assumed pods; the oldest are dropped.

An ordinary pod takes about 10 kB, but a request may bring one of several megabytes.
"""


@dataclass(frozen=True, slots=True)
class _Assumed:
    pod: PodInfo
    node: str
    at: float
    """The time of the assumption, by the timer."""
    exact: bool
    weight: int
    """The most bytes of memory that the pod takes."""


class Placements:
    """The assumed placements of a cluster; for the thread that owns the cluster.

    `timer` returns seconds of a monotonic clock. With `seconds` 0 only bound pods are assumed.
    """

    def __init__(
        self, cluster: Cluster, timer: Callable[[], float], *, seconds: float = ASSUMED_SECONDS,
        most: int = MOST_ASSUMED, most_bytes: int = MOST_BYTES,
    ) -> None:
        self.dropped: Counter[str] = Counter()
        """The number of ended assumptions by reason: confirmed, moved, gone, waiting, asked, expired."""
        self._cluster = cluster
        self._timer = timer
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._assumed: OrderedDict[str, _Assumed] = OrderedDict()
        self._per_node: Counter[str] = Counter()
        self._assumed_bytes = self._sent_bytes = 0
        self._sent: OrderedDict[str, tuple[PodInfo, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._assumed)

    @property
    def now(self) -> float:
        """The time by the timer."""
        return self._timer()

    @property
    def guesses(self) -> bool:
        """True if placements are assumed from responses."""
        return self._seconds > 0

    def sent_again(self, pod: PodInfo, weight: int = 0) -> None:
        """Store a pod that kube-scheduler sends: it has not been bound. It takes `weight` bytes of memory."""
        self.expire()
        identity = _identity(pod)
        if identity in self._assumed:
            self._drop(identity, "asked")
        self._forget_sent(identity)
        self._sent[identity] = pod, weight
        self._sent_bytes += weight
        while len(self._sent) > MOST_SENT or self._sent_bytes > self._most_bytes:
            self._forget_sent(next(iter(self._sent)))

    def _forget_sent(self, identity: str) -> tuple[PodInfo, int] | None:
        sent_again = self._sent.pop(identity, None)
        if sent_again is not None:
            self._sent_bytes -= sent_again[1]
        return sent_again

    def choose(self, pod: PodInfo, best: Sequence[str]) -> str:
        """Return one of the equally good nodes with the fewest assumed pods, by a hash of the pod."""
        fewest = min(self._per_node[name] for name in best)
        among = [name for name in best if self._per_node[name] == fewest]
        return among[crc32(_identity(pod).encode()) % len(among)]

    def assume(self, pod: PodInfo, node: str, *, exact: bool = False, weight: int = 0) -> None:
        """Assume that a pod of `weight` bytes is placed on a node; replaces an earlier assumption.

        An unknown node, or a pod that is known to be on a node, is ignored.
        """
        if not (exact or self.guesses) or node not in self._cluster.index or self._is_bound(pod.key):
            return
        identity = _identity(pod)
        before = self._assumed.pop(identity, None)
        if before is not None:
            self._per_node[before.node] -= 1
            self._assumed_bytes -= before.weight
        self._cluster.assume(pod, node)
        self._assumed[identity] = _Assumed(pod, node, self._timer(), exact, weight)
        self._assumed_bytes += weight
        self._per_node[node] += 1
        while len(self._assumed) > self._most or self._assumed_bytes > self._most_bytes:
            self._drop(next(iter(self._assumed)), "expired")

    def bound(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Assume that a pod is bound to a node.

        A pod that was not sent lately and is in no listing is ignored.
        """
        # The pod is the cluster's own object and takes no further memory.
        pod, weight = self._forget_sent(uid) or (self._cluster.pod(f"{namespace}/{name}"), 0)
        if pod is not None and (not uid or not pod.uid or pod.uid == uid):
            self.assume(pod, node, exact=True, weight=weight)

    def refused(self, uid: str) -> None:
        """Record that a pod was not bound."""
        if uid in self._assumed:
            self._drop(uid, "asked")

    def listed(self, since: float) -> None:
        """Compare the assumptions with the cluster, after a listing that began at `since` by the timer was applied."""
        for identity, assumed in list(self._assumed.items()):
            if assumed.at >= since:
                continue  # the listing may be older
            known = self._cluster.object("Pod", assumed.pod.key)
            if known is None or uid_of(known) not in ("", assumed.pod.uid):
                self._drop(identity, "gone")
            elif node := (known.get("spec") or {}).get("nodeName"):
                self._drop(identity, "confirmed" if node == assumed.node else "moved")
            elif assumed.exact or since - assumed.at > BINDING_SECONDS:
                self._drop(identity, "waiting")
        self.expire()

    def expire(self) -> None:
        """Drop expired assumptions."""
        until = self._timer() - (self._seconds or ASSUMED_SECONDS)
        while self._assumed:
            identity, oldest = next(iter(self._assumed.items()))
            if oldest.at > until:
                return
            self._drop(identity, "expired")

    def _drop(self, identity: str, how: str) -> None:
        assumed = self._assumed.pop(identity)
        self._assumed_bytes -= assumed.weight
        self.dropped[how] += 1
        self._per_node[assumed.node] -= 1
        if not self._per_node[assumed.node]:
            del self._per_node[assumed.node]
        known = self._cluster.pod(assumed.pod.key)
        # a pod of a listing, or a new pod of that name, has no assumption
        if known is not None and known.uid == assumed.pod.uid and not self._is_bound(assumed.pod.key):
            self._cluster.forget(assumed.pod.key)

    def _is_bound(self, key: str) -> bool:
        known = self._cluster.object("Pod", key)
        return known is not None and bool((known.get("spec") or {}).get("nodeName"))


def _identity(pod: PodInfo) -> str:
    return pod.uid or pod.key
