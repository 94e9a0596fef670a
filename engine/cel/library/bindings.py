"""Names for parts of an expression: cel-go's bindings extension (cel-go `ext/bindings.go`).

`cel.bind` is syntax, not a function. An environment has it if its table of functions names it: Kubernetes' base
environment does not, its device selectors do.
"""

from __future__ import annotations

from typing import Final

from ..check.environment import Function

BINDINGS: Final = (
    Function(
        "cel.bind", (),
        "`cel.bind(name, value, expression)`: the expression, in which the name stands for the value. The value is"
        " computed when it is first read, and once.",
        "cel.bind(half, 8 / 2, half + half) == 8",
    ),
)
