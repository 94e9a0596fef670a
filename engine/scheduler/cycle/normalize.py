"""Normalization of scores to 0..100 over the feasible nodes, as kube-scheduler's default normalizer does it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.vector.frame import Rows


def normalize_by_max(values: NDArray[Any], rows: Rows, highest: int, *, reverse: bool = False) -> NDArray[np.int64]:
    """Return `highest * value // largest` of the rows; with `reverse` `highest` minus that (DefaultNormalizeScore).

    If the largest value is 0, all rows get 0, with `reverse` `highest`. Values must not be negative.
    """
    most = int(values[rows].max()) if len(rows) else 0
    if most == 0:
        return np.full(len(values), highest if reverse else 0, np.int64)
    scaled: NDArray[np.int64] = values.astype(np.int64) * highest // most
    return highest - scaled if reverse else scaled
