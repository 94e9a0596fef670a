"""A function for expressions, brought by a distribution: how far apart two zones are.

The distribution names this module in its pyproject.toml; nothing else is needed to have it everywhere that policies
are checked and run:

    [project.entry-points."koordpolicy.plugins"]
    zones = "acme_zones"
"""

from __future__ import annotations

from koordpolicy.plugin import EvaluationError, cel_function

MILLISECONDS = {frozenset(("eu-1a", "eu-1b")): 1, frozenset(("eu-1a", "us-1a")): 80, frozenset(("eu-1b", "us-1a")): 81}


def round_trip(left: str, right: str) -> int:
    """Return the round trip between two zones in milliseconds; those of one zone are 0 apart."""
    if left == right:
        return 0
    found = MILLISECONDS.get(frozenset((left, right)))
    if found is None:
        raise EvaluationError(f"nobody measured how far `{left}` and `{right}` are apart")
    return found


FUNCTIONS = [
    cel_function(
        "acme.roundTrip", round_trip, ["string", "string"], "int",
        doc="The round trip between two zones in milliseconds.", example="acme.roundTrip('eu-1a', 'eu-1b') == 1",
    ),
]
