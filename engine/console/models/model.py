"""The base of all models, and what every view may answer: faults and refusals."""

from __future__ import annotations

import msgspec


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The base of all models. Type checkers want its settings at each of them, too."""


class Fault(Model, frozen=True, kw_only=True, rename="camel"):
    """A problem in a policy, or a finding of a lint rule. Lines and columns are 1-based, in code points."""

    severity: str
    """`error`, `warning` or `note`."""
    code: str
    message: str
    help: str = ""
    file: str = ""
    line: int = 0
    """0 without a place."""
    column: int = 0
    end_line: int = 0
    end_column: int = 0


class RefusalView(Model, frozen=True, kw_only=True, rename="camel"):
    """The answer about an invalid expression or draft (status 200), and to refused requests (400 and above)."""

    error: str
    faults: list[Fault] = []
