"""Faults of plugin arguments, with their paths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

Fault: TypeAlias = tuple[tuple[str | int, ...], str]
"""A path below the arguments and the fault there."""


class ArgumentError(ValueError):
    """Invalid arguments; `faults` are all of them, with paths below the arguments."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(fault_text(each) for each in self.faults))


def refuse(faults: Iterable[Fault]) -> None:
    """Raise `ArgumentError` if there is a fault."""
    found = tuple(faults)
    if found:
        raise ArgumentError(found)


def fault_text(fault: Fault) -> str:
    """Return a fault as text: its path, if it is not about the arguments as a whole, and its message."""
    path, message = field_path(fault[0]), fault[1]
    return message if not path or message.startswith(f"{path}:") else f"{path}: {message}"


def field_path(path: tuple[str | int, ...]) -> str:
    """Return a path as text: `nodePools[0].lowThresholds.cpu`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text
