from __future__ import annotations

import base64
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from koordpolicy.engine.manager.certificate_rotation import load
from koordpolicy.engine.manager.certificates import Certificates, is_usable, renew

NOW = datetime.now(UTC).replace(microsecond=0)
NAMES = ("koord-policy-manager.koordinator-system.svc", "127.0.0.1")
DAY = timedelta(days=1)
EC_KEY, UNKNOWN_KEY = bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8648ce3d027f")
"""The identifier of keys of elliptic curves, and one of none."""


def authorities(of: Certificates) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(of.bundle)


def served(of: Certificates) -> x509.Certificate:
    return x509.load_pem_x509_certificate(of.certificate)


def connect(server: Certificates, bundle: bytes, name: str) -> str:
    """Shake hands in memory; return the error of the client, empty if it trusts the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load(context, server)
    trusting = ssl.create_default_context(cadata=bundle.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=name)
    peer = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for each in (client, peer):
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError as error:
                return getattr(error, "verify_message", "") or str(error)
    assert client.version() is not None
    return ""


def test_a_client_that_knows_the_authority_trusts_the_server_by_each_name_and_by_no_other():
    made = renew(None, NAMES, NOW)
    assert [connect(made, made.bundle, name) for name in NAMES] == ["", ""]
    assert "mismatch" in connect(made, made.bundle, "elsewhere").lower()
    assert "certificate" in connect(made, renew(None, NAMES, NOW).bundle, NAMES[0])


def test_the_authority_may_only_sign_and_the_certificate_only_serve():
    made = renew(None, NAMES, NOW)
    [authority], certificate = authorities(made), served(made)
    constraints = [each.extensions.get_extension_for_class(x509.BasicConstraints).value for each in (
        authority, certificate)]
    assert [(each.ca, each.path_length) for each in constraints] == [(True, 0), (False, None)]
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature, usage.key_encipherment) == (True, False, False)
    assert (certificate.not_valid_before_utc, certificate.not_valid_after_utc) == (
        NOW - timedelta(hours=1), NOW + 365 * DAY)


@pytest.mark.parametrize("days", [0, 100, 243])
def test_nothing_is_made_anew_before_a_third_of_its_life_is_left(days: int):
    made = renew(None, NAMES, NOW)
    assert renew(made, NAMES, NOW + days * DAY) is made


def test_a_certificate_is_renewed_by_the_same_authority():
    made = renew(None, NAMES, NOW)
    later = renew(made, NAMES, NOW + 244 * DAY)
    assert (later.bundle, later.authority_key) == (made.bundle, made.authority_key)
    assert (later.certificate != made.certificate, later.key != made.key) == (True, True)
    assert served(later).not_valid_after_utc == NOW + 609 * DAY
    served(later).verify_directly_issued_by(authorities(made)[0])


def test_what_is_served_is_known_to_the_bundle_before_over_thirty_years_of_monthly_checks():
    made, renewals = renew(None, NAMES, NOW), 0
    for month in range(1, 360):
        now = NOW + 30 * month * DAY
        next_ = renew(made, NAMES, now)
        if next_ is not made:
            renewals += 1
            # An API server that has not the new bundle yet trusts the new certificate, and the other way round.
            for certificate, bundle in ((next_.certificate, made.bundle), (made.certificate, next_.bundle)):
                issuers = {each.subject for each in x509.load_pem_x509_certificates(bundle)}
                assert x509.load_pem_x509_certificate(certificate).issuer in issuers
        made = next_
        assert served(made).not_valid_after_utc > now
        assert all(each.not_valid_after_utc > now for each in authorities(made))
        assert len(authorities(made)) <= 2
    assert 40 < renewals < 60


def test_a_new_authority_is_published_before_it_signs():
    made = renew(None, NAMES, NOW)
    recent = renew(made, NAMES, NOW + 2300 * DAY)  # two thirds of ten years are 2433 days
    later = renew(recent, NAMES, NOW + 2440 * DAY)
    assert (later.certificate, later.key) == (recent.certificate, recent.key)
    new, old = authorities(later)
    assert [old] == authorities(made)
    assert new.not_valid_after_utc == NOW + (2440 + 3650) * DAY
    after = renew(later, NAMES, NOW + 2600 * DAY)
    served(after).verify_directly_issued_by(new)


def test_other_names_need_another_certificate():
    made = renew(None, NAMES, NOW)
    other = renew(made, ["other.svc"], NOW)
    assert (other.bundle, connect(other, other.bundle, "other.svc")) == (made.bundle, "")


def test_an_expired_authority_leaves_nothing_of_its_own():
    made = renew(None, NAMES, NOW)
    later = renew(made, NAMES, NOW + 3651 * DAY)
    assert authorities(made)[0] not in authorities(later)
    served(later).verify_directly_issued_by(authorities(later)[0])


@pytest.mark.parametrize("field", ["authority_key", "key", "bundle", "certificate"])
def test_a_key_of_an_unknown_kind_is_replaced(field: str):
    made = renew(None, NAMES, NOW)
    pem: bytes = getattr(made, field)
    _, begin, rest = pem.partition(b"-----\n")
    label = pem.splitlines()[0]
    text, _, end = rest.partition(b"\n-----END")
    der = base64.b64decode(text)
    assert der.count(EC_KEY) >= 1
    other = base64.b64encode(der.replace(EC_KEY, UNKNOWN_KEY))
    broken = replace(made, **{field: label + b"\n" + other + b"\n-----END" + end})
    assert begin
    assert not is_usable(broken)
    again = renew(broken, NAMES, NOW)
    assert connect(again, again.bundle, NAMES[0]) == ""


@pytest.mark.parametrize("field", ["bundle", "authority_key", "certificate", "key"])
@pytest.mark.parametrize("content", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "other"])
def test_malformed_certificates_and_those_with_other_keys_are_made_anew(field: str, content: bytes | str):
    made, other = renew(None, NAMES, NOW), renew(None, NAMES, NOW)
    broken = replace(made, **{field: getattr(other, field) if isinstance(content, str) else content})
    assert not is_usable(broken)
    again = renew(broken, NAMES, NOW)
    assert connect(again, again.bundle, NAMES[0]) == ""


def test_a_certificate_of_an_authority_that_is_not_in_the_bundle_is_replaced():
    made, other = renew(None, NAMES, NOW), renew(None, NAMES, NOW)
    mixed = replace(made, certificate=other.certificate, key=other.key)
    again = renew(mixed, NAMES, NOW)
    assert (again.bundle, connect(again, again.bundle, NAMES[0])) == (made.bundle, "")
