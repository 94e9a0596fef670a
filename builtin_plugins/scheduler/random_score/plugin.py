"""RandomScore: one of the nodes, drawn with equal chance; the base line that other policies are measured against.

An expression has no randomness, by intent: the same inputs give the same answer. So this is code.
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
        """Return the arguments; raises ValueError for those that there are not."""
        return check_fields(args, {"seed": int})

    def score(self, state: CycleState, pod: PodInfo, snapshot: Snapshot, rows: Rows) -> Scores:  # noqa: ARG002
        """Give 100 to one of the rows and 0 to the others."""
        values = np.zeros(snapshot.size, np.int64)
        values[rows[self._random.randrange(len(rows))]] = HIGHEST_SCORE
        return Scores(values)
