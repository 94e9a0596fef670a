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
"""The last window, which no query has: it ends before it begins."""


class SeriesTable:
    """The series of one resource, a column for each subject; rows are times, in nanoseconds, ascending.

    It holds the last `rows` times at least and a quarter more at most, whatever is appended. A subject without a value
    at a time has none there. Appending costs nothing that grows with the rows; a query costs the rows of its window.
    May be used from any thread.
    """

    def __init__(self, rows: int, *, exact_rows: int | None = None) -> None:
        """With more rows than `exact_rows`, values are rounded to 32 bits: their relative error is at most 6e-8."""
        self._lock = threading.Lock()
        self._exact_rows = exact_rows
        self._allocate(rows)
        self._columns: dict[str, array[float]] = {}

    def _allocate(self, rows: int) -> None:
        if rows < 1:
            raise ValueError("a table of series has at least one row")
        self.rows = rows
        self.capacity = rows + max(rows // 4, 1)
        """The number of rows for which there is memory."""
        self._times = array("q", bytes(8 * self.capacity))
        exact = self._exact_rows is None or rows <= self._exact_rows
        self._empty = array("d" if exact else "f", [_NONE]) * self.capacity
        self._end = 0
        self._found = _NOTHING_FOUND

    def __len__(self) -> int:
        """The number of series."""
        return len(self._columns)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def size(self) -> int:
        """The bytes of all series and of the times."""
        return (
            self.capacity * self._times.itemsize
            + (len(self._columns) + 1) * self.capacity * self._empty.itemsize
        )

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
            row = self._row(time)
            columns = self._columns
            for name, value in values.items():
                try:
                    columns[name][row] = value
                except KeyError:
                    columns[name] = self._empty[:]
                    columns[name][row] = value

    def forget(self, name: str) -> None:
        """Drop a series, if there is one of that name."""
        self._columns.pop(name, None)

    def names(self) -> Iterator[str]:
        """Return the names of all series."""
        return iter(tuple(self._columns))  # a copy, in one step

    def resize(self, rows: int) -> None:
        """Change the number of rows; the newest ones stay."""
        with self._lock:
            stay = min(self._end, rows)
            first, end, times, columns = self._end - stay, self._end, self._times, self._columns
            self._allocate(rows)
            self._times[:stay] = times[first:end]
            self._end = stay
            self._columns = {}
            for name, column in columns.items():
                new = self._columns[name] = self._empty[:]
                new[:stay] = array(new.typecode, column[first:end])

    def statistic(self, name: str, statistic: str, start: int, end: int) -> float | None:
        """Return a statistic of a subject from `start` to `end`, both included; None if there is no value.

        `avg`, `last` and `count` are cheaper than the others: they sort nothing, and `last` looks at one value.
        """
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return None
            window = self._found
            if window[0] != start or window[1] != end:
                window = self._find(start, end)
            _, _, first, stop = window
            if statistic == "last":
                for row in range(stop - 1, first - 1, -1):
                    value = column[row]
                    if value == value:  # noqa: PLR0124 - not NaN
                        return value
                return None
            values: Sequence[float] = column[first:stop]
        total = sum(values)
        if math.isnan(total):
            values = [value for value in values if not math.isnan(value)]
            total = sum(values)
        if not values:
            return None
        if statistic == "avg":
            return total / len(values)
        return len(values) if statistic == "count" else STATISTICS[statistic](values)

    def between(self, name: str, start: int, end: int) -> Sequence[float]:
        """Return the values of a subject measured from `start` to `end`, both included, in order of time."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return ()
            found = column[slice(*self._window(start, end))]
        # A sum in C finds out at once that there are no gaps.
        return found if not math.isnan(sum(found)) else [value for value in found if value == value]  # noqa: PLR0124 - not NaN

    def samples(self, name: str, start: int, end: int) -> tuple[Sequence[int], Sequence[float]]:
        """Return times and values of a subject from `start` to `end`, both included, in order of time."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return [], []
            window = slice(*self._window(start, end))
            times, values = self._times[window], column[window]
        if not math.isnan(sum(values)):
            return times, values
        rows = [row for row, value in enumerate(values) if not math.isnan(value)]
        return [times[row] for row in rows], [values[row] for row in rows]

    def latest(self, start: int, end: int) -> dict[str, float]:
        """Return the last value of each subject from `start` to `end`, both included, of those that have one."""
        found: dict[str, float] = {}
        with self._lock:
            for row in range(*self._window(start, end)):
                found |= {name: column[row] for name, column in self._columns.items() if not math.isnan(column[row])}
        return found

    def newest(self, name: str, end: int) -> int | None:
        """Return the time of the last value of a subject until `end`; None if there is none."""
        with self._lock:
            column = self._columns.get(name)
            if column is None:
                return None
            for row in range(bisect_right(self._times, end, 0, self._end) - 1, -1, -1):
                if not math.isnan(column[row]):
                    return self._times[row]
        return None

    def _window(self, start: int, end: int) -> tuple[int, int]:
        """Return the first row from `start` on, and the one behind the last row until `end`."""
        return (self._found if self._found[:2] == (start, end) else self._find(start, end))[2:]

    def _find(self, start: int, end: int) -> tuple[int, int, int, int]:
        """Find the rows of a window: in one round all subjects are queried for the same one."""
        times, stop = self._times, self._end
        self._found = start, end, bisect_left(times, start, 0, stop), bisect_right(times, end, 0, stop)
        return self._found

    def _row(self, time: int) -> int:
        """Return the row of a time, which becomes the last one."""
        self._found = _NOTHING_FOUND
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
        end = self._end
        if stay == end:
            return
        for column in self._columns.values():
            column[stay:end] = self._empty[stay:end]
        self._end = stay

    def _compact(self) -> int:
        """Keep the last rows, without the newest one to come, and drop series without a value in them."""
        stay = self.rows - 1
        first = self._end - stay
        self._times[:stay] = self._times[first : self._end]
        for name, column in tuple(self._columns.items()):
            kept = column[first : self._end]
            if all(map(math.isnan, kept)):
                del self._columns[name]
                continue
            column[:stay] = kept
            column[stay:] = self._empty[stay:]
        self._end = stay
        return stay
