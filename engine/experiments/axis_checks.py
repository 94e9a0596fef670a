"""Checks of the names and values of axes, before any experiment runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from koordpolicy.engine.scheduler.cycle.tie_break import TIE_BREAKS
from koordpolicy.engine.source import did_you_mean

from .axes import Axis, Value, show
from .params import PREFIX


class AxisCheck(NamedTuple):
    """The valid values of an axis, and their description."""

    holds: Callable[[Value], bool]
    expected: str


ANY: Final = AxisCheck(lambda _: True, "")
WHOLE_NUMBER: Final = AxisCheck(
    lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number")
TIE_BREAK: Final = AxisCheck(lambda value: value in TIE_BREAKS, f"one of {', '.join(TIE_BREAKS)}")


def check_axis(axis: Axis, checks: Mapping[str, AxisCheck], subject: str) -> None:
    """Check the name and the values of an axis; those of params may have any value.

    Raises:
        ValueError: it is none of `checks`, or has an invalid value; `subject` is what the experiments are over.
    """
    if axis.name.startswith(PREFIX):
        return
    if axis.name not in checks:
        hint = did_you_mean(axis.name, [*checks, f"{PREFIX}NAME"]) or (
            f"there are {', '.join(f'`{name}`' for name in checks)} and `{PREFIX}NAME`")
        raise ValueError(f"there is no axis `{axis.name}` over {subject}: {hint}")
    holds, expected = checks[axis.name]
    wrong = next((value for value in axis.values if not holds(value)), None)
    if wrong is not None:
        raise ValueError(f"`{axis.name}={show(wrong)}`: expected {expected}")
