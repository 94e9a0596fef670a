"""JSON as its standard has it: Python's decoder also takes `NaN` and infinities."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn

_CONSTANTS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(-?Infinity|NaN)')
"""The texts of a document, in which a constant is none, and constants."""


class ConstantError(json.JSONDecodeError):
    """A text has `NaN`, `Infinity` or `-Infinity` as a value; `constant` says which."""

    def __init__(self, constant: str, text: str) -> None:
        found = (each.start() for each in _CONSTANTS.finditer(text) if each[1] == constant)
        super().__init__(f"`{constant}` is not a number", text, next(found, 0))
        self.constant = constant


def decode(
    text: str, *, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Return the value of a JSON text.

    Raises:
        json.JSONDecodeError: the text is not JSON; for a constant `ConstantError`.
        ValueError: a number has thousands of digits (see `parse_fault`), or a function that parses numbers raises it.
        RecursionError: it is nested too deeply.
    """
    def refuse(constant: str) -> NoReturn:
        raise ConstantError(constant, text)

    return json.loads(text, parse_int=parse_int, parse_float=parse_float, parse_constant=refuse)
