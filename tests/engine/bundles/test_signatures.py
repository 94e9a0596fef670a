"""Keys of files sign and verify as cosign's do, and what cannot be used says why."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.keys import SignKey, VerifyKey
from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.bundles.signatures import Signed, payload_of, signer_of

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


SIGSTORE: dict[str, Any] = {
    "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
    "verificationMaterial": {"publicKey": {"hint": "WelYNu/hDmGA8sDYTdx4Ck1u6kWq6IeKvSawIindIj0="}},
    "dsseEnvelope": {
        "payload": (
            "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEiLCJzdWJqZWN0IjpbeyJkaWdlc3QiOnsic2hhMjU2Ijoi"
            "NTgxNmNkYjgwOTIwYjkxNjJjNzU1MTYwMzY0Y2M2MTBmMGM2MDM1ZGQxYmE0MTIwM2RlNmJlM2I1NDIxNTM5ZCJ9LCJhbm5vdGF0"
            "aW9ucyI6e319XSwicHJlZGljYXRlVHlwZSI6Imh0dHBzOi8vc2lnc3RvcmUuZGV2L2Nvc2lnbi9zaWduL3YxIiwicHJlZGljYXRl"
            "Ijp7fX0="),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"sig": (
            "MEUCIB7dL1DBQu0rdxRCVPAW4qM/ikLnXi0/asjuS6NlyQYtAiEAyXF3SFvV"
            "3eTkprK+SZ+AbU2KOdi/51nlWzyprQp5LmA=")}]}}
"""The envelope that `cosign sign --key` (3.1.3) stores by default, of the same key and manifest."""


def test_the_payload_is_that_of_cosign():
    assert json.loads(PAYLOAD) == {
        "critical": {"identity": {"docker-reference": "r.io/team/policies"},
                     "image": {"docker-manifest-digest": DIGEST}, "type": "cosign container image signature"},
        "optional": None}


def test_a_signature_of_cosign_is_verified(tmp_path: Path):
    (tmp_path / "cosign.pub").write_bytes(COSIGN_KEY)
    key = VerifyKey.read(tmp_path / "cosign.pub")
    digest = json.loads(COSIGN_PAYLOAD)["critical"]["image"]["docker-manifest-digest"]
    signed = Signed.of_payload(COSIGN_PAYLOAD, base64.b64decode(COSIGN_SIGNATURE))
    sigstore = Signed.of_bundle(json.dumps(SIGSTORE).encode())
    assert [signer_of([each], digest, [key]) for each in (signed, sigstore)] == [key, key]
    assert [signer_of([each], DIGEST, [key]) for each in (signed, sigstore)] == [None, None]
    assert signer_of([sigstore], digest, [write_keys(tmp_path, "other").verify]) is None


@pytest.mark.parametrize("curve", [False, True])
def test_only_the_key_that_signed_a_digest_verifies_it(tmp_path: Path, curve: bool):
    keys, other = write_keys(tmp_path, "a", curve=curve), write_keys(tmp_path, "b", curve=not curve)
    signature = keys.sign.sign(PAYLOAD)
    signed = Signed.of_payload(PAYLOAD, signature)
    assert signer_of([Signed.of_payload(b"x", b""), signed], DIGEST, [other.verify, keys.verify]) == keys.verify
    assert signer_of([signed], DIGEST, [other.verify]) is None
    assert signer_of([signed], f"sha256:{'b' * 64}", [keys.verify]) is None
    damaged = ((PAYLOAD + b" ", signature), (PAYLOAD, signature[:-1]), (PAYLOAD, b""))
    assert signer_of([Signed.of_payload(*each) for each in damaged], DIGEST, [keys.verify]) is None
    assert keys.sign.id == keys.verify.id != other.verify.id


@pytest.mark.parametrize("payload", [
    b"", b"\xff", b"[" * 100_000, b"[]", b"7", b"null", b'{"critical": []}', b'{"critical": {"type": "x"}}',
    json.dumps({"critical": {"image": {"docker-manifest-digest": DIGEST}, "type": "atomic"}}).encode(),
    json.dumps({"critical": {"image": DIGEST, "type": "cosign container image signature"}}).encode(),
])
def test_a_signed_text_of_another_kind_names_nothing(payload: bytes):
    assert Signed.of_payload(payload, b"").about != DIGEST


def changed_sigstore(**fields: Any) -> bytes:
    """Return the bundle of sigstore with other fields in its envelope, or in the statement within (`statement`)."""
    envelope = SIGSTORE["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"])) | fields.pop("statement", {})
    payload = base64.b64encode(json.dumps(statement).encode()).decode()
    return json.dumps(SIGSTORE | {"dsseEnvelope": envelope | {"payload": payload} | fields}).encode()


@pytest.mark.parametrize("content", [
    b"", b"\xff", b"[" * 100_000, b"[]", b"{}", b'{"dsseEnvelope": 7}',
    changed_sigstore(payloadType="text/plain"), changed_sigstore(signatures=[]), changed_sigstore(signatures=[{}] * 2),
    changed_sigstore(signatures=[{"sig": "!"}]), changed_sigstore(payload="!"), changed_sigstore(payload="e30="),
    changed_sigstore(statement={"_type": "other"}), changed_sigstore(statement={"predicateType": "https://slsa.dev/x"}),
    changed_sigstore(statement={"subject": []}), changed_sigstore(statement={"subject": [{"digest": {"sha256": 7}}]}),
])
def test_a_bundle_of_sigstore_that_is_none_of_cosign_names_nothing(content: bytes):
    assert Signed.of_bundle(content).about == ""


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
