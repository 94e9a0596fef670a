"""Types of the API objects that expressions see.

They are data: `schemas/kubernetes/core.json` is generated from the official client's models, and
`schemas/kubernetes/koordinator.json` declares Koordinator's own kinds in the same shape. Both are as the API server
serves the objects: quantities are strings, so a resource list is a `map(string, string)`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from koordpolicy.engine.cel.values.types import Field, ObjectType, parse_type

FILES = ("core.json", "koordinator.json")

# `schemas` is a sibling of `engine`, in the work tree as in a wheel.
_DIRECTORY = Path(__file__).parents[2] / "schemas" / "kubernetes"


@functools.cache
def load() -> Mapping[str, ObjectType]:
    """Return all object types by name, `kubernetes.Pod` and `koordinator.NodeMetric` among them; read once."""
    types: dict[str, ObjectType] = {}
    for file in FILES:
        types |= read(json.loads((_DIRECTORY / file).read_bytes()))
    return MappingProxyType(types)


def read(content: Mapping[str, Any]) -> dict[str, ObjectType]:
    """Return the object types of a file's content: `{"types": {name: {"doc", "fields": {name: {"type", ...}}}}}`."""
    return {
        name: ObjectType(
            name,
            {
                field: Field(parse_type(entry["type"]), entry["doc"], entry.get("required", False))
                for field, entry in declared["fields"].items()
            },
            doc=declared["doc"],
        )
        for name, declared in content["types"].items()
    }
