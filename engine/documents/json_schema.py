"""JSON Schema (draft 2020-12) for untrusted schemas and data.

A schema refers to itself only: there is no registry, so nothing is fetched from a network or a file. Patterns are
RE2's, equality is by hash, and steps and depth of each validation are limited, so that its time is bounded by the size
of schema and data. `docs/decisions` explains why the library jsonschema is not used.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from koordpolicy.engine.cel.library.regex import matches, program_size, steps
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.texts import beginning

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
DEEPEST: Final = 200
"""The maximal nesting of schemas that apply while one value is validated."""
_MOST_IN_PLACE: Final = 64
"""The maximal length of a chain of schemas that apply to the same value."""
_MOST_COMPLAINTS: Final = 100
_LONGEST_PATTERN: Final = 1000
_MOST_STATES: Final = 1_000_000
"""The maximal number of states of all patterns of a schema: they are compiled in about a second."""
_STATES_OF_A_REFUSED_PATTERN: Final = 100_000
_STEPS: Final = 5_000
_STEPS_PER_VALUE: Final = 20

_NUMBERS: Final = (int, float)
_LISTS: Final = (list, tuple)
_SCALARS: Final = (str, int, float, bool, type(None))

Path: TypeAlias = tuple[str | int, ...]
Seen: TypeAlias = set[str | int]
ObservePattern: TypeAlias = Callable[[Path, str, int], None]


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


class Steps:
    """The remaining steps of validations; shared by all validations of one document."""

    __slots__ = ("given", "left")

    def __init__(self, given: int) -> None:
        self.given = self.left = given

    @classmethod
    def for_values(cls, number: int) -> Steps:
        """Return the steps for data of `number` values (scalars, lists and mappings)."""
        return cls(_STEPS + _STEPS_PER_VALUE * number)

    def take(self, number: int) -> None:
        """Raise `_Exceeded` if fewer steps remain."""
        self.left -= number
        if self.left < 0:
            raise _Exceeded(f"validating params takes more than {self.given:,} steps: simplify the schema")


class _Exceeded(Exception):
    """A validation exceeded a bound; the text is a sentence."""


class JsonSchema:
    """A checked schema: every keyword has a valid value, every reference a target.

    `declared` is the schema as plain data, `targets` the schema that each reference in it leads to.
    """

    __slots__ = ("_members", "_tracked", "declared", "targets")

    def __init__(self, declared: Any, observe_pattern: ObservePattern | None = None) -> None:
        """Check a schema given as plain data, which must not be changed later.

        `observe_pattern` is called with the path, the text and the number of RE2's states of every pattern.

        Raises `BadSchema` with at most a hundred faults.
        """
        check = _Check(declared, observe_pattern)
        check.run()
        if check.faults:
            raise BadSchema(check.faults)
        self.declared = declared
        self.targets: Mapping[str, Any] = check.targets
        self._tracked = check.tracked
        self._members: dict[int, frozenset[Any]] = {}

    def part(self, declared: Any) -> JsonSchema:
        """Return a subschema, for instance of one property.

        References are relative to the whole schema. `declared` must be part of it.
        """
        part = object.__new__(JsonSchema)
        part.declared, part.targets, part._tracked = declared, self.targets, self._tracked
        part._members = self._members
        return part

    def faults(self, data: Any, steps: Steps | None = None) -> list[SchemaFault]:
        """Return the faults of plain data; empty if it is valid.

        An exceeded bound is a fault at the root, with the keyword `bound`. Without `steps` the number of steps is not
        bounded, for trusted schemas.
        """
        run = _Run(self.targets, self._tracked, steps, self._members)
        try:
            return run.apply(self.declared, data, (), set())
        except _Exceeded as error:
            return [SchemaFault((), "bound", str(error), value=data)]


def count_values(data: Any) -> int:
    """Return the number of scalars, lists and mappings in plain data."""
    total, pending = 0, [data]
    while pending:
        value = pending.pop()
        total += 1
        if isinstance(value, _SCALARS):
            continue
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, _LISTS):
            pending.extend(value)
    return total


def identity(value: Any) -> Any:
    """Return a key that is equal for values that JSON Schema calls equal: 1 and 1.0, never 1 and true."""
    if isinstance(value, bool) or value is None:
        return (value,)
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Mapping):
        return frozenset([(key, identity(each)) for key, each in value.items()])
    return ("list", *map(identity, value))


# Checking a schema


def _is_count(value: Any) -> bool:
    return _is_finite(value) and value >= 0 and value == math.floor(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value) and len(set(value)) == len(value)


_TYPE_NAMES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def _is_type(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return _is_texts(names) and bool(names) and all(each in _TYPE_NAMES for each in names)


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
_TYPE: Final = _Shape(f"one or several of {', '.join(_TYPE_NAMES)}", _is_type)
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


class _Check:
    """The check of one schema: keywords, targets of references, and cycles."""

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


# Validating data


def _is_of(name: str, value: Any) -> bool:
    if name == "number":
        return _is_number(value)
    if name == "integer":
        return _is_number(value) and (isinstance(value, int) or value.is_integer())
    return isinstance(value, _CLASSES[name])


_CLASSES: Final[Mapping[str, Any]] = {
    "array": (list, tuple), "boolean": bool, "null": type(None), "object": Mapping, "string": str,
}


@dataclass(frozen=True, slots=True)
class _At:
    """The schema that has a keyword, and the path of the value that it applies to."""

    schema: Mapping[str, Any]
    path: Path

    def fault(
        self, keyword: str, message: str, limit: Any, value: Any, branches: Iterable[Iterable[SchemaFault]] = (),
    ) -> SchemaFault:
        return SchemaFault(self.path, keyword, message, limit, self.schema, value, tuple(map(tuple, branches)))


class _Run:
    """One validation: its remaining steps, its depth, and the targets of references."""

    __slots__ = ("depth", "members", "steps", "targets", "tracked")

    def __init__(
        self, targets: Mapping[str, Any], tracked: bool, steps: Steps | None, members: dict[int, frozenset[Any]],
    ) -> None:
        self.targets, self.tracked, self.steps, self.depth = targets, tracked, steps, 0
        self.members = members
        """The values of `enum`, by the identity of the list, which does not change."""

    def take(self, number: int) -> None:
        if self.steps is not None:
            self.steps.take(number)

    def apply(self, schema: Any, value: Any, path: Path, seen: Seen) -> list[SchemaFault]:
        """Return the faults of a value; if it is valid, add the evaluated keys and positions to `seen`."""
        if schema is True:
            return []
        if schema is False:
            return [SchemaFault(path, "false", f"{_value(value)} is not allowed here", value=value)]
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Exceeded(f"more than {DEEPEST} schemas apply within each other to params: simplify the schema")
        is_container = isinstance(value, (Mapping, list, tuple))
        self.take(1 + len(schema) + (len(value) if self.tracked and is_container else 0))
        faults: list[SchemaFault] = []
        own: Seen = set()
        at = _At(schema, path)
        for keyword, limit in schema.items():
            act = _KEYWORDS.get(keyword)
            if act is not None and act.concerns(value):
                faults.extend(act.faults(self, limit, value, at, own))
        if self.tracked:
            for keyword, act in _LAST.items():
                if keyword in schema and act.concerns(value):
                    faults.extend(act.faults(self, schema[keyword], value, at, own))
            if not faults:
                seen |= own
        self.depth -= 1
        return faults

    def identity(self, value: Any) -> Any:
        if not isinstance(value, _SCALARS):
            self.take(2 * count_values(value))
        return identity(value)

    def is_member(self, value: Any, listed: list[Any]) -> bool:
        """Return whether a list of the schema contains an equal value; the list is indexed once."""
        members = self.members.get(id(listed))
        if members is None:
            self.take(len(listed))
            members = self.members[id(listed)] = frozenset(map(self.identity, listed))
        return self.identity(value) in members

    def matches(self, text: str, pattern: str) -> bool:
        try:
            self.take(5 + len(pattern) // 10 + steps(text, pattern))
        except EvaluationError:
            raise _Exceeded(f"a string of {len(text)} characters in params is too long for the pattern "
                            f"`{beginning(pattern)}`: simplify the schema") from None
        return matches(text, pattern)


_Faults: TypeAlias = Callable[[_Run, Any, Any, _At, Seen], Iterable[SchemaFault]]


@dataclass(frozen=True, slots=True)
class _Keyword:
    """A keyword: the classes of the values that it applies to, and its check.

    `faults` receives the run, the keyword's value, the value to validate, its place, and the set of keys and positions
    that the schema has evaluated so far.
    """

    of: Any
    faults: _Faults

    def concerns(self, value: Any) -> bool:
        return isinstance(value, self.of) and not (self.of is _NUMBERS and isinstance(value, bool))


def _limit(of: Any, keyword: str, holds: Callable[[Any, Any], bool], message: str) -> dict[str, _Keyword]:
    """Return a keyword that compares a value with its limit."""

    def faults(_: _Run, limit: Any, value: Any, at: _At, __: Seen) -> Iterable[SchemaFault]:
        if not holds(value, limit):
            yield at.fault(keyword, f"{_value(value)} {message.format(limit)}", limit, value)

    return {keyword: _Keyword(of, faults)}


def _is_multiple(value: Any, factor: Any) -> bool:
    # In decimal: 0.3 is a multiple of 0.1, though the nearest binary fractions are not.
    return math.isfinite(value) and Fraction(repr(value)) % Fraction(repr(factor)) == 0


def _type(_: _Run, limit: Any, value: Any, at: _At, __: Seen) -> Iterable[SchemaFault]:
    names = (limit,) if isinstance(limit, str) else limit
    if not any(_is_of(name, value) for name in names):
        yield at.fault("type", f"{_value(value)} is not of type {', '.join(map(repr, names))}", limit, value)


def _enum(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if not run.is_member(value, limit):
        yield at.fault("enum", f"{_value(value)} is not one of {_value(limit)}", limit, value)


def _const(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if run.identity(value) != run.identity(limit):
        yield at.fault("const", f"{_value(limit)} was expected", limit, value)


def _pattern(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if not run.matches(value, limit):
        yield at.fault("pattern", f"{_value(value)} does not match {_value(limit)}", limit, value)


def _unique(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if limit and len(set(map(run.identity, value))) < len(value):
        yield at.fault("uniqueItems", f"{_value(value)} has non-unique elements", limit, value)


def _required(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    run.take(len(limit))
    for name in limit:
        if name not in value:  # each fault names one field
            yield at.fault("required", f"{_value(name)} is a required property", name, value)


def _dependent_required(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    for given, names in limit.items():
        run.take(1 + len(names))
        for name in names if given in value else ():
            if name not in value:
                message = f"{_value(name)} is required beside {_value(given)}"
                yield at.fault("dependentRequired", message, name, value)


def _properties(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(limit))
    for name, below in limit.items():
        if name in value:
            seen.add(name)
            yield from run.apply(below, value[name], (*at.path, name), set())


def _pattern_properties(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    for pattern, below in limit.items():
        for name, each in value.items():
            if run.matches(name, pattern):
                seen.add(name)
                yield from run.apply(below, each, (*at.path, name), set())


def _additional(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(value))
    known = at.schema.get("properties", {})
    others = [name for name in value if name not in known]
    for pattern in at.schema.get("patternProperties", ()):
        others = [name for name in others if not run.matches(name, pattern)]
    seen.update(others)
    if limit is not False:
        for name in others:
            yield from run.apply(limit, value[name], (*at.path, name), set())
    elif others:
        message = f"additional properties are not allowed: {_listed(others)}"
        yield at.fault("additionalProperties", message, others, value)


def _value(value: Any) -> str:
    if isinstance(value, str) and len(value) > 60:
        return _REPR.repr(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return repr(value) if isinstance(value, _SCALARS) else _REPR.repr(value)


class _Repr(reprlib.Repr):
    """Shows the beginning of a value as JSON has it.

    Keys stay in their own order: sorting them would take time proportional to the value.
    """

    def repr_bool(self, x: bool, _: int) -> str:
        return json.dumps(x)

    def repr_NoneType(self, _: None, __: int) -> str:  # noqa: N802 - the name of the class
        return "null"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}" if x else "{}"
        shown = [f"{self.repr1(key, level - 1)}: {self.repr1(each, level - 1)}" for key, each in
                 islice(x.items(), self.maxdict)]
        return f"{{{', '.join([*shown, '...'] if len(x) > self.maxdict else shown)}}}"


_REPR: Final = _Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlist, _REPR.maxdict = 2, 60, 60, 6, 6


def _listed(names: Sequence[str | int]) -> str:
    shown = ", ".join(f"`{beginning(str(name))}`" for name in names[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _names(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    for name in value:
        if faults := run.apply(limit, name, at.path, set()):
            message = f"a name is not allowed: {faults[0].message}"
            yield at.fault("propertyNames", message, limit, value)


def _items(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    first = len(at.schema.get("prefixItems", ()))
    others = range(first, len(value))
    run.take(len(others))
    seen.update(others)
    if limit is not False:
        for place in others:
            yield from run.apply(limit, value[place], (*at.path, place), set())
    elif others:
        yield at.fault("items", f"{_value(value)} has more than {first} items", first, value)


def _prefix(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    for place, (below, each) in enumerate(zip(limit, value, strict=False)):
        seen.add(place)
        yield from run.apply(below, each, (*at.path, place), set())


def _contains(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(value))
    found = [place for place, each in enumerate(value) if not run.apply(limit, each, at.path, set())]
    seen.update(found)
    least, most = at.schema.get("minContains", 1), at.schema.get("maxContains", len(value))
    if not least <= len(found) <= most:
        message = f"{_value(value)} has {len(found)} items that `contains` describes, not {least} to {most}"
        yield at.fault("contains", message, limit, value)


def _all_of(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    for below in limit:
        yield from run.apply(below, value, at.path, seen)


def _any_of(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    branches: list[list[SchemaFault]] = []
    for below in limit:
        faults = run.apply(below, value, at.path, seen)
        if faults:
            branches.append(faults)
        elif not run.tracked:
            return
    if len(branches) == len(limit):
        yield at.fault("anyOf", f"{_value(value)} fits none of the forms", limit, value, branches)


def _one_of(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    branches = [faults for below in limit if (faults := run.apply(below, value, at.path, seen))]
    if len(branches) == len(limit):
        yield at.fault("oneOf", f"{_value(value)} fits none of the forms", limit, value, branches)
    elif len(branches) < len(limit) - 1:
        yield at.fault("oneOf", f"{_value(value)} fits more than one of the forms", limit, value)


def _not(run: _Run, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if not run.apply(limit, value, at.path, set()):
        yield at.fault("not", f"{_value(value)} is what `not` forbids", limit, value)


def _if(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    chosen = "else" if run.apply(limit, value, at.path, seen) else "then"
    return run.apply(at.schema.get(chosen, True), value, at.path, seen)


def _dependent(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(limit))
    for name, below in limit.items():
        if name in value:
            yield from run.apply(below, value, at.path, seen)


def _reference(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    return run.apply(run.targets[limit], value, at.path, seen)


def _unevaluated(run: _Run, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    keys: Iterable[Any] = value if isinstance(value, Mapping) else range(len(value))
    others = [key for key in keys if key not in seen]
    seen.update(others)
    if limit is not False:
        for key in others:
            yield from run.apply(limit, value[key], (*at.path, key), set())
    elif others:
        message = f"nothing in the schema allows {_listed(others)}"
        yield at.fault("unevaluated", message, limit, value)


_ANY: Final = object
_LAST: Final[Mapping[str, _Keyword]] = {
    "unevaluatedItems": _Keyword(_LISTS, _unevaluated), "unevaluatedProperties": _Keyword(Mapping, _unevaluated),
}
"""Keywords that depend on the keys and positions that all others evaluated."""
_KEYWORDS: Final[Mapping[str, _Keyword]] = {
    "type": _Keyword(_ANY, _type), "enum": _Keyword(_ANY, _enum), "const": _Keyword(_ANY, _const),
    **_limit(_NUMBERS, "minimum", lambda value, limit: value >= limit, "is less than the minimum of {}"),
    **_limit(_NUMBERS, "maximum", lambda value, limit: value <= limit, "is greater than the maximum of {}"),
    **_limit(_NUMBERS, "exclusiveMinimum", lambda value, limit: value > limit, "is not more than {}"),
    **_limit(_NUMBERS, "exclusiveMaximum", lambda value, limit: value < limit, "is not less than {}"),
    **_limit(_NUMBERS, "multipleOf", _is_multiple, "is not a multiple of {}"),
    **_limit(str, "minLength", lambda value, limit: len(value) >= limit, "has less than {} characters"),
    **_limit(str, "maxLength", lambda value, limit: len(value) <= limit, "has more than {} characters"),
    "pattern": _Keyword(str, _pattern),
    **_limit(_LISTS, "minItems", lambda value, limit: len(value) >= limit, "has less than {} items"),
    **_limit(_LISTS, "maxItems", lambda value, limit: len(value) <= limit, "has more than {} items"),
    "uniqueItems": _Keyword(_LISTS, _unique), "items": _Keyword(_LISTS, _items),
    "prefixItems": _Keyword(_LISTS, _prefix), "contains": _Keyword(_LISTS, _contains),
    **_limit(Mapping, "minProperties", lambda value, limit: len(value) >= limit, "has less than {} fields"),
    **_limit(Mapping, "maxProperties", lambda value, limit: len(value) <= limit, "has more than {} fields"),
    "required": _Keyword(Mapping, _required), "dependentRequired": _Keyword(Mapping, _dependent_required),
    "properties": _Keyword(Mapping, _properties), "patternProperties": _Keyword(Mapping, _pattern_properties),
    "additionalProperties": _Keyword(Mapping, _additional), "propertyNames": _Keyword(Mapping, _names),
    "dependentSchemas": _Keyword(Mapping, _dependent),
    "allOf": _Keyword(_ANY, _all_of), "anyOf": _Keyword(_ANY, _any_of), "oneOf": _Keyword(_ANY, _one_of),
    "not": _Keyword(_ANY, _not), "if": _Keyword(_ANY, _if),
    "$ref": _Keyword(_ANY, _reference), "$dynamicRef": _Keyword(_ANY, _reference),
}

KEYWORDS: Final = frozenset((*_SHAPES, "const", "default"))
"""The keywords of JSON Schema, without those of `_OF_OTHER_DIALECTS`, which are refused."""
_CLASSES_OF_TYPES: Final[Mapping[str, Any]] = {**_CLASSES, "array": _LISTS, "number": _NUMBERS, "integer": _NUMBERS}


def types_of(keyword: str) -> frozenset[str]:
    """Return the types of values that a keyword applies to; all of them if it does not depend on the type."""
    acting = _KEYWORDS.get(keyword) or _LAST.get(keyword)
    if acting is None or acting.of is _ANY:
        return frozenset(_TYPE_NAMES)
    return frozenset(name for name, of in _CLASSES_OF_TYPES.items() if of == acting.of)
