"""Tie-breaks: the selection of a node among those with the best total score."""

from __future__ import annotations

import random

from koordpolicy.engine.cel.vector.frame import Rows


class FirstByName:
    """Selects the node whose name sorts first: deterministic in every run."""

    rule = "first"
    seed: int | None = None

    def pick(self, rows: Rows) -> int:
        """Return one of the rows, which are ascending: a snapshot's rows are sorted by name."""
        return int(rows[0])


class SeededRandom:
    """Selects a node at random, with equal probability as kube-scheduler does; has its own generator."""

    rule = "random"

    def __init__(self, seed: int) -> None:
        self.seed: int | None = seed
        self._random = random.Random(seed)  # noqa: S311 - a choice among equals needs no secrecy

    def pick(self, rows: Rows) -> int:
        """Return one of the rows."""
        return int(rows[self._random.randrange(len(rows))])


TieBreak = FirstByName | SeededRandom
TIE_BREAKS = ("first", "random")
FIRST_BY_NAME = FirstByName()


def tie_break(rule: str, seed: int = 0) -> TieBreak:
    """Return the tie-break of that name.

    Raises:
        ValueError: there is no tie-break of that name.
    """
    match rule:
        case "first":
            return FIRST_BY_NAME
        case "random":
            return SeededRandom(seed)
        case _:
            raise ValueError(f"the tie-break `{rule}` does not exist: choose one of {', '.join(TIE_BREAKS)}")
