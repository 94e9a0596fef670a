"""Keys of files sign and verify as cosign's do, and what cannot be used says why."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.bundles.signatures import SignKey, VerifyKey, names, payload_of, signer_of

from .conftest import Keys, write_keys

REFERENCE = BundleReference("r.io", "team/policies", "v1")
DIGEST = f"sha256:{'a' * 64}"
PAYLOAD = payload_of(REFERENCE, DIGEST)

COSIGN_KEY = b"""-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEAyi8ckdVicXhDd3leV9a5199xt17
XQyJPPE2cyIDMbOFUD/LUh5TjRFXQLqIW5Hhe9OAJo82ttyg94rz56ZyMA==
-----END PUBLIC KEY-----
"""
"""The public key of a pair that `cosign generate-key-pair` (3.1.3) made."""
COSIGN_PAYLOAD = (
    b'{"critical":{"identity":{"docker-reference":"127.0.0.1:15987/team/policies"}'
    b',"image":{"docker-manifest-digest":"sha256:5816cdb80920b9162c755160364cc610f0c6035dd1ba41203de6be3b5421539d"}'
    b',"type":"cosign container image signature"},"optional":null}')
COSIGN_SIGNATURE = (
    "MEYCIQDW1zcFSwTIh5MovpbDq+wLqNMvpQ+rXq69H8AXG3EqywIhAI4BIWycLkWKocOlnvZ5+S4PKkQ40G+39GKBFczYgZCd")


def test_the_payload_is_that_of_cosign():
    assert json.loads(PAYLOAD) == {
        "critical": {"identity": {"docker-reference": "r.io/team/policies"},
                     "image": {"docker-manifest-digest": DIGEST}, "type": "cosign container image signature"},
        "optional": None}


def test_a_signature_of_cosign_is_verified(tmp_path: Path):
    (tmp_path / "cosign.pub").write_bytes(COSIGN_KEY)
    key = VerifyKey.read(tmp_path / "cosign.pub")
    digest = json.loads(COSIGN_PAYLOAD)["critical"]["image"]["docker-manifest-digest"]
    assert signer_of([(COSIGN_PAYLOAD, base64.b64decode(COSIGN_SIGNATURE))], digest, [key]) == key


@pytest.mark.parametrize("curve", [False, True])
def test_only_the_key_that_signed_a_digest_verifies_it(tmp_path: Path, curve: bool):
    keys, other = write_keys(tmp_path, "a", curve=curve), write_keys(tmp_path, "b", curve=not curve)
    signature = keys.sign.sign(PAYLOAD)
    assert signer_of([(b"x", b""), (PAYLOAD, signature)], DIGEST, [other.verify, keys.verify]) == keys.verify
    assert signer_of([(PAYLOAD, signature)], DIGEST, [other.verify]) is None
    assert signer_of([(PAYLOAD, signature)], f"sha256:{'b' * 64}", [keys.verify]) is None
    assert signer_of([(PAYLOAD + b" ", signature), (PAYLOAD, signature[:-1]), (PAYLOAD, b"")], DIGEST,
                     [keys.verify]) is None
    assert keys.sign.id == keys.verify.id != other.verify.id


@pytest.mark.parametrize("payload", [
    b"", b"\xff", b"[" * 100_000, b"[]", b"7", b"null", b'{"critical": []}', b'{"critical": {"type": "x"}}',
    json.dumps({"critical": {"image": {"docker-manifest-digest": DIGEST}, "type": "atomic"}}).encode(),
    json.dumps({"critical": {"image": DIGEST, "type": "cosign container image signature"}}).encode(),
])
def test_a_signed_text_of_another_kind_names_nothing(payload: bytes):
    assert not names(payload, DIGEST)


def pem(key: object, password: bytes | None = None) -> bytes:
    hidden = serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)  # type: ignore[attr-defined]


def public(key: object) -> bytes:
    return key.public_key().public_bytes(  # type: ignore[attr-defined]
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


RSA = rsa.generate_private_key(65537, 2048)
P384 = ec.generate_private_key(ec.SECP384R1())
KIND = "its kind is not supported: it must be an ECDSA key of the curve P-256, or an Ed25519 key"


def test_an_encrypted_key_needs_its_password(tmp_path: Path):
    path = tmp_path / "sign.pem"
    path.write_bytes(pem(ed25519.Ed25519PrivateKey.generate(), b"secret"))
    assert SignKey.read(path, "secret").sign(PAYLOAD)
    faults = {None: "it is encrypted", "wrong": "it is no private key in PEM, or the password is wrong"}
    for password, why in faults.items():
        with pytest.raises(BundleFault) as refused:
            SignKey.read(path, password)
        assert refused.value.problem.message == f"the key `{path}` cannot be used: {why}"
    path.write_bytes(pem(ed25519.Ed25519PrivateKey.generate()))
    with pytest.raises(BundleFault, match="it is not encrypted"):
        SignKey.read(path, "secret")


@pytest.mark.parametrize(("content", "why"), [
    (b"", "it is no private key in PEM"),
    (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "it is no private key in PEM"),
    (b"-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\n", "it is a key in cosign's own format"),
    (pem(RSA), KIND),
    (pem(P384), KIND),
])
def test_files_that_are_no_private_keys_are_refused(tmp_path: Path, content: bytes, why: str):
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(BundleFault) as refused:
        SignKey.read(tmp_path / "k")
    assert refused.value.problem.message == f"the key `{tmp_path / 'k'}` cannot be used: {why}"


@pytest.mark.parametrize(("content", "why"), [
    (b"", "it is no public key in PEM"),
    (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "it is no public key in PEM"),
    (pem(RSA), "it is a private key"),
    (public(RSA), KIND),
    (public(P384), KIND),
])
def test_files_that_are_no_public_keys_are_refused(tmp_path: Path, content: bytes, why: str):
    (tmp_path / "k").write_bytes(content)
    with pytest.raises(BundleFault) as refused:
        VerifyKey.read(tmp_path / "k")
    assert refused.value.problem.message == f"the key `{tmp_path / 'k'}` cannot be used: {why}"


def test_no_key_is_shown_where_its_holder_is(keys: Keys):
    assert repr(keys.sign) == f"SignKey(path='{keys.sign.path}')"
