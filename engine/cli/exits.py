"""Exit codes, and the exception that ends a command with one of them."""

from __future__ import annotations

import argparse
import enum
from collections.abc import Iterable


class Exit(enum.IntEnum):
    """An exit code of `koord-policy`."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    INVALID = 3
    """Policies (or a configuration, or cluster objects) are invalid."""
    FAILED = 4
    """Tests failed."""
    IMPOSSIBLE = 5
    """The requested decision is not possible (no node fits the pod)."""
    EXCEEDED = 6
    """A budget or a requested check does not hold."""


class Stop(Exception):
    """Ends the command with a message for the user."""

    def __init__(self, message: str, exit: Exit = Exit.USAGE) -> None:  # noqa: A002 - as its attribute
        super().__init__(message)
        self.exit = exit


def refuse_given(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Raise `Stop` if one of these options is given, None being the default of all; `why` follows its name."""
    for name in names:
        if getattr(options, name) is not None:
            raise Stop(f"`--{name.replace('_', '-')}` {why}")
