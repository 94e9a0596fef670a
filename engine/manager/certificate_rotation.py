"""Certificates that the manager makes: stored in a Secret, served by all replicas, and known to the API server.

Every replica looks at the Secret each minute, and serves what is in it. The leader makes the certificates that are due,
and writes the authorities into `caBundle` of the webhook configurations first: what is in the Secret may be served at
once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from koordpolicy.engine.client.repeats import RepeatedFaults
from koordpolicy.engine.client.resources import ApiResource, ObjectReference
from koordpolicy.engine.client.transport import ApiError, ConnectionFailed, Transport
from koordpolicy.engine.client.writes import ClusterWriter, WriteResult, WriteStatus
from koordpolicy.engine.source import PolicyError

from .certificates import Certificates, is_usable, published, renew

_LOG: Final = logging.getLogger(__name__)

SECRETS: Final = ApiResource("Secret", "", "v1", "secrets")
_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = (
    ApiResource("MutatingWebhookConfiguration", _GROUP, "v1", "mutatingwebhookconfigurations"),
    ApiResource("ValidatingWebhookConfiguration", _GROUP, "v1", "validatingwebhookconfigurations"),
)
CHECK_S: Final = 60.0
_SOON_S: Final = 1.0
"""Seconds between two looks at the Secret until there is a certificate."""
_KEYS: Final[Mapping[str, str]] = {
    "bundle": "ca.crt", "authority_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}
"""The keys of the Secret; those of the certificate are those of a Secret of type kubernetes.io/tls."""


class CertificateFault(Exception):
    """The certificates could not be read, stored or published; it is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSettings:
    """The place of certificates; `names` are the DNS names and IP addresses of the webhooks' server."""

    namespace: str
    secret: str
    configuration: str
    """The name of the MutatingWebhookConfiguration and of the ValidatingWebhookConfiguration."""
    names: Sequence[str]

    @property
    def reference(self) -> ObjectReference:
        """The Secret."""
        return ObjectReference(SECRETS, self.namespace, self.secret)


class CertificateRotation:
    """Renews and serves the certificates of one manager. Belongs to the event loop of its transport."""

    def __init__(
        self, transport: Transport, settings: CertificateSettings, context: ssl.SSLContext, *,
        leads: Callable[[], bool], now: Callable[[], datetime] = lambda: datetime.now(UTC),
        check_s: float = CHECK_S, soon_s: float = _SOON_S, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`context` is that of the webhooks' listener. Until the Secret is read, it has a certificate that no client
        trusts, so that probes are answered. `leads` says whether this process may write. It checks every `check_s`
        seconds, and every `soon_s` until there is a certificate; `soon_s` is also the time that the API server gets to
        see a new `caBundle`.
        """
        self.settings = settings
        self.ready = False
        """True once the certificate of the Secret is served; for any thread."""
        self._transport = transport
        self._writer = ClusterWriter(transport)
        self._context = context
        self._leads = leads
        self._now = now
        self._check_s = check_s
        self._soon_s = soon_s
        self._sleep = sleep
        self._woken = asyncio.Event()
        self._faults = RepeatedFaults()
        self._served = renew(None, settings.names, now())
        load(context, self._served)

    def wake(self) -> None:
        """Check now: this process leads from now on. In the event loop."""
        self._woken.set()

    async def run(self) -> None:
        """Check until it is cancelled."""
        while True:
            self._woken.clear()
            try:
                await self.check()
            except CertificateFault as error:
                if self._faults.is_due(str(error), self.settings.secret):
                    _LOG.warning("the certificate of the webhooks: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._check_s if self.ready else self._soon_s):
                    await self._woken.wait()

    async def check(self) -> None:
        """Serve the stored certificates; the leader first publishes and stores those that are due.

        Raises:
            CertificateFault: the API server refused something, or the Secret is of no use to a process that does not
                lead.
        """
        stored, version = await self._read()
        if self._leads():
            desired = renew(stored, self.settings.names, self._now())
            changed = await self._publish(desired)
            if desired is not stored:
                if changed:
                    await self._sleep(self._soon_s)
                await self._store(desired, version)
            stored = desired
        if stored is None or not is_usable(stored):
            raise CertificateFault(f"the Secret `{self.settings.secret}` has none yet: the manager that holds the "
                                   "Lease makes it")
        if stored != self._served:
            load(self._context, stored)
            self._served = stored
            _LOG.info("the webhooks have a new certificate, of the Secret %s", self.settings.secret)
        self.ready = True

    async def _read(self) -> tuple[Certificates | None, str]:
        """Return the stored certificates (None without any) and the Secret's version (empty without a Secret)."""
        found = await self._get(self.settings.reference)
        if found is None:
            return None, ""
        data = found.get("data") or {}
        try:
            parts = {field: base64.b64decode(data.get(key) or "", validate=True) for field, key in _KEYS.items()}
        except (binascii.Error, ValueError, TypeError):
            parts = {}
        version = str((found.get("metadata") or {}).get("resourceVersion") or "")
        return Certificates(**parts) if parts and all(parts.values()) else None, version

    async def _store(self, desired: Certificates, version: str) -> None:
        settings = self.settings
        metadata = {"name": settings.secret, "namespace": settings.namespace}
        body = {"metadata": metadata, "type": "kubernetes.io/tls", "data": {
            key: base64.b64encode(getattr(desired, field)).decode() for field, key in _KEYS.items()}}
        if not version:
            result = await self._writer.create(SECRETS, body, namespace=settings.namespace)
        else:
            # A merge leaves other keys, labels and the type of a Secret that was made by somebody else.
            result = await self._writer.merge_patch(
                settings.reference, {"data": body["data"]}, resource_version=version)
        self._expect(result, f"the Secret `{settings.secret}` cannot be written", "secrets")
        _LOG.info("a new certificate for %s is in the Secret %s", ", ".join(settings.names), settings.secret)

    async def _publish(self, desired: Certificates) -> bool:
        """Let the API server know the authorities; returns whether it did not."""
        written = False
        for resource in CONFIGURATIONS:
            reference = ObjectReference(resource, "", self.settings.configuration)
            found = await self._get(reference)
            if found is None:
                raise CertificateFault(f"there is no {resource.kind} `{reference.name}`, which the API server needs to "
                                       "call the webhooks: apply deploy/manager, or name another one with "
                                       "`--webhook-configuration`")
            changed = []
            for each in found.get("webhooks") or ():
                known = (each.get("clientConfig") or {}).get("caBundle") or ""
                text = base64.b64encode(published(desired, _decoded(known), self._now())).decode()
                if text != known:
                    changed.append({"name": each["name"], "clientConfig": {"caBundle": text}})
            if changed:
                written = True
                result = await self._writer.merge_patch(reference, {"webhooks": changed}, strategic=True)
                self._expect(result, f"the {resource.kind} `{reference.name}` cannot be patched", resource.plural)
        return written

    async def _get(self, reference: ObjectReference) -> dict[str, Any] | None:
        """Return an object; None if there is none."""
        try:
            found: dict[str, Any] = json.loads(await self._transport.request("GET", reference.path()))
        except (ApiError, ConnectionFailed, PolicyError, ValueError) as error:
            if isinstance(error, ApiError) and error.code == 404:
                return None
            what = f"the {reference.resource.kind} `{reference.name}`"
            raise CertificateFault(f"{what} cannot be read: {error}") from None
        return found

    def _expect(self, result: WriteResult, what: str, resource: str) -> None:
        if not result.done:
            help_ = f": grant it on `{resource}`" if result.status is WriteStatus.FORBIDDEN else ""
            raise CertificateFault(f"{what}: {result.message}{help_}")


def _decoded(text: str) -> bytes:
    """Return the decoded base64; empty bytes if it is malformed."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def load(context: ssl.SSLContext, certificates: Certificates) -> None:
    """Let a context serve a certificate to new connections; the key is never in a file system."""
    with _in_memory(certificates.certificate) as certificate, _in_memory(certificates.key) as key:
        context.load_cert_chain(certificate, key)


@contextlib.contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield the path of an anonymous file with this content: `ssl` reads certificates from paths only."""
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
