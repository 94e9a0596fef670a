"""The result table: a row per experiment, written atomically; and means over the repeating axis.

The border to `pyarrow`: nothing else imports it.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, TypeAlias

from koordpolicy.engine.files import write_whole

from .axes import Point, Value
from .sweep import Finished

Cell: TypeAlias = Value | None
Row: TypeAlias = Mapping[str, Cell]

CSV: Final = ".csv"
PARQUET: Final = ".parquet"


def rows_of(finished: Iterable[Finished], *, step: int = 0) -> list[Row]:
    """Return a row per experiment: its point, its figures, and each curve at every `step` (0: no curves).

    A curve's columns are called `<curve>_<x>`.
    """
    rows: list[Row] = []
    for each in finished:
        at = {
            f"{name}_{x}": curve[x] for name, curve in each.outcome.curves.items()
            for x in range(step, len(curve), step)
        } if step else {}
        rows.append({**each.point, **each.outcome.figures, **at, "seconds": round(each.outcome.seconds, 3)})
    return rows


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write a table in the format of the path's ending.

    Raises:
        ValueError: the ending is unknown.
        ModuleNotFoundError: it is Parquet, and pyarrow is not installed.
        OSError: the file cannot be written; an existing file is unchanged.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    match path.suffix:
        case ".csv":
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
            write_whole(path, text.getvalue().encode())
        case ".parquet":
            # Imported here: it is an optional extra, and not typed.
            arrow: Any = importlib.import_module("pyarrow")
            parquet: Any = importlib.import_module("pyarrow.parquet")
            columns = {name: _one_type([row.get(name) for row in rows]) for name in names}
            sink = io.BytesIO()
            parquet.write_table(arrow.table(columns), sink)
            write_whole(path, sink.getvalue())
        case other:
            raise ValueError(f"a table ends with {CSV} or {PARQUET}, not `{other}`")


def _one_type(values: Sequence[Cell]) -> list[Cell]:
    """Return a column whose values are of one type, as Parquet requires: strings if they are mixed."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return list(values)
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]


def grouped(finished: Iterable[Finished], repeated: str) -> dict[tuple[tuple[str, Value], ...], list[Finished]]:
    """Return the experiments by their point without the repeating axis, in order."""
    groups: dict[tuple[tuple[str, Value], ...], list[Finished]] = {}
    for each in finished:
        key = tuple((name, value) for name, value in each.point.items() if name != repeated)
        groups.setdefault(key, []).append(each)
    return groups


def mean_and_deviation(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Return mean and sample deviation (0 for a single value) of the values that are not None; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return fmean(known), stdev(known) if len(known) > 1 else 0.0


Figure: TypeAlias = Callable[[Finished], float | None]


def figure(name: str) -> Figure:
    """Return the function that reads a figure of an experiment."""
    return lambda each: each.outcome.figures.get(name)


def without_constant(points: Sequence[Point]) -> tuple[str, ...]:
    """Return the names of the axes on which the points differ."""
    names = list(dict.fromkeys(name for point in points for name in point))
    return tuple(name for name in names if len({repr(point.get(name)) for point in points}) > 1)
