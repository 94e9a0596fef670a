"""The model of a page's access."""

from __future__ import annotations

from .model import Model


class Session(Model, frozen=True, kw_only=True, rename="camel"):
    """The state of a page's access."""

    version: str
    protected: bool
    """True if a token is needed."""
    user: str
    seconds: float
    """The time that an evaluation may take."""
    may_change: bool
    """True if policies of running servers can be changed here, and this user may."""
    may_look_at_changes: bool
    """True if there are servers whose generations this user may look at."""
    refused: dict[str, str]
    """The rights that the user lacks, each with the reason: `nodes`, `pods`, `policies`, `changes`."""
