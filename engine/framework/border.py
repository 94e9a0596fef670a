"""The border between framework and plugin: what foreign code raises is that plugin's failure and ends nothing else."""

from __future__ import annotations

import dis
from typing import Final

_RAISING: Final = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


def must_be_survived(error: BaseException) -> None:
    """Raise an error again that no plugin is to blame for: a person's Ctrl-C, and the end of a generator.

    All else (`SystemExit`, and a `KeyboardInterrupt` that the plugin's code raises by itself) is the plugin's failure,
    as an `Exception` is.
    """
    if isinstance(error, GeneratorExit) or (isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error)):
        raise error


def _is_raised_by_code(error: BaseException) -> bool:
    """Whether a `raise` statement raised it: what a signal raises turns up between two instructions."""
    last = error.__traceback__
    if last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] in _RAISING
