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
    """The answer to a request that is refused, or has no answer."""

    error: str
    status: int
    """The reason as a status of HTTP, such as 404 for a name that is not known.

    The answer itself has status 200 where the user of a page can be the cause: a browser logs any other as an error.
    """
    faults: list[Fault] = []


class JobView(Model, frozen=True, kw_only=True, rename="camel"):
    """Work in the background that was started: how far it is, or why it has no result."""

    number: int = 0
    phase: str = "queued"
    """`queued`, a word for what is done at present, `done`, `failed` or `cancelled`."""
    done: int = 0
    of: int = 0
    """The number that `done` counts to; 0 while it is unknown."""
    failure: str = ""
    """The reason why there is no result."""
    faults: list[Fault] = []
