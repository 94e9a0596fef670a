"""The fault of a bundle, or of the registry that should have it."""

from __future__ import annotations

from koordpolicy.engine.source import PolicyError, Problem


class BundleFault(PolicyError):
    """One problem, which says what to do. `passing` is True if trying again later may help without a change."""

    def __init__(
        self, message: str, help: str = "", *, code: str = "registry", passing: bool = False,  # noqa: A002 - as `Problem` calls it
        retry_after_s: float = 0.0,
    ) -> None:
        """`retry_after_s` is the wait that the registry demands."""
        super().__init__([Problem(message, help=help, code=code)])
        self.passing = passing
        self.retry_after_s = retry_after_s

    @property
    def problem(self) -> Problem:
        """The problem."""
        return self.problems[0]
