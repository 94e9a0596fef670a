"""Fixtures of tests in several folders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.oci_registry import OciRegistry, oci_registry


@pytest.fixture
def registry() -> Iterator[OciRegistry]:
    """An OCI registry without bundles."""
    with oci_registry() as served:
        yield served
