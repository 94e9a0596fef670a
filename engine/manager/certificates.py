"""The certificates of webhooks that the manager makes itself: an authority, what it has signed, and when both are due.

The authority is renewed while a third of its life is left, years before it ends. Until then the old one stays in the
bundle, and the certificate that it signed stays in use. If both are due at once, the old authority signs once more, and
is renewed afterwards: so the API server knows a new authority for months before anything that it signed is served.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LIFE: Final = timedelta(days=3650)
CERTIFICATE_LIFE: Final = timedelta(days=365)
_LEFT: Final = 1 / 3
"""The share of a life that is left when the successor is made."""
_SKEW: Final = timedelta(hours=1)
"""Certificates are valid from an hour ago on: clocks differ."""
_MOST_AUTHORITIES: Final = 8
SETTLING: Final = timedelta(minutes=10)
"""The time from the issue of a certificate after which every replica serves it."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificates and keys in PEM."""

    bundle: bytes
    """The authorities by which the API server verifies `certificate`, the newest first."""
    authority_key: bytes
    """The key of the newest authority."""
    certificate: bytes
    key: bytes


def renew(stored: Certificates | None, names: Sequence[str], now: datetime) -> Certificates:
    """Return `stored` itself if nothing is due at a time, else its successor; all new if it is None or of no use.

    `names` are the DNS names and IP addresses of the webhooks' server. A certificate for other names, of an unknown
    authority, or without its key is made anew.
    """
    read = None if stored is None else _read(stored)
    if stored is None or read is None:
        authority, key = _new_authority(now)
        return _issued(Certificates(_pem([authority]), _key_pem(key), b"", b""), authority, key, names, now)
    authorities = [each for each in read.authorities if each.not_valid_after_utc > now][:_MOST_AUTHORITIES]
    authority, key = read.authorities[0], read.authority_key
    found = stored
    certificate_due = (_is_due(read.certificate, now) or _names_of(read.certificate) != set(names)
                       or not any(_has_signed(each, read.certificate) for each in authorities))
    if _is_due(authority, now) and not (certificate_due and _may_sign(authority, now)):
        authority, key = _new_authority(now)
        authorities.insert(0, authority)
        found = replace(found, authority_key=_key_pem(key))
    if len(authorities) != len(read.authorities) or authorities[0] is not read.authorities[0]:
        found = replace(found, bundle=_pem(authorities))
    if certificate_due:
        return _issued(found, authority, key, names, now)
    return found


def published(desired: Certificates, known: bytes, now: datetime) -> bytes:
    """Return the authorities for `caBundle`, which has those of `known`.

    Until the desired certificate has settled, some replicas still serve the one before it: what verifies that stays.
    """
    certificate = x509.load_pem_x509_certificate(desired.certificate)
    if now - (certificate.not_valid_before_utc + _SKEW) >= SETTLING:
        return desired.bundle
    try:
        authorities = x509.load_pem_x509_certificates(known)
    except ValueError:
        return desired.bundle
    of_bundle = x509.load_pem_x509_certificates(desired.bundle)
    valid = [each for each in authorities if each not in of_bundle and each.not_valid_after_utc > now]
    return desired.bundle + _pem(valid[:_MOST_AUTHORITIES])


def is_usable(stored: Certificates) -> bool:
    """Return whether certificates and keys can be read and fit each other."""
    return _read(stored) is not None


@dataclass(frozen=True, slots=True)
class _Read:
    authorities: Sequence[x509.Certificate]
    authority_key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def _read(stored: Certificates) -> _Read | None:
    """Return the certificates in PEM as objects; None if one is malformed, or has another key."""
    try:
        authorities = x509.load_pem_x509_certificates(stored.bundle)
        certificate = x509.load_pem_x509_certificate(stored.certificate)
        authority_key, key = (serialization.load_pem_private_key(each, None) for each in (
            stored.authority_key, stored.key))
        known = authorities[0].public_key(), certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    if not isinstance(authority_key, ec.EllipticCurvePrivateKey) or not isinstance(key, ec.EllipticCurvePrivateKey):
        return None
    if known != (authority_key.public_key(), key.public_key()):
        return None
    return _Read(authorities, authority_key, certificate)


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return now < begin or (end - now) / (end - begin) < _LEFT


def _may_sign(authority: x509.Certificate, now: datetime) -> bool:
    """Return whether an authority outlives a certificate of now."""
    return authority.not_valid_before_utc <= now and authority.not_valid_after_utc >= now + CERTIFICATE_LIFE


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _new_authority(now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Authorities have different names, so that a verifier does not take one for the other.
    name = _name(f"koord-policy manager {now:%Y-%m-%dT%H:%M:%SZ}")
    builder = _builder(name, name, key.public_key(), now, AUTHORITY_LIFE).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(
        x509.KeyUsage(
            key_cert_sign=True, crl_sign=True, digital_signature=False, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _issued(
    into: Certificates, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey, names: Sequence[str],
    now: datetime,
) -> Certificates:
    """Return the certificates with a new one of the server, which the authority has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(names[0]), authority.subject, key.public_key(), now, CERTIFICATE_LIFE).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False).add_extension(
        x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
    return replace(into, certificate=_pem([builder.sign(authority_key, hashes.SHA256())]), key=_key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta,
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC)
    return x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key).serial_number(
        x509.random_serial_number()).not_valid_before(now - _SKEW).not_valid_after(now + life).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names_of(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {str(each.value) for each in names}


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def _key_pem(key: Any) -> bytes:
    found: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return found
