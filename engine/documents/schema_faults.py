"""Faults of JSON Schemas, and of data that one describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]
"""The keys and positions that lead from the root of plain data to a value."""


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """A violated keyword of a schema, or an invalid part of a schema.

    `path` leads from the root of the data to the value, `rule` is the schema with the keyword and `limit` the keyword's
    value. `message` describes the fault of the value; for a part of a schema it completes a sentence that begins with
    the part's name. `branches` are the faults of each branch of `anyOf` and `oneOf`; if it is empty, several branches
    of `oneOf` are valid.
    """

    path: Path
    keyword: str
    message: str
    limit: Any = None
    rule: Mapping[str, Any] = field(default_factory=dict)
    value: Any = None
    branches: tuple[tuple[SchemaFault, ...], ...] = ()


class BadSchema(ValueError):
    """An invalid or unsupported JSON Schema; the paths of `faults` are places in the schema."""

    def __init__(self, faults: Sequence[SchemaFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"`{'.'.join(map(str, each.path))}` {each.message}" for each in faults))
