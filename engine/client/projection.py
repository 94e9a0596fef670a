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
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypedDict, Union

import msgspec

from koordpolicy.engine.kubernetes.objects import FieldCheck, checks_of_parts

FieldPath: TypeAlias = tuple[str, ...]
"""The names of a field from the object downwards, without positions of lists."""

_MOST_TYPES: Final = 128
"""Generated types that are cached: a reload that changes what is read makes one per kind."""
_UNION: Final[Any] = Union
_LIST: Final[Any] = list
_SCALARS: Final = (str, int, float, bool, None)
_Plan: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By section and field, the work that is left after decoding: none (None), to share a text (`_TEXT`), or a check with
the parts that passed it, by their JSON.
"""
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

    Nobody may change a shared part, as nobody may change an object of the cluster. Belongs to one thread.
    """

    def __init__(self, most: int = 65_536) -> None:
        """The pool is emptied after `most` different parts."""
        self._most = most
        self._parts: dict[int | str, Any] = {}
        self._sound: dict[FieldCheck, set[int]] = {}
        """By the check of a field, the keys of the parts that pass it."""
        self._parts_by_json: dict[Callable[[Any], None] | None, dict[bytes, Any]] = {}
        """By check, the parts that passed it, by their JSON: the check of a field depends on the kind of the object."""
        self._texts = 0
        self._plans: dict[tuple[str, frozenset[str]], _Plan] = {}
        """By kind, and the sections that are decoded as a whole."""

    def decode(self, raw: msgspec.Raw | bytes, projection: Projection, kind: str) -> tuple[dict[str, Any], bool]:
        """Return the fields of a projection of an object, with shared parts, and whether it passes `check_object`.

        A part that others have too is decoded and checked once. Raises as `Projection.decode`.
        """
        if projection.fields is None:
            return self._whole(projection.decode(raw), kind)
        try:
            decode, whole = _partial_decoder(projection.fields, kind)
            item = decode(raw)
            return item, self._complete(item, kind, whole)
        except (ValueError, RecursionError):
            return projection.decode(raw), False  # which raises with the place in the whole object

    def _whole(self, item: dict[str, Any], kind: str) -> tuple[dict[str, Any], bool]:
        is_sound = self._share(item, checks_of_parts(kind)[1])
        return item, is_sound and _passes_but_sections(item, kind)

    def _plan_of(self, kind: str, whole: frozenset[str]) -> _Plan:
        known = self._plans.get((kind, whole))
        if known is None:
            known = self._plans[kind, whole] = _plan(kind, whole, self._parts_by_json)
        return known

    def _complete(self, item: dict[str, Any], kind: str, whole: frozenset[str]) -> bool:
        """Decode, check and share the parts of an object that are still JSON; return whether it passes `check_object`.

        Its strings and booleans are of their declared types, except in the sections `whole`.
        """
        self._bound_memory()
        passed, plan, are_sections = True, self._plan_of(kind, whole), True
        known_text = self._parts.setdefault
        unchecked = None, self._parts_by_json.setdefault(None, {})
        for title, section in item.items():
            if type(section) is not dict:
                are_sections = are_sections and title in _OF_EACH and type(section) is str and section.isascii()
                continue
            checked = plan.get(title)
            are_sections = are_sections and checked is not None
            work_of = (checked or _NO_CHECKS).get
            for name, value in section.items():
                work = work_of(name, unchecked)
                if work is None or value is None:
                    continue
                if work is _TEXT:
                    section[name] = known_text(value, value)
                    continue
                check, parts = work
                if type(value) is msgspec.Raw:
                    text = bytes(value)
                    known = parts.get(text)
                    if known is not None:
                        section[name] = known
                        continue
                    part, is_sound = self._share_field(name, _ANY(text), check)
                    section[name] = part
                    passed = passed and is_sound
                    if is_sound and part is not None and len(text) <= _LONGEST_TEXT:
                        parts[text] = part
                        self._texts += 1
                else:
                    section[name], is_sound = self._share_field(name, value, check)
                    passed = passed and is_sound
        return passed and (are_sections or _passes_but_sections(item, kind))

    def share(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the object; fields of its `metadata`, `spec` and so on are replaced by equal ones that are known."""
        self._share(item, _NO_CHECKS)
        return item

    def _share(self, item: dict[str, Any], sections: Mapping[str, Mapping[str, FieldCheck]]) -> bool:
        """Replace the parts of an object by equal ones that are known; return whether they pass their checks."""
        self._bound_memory()
        passed = True
        for title, section in item.items():
            if type(section) is dict:
                check_of = sections.get(title, _NO_CHECKS).get
                for name, value in section.items():
                    section[name], is_sound = self._share_field(name, value, check_of(name))
                    passed = passed and is_sound
        return passed

    def _bound_memory(self) -> None:
        if len(self._parts) > self._most or self._texts > self._most:
            self._parts.clear()
            self._sound.clear()
            for parts in self._parts_by_json.values():
                parts.clear()
            self._texts = 0

    def _share_field(self, name: str, value: Any, check: FieldCheck | None) -> tuple[Any, bool]:
        """Return the value of a field, or an equal one that is known, and whether it passes its check."""
        of = type(value)
        if of is dict or (of is list and not _is_unique(name, value)):
            return self._shared(value, check)
        if of is str:
            if name not in _UNIQUE:
                value = self._parts.setdefault(value, value)
            return value, check is None or (check[0] is str and value.isascii()) or self._passes(check, None, value)
        if of is list:
            _share_texts(value, self._parts)
        return value, value is None or check is None or self._passes(check, None, value)

    def _shared(self, value: Any, check: FieldCheck | None) -> tuple[Any, bool]:
        """Return a part, or an equal one that is known, and whether it passes its check."""
        key: int | None = None
        if value and (type(value) is dict or type(value) is list):
            key = hash(marshal.dumps(value, _WITHOUT_REFERENCES))
            known = self._parts.setdefault(key, value)
            if known is value:
                _share_texts(value, self._parts)
            elif known == value:
                value = known
                if check is not None and key in self._sound.get(check, ()):
                    return value, True
            else:
                key = None
        return value, check is None or value is None or self._passes(check, key, value)

    def _passes(self, check: FieldCheck, key: int | None, value: object) -> bool:
        """Return whether a value passes a check, and remember it if it is the part with that key."""
        try:
            check[1](value)
        except ValueError:
            return False
        if key is not None:
            self._sound.setdefault(check, set()).add(key)
        return True


def _share_texts(value: dict[str, Any] | list[Any], parts: dict[int | str, Any]) -> None:
    """Share the texts in a part that is not shared itself: those of conditions, for example, are few."""
    for each in value if type(value) is list else (value,):
        if type(each) is dict:
            for name, text in each.items():
                if type(text) is str and name not in _UNIQUE:
                    each[name] = parts.setdefault(text, text)


_NO_CHECKS: Final[Mapping[str, Any]] = MappingProxyType({})
_UNIQUE: Final = frozenset({"creationTimestamp", "name", "resourceVersion", "startTime", "uid"})
"""Fields whose text differs in almost every object."""
_TIME: Final = "lastTransitionTime"
_VOLUMES: Final = "volumes"


def _is_unique(name: str, value: list[Any]) -> bool:
    """Return whether a list differs in almost every object, so that only the texts in it are shared.

    Conditions do, by their times, and volumes: the API server adds one with a generated name to each pod.
    """
    first = value[0] if value else None
    return name == _VOLUMES or (type(first) is dict and _TIME in first)


_WITHOUT_REFERENCES: Final = 2
"""The version of the marshal format in which equal data are equal bytes, even if parts of them are the same object."""
_WHOLE: Final[Callable[[msgspec.Raw | bytes], dict[str, Any]]] = msgspec.json.Decoder(dict[str, Any]).decode


_ANY: Final[Callable[[bytes], Any]] = msgspec.json.Decoder().decode
_REPEATED: Final = frozenset({
    "affinity", "annotations", "labels", "nodeSelector", "ownerReferences", "tolerations", "topologySpreadConstraints",
})
"""Fields of sections whose JSON is the same in many objects, byte for byte: it is looked up, and not decoded."""
_LONGEST_TEXT: Final = 2_048
"""Bytes of JSON that are remembered of a part."""


_TEXT: Final = object()


def _plan(
    kind: str, whole: frozenset[str], read: dict[Callable[[Any], None] | None, dict[bytes, Any]],
) -> _Plan:
    def work(title: str, name: str, check: FieldCheck) -> Any:
        if check[0] is None or title in whole:
            return check, read.setdefault(check[1], {})
        return _TEXT if check[0] is str and name not in _UNIQUE else None

    return {title: {name: work(title, name, check) for name, check in checks.items()}
            for title, checks in checks_of_parts(kind)[1].items()}


_OF_EACH: Final = frozenset({"apiVersion", "kind"})


def _passes_but_sections(item: Mapping[str, Any], kind: str) -> bool:
    """Return whether an object passes `check_object`, apart from the fields of its sections."""
    check, sections = checks_of_parts(kind)
    try:
        check({name: each for name, each in item.items() if type(each) is not dict or name not in sections})
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=_MOST_TYPES)
def _partial_decoder(
    fields: frozenset[FieldPath], kind: str,
) -> tuple[Callable[[msgspec.Raw | bytes], dict[str, Any]], frozenset[str]]:
    """Return a decoder, and the sections that it decodes as a whole.

    In the other sections it leaves repeated fields as JSON, and refuses a value that is neither null nor of the
    declared type where that is string or boolean.
    """
    checks, tree = checks_of_parts(kind)[1], _tree(fields)

    def section(title: str, below: _Tree | None) -> Any:
        if below is None or title not in checks:
            return _field_type(below)
        inner = _typed({name: _part_type(name, each, checks[title].get(name)) for name, each in below.items()})
        return _UNION[(inner, _LIST[_UNION[(_object_type(below), *_SCALARS)]], *_SCALARS)]

    decoder = msgspec.json.Decoder(_typed({name: section(name, each) for name, each in tree.items()}))
    return decoder.decode, frozenset(name for name, each in tree.items() if each is None and name in checks)


def _part_type(name: str, below: _Tree | None, check: FieldCheck | None) -> Any:
    if check is not None and check[0] is not None:
        return _UNION[(check[0], None)]
    return msgspec.Raw if below is None and name in _REPEATED else _field_type(below)


@functools.lru_cache(maxsize=_MOST_TYPES)
def _decoder(fields: frozenset[FieldPath]) -> Callable[[msgspec.Raw | bytes], dict[str, Any]]:
    return msgspec.json.Decoder(_object_type(_tree(fields))).decode


def _tree(fields: frozenset[FieldPath]) -> _Tree:
    root: _Tree = {}
    for path in sorted(fields, key=len):  # shorter paths first: a field includes the fields below it
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
    return _typed({name: _field_type(below) for name, below in tree.items()})


def _typed(fields: Mapping[str, Any]) -> Any:
    # A TypedDict is decoded into a plain dict, and keys that it does not declare are skipped.
    return TypedDict("Projected", fields, total=False)  # type: ignore[operator]


def _field_type(below: _Tree | None) -> Any:
    if below is None:
        return Any
    # The JSON decides whether it is an object, a list of objects, or of another type, which validation reports later.
    inner = _object_type(below)
    return _UNION[(inner, _LIST[_UNION[(inner, *_SCALARS)]], *_SCALARS)]
