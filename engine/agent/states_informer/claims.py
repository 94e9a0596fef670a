"""The volumes that the claims of a node's pods are bound to: read one by one, as a claim is bound once and for ever."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.source import PolicyError

_LOG: Final = logging.getLogger(__name__)


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


class ClaimReader:
    """Reads the claims that pods mention. `volumes` may be read from any thread; all else belongs to the event loop."""

    def __init__(self, transport: Transport) -> None:
        self.volumes: Mapping[str, str] = {}
        """The names of volumes by claim."""
        self._transport = transport
        self._reading = False
        self._fault = ""

    def missing(self, pods: Iterable[PodInfo]) -> list[str]:
        """Return the claims whose volume is not known, sorted; none while others are read."""
        mentioned = {claim for pod in pods for claim in claims_of(pod)}
        return [] if self._reading else sorted(mentioned - self.volumes.keys())

    async def read(self, pods: Iterable[PodInfo]) -> None:
        """Read the claims that are missing, and forget those that no pod mentions."""
        pods = tuple(pods)
        mentioned = {claim for pod in pods for claim in claims_of(pod)}
        missing = self.missing(pods)
        self._reading = True
        found = {claim: volume for claim, volume in self.volumes.items() if claim in mentioned}
        try:
            for claim in missing:
                namespace, _, name = claim.partition("/")
                path = BY_KIND["PersistentVolumeClaim"].path(namespace, name)
                try:
                    volume = _CLAIM.decode(await self._transport.request("GET", path)).spec.volume
                except (ApiError, ConnectionFailed, PolicyError, ValueError, RecursionError) as error:
                    if str(error) != self._fault:
                        _LOG.warning("the claim `%s` cannot be read, trying again: %s", claim, error)
                    self._fault = str(error)
                    continue
                if volume:
                    found[claim] = volume
            self.volumes = found
        finally:
            self._reading = False
