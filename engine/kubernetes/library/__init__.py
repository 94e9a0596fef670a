"""The functions that Kubernetes adds to CEL, and the tables of its environment."""

from __future__ import annotations

from typing import Final

from koordpolicy.engine.cel.check.environment import Function
from koordpolicy.engine.cel.library import LISTS as EXTENDED_LISTS
from koordpolicy.engine.cel.library import OPTIONALS, SETS, STANDARD, STRINGS_V2, table

from .format import FORMAT
from .koordinator import KOORDINATOR
from .lists import LISTS
from .network import NETWORK
from .quantities import QUANTITIES
from .regex import REGEX
from .semver import SEMVER
from .url import URLS

KUBERNETES: Final[tuple[Function, ...]] = (
    *QUANTITIES, *LISTS, *REGEX, *URLS, *NETWORK, *SEMVER, *FORMAT,
)
"""Kubernetes' own libraries."""

__all__ = ["FUNCTIONS", "KOORDINATOR", "KUBERNETES", "NETWORK"]

FUNCTIONS: Final = table(STANDARD, STRINGS_V2, SETS, OPTIONALS, EXTENDED_LISTS, KUBERNETES)
"""The functions of Kubernetes' base environment, by name."""
