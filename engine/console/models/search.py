"""The models of searches."""

from __future__ import annotations

from .model import Model


class SearchResult(Model, frozen=True, kw_only=True, rename="camel"):
    """A search result."""

    kind: str
    """`node`, `pod` or `policy`."""
    name: str
    document: str = ""
    """Of a policy, the kind of its document: two kinds may have one name."""


class SearchView(Model, frozen=True, kw_only=True, rename="camel"):
    """The first results of a search, best first."""

    found: list[SearchResult]
    left_out: int
    near: list[SearchResult] = []
    """If nothing is found, the names that begin like the text for the longest time."""
