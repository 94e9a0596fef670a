"""Strict reading of plugin arguments of version v1: known fields only, each of its type, with paths in complaints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cluster.objects.pods import canonical_amount
from koordpolicy.engine.documents import parse_duration
from koordpolicy.engine.source import did_you_mean

API_VERSION: Final = "kubescheduler.config.k8s.io/v1"

Read: TypeAlias = Callable[[Any, str], Any]
"""Return the value at a path converted for the plugin; raise ValueError for an invalid one."""


def read_args(args: Mapping[str, Any], kind: str, fields: Mapping[str, Read]) -> dict[str, Any]:
    """Return the arguments without null values, `apiVersion` and `kind`.

    Raises:
        ValueError: there is no such field, its value is of another type, or the arguments are of another kind.
    """
    given = _read(args, {**fields, "apiVersion": text, "kind": text}, "")
    for name, expected in (("apiVersion", API_VERSION), ("kind", kind)):
        if given.pop(name, expected) != expected:
            raise ValueError(f"`{name}` is `{args[name]}`: only `{expected}` is known")
    return given


def raise_faults(faults: Iterable[str]) -> None:
    """Raise `ValueError` with all faults, if there are any."""
    if found := list(faults):
        raise ValueError("; ".join(found))


def boolean(value: Any, path: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"`{path}` must be true or false")  # noqa: TRY004 - one kind of complaint
    return value


def integer(value: Any, path: str) -> int:
    """Read a whole number."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{path}` must be a whole number")  # noqa: TRY004 - one kind of complaint
    return value


def text(value: Any, path: str) -> str:
    """Read a string."""
    if not isinstance(value, str):
        raise ValueError(f"`{path}` must be a string")  # noqa: TRY004 - one kind of complaint
    return value


def texts(value: Any, path: str) -> tuple[str, ...]:
    """Read a list of strings."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"`{path}` must be a list of strings")  # noqa: TRY004 - one kind of complaint
    return tuple(text(each, f"{path}[{index}]") for index, each in enumerate(value))


def duration(value: Any, path: str) -> str:
    """Read a duration such as `1m30s`; return the text."""
    try:
        parse_duration(text(value, path))
    except ValueError as error:
        raise ValueError(f"`{path}`: {error}" if isinstance(value, str) else str(error)) from None
    return str(value)


def quantities(value: Any, path: str) -> dict[str, Any]:
    """Read quantities by resource; return them as written."""
    if not isinstance(value, Mapping):
        raise ValueError(f"`{path}` must be an object of quantities by resource")  # noqa: TRY004 - one complaint
    for name, amount in value.items():
        canonical_amount(text(name, path), amount, f"{path}[{name}]")
    return dict(value)


def nested(fields: Mapping[str, Read]) -> Read:
    """Return a reader of objects with these fields."""

    def read(value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"`{path}` must be an object")  # noqa: TRY004 - one kind of complaint
        return _read(value, fields, path)

    return read


def listed(read: Read) -> Read:
    """Return a reader of lists whose items `read` reads."""

    def read_all(value: Any, path: str) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"`{path}` must be a list")  # noqa: TRY004 - one kind of complaint
        return [read(each, f"{path}[{index}]") for index, each in enumerate(value)]

    return read_all


def _read(args: Mapping[str, Any], fields: Mapping[str, Read], path: str) -> dict[str, Any]:
    for name in args:
        if name not in fields:
            known = f"the fields are {', '.join(f'`{each}`' for each in sorted(fields))}"
            where = f" at `{path}`" if path else ""
            raise ValueError(f"there is no argument `{name}`{where}: {did_you_mean(str(name), fields) or known}")
    where = f"{path}." if path else ""
    return {name: fields[name](value, f"{where}{name}") for name, value in args.items() if value is not None}
