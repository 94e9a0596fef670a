"""The internal form of a document as plain data, and its canonical text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Final

from koordpolicy.engine.source import Source

from .qos_conversion import BLKIO_KEYS, EFFECTS
from .specs import Action, Expression

_ATOMS: Final = frozenset((type(None), bool, int, float, str))
_KEYS: Final = {**BLKIO_KEYS}


def plain_form(value: Any) -> Any:
    """Return a part of the internal form as plain data, without places."""
    if value.__class__ in _ATOMS:
        return value
    if isinstance(value, Expression):
        return value.text
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Source):
        return value.text
    keys = _keys_of(value.__class__)
    if keys is not None:
        plain = {key: plain_form(getattr(value, name)) for key, name in keys}
        if isinstance(value, Action):
            effect = next(each for each in EFFECTS if isinstance(value.effect, each.type))
            plain["effect"] = {effect.key: plain["effect"]}
        return plain
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [plain_form(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


@cache
def _keys_of(of: type) -> tuple[tuple[str, str], ...] | None:
    """Return the keys of a dataclass with the names of their fields; None for any other class."""
    if not is_dataclass(of):
        return None
    return tuple((_key(each.name), each.name) for each in fields(of) if each.name != "span")


def _key(name: str) -> str:
    if name not in _KEYS:
        first, *rest = name.split("_")
        _KEYS[name] = first + "".join(each.capitalize() for each in rest)
    return _KEYS[name]


def canonical(value: Any, pieces: int = 0) -> Iterator[str]:
    """Yield the pieces of a value's canonical JSON text (sorted keys); the top `pieces` levels are split.

    A single call that serialises a megabyte would block other threads for 20 ms.
    """
    if not pieces or not value or not isinstance(value, dict | list | tuple):
        yield json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    elif isinstance(value, dict):
        before = "{"
        for key in sorted(value):
            yield f"{before}{json.dumps(key, ensure_ascii=False)}:"
            yield from canonical(value[key], pieces - 1)
            before = ","
        yield "}"
    else:
        before = "["
        for each in value:
            yield before
            yield from canonical(each, pieces - 1)
            before = ","
        yield "]"
