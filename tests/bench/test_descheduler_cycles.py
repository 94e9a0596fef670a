"""The benchmark of the descheduler's cycles runs, in small: it checks what it measures."""

from __future__ import annotations

import pytest

from .bench_descheduler import measured


@pytest.mark.parametrize(("which", "number"), [("proof", 3), ("share", 2), ("load", 0)])
def test_a_cycle_of_each_kind_is_measured(which: str, number: int):
    found = measured(20, which, number)
    assert set(found) == {"first", "later", "seconds", "candidates", "memory"}
    assert min(found.values()) > 0
