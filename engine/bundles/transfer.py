"""Pushing and pulling of bundles, with their signatures."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .faults import BundleFault
from .layer import pack, unpack
from .manifest import (
    EMPTY_CONTENT,
    HASH,
    LAYER,
    MOST_SIGNATURES,
    SIGNATURE,
    SIGNED_PAYLOAD,
    BundleManifest,
    Descriptor,
    StoredSignature,
    read_referrers,
    read_signatures,
    read_sigstore,
    signatures_config,
    signatures_manifest,
    signatures_tag,
)
from .reference import BundleReference, digest_of
from .registry import RegistryAccess, RegistryClient
from .signatures import Signed, payload_of, signer_of

if TYPE_CHECKING:
    from .keys import SignKey, VerifyKey


@dataclass(frozen=True, slots=True)
class Trust:
    """The conditions under which a bundle is used: a signature of one of the keys, or anything if `unsigned`."""

    keys: tuple[VerifyKey, ...] = ()
    unsigned: bool = False


@dataclass(frozen=True, slots=True)
class PulledBundle:
    """A bundle that was pulled and verified."""

    digest: str
    """The digest of its manifest."""
    files: Mapping[str, bytes] = field(repr=False)
    """The content of each file, by relative name."""
    annotations: Mapping[str, str]
    signer: str = ""
    """The file of the key that signed it; empty if signatures were not looked at."""

    @property
    def hash(self) -> str:
        """The hash of the policies that its maker wrote, or empty; whoever uses the files computes it."""
        return self.annotations.get(HASH, "")


@dataclass(frozen=True, slots=True)
class PushedBundle:
    """A bundle that was pushed."""

    digest: str
    """The digest of its manifest."""
    layer: str
    """The digest of its layer, which depends on its files alone."""
    before: str | None
    """The digest that the tag had; None if it is new."""


class BundlePuller:
    """Pulls one bundle as often as it changes. Not thread-safe."""

    def __init__(self, reference: BundleReference, access: RegistryAccess, trust: Trust) -> None:
        self.reference = reference
        self._client = RegistryClient(reference, access)
        self._trust = trust

    def newer(self, known: str = "") -> PulledBundle | None:
        """Return the bundle that the reference names now; None if its digest is `known`.

        Raises `BundleFault` if the registry does not answer, has no such bundle, or it is not to be trusted.
        """
        reference = self.reference
        digest = reference.digest or self._client.digest(reference.tag)
        if digest is None:
            raise _missing(reference)
        if digest == known:
            return None
        signer = "" if self._trust.unsigned else self._verified(digest).path
        content = self._client.manifest(digest)
        if content is None:
            raise _missing(reference.at(digest))
        manifest = BundleManifest.read(content)
        return PulledBundle(digest, unpack(self._client.blob(manifest.layer)), manifest.annotations, signer)

    def _verified(self, digest: str) -> VerifyKey:
        """Return the key that signed the manifest with this digest; raises `BundleFault` if none of the keys did."""
        found = 0
        for each in _signed(self._client, digest):
            found += 1
            key = signer_of([each], digest, self._trust.keys)
            if key is not None:
                return key
        if not found:
            raise BundleFault(f"`{self.reference.at(digest)}` has no signature",
                              "sign it with `koord-policy push --sign-key` or with cosign, or use it without with "
                              "`--insecure-unsigned`", code="unsigned")
        tried = ", ".join(f"`{each.path}` ({each.id})" for each in self._trust.keys)
        raise BundleFault(f"no signature of `{self.reference.at(digest)}` is of {tried}",
                          "name the public key of those who signed it with `--verify-key`, or do not use it",
                          code="wrong-signature")


def push(
    reference: BundleReference, files: Mapping[str, bytes], annotations: Mapping[str, str], access: RegistryAccess,
    key: SignKey | None = None,
) -> PushedBundle:
    """Store files as a bundle under a tag, signed if there is a key; return what was stored.

    The tag is moved at the end, so that nobody finds a bundle under it that is not complete, or not signed yet.

    Raises `BundleFault` if the registry does not answer or refuses.
    """
    layer = pack(files)
    manifest = BundleManifest(Descriptor.of(LAYER, layer), annotations).encoded()
    digest = digest_of(manifest)
    client = RegistryClient(reference, access, write=True)
    before = client.digest(reference.tag)
    client.put_blob(EMPTY_CONTENT)
    client.put_blob(layer)
    client.put_manifest(digest, manifest)
    if key is not None:
        _sign(client, reference, digest, key)
    if before != digest:
        client.put_manifest(reference.tag, manifest)
    return PushedBundle(digest, digest_of(layer), before)


def _sign(client: RegistryClient, reference: BundleReference, digest: str, key: SignKey) -> None:
    """Add a signature to those of a manifest, unless it has one of this key."""
    stored = _signatures(client, digest)
    if signer_of(_of_payloads(client, stored), digest, [key.public]) is not None:
        return
    payload = payload_of(reference, digest)
    signature = base64.b64encode(key.sign(payload)).decode()
    signed = (*stored, StoredSignature(Descriptor.of(SIGNED_PAYLOAD, payload), {SIGNATURE: signature}))
    if len(signed) > MOST_SIGNATURES:
        raise BundleFault(f"`{reference.at(digest)}` has {MOST_SIGNATURES} signatures already",
                          f"delete the tag `{signatures_tag(digest)}`", code="too-many-signatures")
    client.put_blob(payload)
    client.put_blob(signatures_config(signed))
    client.put_manifest(signatures_tag(digest), signatures_manifest(signed))


def _signed(client: RegistryClient, digest: str) -> Iterator[Signed]:
    """Yield the signatures of a manifest: those under the tag of cosign, then those in bundles of sigstore."""
    yield from _of_payloads(client, _signatures(client, digest))
    index = client.referrers(digest)
    for manifest in () if index is None else read_referrers(index):
        content = client.manifest(manifest.digest)
        for bundle in () if content is None else read_sigstore(content):
            yield Signed.of_bundle(client.blob(bundle))


def _of_payloads(client: RegistryClient, stored: Iterable[StoredSignature]) -> Iterator[Signed]:
    return (Signed.of_payload(client.blob(each.payload), each.signature) for each in stored)


def _signatures(client: RegistryClient, digest: str) -> Sequence[StoredSignature]:
    content = client.manifest(signatures_tag(digest))
    return () if content is None else read_signatures(content)


def _missing(reference: BundleReference) -> BundleFault:
    return BundleFault(f"there is no bundle `{reference}`", "push it with `koord-policy push`, or name another one",
                       code="no-bundle")
