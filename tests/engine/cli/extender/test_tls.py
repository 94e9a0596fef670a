"""The extender over TLS."""

from __future__ import annotations

import ssl

import pytest

from .serving import Client, question, serving


def test_tls_is_served_to_those_who_trust_it(policies, dump, certificates):
    folder, context, _, _ = certificates
    with serving(
        "--policies", policies, "--cluster", dump, "--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key",
        context=context(),
    ) as client:
        assert client.url.startswith("https://127.0.0.1:")
        assert client("POST", "/filter", question("one"))[1]["NodeNames"] == ["one"]
        with pytest.raises(ssl.SSLCertVerificationError):
            Client(client.url, ssl.create_default_context())("GET", "/healthz")


def test_with_a_client_ca_only_its_clients_get_in(policies, dump, certificates):
    folder, context, clients, strangers = certificates
    options = ("--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key", "--client-ca", folder / "ca.crt")
    with serving("--policies", policies, "--cluster", dump, *options, context=context(clients)) as client:
        assert client("POST", "/filter", question("one"))[1]["NodeNames"] == ["one"]
        for refused in (context(), context(strangers)):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                Client(client.url, refused)("GET", "/healthz")
        assert client("GET", "/healthz")[0] == 200


def test_probes_without_a_certificate_have_an_address_of_their_own(policies, dump, certificates, port):
    folder, context, clients, _ = certificates
    options = ("--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key", "--client-ca", folder / "ca.crt",
               "--health-bind", f"127.0.0.1:{port}")
    with serving("--policies", policies, "--cluster", dump, *options, context=context(clients)) as client:
        probe = Client(f"http://127.0.0.1:{port}")
        assert client("POST", "/filter", question("one"))[0] == 200
        assert probe("GET", "/readyz") == (200, "ok")
        assert probe.metric("koord_policy_decisions_total", verb="filter", result="ok") == 1
        assert probe("GET", "/status") == (404, {
            "error": "there is no `/status`: ask /configz, /healthz, /healthz/{check}, /livez, /livez/{check}, "
                     "/metrics, /metrics/slis, /readyz, /readyz/{check}"})
        assert probe("POST", "/filter", question("one"))[0] == 404
        probe.connection.close()
