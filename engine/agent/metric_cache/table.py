"""Series of many subjects on one axis of times, in memory of a fixed size."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .series import STATISTICS

_NONE: Final = math.nan
_NOTHING_FOUND: Final = (1, 0, 0, 0)
"""A window that equals no query's, as its end precedes its start."""
_FEW: Final = 1 / 16
"""Above this share of series queried for one window, the statistic is computed for all series at once."""
_MOST_QUERIES: Final = 64
"""The maximum number of cached queries, which are dropped when a row is appended: without a new row, each second has
windows of its own.
"""


class SeriesTable:
    """The series of one resource, a column for each subject; rows are times, in nanoseconds, ascending.

    It holds the last `rows` times, and up to a quarter more. A subject that was not measured at a time has no value in
    that row. Values of one time are adjacent in memory, so that appending them costs one copy; the cost of a query
    grows with the rows of its window. May be used from any thread.
    """

    def __init__(self, rows: int, *, exact_rows: int | None = None) -> None:
        """With more rows than `exact_rows`, values are rounded to 32 bits: their relative error is at most 6e-8."""
        self._lock = threading.Lock()
        self._exact_rows = exact_rows
        self._columns: dict[str, int] = {}
        self._free: list[int] = []
        """The columns of subjects that were forgotten; there is no value in them."""
        self._width = 0
        self._names: Sequence[str] | None = None
        """The names of the last row that was appended, if each has a column."""
        self._order: list[int] = []
        """The columns of these names."""
        self._in_order = False
        """True if these are all columns, in their order."""
        self._found = _NOTHING_FOUND
        self._queries: dict[tuple[str, int, int], int] = {}
        self._results: dict[tuple[str, int, int], list[float | None]] = {}
        self._end = 0
        self._allocate(rows)

    def _allocate(self, rows: int) -> None:
        if rows < 1:
            raise ValueError("a table of series has at least one row")
        self.rows = rows
        self.capacity = rows + max(rows // 4, 1)
        """The number of rows for which there is memory."""
        exact = self._exact_rows is None or rows <= self._exact_rows
        self._times = array("q", bytes(8 * self.capacity))
        self._none = array("d" if exact else "f", [_NONE])
        self._values = self._none * (self.capacity * self._width)

    def __len__(self) -> int:
        """The number of series."""
        return len(self._columns)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def size(self) -> int:
        """The bytes of all series and of the times."""
        return self.capacity * (self._times.itemsize + self._width * self._values.itemsize)

    def append(self, time: int, name: str, value: float) -> None:
        """Append a value of one subject; raise `ValueError` if it is not finite.

        A time before the last one means that the clock was set back: rows after it are dropped.
        """
        if not math.isfinite(value):
            raise ValueError(f"`{value}` of `{name}` is not a measurement")
        self.append_all(time, {name: value})

    def append_all(self, time: int, values: Mapping[str, float]) -> None:
        """Append the values of several subjects at one time; they must be finite."""
        with self._lock:
            self._set(self._row(time), values)

    def append_row(self, time: int, names: Sequence[str], values: Sequence[float]) -> None:
        """Append the values of the subjects of these names at one time; they must be finite, or NaN for no value.

        It is cheap if `names` is the same object as in the last call.
        """
        with self._lock:
            row = self._row(time)
            if names is not self._names:
                present = {name: value for name, value in zip(names, values, strict=True)
                           if value == value}  # noqa: PLR0124 - not NaN
                self._set(row, present)
                order = [self._columns.get(name, -1) for name in names]
                if -1 not in order:
                    self._names, self._order, self._in_order = names, order, order == list(range(self._width))
                return
            first = row * self._width
            if self._in_order:
                appended = array(self._values.typecode, values)
                if len(appended) != self._width:
                    raise ValueError("each name has one value")
                self._values[first : first + self._width] = appended
                return
            table = self._values
            for column, value in zip(self._order, values, strict=True):
                table[first + column] = value

    def _set(self, row: int, values: Mapping[str, float]) -> None:
        missing = [name for name in values if name not in self._columns]
        if missing:
            self._add(missing)
        first, columns, table = row * self._width, self._columns, self._values
        for name, value in values.items():
            table[first + columns[name]] = value

    def forget(self, name: str) -> None:
        """Drop a series, if there is one of that name."""
        with self._lock:
            column = self._columns.pop(name, None)
            if column is not None:
                self._values[column :: self._width] = self._none * self.capacity
                self._free.append(column)
                self._changed()

    def names(self) -> Iterator[str]:
        """Return the names of all series."""
        return iter(tuple(self._columns))  # a copy, in one step

    def resize(self, rows: int) -> None:
        """Change the number of rows; the newest ones stay."""
        with self._lock:
            stay = min(self._end, rows)
            first, end, times, values = self._end - stay, self._end, self._times, self._values
            self._allocate(rows)
            self._times[:stay] = times[first:end]
            self._values[: stay * self._width] = array(
                self._values.typecode, values[first * self._width : end * self._width])
            self._end = stay
            self._changed()

    def statistic(self, name: str, statistic: str, start: int, end: int) -> float | None:
        """Return a statistic of a subject from `start` to `end`, both included; None if there is no value.

        `avg`, `last` and `count` are cheaper than the others: they sort nothing, and `last` looks at one value.
        """
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return None
            query = statistic, start, end
            results = self._results.get(query)
            if results is not None:
                return results[column]
            first, stop = self._window(start, end)
            if statistic == "last":
                return self._last(column, first, stop)
            if len(self._queries) >= _MOST_QUERIES and query not in self._queries:
                self._queries.clear()
                self._results.clear()
            queries = self._queries[query] = self._queries.get(query, 0) + 1
            if queries <= 1 + len(self._columns) * _FEW:
                return _statistic(statistic, self._values[first * self._width + column : stop * self._width
                                                          : self._width])
            results = self._results[query] = self._statistics(statistic, first, stop)
            return results[column]

    def _last(self, column: int, first: int, stop: int) -> float | None:
        for row in range(stop - 1, first - 1, -1):
            value = self._values[row * self._width + column]
            if value == value:  # noqa: PLR0124 - not NaN
                return value
        return None

    def _statistics(self, statistic: str, first: int, stop: int) -> list[float | None]:
        """Return a statistic of each column over these rows."""
        width = self._width
        window = self._values[first * width : stop * width]
        return [_statistic(statistic, window[column::width]) for column in range(width)]

    def between(self, name: str, start: int, end: int) -> Sequence[float]:
        """Return the values of a subject measured from `start` to `end`, both included, in order of time."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return ()
            found = self._of(column, *self._window(start, end))
        # A sum in C finds out at once that there are no gaps.
        return found if not math.isnan(sum(found)) else _present(found)

    def samples(self, name: str, start: int, end: int) -> tuple[Sequence[int], Sequence[float]]:
        """Return times and values of a subject from `start` to `end`, both included, in order of time."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return [], []
            first, stop = self._window(start, end)
            times, values = self._times[first:stop], self._of(column, first, stop)
        if not math.isnan(sum(values)):
            return times, values
        rows = [row for row, value in enumerate(values) if not math.isnan(value)]
        return [times[row] for row in rows], [values[row] for row in rows]

    def latest(self, start: int, end: int) -> dict[str, float]:
        """Return the last value of each subject from `start` to `end`, both included, of those that have one."""
        found: dict[str, float] = {}
        with self._lock:
            for row in range(*self._window(start, end)):
                values = self._values[row * self._width : (row + 1) * self._width]
                found |= {name: values[column] for name, column in self._columns.items()
                          if not math.isnan(values[column])}
        return found

    def newest(self, name: str, end: int) -> int | None:
        """Return the time of the last value of a subject until `end`; None if there is none."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return None
            for row in range(bisect_right(self._times, end, 0, self._end) - 1, -1, -1):
                if not math.isnan(self._values[row * self._width + column]):
                    return self._times[row]
        return None

    def _of(self, column: int, first: int, stop: int) -> array[float]:
        """Return the values of a column in these rows, with NaN where there is none."""
        return self._values[first * self._width + column : stop * self._width : self._width]

    def _window(self, start: int, end: int) -> tuple[int, int]:
        """Return the first row from `start` on, and the one behind the last row until `end`.

        In one round all subjects are queried for the same one.
        """
        if self._found[:2] != (start, end):
            times, stop = self._times, self._end
            first = bisect_left(times, start, 0, stop)
            self._found = start, end, first, max(bisect_right(times, end, 0, stop), first)
        return self._found[2:]

    def _row(self, time: int) -> int:
        """Return the row of a time, which becomes the last one."""
        self._forget_results()
        end, times = self._end, self._times
        if end and time <= times[end - 1]:
            end = bisect_left(times, time, 0, end)
            if times[end] == time:
                self._drop_after(end + 1)
                return end
            self._drop_after(end)
        if end == self.capacity:
            end = self._compact()
        self._times[end] = time
        self._end = end + 1
        return end

    def _drop_after(self, stay: int) -> None:
        self._values[stay * self._width : self._end * self._width] = self._none * ((self._end - stay) * self._width)
        self._end = stay

    def _compact(self) -> int:
        """Keep the last rows, without the newest one to come, and drop series without a value in them."""
        stay = self.rows - 1
        first, width, values = self._end - stay, self._width, self._values
        self._times[:stay] = self._times[first : self._end]
        values[: stay * width] = values[first * width : self._end * width]
        values[stay * width :] = self._none * ((self.capacity - stay) * width)
        self._end = stay
        self._columns = {name: column for name, column in self._columns.items()
                         if not all(map(math.isnan, self._of(column, 0, stay)))}
        if len(self._columns) < width:
            self._arrange(tuple(self._columns))
        return stay

    def _add(self, names: Sequence[str]) -> None:
        """Add columns; those that were freed are used again."""
        reused = min(len(names), len(self._free))
        for name in names[:reused]:
            self._columns[name] = self._free.pop()
        if names[reused:]:
            self._arrange((*self._columns, *names[reused:]))
        self._changed()

    def _arrange(self, names: Sequence[str]) -> None:
        """Assign the columns to these names in order; new names have no values."""
        old, columns, width = self._values, self._columns, self._width
        self._columns = {name: column for column, name in enumerate(names)}
        self._free.clear()
        self._width = len(names)
        self._values = self._none * (self.capacity * self._width)
        for name, column in columns.items():
            if name in self._columns:
                self._values[self._columns[name] :: self._width] = old[column::width]
        self._changed()

    def _changed(self) -> None:
        """Invalidate cached columns and windows."""
        self._names = None
        self._forget_results()

    def _forget_results(self) -> None:
        self._found = _NOTHING_FOUND
        self._queries.clear()
        self._results.clear()


def _present(values: Sequence[float]) -> list[float]:
    return [value for value in values if value == value]  # noqa: PLR0124 - not NaN


def _statistic(statistic: str, values: Sequence[float]) -> float | None:
    """Return a statistic of the values that are not NaN; None if there are none."""
    total = sum(values)
    if math.isnan(total):
        values = _present(values)
        total = sum(values)
    if not values:
        return None
    if statistic == "avg":
        return total / len(values)
    return len(values) if statistic == "count" else STATISTICS[statistic](values)
