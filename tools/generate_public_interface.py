"""Writes docs/api/: the names and signatures of the two public modules, so that a change of them is seen in review."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

MODULES: Final = ("koordpolicy.plugin", "koordpolicy.testing")
DIRECTORY: Final = Path(__file__).parents[1] / "docs" / "api"


def listing(module: ModuleType) -> str:
    """Return a module's public interface as text: a block per name, in the order of `__all__`."""
    lines: list[str] = []
    for name in module.__all__:
        lines += _entry(name, getattr(module, name))
    return "\n".join(lines) + "\n"


def _entry(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield f"class {name}{_bases(value)}"
        yield from (f"    {line}" for line in _members(value))
    elif inspect.isroutine(value):
        yield f"def {name}{_signature(value)}"
    elif isinstance(value, int | str):
        yield f"{name} = {value!r}"
    else:
        yield f"{name}: {type(value).__name__}"


def _bases(kind: type) -> str:
    kinds = [each for each in (enum.Enum, Exception) if issubclass(kind, each)]
    if getattr(kind, "_is_protocol", False):
        return "(Protocol)"
    return f"({kinds[0].__name__})" if kinds else ""


def _members(kind: type) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        for member in kind:
            yield f"{member.name} = {member.value!r}"
        return
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            if not field.name.startswith("_"):
                yield f"{field.name}: {_text(field.type)}{'' if _required(field) else ' = ...'}"
    else:
        for name, annotation in sorted(inspect.get_annotations(kind).items()):
            if not name.startswith("_"):
                yield f"{name}: {_text(annotation)}"
        if "__init__" in vars(kind) and not getattr(kind, "_is_protocol", False):
            yield f"def __init__{_signature(vars(kind)['__init__'])}"
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_") and name != "__call__":
            continue
        if isinstance(member, property):
            yield f"{name}: {_text(inspect.get_annotations(member.fget).get('return', ''))}  # property"
        elif isinstance(member, classmethod | staticmethod):
            yield f"@{type(member).__name__} def {name}{_signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"def {name}{_signature(member)}"


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _signature(function: Any) -> str:
    """Return parameters and result as they are written; a default that is not a plain value is `...`."""
    signature = inspect.signature(function)
    plain = int | float | str | bool | tuple | None
    parameters = [
        each if each.default is each.empty or isinstance(each.default, plain) else each.replace(default=_Hidden())
        for each in signature.parameters.values()
    ]
    return str(signature.replace(parameters=parameters)).replace("'", "")


class _Hidden:
    def __repr__(self) -> str:
        return "..."


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def main() -> int:
    """Write one file per module."""
    DIRECTORY.mkdir(exist_ok=True)
    for name in MODULES:
        (DIRECTORY / f"{name}.txt").write_text(listing(importlib.import_module(name)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
