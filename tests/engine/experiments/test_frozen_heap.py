"""Objects that exist before a replay are not part of its garbage collections."""

from __future__ import annotations

import gc

import pytest

from koordpolicy.engine.experiments.frozen_heap import frozen_heap


@pytest.fixture(autouse=True)
def nothing_is_frozen():
    before = gc.get_freeze_count()
    gc.unfreeze()
    yield
    if before:
        gc.freeze()


def test_what_exists_is_frozen_within_the_context_only():
    old = [[]]
    with frozen_heap():
        new = [[]]
        tracked = [id(each) for each in gc.get_objects()]
        assert (gc.get_freeze_count() > 0, id(old) in tracked, id(new) in tracked) == (True, False, True)
    assert (gc.get_freeze_count(), any(each is old for each in gc.get_objects())) == (0, True)


def test_a_context_within_another_one_leaves_the_objects_frozen():
    with frozen_heap():
        with frozen_heap():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_an_error_within_the_context_thaws_the_objects():
    with pytest.raises(ValueError, match="broken"), frozen_heap():
        raise ValueError("broken")
    assert gc.get_freeze_count() == 0
