"""The values of score items: as integers, normalised to 0..100."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.documents import Normalize
from koordpolicy.engine.framework.points import HIGHEST_SCORE, are_scores

Integers = NDArray[np.int64]

_EXACT_DOUBLES: Final = 2.0**63
_SAFE: Final = 2**63 // (HIGHEST_SCORE + 1)


def in_range(values: NDArray[Any]) -> bool:
    """Return whether all values are within 0..100 once doubles are truncated."""
    if not len(values):
        return True
    if values.dtype == np.int64:
        return are_scores(values)
    # NaN among the values is both their minimum and their maximum, and compares with nothing.
    return bool(np.minimum.reduce(values) >= 0 and np.maximum.reduce(values) < HIGHEST_SCORE + 1)


def integers(
    chosen: NDArray[Any], rows: Rows, errors: dict[int, EvaluationError],
) -> tuple[Integers, Rows]:
    """Return the rows and their values as integers, doubles truncated; other values become errors and are omitted."""
    if chosen.dtype == np.int64:
        return chosen, rows
    numbers = chosen.astype(np.float64)
    usable = np.isfinite(numbers) & (np.abs(numbers) < _EXACT_DOUBLES)
    if not usable.all():
        for row, number in zip(rows[~usable].tolist(), numbers[~usable].tolist(), strict=True):
            message = f"the score is {number}, not a number between -2^63 and 2^63"
            errors[row] = EvaluationError(message, reason="ScoreRange")
        rows, chosen, numbers = rows[usable], chosen[usable], numbers[usable]
    if chosen.dtype == np.object_:  # ints and doubles mixed: an int must not lose digits
        return np.array([int(each) for each in chosen.tolist()], np.int64), rows
    return np.trunc(numbers).astype(np.int64), rows


def normalize(values: Integers, how: Normalize) -> Integers:
    """Return values (at least one) normalised to 0..100; see `documents.Normalize` for the formulas."""
    if how is Normalize.IDENTITY:
        return values
    low, high = int(values.min()), int(values.max())
    reverse = how in (Normalize.MAX_REVERSE, Normalize.MIN_MAX_REVERSE)
    by_max = how in (Normalize.MAX, Normalize.MAX_REVERSE)
    offset, span = (0, high) if by_max else (low, high - low)
    if by_max and high <= 0 and not (reverse and low == 0):
        return values  # if the largest value is 0 nothing is scaled; negative values are out of range
    if span == 0:
        return np.full(len(values), HIGHEST_SCORE if reverse else 0, np.int64)
    if max(abs(low), abs(high), span) >= _SAFE:
        scaled = np.array([HIGHEST_SCORE * (each - offset) // span for each in values.tolist()], np.int64)
    else:
        scaled = HIGHEST_SCORE * (values - offset) // span
    return HIGHEST_SCORE - scaled if reverse else scaled
