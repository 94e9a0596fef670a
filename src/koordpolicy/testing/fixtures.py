"""Fixtures for pytest: write `pytest_plugins = ["koordpolicy.testing.fixtures"]` into a conftest.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koordpolicy.testing import FakeClock, FakeFramework


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until a test moves it."""
    return FakeClock()


@pytest.fixture
def framework(clock: FakeClock) -> Callable[..., FakeFramework]:
    """Makes a framework over objects, under the fixture `clock`."""

    def make(*objects: Any, **options: Any) -> FakeFramework:
        return FakeFramework(*objects, clock=clock, **options)

    return make
