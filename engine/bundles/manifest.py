"""The manifests of a bundle and of its signatures, as the OCI image specification 1.1 and cosign have them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .faults import BundleFault
from .layer import LARGEST_LAYER
from .reference import digest_of

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT: Final = "application/vnd.koord-policy.bundle.v1"
LAYER: Final = "application/vnd.koord-policy.policies.v1.tar"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
EMPTY_CONTENT: Final = b"{}"
LARGEST_MANIFEST: Final = 256 << 10
"""The maximum size of a manifest that is read, in bytes."""

VERSION: Final = "org.opencontainers.image.version"
REVISION: Final = "org.opencontainers.image.revision"
HASH: Final = "sh.koordinator.policy.hash"
LINT: Final = "sh.koordinator.policy.lint"
MADE_BY: Final = "sh.koordinator.policy.made-by"

SIGNED_PAYLOAD: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE: Final = "dev.cosignproject.cosign/signature"
SIGSTORE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
INDEX: Final = "application/vnd.oci.image.index.v1+json"
SIGNATURE_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LARGEST_PAYLOAD: Final = 64 << 10
MOST_SIGNATURES: Final = 32
_MOST_ANNOTATIONS: Final = 64
_LONGEST_ANNOTATION: Final = 4096
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Descriptor:
    """The name of a content in a registry: its media type, its digest, and its size in bytes."""

    media_type: str
    digest: str
    size: int

    @classmethod
    def of(cls, media_type: str, content: bytes) -> Descriptor:
        """Return the descriptor of a content."""
        return cls(media_type, digest_of(content), len(content))

    def to_json(self) -> dict[str, object]:
        """Return plain data for a manifest."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """The manifest of a bundle: its layer and its annotations."""

    layer: Descriptor
    annotations: Mapping[str, str]

    def encoded(self) -> bytes:
        """Return the text of the manifest; equal manifests have equal texts."""
        empty = Descriptor.of(EMPTY, EMPTY_CONTENT).to_json() | {"data": base64.b64encode(EMPTY_CONTENT).decode()}
        return _encoded({
            "schemaVersion": 2, "mediaType": MANIFEST, "artifactType": ARTIFACT, "config": empty,
            "layers": [self.layer.to_json()], "annotations": dict(sorted(self.annotations.items()))})

    @classmethod
    def read(cls, content: bytes) -> BundleManifest:
        """Return the manifest that a text is; raises `BundleFault` if it is none of a bundle of policies."""
        data = _decoded(content)
        kind = data.get("artifactType")
        if data.get("mediaType", MANIFEST) != MANIFEST or kind != ARTIFACT:
            shown = kind if isinstance(kind, str) and kind else data.get("mediaType")
            raise BundleFault(f"it is no bundle of policies: its type is `{str(shown)[:200]}`, not `{ARTIFACT}`",
                              "name one that `koord-policy push` has made", code="not-a-bundle")
        layers = data.get("layers")
        if not isinstance(layers, list) or len(layers) != 1:
            raise _malformed("it does not have exactly one layer")
        layer = _descriptor(layers[0])
        if layer.media_type != LAYER:
            raise _malformed(f"the media type of its layer is `{layer.media_type[:200]}`, not `{LAYER}`")
        if layer.size > LARGEST_LAYER:
            raise _malformed(f"its layer has {layer.size:,} bytes, more than the {LARGEST_LAYER:,} that are read")
        return cls(layer, _annotations(data))


@dataclass(frozen=True, slots=True)
class StoredSignature:
    """A signature in a registry: the descriptor of the signed payload, and the annotations beside it."""

    payload: Descriptor
    annotations: Mapping[str, str]

    @property
    def signature(self) -> bytes:
        """The signature; empty if its annotation is missing or not base64."""
        try:
            return base64.b64decode(self.annotations.get(SIGNATURE, ""), validate=True)
        except ValueError:
            return b""


def signatures_tag(digest: str) -> str:
    """Return the tag under which the signatures of a manifest are, by cosign's scheme."""
    return f"{digest.replace(':', '-')}.sig"


def read_signatures(content: bytes) -> tuple[StoredSignature, ...]:
    """Return the signatures that a manifest lists, at most `MOST_SIGNATURES`; raises `BundleFault` for other texts."""
    data = _decoded(content)
    layers = data.get("layers")
    if not isinstance(layers, list) or len(layers) > MOST_SIGNATURES:
        raise _malformed(f"its signatures are no list of at most {MOST_SIGNATURES}")
    found = []
    for each in layers:
        descriptor = _descriptor(each)
        if descriptor.media_type == SIGNED_PAYLOAD and descriptor.size <= LARGEST_PAYLOAD:
            found.append(StoredSignature(descriptor, _annotations(each)))
    return tuple(found)


def read_referrers(content: bytes) -> tuple[Descriptor, ...]:
    """Return the manifests with bundles of sigstore that an index lists, at most `MOST_SIGNATURES`.

    Raises `BundleFault` if it is no index, or lists more.
    """
    listed = _decoded(content).get("manifests")
    if not isinstance(listed, list):
        raise _malformed("what refers to it is no list of manifests")
    found = [_descriptor(each) for each in listed if isinstance(each, dict) and each.get("artifactType") == SIGSTORE]
    if len(found) > MOST_SIGNATURES:
        raise _malformed(f"it has more than {MOST_SIGNATURES} signatures")
    return tuple(found)


def read_sigstore(content: bytes) -> tuple[Descriptor, ...]:
    """Return the bundles of sigstore that a manifest has as layers; raises `BundleFault` for other texts."""
    layers = _decoded(content).get("layers")
    if not isinstance(layers, list) or len(layers) > MOST_SIGNATURES:
        raise _malformed(f"its signatures are no list of at most {MOST_SIGNATURES}")
    found = map(_descriptor, layers)
    return tuple(each for each in found if each.media_type == SIGSTORE and each.size <= LARGEST_PAYLOAD)


def signatures_config(stored: tuple[StoredSignature, ...]) -> bytes:
    """Return the config of a manifest of signatures: that of an image with these layers."""
    return _encoded({"architecture": "", "os": "", "config": {}, "rootfs": {
        "type": "layers", "diff_ids": [each.payload.digest for each in stored]}})


def signatures_manifest(stored: tuple[StoredSignature, ...]) -> bytes:
    """Return the manifest that lists signatures, as cosign writes it."""
    return _encoded({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": Descriptor.of(SIGNATURE_CONFIG, signatures_config(stored)).to_json(),
        "layers": [{**each.payload.to_json(), "annotations": dict(each.annotations)} for each in stored]})


def _encoded(data: Mapping[str, object]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _decoded(content: bytes) -> dict[str, Any]:
    try:
        data = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _malformed("its manifest is not JSON") from None
    if not isinstance(data, dict) or data.get("schemaVersion") != 2:
        raise _malformed("its manifest has not the schema version 2")
    return data


def _descriptor(data: object) -> Descriptor:
    if not isinstance(data, dict):
        raise _malformed("a descriptor is not an object")
    media_type, digest, size = data.get("mediaType"), data.get("digest"), data.get("size")
    if (not isinstance(media_type, str) or not isinstance(digest, str) or not _DIGEST.fullmatch(digest)
            or type(size) is not int or size < 0):
        raise _malformed("a descriptor has no media type, sha256 digest and size")
    return Descriptor(media_type, digest, size)


def _annotations(data: Mapping[str, Any]) -> dict[str, str]:
    found = data.get("annotations") or {}
    if (not isinstance(found, dict) or len(found) > _MOST_ANNOTATIONS
            or not all(isinstance(each, str) and len(each) <= _LONGEST_ANNOTATION
                       for pair in found.items() for each in pair)):
        raise _malformed(f"its annotations are not up to {_MOST_ANNOTATIONS} texts of {_LONGEST_ANNOTATION} characters")
    return found


def _malformed(why: str) -> BundleFault:
    return BundleFault(f"the bundle is refused: {why}", "push the policies again with `koord-policy push`",
                       code="malformed-bundle")
