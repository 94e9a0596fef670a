"""Keys in files that sign and verify, as `cosign sign --key` and `cosign verify --key` take them.

ECDSA signs the sha256 of a text, Ed25519 the text itself. The border to `cryptography`, a package of an extra: nothing
else of bundles imports it, and this module is imported only where a key is named.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, TypeGuard

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from .faults import BundleFault

PASSWORD: Final = "KOORD_POLICY_SIGN_PASSWORD"  # noqa: S105 - the name of a variable
"""The environment variable with the password of an encrypted private key."""
_LARGEST_KEY: Final = 64 << 10
_KINDS: Final = "an ECDSA key of the curve P-256, or an Ed25519 key"
_CURVE: Final = "secp256r1"
_MAKE: Final = "make one with `openssl genpkey -algorithm ed25519 -out sign.pem`"

_PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
_PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class VerifyKey:
    """A public key that bundles may be signed with."""

    path: str
    """The file that it was read from."""
    key: _PublicKey = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> VerifyKey:
        """Return the public key of a PEM file; raises `BundleFault` if it is none, and `OSError`."""
        content = _content(path)
        if b"PRIVATE KEY-----" in content:
            raise _key_fault(path, "it is a private key", "name the public one: `openssl pkey -in sign.pem -pubout`")
        try:
            key = serialization.load_pem_public_key(content)
        except (ValueError, UnsupportedAlgorithm):
            raise _key_fault(path, "it is no public key in PEM", "write `openssl pkey -in sign.pem -pubout`") from None
        if not _known(key):
            raise _key_fault(path, f"its kind is not supported: it must be {_KINDS}", _MAKE)
        return cls(str(path), key)

    @property
    def id(self) -> str:
        """The beginning of the sha256 of the key, by which people compare keys."""
        encoded = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(encoded).hexdigest()[:16]

    def verifies(self, signature: bytes, payload: bytes) -> bool:
        """Return whether the signature of a payload is one of this key."""
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
    key: _PrivateKey = field(repr=False)

    @classmethod
    def read(cls, path: Path, password: str | None = None) -> SignKey:
        """Return the private key of a PEM file (PKCS#8, or SEC 1); raises `BundleFault` if it is none, and `OSError`.

        `password` decrypts it, None for a key that is not encrypted.
        """
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
        if not isinstance(key, _PrivateKey) or not _known(key.public_key()):
            raise _key_fault(path, f"its kind is not supported: it must be {_KINDS}", _MAKE)
        return cls(str(path), key)

    @property
    def public(self) -> VerifyKey:
        """The key that verifies what this one signs."""
        return VerifyKey(self.path, self.key.public_key())

    @property
    def id(self) -> str:
        """The `VerifyKey.id` of the public key."""
        return self.public.id

    def sign(self, payload: bytes) -> bytes:
        """Return the signature of a payload."""
        if isinstance(self.key, ec.EllipticCurvePrivateKey):
            return self.key.sign(payload, ec.ECDSA(hashes.SHA256()))
        return self.key.sign(payload)


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST_KEY)


def _known(key: object) -> TypeGuard[_PublicKey]:
    return isinstance(key, ed25519.Ed25519PublicKey) or (
        isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _CURVE)


def _key_fault(path: Path, why: str, help: str) -> BundleFault:  # noqa: A002 - as `Problem` calls it
    return BundleFault(f"the key `{path}` cannot be used: {why}", help, code="unusable-key")
