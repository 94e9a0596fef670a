"""Projections: of each object only the fields that are read are decoded.

A projection is a decoder for a type that is generated from a set of fields. Fields outside of it are skipped in the
JSON and never become Python objects. The result is plain data, as the whole object is: absent stays absent, null stays
null, and 0 is 0. Projections are for reading only: a writer patches its own fields, or reads the whole object again.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypedDict, Union

import msgspec

FieldPath: TypeAlias = tuple[str, ...]
"""The names of a field from the object downwards, without positions of lists."""

_MOST_TYPES: Final = 128
"""Generated types that are cached: a reload that changes what is read makes one per kind."""
_UNION: Final[Any] = Union
_LIST: Final[Any] = list
_SCALARS: Final = (str, int, float, bool, None)
_Tree: TypeAlias = dict[str, "_Tree | None"]
"""The fields below a field; None for all."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The fields that are decoded of the objects of a kind, each with all that is below it; None for whole objects.

    Equal ones share one decoder.
    """

    fields: frozenset[FieldPath] | None = None

    def decode(self, raw: msgspec.Raw | bytes) -> dict[str, Any]:
        """Return the fields of an object in JSON; a whole one comes without `metadata.managedFields`.

        Raises `ValueError` if it is not an object, or has a list of lists where a field of the projection should be;
        `RecursionError` if it is nested too deeply.
        """
        if self.fields is not None:
            return _decoder(self.fields)(raw)
        item = _WHOLE(raw)
        if isinstance(item.get("metadata"), dict):
            item["metadata"].pop("managedFields", None)
        return item

    def covers(self, other: Projection) -> bool:
        """Return whether this one has all fields of another."""
        if self.fields is None:
            return True
        return other.fields is not None and all(
            any(path[:length] in self.fields for length in range(1, len(path) + 1)) for path in other.fields)

    def __or__(self, other: Projection) -> Projection:
        """Return the projection with the fields of both."""
        if self.fields is None or other.fields is None:
            return Projection()
        return Projection(self.fields | other.fields)


class PartPool:
    """Makes equal parts of objects one: labels, owners, containers and tolerations of all pods of a controller.

    Objects must then not be changed, as all holders of an object must not anyway. Belongs to one thread.
    """

    def __init__(self, most: int = 65_536) -> None:
        """After `most` different parts it begins anew."""
        self._most = most
        self._parts: dict[int | str, Any] = {}

    def share(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the object; fields of its `metadata`, `spec` and so on are replaced by equal ones that are known."""
        parts = self._parts
        if len(parts) > self._most:
            parts.clear()
        for section in item.values():
            if type(section) is not dict:
                continue
            for name, value in section.items():
                if type(value) is str:
                    if name not in _UNIQUE:
                        section[name] = parts.setdefault(value, value)
                elif value and (type(value) is dict or type(value) is list):
                    key = hash(marshal.dumps(value, _WITHOUT_REFERENCES))
                    known = parts.setdefault(key, value)
                    if known is value:
                        _share_texts(value, parts)
                    elif known == value:
                        section[name] = known
        return item


def _share_texts(value: dict[str, Any] | list[Any], parts: dict[int | str, Any]) -> None:
    """Share the texts of a part that no other object has: in conditions they are few."""
    for each in value if type(value) is list else (value,):
        if type(each) is dict:
            for name, text in each.items():
                if type(text) is str:
                    each[name] = parts.setdefault(text, text)


_UNIQUE: Final = frozenset({"name", "uid", "resourceVersion"})
_WITHOUT_REFERENCES: Final = 2
"""The version of the marshal format in which equal data are equal bytes, whichever parts of them are one object."""
_WHOLE: Final[Callable[[msgspec.Raw | bytes], dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any]).decode


@functools.lru_cache(maxsize=_MOST_TYPES)
def _decoder(fields: frozenset[FieldPath]) -> Callable[[msgspec.Raw | bytes], dict[str, Any]]:
    return msgspec.json.Decoder(_object_type(_tree(fields))).decode


def _tree(fields: frozenset[FieldPath]) -> _Tree:
    root: _Tree = {}
    for path in sorted(fields, key=len):  # what is above comes first: it includes all below
        place = root
        for step in path[:-1]:
            below = place.setdefault(step, {})
            if below is None:
                break
            place = below
        else:
            place[path[-1]] = None
    return root


def _object_type(tree: Mapping[str, _Tree | None]) -> Any:
    """Return the type of an object with these fields, none of which must be present."""
    # A TypedDict is decoded into a plain dict, and keys that it does not declare are skipped.
    return TypedDict("Projected", {name: _field_type(below) for name, below in tree.items()}, total=False)  # type: ignore[operator]


def _field_type(below: _Tree | None) -> Any:
    if below is None:
        return Any
    # The JSON decides whether it is an object, a list of objects, or of another type, which validation reports later.
    inner = _object_type(below)
    return _UNION[(inner, _LIST[_UNION[(inner, *_SCALARS)]], *_SCALARS)]
