"""The name of a bundle in a registry, the access to it, and keys."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from koordpolicy.engine.bundles.keys import SignKey, VerifyKey
from koordpolicy.engine.bundles.logins import Logins
from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.bundles.registry import RegistryAccess
from tests.oci_registry import OciRegistry


@pytest.fixture
def reference(registry: OciRegistry) -> BundleReference:
    return BundleReference.parse(f"{registry.host}/team/policies:v1")


@pytest.fixture
def access(tmp_path: Path) -> RegistryAccess:
    """Without the logins of whoever runs the tests."""
    return RegistryAccess(logins=Logins({"DOCKER_CONFIG": str(tmp_path / "docker")}), seconds=60.0)


@dataclass(frozen=True)
class Keys:
    sign: SignKey
    verify: VerifyKey


def write_keys(directory: Path, name: str, *, curve: bool = False) -> Keys:
    """Write a pair of keys as NAME.pem and NAME.pub, and return it as it is read from there."""
    key = ec.generate_private_key(ec.SECP256R1()) if curve else ed25519.Ed25519PrivateKey.generate()
    private, public = directory / f"{name}.pem", directory / f"{name}.pub"
    private.write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return Keys(SignKey.read(private), VerifyKey.read(public))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return write_keys(tmp_path, "sign")
