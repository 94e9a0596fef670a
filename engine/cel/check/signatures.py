"""Spelling of types and signatures in messages."""

from __future__ import annotations

from typing import Final

from ..values.types import DURATION, TIMESTAMP, Type
from .environment import Overload

__all__ = ["SYMBOLS", "show", "show_signature"]

SYMBOLS: Final = {
    "_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "_%_": "%", "_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=",
    "_>_": ">", "_>=_": ">=", "_&&_": "&&", "_||_": "||", "!_": "!", "-_": "-", "_?_:_": "?:", "@in": "in",
    "_[_]": "[]", "_[?_]": "[?]",
}  # fmt: skip
"""Operators as they are written, by the name of their function."""
_SHORT: Final = {TIMESTAMP: "timestamp", DURATION: "duration"}


def show(type_: Type) -> str:
    """Return a type as messages spell it."""
    if type_.variable:
        return "dyn" if type_.name.startswith("_") else type_.name
    name = _SHORT.get(type_, type_.name)
    return f"{name}({', '.join(map(show, type_.parameters))})" if type_.parameters else name


def show_signature(name: str, overload: Overload) -> str:
    """Return an overload as it is called: `string.contains(string) -> bool`, `int + int -> int`."""
    symbol = SYMBOLS.get(name)
    parameters = [show(each) for each in overload.parameters]
    if symbol == "[]":
        text = f"{parameters[0]}[{parameters[1]}]"
    elif symbol is not None:
        text = f" {symbol} ".join(parameters) if len(parameters) > 1 else f"{symbol}{parameters[0]}"
    elif overload.member:
        text = f"{parameters[0]}.{name}({', '.join(parameters[1:])})"
    else:
        text = f"{name}({', '.join(parameters)})"
    return f"{text} -> {show(overload.result)}"
