"""Frozen dataclasses that are made for every decision, at the cost of mutable ones."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar

_Record = TypeVar("_Record")
_COPIES: Final[dict[type, Callable[[Any], Any]]] = {}
"""By class, a function that returns a copy that can be written to."""
_ABSENT: Final = object()


def fast_init(cls: type[_Record]) -> type[_Record]:
    """Replace the `__init__` of a frozen dataclass with slots by one that takes a quarter of the time.

    The generated one calls `object.__setattr__` for each field. This one makes the object an instance of a class with
    the same slots that is not frozen, writes the fields, and makes it an instance of its own class again.

    Raises:
        TypeError: the class has no slots of its own, or fields that are keyword-only or no attributes.
    """
    known = fields(cls)  # type: ignore[arg-type]
    written = [each for each in known if each.init]
    parameters = list(inspect.signature(cls).parameters.values())
    if ([each.name for each in written] != [each.name for each in parameters]
            or any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in parameters)):
        raise TypeError(f"`{cls.__name__}` must have a positional parameter for each field, and no other")
    opened = _opened(cls)
    names: dict[str, Any] = {"_absent": _ABSENT, "_opened": opened, "_set": object.__setattr__}
    heads, lines = ["self"], ["of = self.__class__", '_set(self, "__class__", _opened)']
    for each in known:
        value = each.name
        if each.default_factory is not MISSING:
            names[f"_made_{each.name}"] = each.default_factory
            value = f"_made_{each.name}()"
            if each.init:
                heads.append(f"{each.name}=_absent")
                value = f"{value} if {each.name} is _absent else {each.name}"
        elif each.default is not MISSING:
            names[f"_default_{each.name}"] = each.default
            value = each.name if each.init else f"_default_{each.name}"
            if each.init:
                heads.append(f"{each.name}=_default_{each.name}")
        elif each.init:
            heads.append(each.name)
        else:
            continue  # `__post_init__` sets it
        lines.append(f"self.{each.name} = {value}")
    lines.append("self.__class__ = of")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    else:
        copied = [f"made.{each.name} = record.{each.name}" for each in known]
        _COPIES[cls] = _function("copied", ["record"], ["made = _new(_opened)", *copied, "return made"],
                                 {"_new": object.__new__, "_opened": opened})
    made = _function("__init__", heads, lines, names)
    cls.__init__ = functools.update_wrapper(made, cls.__init__)  # type: ignore[method-assign]
    return cls


def replaced(record: _Record, **changes: Any) -> _Record:
    """Do as `dataclasses.replace`, for a class with `fast_init` and without `__post_init__`.

    Raises:
        AttributeError: there is no field of that name.
    """
    of = type(record)
    made = _COPIES[of](record)
    for name, value in changes.items():
        setattr(made, name, value)
    made.__class__ = of
    return made  # type: ignore[no-any-return]


def _opened(cls: type) -> type:
    """Return a class with the same slots, without methods."""
    if "__slots__" not in cls.__dict__ or not fields(cls):
        raise TypeError(f"`{cls.__name__}` must have fields, and slots for them")
    opened = type(cls)(cls.__name__, cls.__bases__, {"__slots__": cls.__dict__["__slots__"],
                                                     "__module__": cls.__module__})
    object.__setattr__(object.__new__(cls), "__class__", opened)  # raises `TypeError` if the slots differ
    return opened


def _function(name: str, parameters: list[str], lines: list[str], names: dict[str, Any]) -> Callable[..., Any]:
    body = "\n    ".join(lines)
    exec(f"def {name}({', '.join(parameters)}):\n    {body}", names)  # noqa: S102 - of names of fields only
    found: Callable[..., Any] = names[name]
    return found
