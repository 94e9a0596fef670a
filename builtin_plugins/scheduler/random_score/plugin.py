"""RandomScore: prefers one node, drawn with equal probability; the baseline for other policies.

It is written in Python, as expressions have no randomness: equal inputs give equal results.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.cluster.snapshot import Snapshot
from koordpolicy.engine.framework.points import HIGHEST_SCORE, Scores
from koordpolicy.engine.scheduler.profiles.args import check_fields
from koordpolicy.plugin import CycleState, Handle


class RandomScore:
    """The scorer. Argument `seed` replaces the seed of the run."""

    name = "RandomScore"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        seed = args.get("seed", handle.seed)
        self._random = random.Random(f"RandomScore/{seed}")  # noqa: S311 - a choice of nodes needs no secrecy

    @staticmethod
    def check_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments; raises `ValueError` for unknown ones."""
        return check_fields(args, {"seed": int})

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:
        """Give 100 to one of the rows and 0 to the others."""
        values = np.zeros(snapshot.size, np.int64)
        values[rows[self._random.randrange(len(rows))]] = HIGHEST_SCORE
        return Scores(values)
