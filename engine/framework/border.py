"""The border between framework and plugin: an exception of foreign code fails that plugin and nothing else."""

from __future__ import annotations

import dis
from typing import Final

from .points import Code, Refusal

_LONGEST_TEXT: Final = 2_000
_RAISING: Final = frozenset(dis.opmap[name] for name in ("RAISE_VARARGS", "RERAISE"))


def must_be_survived(error: BaseException) -> None:
    """Raise an error again that is not the plugin's: a person's Ctrl-C, and the end of a generator.

    All others (`SystemExit`, and a `KeyboardInterrupt` or `GeneratorExit` that the plugin's code raises itself) are
    failures of the plugin, as every `Exception` is.
    """
    if isinstance(error, GeneratorExit | KeyboardInterrupt) and not _is_raised_by_code(error):
        raise error


def describe(error: BaseException) -> str:
    """Return a plugin's exception as a message: its class and its text."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the text of a plugin's exception, which may itself fail to say it, or be of any length."""
    try:
        text = str(error)
    except BaseException as failure:
        must_be_survived(failure)
        return "it cannot be printed"
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."


def sound(refusal: object) -> Refusal:
    """Return a plugin's refusal if it is valid; raise `TypeError` if it is not."""
    if not isinstance(refusal, Refusal):
        raise TypeError(f"the answer must be a refusal or None, not {type(refusal).__name__}")
    for name, part in (("rule", refusal.rule), ("message", refusal.message)):
        if not isinstance(part, str):
            raise TypeError(f"the {name} of a refusal must be a string, not {type(part).__name__}")
    if not isinstance(refusal.code, Code):
        raise TypeError(f"the code of a refusal must be one of `Code`, not {type(refusal.code).__name__}")
    return refusal


def _is_raised_by_code(error: BaseException) -> bool:
    """Return whether a `raise` statement raised it: a signal's error appears between two instructions."""
    last = error.__traceback__
    if last is None:
        return False
    while last.tb_next is not None:
        last = last.tb_next
    return last.tb_frame.f_code.co_code[last.tb_lasti] in _RAISING
