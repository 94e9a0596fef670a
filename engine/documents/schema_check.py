"""The check of a JSON Schema: every keyword has a valid value, every reference leads to a part of the schema, and the
schemas that apply to one value are few and lead not back to themselves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from koordpolicy.engine.cel.library.regex import program_size
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.texts import beginning

from .schema_faults import Path, SchemaFault

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_MOST_IN_PLACE: Final = 64
"""The maximal length of a chain of schemas that apply to the same value."""
_MOST_COMPLAINTS: Final = 100
_LONGEST_PATTERN: Final = 1000
_MOST_STATES: Final = 1_000_000
"""The maximal number of states of all patterns of a schema: they are compiled in about a second."""
_STATES_OF_A_REFUSED_PATTERN: Final = 100_000

ObservePattern: TypeAlias = Callable[[Path, str, int], None]


def _is_count(value: Any) -> bool:
    return _is_finite(value) and value >= 0 and value == math.floor(value)


def is_number(value: Any) -> bool:
    """Return whether a value is a number of JSON, which `true` is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


TYPE_NAMES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _is_texts(names) and bool(names) and all(each in TYPE_NAMES for each in names)


@dataclass(frozen=True, slots=True)
class _Shape:
    """The required shape of a keyword's value."""

    described: str
    holds: Callable[[Any], bool]


_TEXT: Final = _Shape("a string", lambda value: isinstance(value, str))
_SWITCH: Final = _Shape("`true` or `false`", lambda value: isinstance(value, bool))
_NUMBER: Final = _Shape("a finite number", _is_finite)
_COUNT: Final = _Shape("a whole number of 0 or more", _is_count)
_FACTOR: Final = _Shape("a finite number above 0", lambda value: _is_finite(value) and value > 0)
_TEXTS: Final = _Shape("a list of different strings", _is_texts)
_LIST: Final = _Shape("a list", lambda value: isinstance(value, list))
_TYPE: Final = _Shape(f"one or several of {', '.join(TYPE_NAMES)}", _is_type)
_REQUIRED: Final = _Shape(
    "a mapping from strings to lists of different strings",
    lambda value: isinstance(value, dict) and all(map(_is_texts, value.values())),
)
_SCHEMA: Final = _Shape("a schema: a mapping or a boolean", lambda value: isinstance(value, dict | bool))
_SCHEMAS: Final = _Shape("a list of one or more schemas", lambda value: isinstance(value, list) and bool(value))
_NAMED: Final = _Shape("a mapping from names to schemas", lambda value: isinstance(value, dict))

_SHAPES: Final[Mapping[str, _Shape]] = {
    **dict.fromkeys(("$ref", "$dynamicRef", "$schema", "$id", "$anchor", "$dynamicAnchor", "$comment", "title",
                     "description", "format", "pattern", "contentEncoding", "contentMediaType"), _TEXT),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _SWITCH),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
                     "minContains", "maxContains"), _COUNT),
    **dict.fromkeys(("enum", "examples"), _LIST),
    **dict.fromkeys(("items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else",
                     "unevaluatedItems", "unevaluatedProperties", "contentSchema"), _SCHEMA),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), _SCHEMAS),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas", "$defs"), _NAMED),
    "multipleOf": _FACTOR, "required": _TEXTS, "type": _TYPE, "dependentRequired": _REQUIRED,
}
KEYWORDS: Final = frozenset((*_SHAPES, "const", "default"))
"""The keywords of JSON Schema, without those of `_OF_OTHER_DIALECTS`, which are refused."""
_OF_OTHER_DIALECTS: Final[Mapping[str, str]] = {
    "$recursiveRef": "write `$ref: '#'`",
    "$recursiveAnchor": "remove it: `$ref: '#'` refers to the whole schema",
    "$vocabulary": "remove it",
}
_POSITION: Final = re.compile("0|[1-9][0-9]{0,8}")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")
"""Keywords whose subschemas apply to the same value as the schema itself."""


def _below(shape: _Shape, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the subschemas in a keyword's value, with their paths from the keyword."""
    if shape is _SCHEMA:
        yield (), value
    elif shape is _SCHEMAS:
        yield from (((place,), each) for place, each in enumerate(value))
    elif shape is _NAMED:
        yield from (((name,), each) for name, each in value.items())


def subschemas(keyword: str, value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the subschemas in the value of a keyword of a checked schema, with their paths from the keyword."""
    shape = _SHAPES.get(keyword)
    return _below(shape, value) if shape is not None else iter(())


class SchemaCheck:
    """The check of one schema: keywords, targets of references, and cycles.

    `targets` are the schemas that references lead to. `tracked` is True if a keyword depends on the keys and positions
    that others evaluated.
    """

    def __init__(self, declared: Any, observe_pattern: ObservePattern | None) -> None:
        self.declared = declared
        self.faults: list[SchemaFault] = []
        self._observe_pattern = observe_pattern
        self.targets: dict[str, Any] = {}
        self.tracked = False
        self._anchors: dict[str, Any] = {}
        self._references: list[tuple[Path, str, str]] = []
        self._places: dict[int, tuple[Path, dict[str, Any]]] = {}
        self._patterns: set[str] = set()
        self._states = 0

    def run(self) -> None:
        """Check the whole schema; `faults`, `targets` and `tracked` are complete afterwards."""
        self._walk(self.declared, ())
        done = 0
        while done < len(self._references) and not self._full:  # targets outside of the walk may have references, too
            path, keyword, reference = self._references[done]
            done += 1
            self._resolve(path, keyword, reference)
        if not self.faults:
            self._measure()

    @property
    def _full(self) -> bool:
        return len(self.faults) >= _MOST_COMPLAINTS

    def _complain(self, path: Path, keyword: str, message: str, value: Any = None) -> None:
        if not self._full:
            self.faults.append(SchemaFault(path, keyword, message, value=value))

    def _walk(self, declared: Any, path: Path) -> None:
        pending: list[tuple[Any, Path]] = [(declared, path)]
        while pending and not self._full:
            schema, path = pending.pop()
            if isinstance(schema, bool) or id(schema) in self._places:
                continue
            if not isinstance(schema, dict):
                self._complain(path, "", f"is not {_SCHEMA.described}", schema)
                continue
            self._places[id(schema)] = path, schema
            for keyword, value in schema.items():
                pending.extend(self._keyword(keyword, value, (*path, keyword), schema))

    def _keyword(self, keyword: str, value: Any, path: Path, schema: Any) -> Iterator[tuple[Any, Path]]:
        shape = _SHAPES.get(keyword)
        if shape is None:
            if hint := _OF_OTHER_DIALECTS.get(keyword, ""):
                self._complain(path, keyword, f"is not part of JSON Schema 2020-12: {hint}", value)
            return
        if not shape.holds(value):
            self._complain(path, keyword, f"is not {shape.described}", value)
            return
        if keyword in _REFERENCES:
            self._references.append((path, keyword, value))
        elif keyword in ("$anchor", "$dynamicAnchor"):
            self._anchors.setdefault(value, schema)
        elif keyword == "$schema" and value.removesuffix("#") != DIALECT:
            self._complain(path, keyword, f"is another dialect: write `{DIALECT}`, or leave it out", value)
        elif keyword == "$id" and value.removesuffix("#"):
            self._complain(path, keyword, "is not local: remove it, references begin with `#`", value)
        elif keyword == "pattern":
            self._pattern(value, path)
        elif keyword == "patternProperties":
            for pattern in value:
                self._pattern(pattern, (*path, pattern))
        self.tracked = self.tracked or keyword in ("unevaluatedItems", "unevaluatedProperties")
        for below, each in _below(shape, value):
            yield each, (*path, *below)

    def _pattern(self, pattern: str, path: Path) -> None:
        if len(pattern) > _LONGEST_PATTERN:
            self._complain(path, "pattern", f"is a pattern of more than {_LONGEST_PATTERN} characters", pattern)
            return
        if pattern in self._patterns:
            return
        self._patterns.add(pattern)
        if self._states > _MOST_STATES:
            self._complain(path, "pattern", f"is one of patterns that have more than {_MOST_STATES:,} states together: "
                           "repeat less in them", pattern)
            return
        try:
            states = program_size(pattern)
        except EvaluationError as error:
            self._states += _STATES_OF_A_REFUSED_PATTERN
            self._complain(path, "pattern", f"is not a pattern that RE2 knows: {error.message}", pattern)
            return
        self._states += states
        if self._observe_pattern is not None:
            self._observe_pattern(path, pattern, states)

    def _resolve(self, path: Path, keyword: str, reference: str) -> None:
        if reference in self.targets:
            return
        if not reference.startswith("#"):
            self._complain(path, keyword, f"refers to `{beginning(reference)}`, which is outside of this schema: only "
                           "references that begin with `#` are followed", reference)
            return
        name = unquote(reference[1:])
        if not name or name.startswith("/"):
            found, missing = self._pointed(name)
        else:
            found, missing = self._anchors.get(name), name not in self._anchors
        if missing:
            self._complain(path, keyword, f"refers to `{beginning(reference)}`, which is not in this schema", reference)
            return
        self.targets[reference] = found
        self._walk(found, tuple(_steps_of(name)))

    def _pointed(self, pointer: str) -> tuple[Any, bool]:
        found = self.declared
        for step in _steps_of(pointer):
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and _POSITION.fullmatch(step) and int(step) < len(found):
                found = found[int(step)]
            else:
                return None, True
        return found, False

    def _measure(self) -> None:
        """Report cycles and too long chains of schemas that apply to the same value."""
        heights: dict[int, int] = {}
        for root in self._places:
            # Depth first without recursion: a chain of references may be as long as the text.
            open_: dict[int, Iterator[dict[str, Any]]] = {}
            pending = [root] if root not in heights else []
            while pending:
                key = pending[-1]
                path, schema = self._places[key]
                if key not in open_:
                    open_[key] = self._in_place(schema)
                    heights[key] = 1
                for below in open_[key]:
                    if id(below) in open_:
                        self._complain(path, "$ref", "leads back to itself without a step into the value")
                        return
                    if id(below) not in heights:
                        pending.append(id(below))
                        break
                else:
                    pending.pop()
                    del open_[key]
                    heights[key] = 1 + max((heights[id(below)] for below in self._in_place(schema)), default=0)
                    if heights[key] > _MOST_IN_PLACE:
                        self._complain(path, "$ref", f"leads through more than {_MOST_IN_PLACE} schemas without a step "
                                       "into the value")
                        return

    def _in_place(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the subschemas that apply to the same value as a schema."""
        for keyword in _REFERENCES:
            if keyword in schema and isinstance(target := self.targets[schema[keyword]], dict):
                yield target
        for keyword in _IN_PLACE:
            value = schema.get(keyword)
            if value is None:
                continue
            below: Iterable[Any] = (value,)
            if _SHAPES[keyword] is not _SCHEMA:
                below = value.values() if isinstance(value, dict) else value
            yield from (each for each in below if isinstance(each, dict))


def _steps_of(pointer: str) -> list[str]:
    """Return the names and positions of a JSON pointer (RFC 6901)."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
