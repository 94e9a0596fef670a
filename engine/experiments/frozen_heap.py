"""Garbage collection during replays: what was loaded before a replay is not searched for garbage again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exclude all objects that exist now from garbage collection until the context ends.

    The collector's full collections walk over every container of the process, which a replay's pods, policies and
    traces make many of, and free none of them. It is a setting of the whole process, so composition roots alone use it;
    within another context, or where objects are frozen already, it changes nothing.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
