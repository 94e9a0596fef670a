"""The fixtures of the live tests. They run by `make e2e` only: `make test` needs neither Go nor a cluster."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .build import binary
from .control_plane import AdminClient, ControlPlane, NamedCluster

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WITHOUT_CLUSTER = ("test_kernel_executor.py",)
"""Tests of what this machine's kernel does, which skip themselves where it lacks something."""
collect_ignore = [] if os.environ.get("KOORD_POLICY_E2E") else [
    path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in WITHOUT_CLUSTER
]


NAMED = os.environ.get("KOORD_POLICY_E2E_KUBECONFIG")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane | NamedCluster]:
    """A control plane per worker, or the named cluster. Tests that start or stop components use `own_control_plane`."""
    if NAMED:
        yield NamedCluster(Path(NAMED))
        return
    with ControlPlane(binary(), tmp_path_factory.mktemp("control-plane")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of a module."""
    from .browsing import launched  # noqa: PLC0415 - most live tests import neither Playwright nor the console

    with launched() as opened:
        yield opened


@pytest.fixture
def own_control_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    if NAMED:
        pytest.skip("starts and stops components, which the cluster of KOORD_POLICY_E2E_KUBECONFIG does not let us")
    with ControlPlane(binary(), tmp_path / "control-plane") as running:
        yield running


@pytest.fixture
def admin(cluster: ControlPlane | NamedCluster) -> AdminClient:
    return cluster.admin


@pytest.fixture
def namespace(admin: AdminClient) -> Iterator[str]:
    """A namespace for one test."""
    name = f"koord-policy-e2e-{secrets.token_hex(4)}"
    admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    admin.delete_pods(name)
    admin.delete(f"/api/v1/namespaces/{name}")
