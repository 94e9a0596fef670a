"""Checks of plugin arguments without a schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from koordpolicy.engine.source import did_you_mean

_TYPES: Final[Mapping[type, str]] = {
    str: "a string", int: "a whole number", list: "a list of strings", bool: "true or false",
}


def check_fields(args: Mapping[str, Any], fields: Mapping[str, type]) -> Mapping[str, Any]:
    """Return the arguments without the fields that no plugin uses (`apiVersion`, `kind`).

    Raises:
        ValueError: there is no such field, or its value is of another type.
    """
    checked = {name: value for name, value in args.items() if name not in ("apiVersion", "kind")}
    for name, value in checked.items():
        if name not in fields:
            known = f"the fields are {', '.join(f'`{each}`' for each in sorted(fields))}" if fields else "it takes none"
            raise ValueError(f"there is no argument `{name}`: {did_you_mean(name, fields) or known}")
        if not _is(value, fields[name]):
            raise ValueError(f"`{name}` must be {_TYPES[fields[name]]}")
    return checked


def _is(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    # In Python true is an int, in YAML it is not.
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def no_args(args: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return no arguments, for plugins that take none; raises `ValueError` if there are any."""
    return check_fields(args, {})
