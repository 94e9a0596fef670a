"""Fixtures of all tests.

Property tests look at the same examples in every run of the tests, and at other ones in `make fuzz`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from koordpolicy.engine.client import resources

from .output_schemas import _outputs_are_as_their_schemas_say  # noqa: F401 - a fixture of every test

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
# `--hypothesis-profile explore` comes after this and wins.
settings.load_profile("repeatable")


@pytest.fixture
def own_declared_kinds() -> Iterator[None]:
    """Forget the kinds that a test declares, which the process would keep for all that follow."""
    before = set(resources.BY_KIND)
    yield
    for kind in set(resources.BY_KIND) - before:
        del resources._KNOWN[kind]
