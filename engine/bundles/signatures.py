"""Signatures of bundles, as `cosign sign --key` makes them and `cosign verify --key` checks them.

The signed text is the payload of cosign: a JSON object with the digest of the manifest. Signatures in the bundles of
sigstore, which cosign 3 writes by default, are verified too.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .reference import BundleReference

if TYPE_CHECKING:
    from .keys import VerifyKey

_TYPE: Final = "cosign container image signature"
_STATEMENT: Final = ("application/vnd.in-toto+json", "https://in-toto.io/Statement/v1",
                     "https://sigstore.dev/cosign/sign/v1")
"""The types of payload, statement and predicate of cosign's signatures in bundles of sigstore."""
_UNREADABLE: Final = (ValueError, RecursionError, KeyError, TypeError, IndexError, AttributeError)


def payload_of(reference: BundleReference, digest: str) -> bytes:
    """Return the signed text about a manifest."""
    return json.dumps({
        "critical": {"identity": {"docker-reference": reference.name}, "image": {"docker-manifest-digest": digest},
                     "type": _TYPE},
        "optional": None}, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Signed:
    """A signature, which is believed only once a key verifies it."""

    message: bytes
    """The bytes that are signed."""
    signature: bytes
    about: str
    """The digest of the manifest that the message names; empty if it names none."""

    @classmethod
    def of_payload(cls, payload: bytes, signature: bytes) -> Signed:
        """Return a signature of a payload such as `payload_of` returns."""
        try:
            critical: Any = json.loads(payload)["critical"]
            found = critical["image"]["docker-manifest-digest"] if critical["type"] == _TYPE else ""
        except _UNREADABLE:
            found = ""
        return cls(payload, signature, found if isinstance(found, str) else "")

    @classmethod
    def of_bundle(cls, content: bytes) -> Signed:
        """Return the signature in a bundle of sigstore: a DSSE envelope around an in-toto statement."""
        try:
            envelope: Any = json.loads(content)["dsseEnvelope"]
            (first,) = envelope["signatures"]
            payload, signature = (base64.b64decode(each, validate=True) for each in (envelope["payload"], first["sig"]))
            statement: Any = json.loads(payload)
            (subject,) = statement["subject"]
            named = subject["digest"]["sha256"]
            known = (envelope["payloadType"], statement["_type"], statement["predicateType"]) == _STATEMENT
        except _UNREADABLE:
            return cls(b"", b"", "")
        # What is signed are type and payload with their lengths (DSSE 1.0), so that no other text has this signature.
        kind = _STATEMENT[0].encode()
        message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
        return cls(message, signature, f"sha256:{named}" if known and isinstance(named, str) else "")


def signer_of(signed: Iterable[Signed], digest: str, keys: Sequence[VerifyKey]) -> VerifyKey | None:
    """Return the first of the keys that signed the manifest with this digest; None if none did."""
    for each in signed:
        for key in keys:
            if each.about == digest and key.verifies(each.signature, each.message):
                return key
    return None
