"""The derived columns of a block of code (see `derived`), which its owner drops; without columns nothing is loaded."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final, Protocol, Self


class Droppable(Protocol):
    """A cache of derived columns."""

    def drop(self) -> None:
        """Drop the values of all clusters; for any thread."""
        ...


class Owned:
    """The derived columns that a block made; their owner drops what is cached of them when it is closed."""

    def __init__(self) -> None:
        self._caches: list[Droppable] = []

    def __enter__(self) -> Self:
        self._before = OWNED.set(self._caches)
        return self

    def __exit__(self, *_: object) -> None:
        OWNED.reset(self._before)

    def drop(self) -> None:
        """Drop what is cached, for all clusters; columns that are read again are computed again. For any thread."""
        for cache in self._caches:
            cache.drop()


OWNED: Final[ContextVar[list[Droppable] | None]] = ContextVar("owned", default=None)
"""The registry of new caches."""
