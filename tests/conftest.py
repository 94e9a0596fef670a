"""Fixtures of all tests.

Property tests look at the same examples in every run of the tests, and at other ones in `make fuzz`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from koordpolicy.engine.client import resources
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc

from .output_schemas import _outputs_are_as_their_schemas_say  # noqa: F401 - a fixture of every test

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
# `--hypothesis-profile explore` comes after this and wins.
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Let the examples of property tests not depend on the tests before them, unless `make fuzz` explores.

    hypothesis draws numbers and texts that are in the modules which were imported so far.
    """
    if not config.getoption("--hypothesis-profile"):
        nothing = providers._local_constants
        providers._get_local_constants = lambda: nothing


@pytest.fixture(scope="session", autouse=True)
def freeze_of_servers() -> Iterator[Callable[[LowLatencyGc], None]]:
    """Let servers in the tests' process freeze nothing, and return what they would call.

    A full collection of all that the tests of a process hold takes longer than the start of a server.
    """
    freeze = LowLatencyGc.freeze
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LowLatencyGc, "freeze", lambda _: None)
        yield freeze


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Let collections of a test visit the objects that it makes, and not those of other tests."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def own_declared_kinds() -> Iterator[None]:
    """Forget the kinds that a test declares, which the process would keep for all that follow."""
    before = set(resources.BY_KIND)
    yield
    for kind in set(resources.BY_KIND) - before:
        del resources._KNOWN[kind]
