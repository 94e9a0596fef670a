"""Shared state of the operators of one evaluation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from ..check.checked_ast import Path
from ..check.environment import Scope, Variable
from .encoding import Absent, key_of, value_at
from .frame import Frame, Rows
from .result_cache import CACHE_BYTES, ColumnCache

_CACHE_KEY: Final = "columns"


class RequestedRows:
    """The rows that a decision requires: operands may be invalid in all others."""

    __slots__ = ("operands", "partial", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.operands: dict[object, object] = {}
        self.partial = False
        """True if a row that is not required was omitted."""


class VectorContext:
    """One evaluation over one frame, shared by its operators."""

    __slots__ = ("_results", "decision_cache", "frame", "numbers", "operands", "requested", "size")

    def __init__(self, frame: Frame, rows: Rows | None = None) -> None:
        """`rows` are those that are required; None: all."""
        self.frame = frame
        self.size = frame.size
        self.decision_cache = frame.decision_cache
        self.numbers = frame.scratch(None)
        """Numeric columns: other expressions read them too."""
        self.requested: RequestedRows | None = None
        self.operands = self.decision_cache
        """Operands of operators and variables, in the required rows."""
        if rows is not None:
            # The expressions of a decision usually require the same rows: they share operands.
            requested = self.decision_cache.get(RequestedRows)
            if not isinstance(requested, RequestedRows) or requested.rows is not rows:
                requested = self.decision_cache[RequestedRows] = RequestedRows(rows)
            self.requested = requested
            self.operands = requested.operands
        self._results: ColumnCache | None = None

    @property
    def results(self) -> ColumnCache:
        """The cache of the frame's rows."""
        if self._results is None:
            cache = self.frame.cross_version_cache
            results = cache.get(_CACHE_KEY)
            if results is None:
                results = cache[_CACHE_KEY] = ColumnCache(CACHE_BYTES)
            assert isinstance(results, ColumnCache)
            self._results = results
        return self._results

    def decision_key(self, paths: Sequence[Path], declared: Mapping[str, Variable]) -> Hashable:
        """Return a key that is equal for decisions in which these values are equal."""
        cache, keys = self.decision_cache, []
        for path in paths:
            key = cache.get(path)
            if key is None:
                try:
                    value = value_at(self.frame.value(path[0]), path[1:])
                    is_constant = declared[path[0]].scope is Scope.CONSTANT
                    key = self.results.constant_key(path, value) if is_constant else key_of(value)
                except KeyError:
                    key = Absent(-1)
                cache[path] = key
            keys.append(key)
        return tuple(keys)
