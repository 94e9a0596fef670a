"""The volumes that claims of a node's pods are bound to: read one by one when they are looked up.

A claim is bound once and for ever, and most are never looked up, so that no claims are watched.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.source import PolicyError

_LOG: Final = logging.getLogger(__name__)

_RETRY_S: Final = 10.0


class _Spec(msgspec.Struct, gc=False):
    volume: str = msgspec.field(default="", name="volumeName")


class _Claim(msgspec.Struct, gc=False):
    spec: _Spec = msgspec.field(default_factory=_Spec)


_CLAIM: Final = msgspec.json.Decoder(_Claim)


def claims_of(pod: PodInfo) -> Iterator[str]:
    """Yield the claims of a pod's volumes, `namespace/name`; those of ephemeral volumes are named by pod and volume."""
    volumes = (pod.object.get("spec") or {}).get("volumes")
    for each in volumes if isinstance(volumes, list) else ():
        if not isinstance(each, Mapping):
            continue
        claim: Any = each.get("persistentVolumeClaim")
        name = claim.get("claimName") if isinstance(claim, Mapping) else None
        if name is None and each.get("ephemeral") is not None:
            name = f"{pod.name}-{each.get('name')}"
        if isinstance(name, str) and name:
            yield f"{pod.namespace}/{name}"


class ClaimVolumes(Mapping[str, str]):
    """The names of volumes by claim (`namespace/name`), for any thread.

    A claim that is looked up and not known is read: it is there some milliseconds later if it is bound, else it is read
    again when it is looked up after ten seconds.
    """

    def __init__(
        self, transport: Transport, spawn: Callable[[Coroutine[Any, Any, Any], str], object], *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spawn` runs a coroutine in the event loop of `transport`; it raises `RuntimeError` if that has ended."""
        self._transport = transport
        self._spawn = spawn
        self._clock = clock
        self._known: dict[str, str] = {}
        self._read_at: dict[str, float] = {}
        self._faults = RepeatedFaults()

    def __getitem__(self, claim: str) -> str:
        found = self._known.get(claim)
        if found is None:
            now = self._clock()
            if now - self._read_at.get(claim, float("-inf")) >= _RETRY_S:
                self._read_at[claim] = now
                reading = self._read(claim)
                try:
                    self._spawn(reading, "to read a claim")
                except RuntimeError:
                    reading.close()
            raise KeyError(claim)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def retain(self, pods: Iterable[PodInfo]) -> None:
        """Forget the claims that none of these pods has."""
        if not self._read_at:
            return
        mentioned = {claim for pod in pods for claim in claims_of(pod)}
        self._known = {claim: volume for claim, volume in self._known.items() if claim in mentioned}
        with contextlib.suppress(RuntimeError):  # another thread looks one up: the next list of pods forgets
            self._read_at = {claim: at for claim, at in self._read_at.items() if claim in mentioned}

    async def _read(self, claim: str) -> None:
        namespace, _, name = claim.partition("/")
        try:
            answer = await self._transport.request("GET", BY_KIND["PersistentVolumeClaim"].path(namespace, name))
            volume = _CLAIM.decode(answer).spec.volume
        except (ApiError, ConnectionFailed, PolicyError, ValueError, RecursionError) as error:
            advice = ": grant `get` on `persistentvolumeclaims`" if (
                isinstance(error, ApiError) and error.code == 403) else ""
            if self._faults.is_due(str(error), name):
                _LOG.warning("the claim `%s` cannot be read: %s%s", claim, error, advice)
            return
        if volume:
            self._known = {**self._known, claim: volume}
