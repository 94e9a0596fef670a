"""Policies and a cluster for servers, and certificates."""

from __future__ import annotations

import ssl

import pytest
import trustme
import yaml

from tests.ports import reserved_port

from ..conftest import node
from .serving import TOKEN, document, serving


@pytest.fixture
def policies(tmp_path):
    folder = tmp_path / "policies"
    folder.mkdir()
    (folder / "policy.yaml").write_text(document(4000))
    return folder


@pytest.fixture
def dump(tmp_path):
    file = tmp_path / "cluster.yaml"
    items = [node("one", cpu="1"), node("two", cpu="2"), node("four"), node("eight", cpu="8")]
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


@pytest.fixture
def client(policies, dump):
    with serving("--policies", policies, "--cluster", dump) as client:
        yield client


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Return files of a server's certificate, and the authorities of servers, clients and strangers."""
    folder = tmp_path_factory.mktemp("tls")
    servers, clients, strangers = trustme.CA(), trustme.CA(), trustme.CA()
    issued = servers.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(folder / "tls.crt", append=number > 0)
    clients.cert_pem.write_to_path(folder / "ca.crt")

    def context(authority=None):
        made = ssl.create_default_context()
        servers.configure_trust(made)
        if authority is not None:
            authority.issue_cert("kube-scheduler@example.com").configure_cert(made)
        return made

    return folder, context, clients, strangers


@pytest.fixture
def port():
    with reserved_port() as port:
        yield port


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


@pytest.fixture
def shadow(tmp_path):
    folder = tmp_path / "shadow"
    folder.mkdir()
    (folder / "policy.yaml").write_text(document(4000))
    return folder


@pytest.fixture
def shadowed(policies, shadow, dump, token):
    with serving("--policies", policies, "--shadow", shadow, "--cluster", dump, "--admin-token-file", token,
                 "--shadow-share", "1") as client:
        yield client
