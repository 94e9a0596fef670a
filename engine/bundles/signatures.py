"""Signatures of bundles with keys in files, as `cosign sign --key` makes them and `cosign verify --key` checks them.

The signed text is the payload of cosign: a JSON object with the digest of the manifest. Signatures in the bundles of
sigstore, which cosign 3 writes by default, are verified too. ECDSA signs the sha256 of the text, Ed25519 the text
itself. The border to `cryptography`: nothing else here imports it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .faults import BundleFault
from .reference import BundleReference

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

PASSWORD: Final = "KOORD_POLICY_SIGN_PASSWORD"  # noqa: S105 - the name of a variable
"""The environment variable with the password of an encrypted private key."""
_TYPE: Final = "cosign container image signature"
_STATEMENT: Final = ("application/vnd.in-toto+json", "https://in-toto.io/Statement/v1",
                     "https://sigstore.dev/cosign/sign/v1")
"""The types of payload, statement and predicate of cosign's signatures in bundles of sigstore."""
_UNREADABLE: Final = (ValueError, RecursionError, KeyError, TypeError, IndexError, AttributeError)
_LARGEST_KEY: Final = 64 << 10
_KINDS: Final = "an ECDSA key of the curve P-256, or an Ed25519 key"
_CURVE: Final = "secp256r1"
_MAKE: Final = "make one with `openssl genpkey -algorithm ed25519 -out sign.pem`"


@dataclass(frozen=True, slots=True)
class VerifyKey:
    """A public key that bundles may be signed with."""

    path: str
    """The file that it was read from."""
    key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> VerifyKey:
        """Return the public key of a PEM file; raises `BundleFault` if it is none, and `OSError`."""
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only with bundles
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        content = _content(path)
        if b"PRIVATE KEY-----" in content:
            raise _key_fault(path, "it is a private key", "name the public one: `openssl pkey -in sign.pem -pubout`")
        try:
            key = serialization.load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm):
            raise _key_fault(path, "it is no public key in PEM", "write `openssl pkey -in sign.pem -pubout`") from None
        if not _known(key):
            raise _key_fault(path, f"its kind is not supported: it must be {_KINDS}", _MAKE)
        return cls(str(path), key)  # type: ignore[arg-type]

    @property
    def id(self) -> str:
        """The beginning of the sha256 of the key, by which people compare keys."""
        return _id_of(self.key)

    def verifies(self, signature: bytes, payload: bytes) -> bool:
        """Return whether the signature of a payload is one of this key."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - only with bundles
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        try:
            if isinstance(self.key, ec.EllipticCurvePublicKey):
                self.key.verify(signature, payload, ec.ECDSA(hashes.SHA256()))
            else:
                self.key.verify(signature, payload)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SignKey:
    """A private key that signs bundles."""

    path: str
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey = field(repr=False)

    @classmethod
    def read(cls, path: Path, password: str | None = None) -> SignKey:
        """Return the private key of a PEM file (PKCS#8, or SEC 1); raises `BundleFault` if it is none, and `OSError`.

        `password` decrypts it, None for a key that is not encrypted.
        """
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415 - only with bundles
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        content = _content(path)
        if b"ENCRYPTED SIGSTORE PRIVATE KEY" in content or b"ENCRYPTED COSIGN PRIVATE KEY" in content:
            raise _key_fault(path, "it is a key in cosign's own format",
                             f"sign with `cosign sign --key`, or {_MAKE}; cosign imports that, too")
        try:
            key = serialization.load_pem_private_key(content, None if not password else password.encode())
        except TypeError:
            raise _key_fault(
                path, "it is not encrypted" if password else "it is encrypted",
                f"unset {PASSWORD}" if password else f"set its password in the variable {PASSWORD}") from None
        except (ValueError, UnsupportedAlgorithm):
            raise _key_fault(path, "it is no private key in PEM" + (", or the password is wrong" if password else ""),
                             _MAKE) from None
        if not _known(key.public_key()):
            raise _key_fault(path, f"its kind is not supported: it must be {_KINDS}", _MAKE)
        return cls(str(path), key)  # type: ignore[arg-type]

    @property
    def id(self) -> str:
        """The `VerifyKey.id` of the public key."""
        return _id_of(self.key.public_key())

    def sign(self, payload: bytes) -> bytes:
        """Return the signature of a payload."""
        from cryptography.hazmat.primitives import hashes  # noqa: PLC0415 - only with bundles
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(payload, ec.ECDSA(hashes.SHA256()))
        return self.key.sign(payload)


def payload_of(reference: BundleReference, digest: str) -> bytes:
    """Return what is signed of a manifest."""
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


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST_KEY)


def _known(key: object) -> bool:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519  # noqa: PLC0415 - only with bundles

    return isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _CURVE)


def _id_of(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - only with bundles

    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()[:16]


def _key_fault(path: Path, why: str, help: str) -> BundleFault:  # noqa: A002 - as `Problem` calls it
    return BundleFault(f"the key `{path}` cannot be used: {why}", help, code="unusable-key")
