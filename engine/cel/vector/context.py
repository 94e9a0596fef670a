"""What the operators of one evaluation have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from ..check.checked_ast import Path
from ..check.environment import Scope, Variable
from .encoding import Absent, key_of, value_at
from .frame import Frame, Rows
from .result_cache import KEPT_BYTES, ColumnCache

_KEPT: Final = "columns"


class RequestedRows:
    """The rows that a decision asks for: operands hold for these, and may hold for no others."""

    __slots__ = ("memo", "partial", "rows")

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.memo: dict[object, object] = {}
        self.partial = False
        """Whether some row that is not asked for was left out."""


class VectorContext:
    """One evaluation of one frame: what its parts have in common."""

    __slots__ = ("_results", "frame", "memo", "numbers", "operands", "requested", "size")

    def __init__(self, frame: Frame, rows: Rows | None = None) -> None:
        """`rows` are those that are asked for; None: all."""
        self.frame = frame
        self.size = frame.size
        self.memo = frame.memo
        self.numbers = frame.moment(None)
        """Numeric columns: other expressions read them too."""
        self.requested: RequestedRows | None = None
        self.operands = self.memo
        """What parts and variables are, in the rows that are asked for."""
        if rows is not None:
            # The expressions of a decision mostly ask for the same rows: what they share is computed once.
            requested = self.memo.get(RequestedRows)
            if not isinstance(requested, RequestedRows) or requested.rows is not rows:
                requested = self.memo[RequestedRows] = RequestedRows(rows)
            self.requested = requested
            self.operands = requested.memo
        self._results: ColumnCache | None = None

    @property
    def results(self) -> ColumnCache:
        """What is kept of the frame's rows."""
        if self._results is None:
            kept = self.frame.kept
            results = kept.get(_KEPT)
            if results is None:
                results = kept[_KEPT] = ColumnCache(KEPT_BYTES)
            assert isinstance(results, ColumnCache)
            self._results = results
        return self._results

    def decision_key(self, paths: Sequence[Path], declared: Mapping[str, Variable]) -> Hashable:
        """Return what is equal for decisions in which these values are."""
        memo, keys = self.memo, []
        for path in paths:
            key = memo.get(path)
            if key is None:
                try:
                    value = value_at(self.frame.value(path[0]), path[1:])
                    is_constant = declared[path[0]].scope is Scope.CONSTANT
                    key = self.results.constant_key(path, value) if is_constant else key_of(value)
                except KeyError:
                    key = Absent(-1)
                memo[path] = key
            keys.append(key)
        return tuple(keys)
