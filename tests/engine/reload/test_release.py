"""Large results are freed part by part, wherever their large containers are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from koordpolicy.engine.reload.release import release


class _Part:
    """Counts the parts that exist."""

    count = 0

    def __init__(self) -> None:
        _Part.count += 1

    def __del__(self) -> None:
        _Part.count -= 1


@dataclass(frozen=True, slots=True)
class _Document:
    rules: Any


def _in_a_closure() -> Callable[[], int]:
    rules = [_Part() for _ in range(100)]
    return lambda: len(rules)


@pytest.mark.parametrize("make", [
    lambda: [_Part() for _ in range(100)],
    lambda: _Document(tuple(_Part() for _ in range(100))),
    lambda: {"filter": {number: _Part() for number in range(100)}},
    lambda: ("a", [_Document([{_Part() for _ in range(100)}])]),
    _in_a_closure,
])
def test_each_part_has_a_pause_after_it(make: Callable[[], Any]):
    owned, left = [make()], []
    assert _Part.count == 100
    release(owned, lambda: left.append(_Part.count))
    assert (owned, left[-1]) == ([], 0)
    assert max(before - after for before, after in zip([100, *left], left, strict=False)) == 1


def test_what_others_refer_to_stays():
    rules = [_Part() for _ in range(100)]
    release([_Document(rules)], lambda: None)
    assert (len(rules), _Part.count) == (100, 100)


def test_a_ring_of_references_is_left_to_the_garbage_collector():
    ring: list[Any] = []
    ring.append(ring)
    release([ring], lambda: None)
    assert ring[0] is ring
