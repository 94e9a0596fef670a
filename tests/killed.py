"""The end of a process, for tests: an exception out of a request that no code takes for a plugin's error."""

from __future__ import annotations

from typing import NoReturn


class Killed(GeneratorExit):
    """The process ends here: nothing of its memory is left."""


def end_process() -> NoReturn:
    """Raise `Killed` between two instructions, as a signal does; a `raise` statement would be code's own error."""
    (nothing for nothing in ()).throw(Killed())
    raise AssertionError("an error that is thrown into a generator comes out of it")
