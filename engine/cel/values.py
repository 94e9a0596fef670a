"""What an expression computes with.

Values are plain Python values as JSON gives them, unconverted: None, bool, int, float, str, list, dict; and bytes.
The kinds that JSON does not have get small classes here: `Uint`, `Timestamp`, `Duration`, `Optional`. A type as a
value is a `types.Type`. Values of libraries (quantities, IP addresses) are instances of classes that the library
registers as an opaque type.
"""

from __future__ import annotations


class EvaluationError(Exception):
    """An expression that has no value: an error is the third thing an evaluation can end with.

    `offset` is the position of the failing node in the expression's text, or -1 where it is not known.
    `reason` is a CamelCase word where a caller may tell errors apart (`NoMetric`, `CostLimit`), else empty.
    `final` errors are not absorbed by `||`, `&&` (a spent budget).
    """

    def __init__(self, message: str, *, offset: int = -1, reason: str = "", final: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.reason = reason
        self.final = final
