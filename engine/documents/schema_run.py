"""The run of a checked JSON Schema over plain data: the faults of the data, in a bounded number of steps."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.library import regex
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.texts import beginning, quoted_list

from .schema_check import TYPE_NAMES, is_number
from .schema_faults import Path, SchemaFault

DEEPEST: Final = 200
"""The maximal nesting of schemas that apply while one value is validated."""
_STEPS: Final = 5_000
_STEPS_PER_VALUE: Final = 20

_NUMBERS: Final = (int, float)
_LISTS: Final = (list, tuple)
_SCALARS: Final = (str, int, float, bool, type(None))

Seen: TypeAlias = set[str | int]
"""The keys and positions of a value that a schema has evaluated."""


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
        """Raise `StepsExceeded` if fewer steps remain."""
        self.left -= number
        if self.left < 0:
            raise StepsExceeded(f"validating params takes more than {self.given:,} steps: simplify the schema")


class StepsExceeded(Exception):
    """A validation exceeded a bound; the text is a sentence."""


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


def _is_of(name: str, value: Any) -> bool:
    if name == "number":
        return is_number(value)
    if name == "integer":
        return is_number(value) and (isinstance(value, int) or value.is_integer())
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


class SchemaRun:
    """One validation: its remaining steps, its depth, and the targets of references."""

    __slots__ = ("depth", "members", "steps", "targets", "tracked")

    def __init__(
        self, targets: Mapping[str, Any], tracked: bool, steps: Steps | None, members: dict[int, frozenset[Any]],
    ) -> None:
        self.targets, self.tracked, self.steps, self.depth = targets, tracked, steps, 0
        self.members = members
        """The values of `enum`, by the identity of the list, which does not change."""

    def take(self, number: int) -> None:
        """Take steps, if they are bounded; raise `StepsExceeded` if fewer remain."""
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
            raise StepsExceeded(f"more than {DEEPEST} schemas apply within each other to params: simplify the schema")
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
        """Return the `identity` of a value, for the steps that it takes."""
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
        """Return whether a text matches a pattern, for the steps that it takes."""
        try:
            self.take(5 + len(pattern) // 10 + regex.steps(text, pattern))
        except EvaluationError:
            raise StepsExceeded(f"a string of {len(text)} characters in params is too long for the pattern "
                            f"`{beginning(pattern)}`: simplify the schema") from None
        return regex.matches(text, pattern)


_Faults: TypeAlias = Callable[[SchemaRun, Any, Any, _At, Seen], Iterable[SchemaFault]]


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

    def faults(_: SchemaRun, limit: Any, value: Any, at: _At, __: Seen) -> Iterable[SchemaFault]:
        if not holds(value, limit):
            yield at.fault(keyword, f"{_value(value)} {message.format(limit)}", limit, value)

    return {keyword: _Keyword(of, faults)}


def _is_multiple(value: Any, factor: Any) -> bool:
    # In decimal: 0.3 is a multiple of 0.1, though the nearest binary fractions are not.
    return math.isfinite(value) and Fraction(repr(value)) % Fraction(repr(factor)) == 0


def _type(_: SchemaRun, limit: Any, value: Any, at: _At, __: Seen) -> Iterable[SchemaFault]:
    names = (limit,) if isinstance(limit, str) else limit
    if not any(_is_of(name, value) for name in names):
        yield at.fault("type", f"{_value(value)} is not of type {', '.join(map(repr, names))}", limit, value)


def _enum(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if not run.is_member(value, limit):
        yield at.fault("enum", f"{_value(value)} is not one of {_value(limit)}", limit, value)


def _const(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if run.identity(value) != run.identity(limit):
        yield at.fault("const", f"{_value(limit)} was expected", limit, value)


def _pattern(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if not run.matches(value, limit):
        yield at.fault("pattern", f"{_value(value)} does not match {_value(limit)}", limit, value)


def _unique(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if limit and len(set(map(run.identity, value))) < len(value):
        yield at.fault("uniqueItems", f"{_value(value)} has non-unique elements", limit, value)


def _required(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    run.take(len(limit))
    for name in limit:
        if name not in value:  # each fault names one field
            yield at.fault("required", f"{_value(name)} is a required property", name, value)


def _dependent_required(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    for given, names in limit.items():
        run.take(1 + len(names))
        for name in names if given in value else ():
            if name not in value:
                message = f"{_value(name)} is required beside {_value(given)}"
                yield at.fault("dependentRequired", message, name, value)


def _properties(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(limit))
    for name, below in limit.items():
        if name in value:
            seen.add(name)
            yield from run.apply(below, value[name], (*at.path, name), set())


def _pattern_properties(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    for pattern, below in limit.items():
        for name, each in value.items():
            if run.matches(name, pattern):
                seen.add(name)
                yield from run.apply(below, each, (*at.path, name), set())


def _additional(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
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
        message = f"additional properties are not allowed: {quoted_list(others, most=10)}"
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


def _names(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    for name in value:
        if faults := run.apply(limit, name, at.path, set()):
            message = f"a name is not allowed: {faults[0].message}"
            yield at.fault("propertyNames", message, limit, value)


def _items(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    first = len(at.schema.get("prefixItems", ()))
    others = range(first, len(value))
    run.take(len(others))
    seen.update(others)
    if limit is not False:
        for place in others:
            yield from run.apply(limit, value[place], (*at.path, place), set())
    elif others:
        yield at.fault("items", f"{_value(value)} has more than {first} items", first, value)


def _prefix(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    for place, (below, each) in enumerate(zip(limit, value, strict=False)):
        seen.add(place)
        yield from run.apply(below, each, (*at.path, place), set())


def _contains(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(value))
    found = [place for place, each in enumerate(value) if not run.apply(limit, each, at.path, set())]
    seen.update(found)
    least, most = at.schema.get("minContains", 1), at.schema.get("maxContains", len(value))
    if not least <= len(found) <= most:
        message = f"{_value(value)} has {len(found)} items that `contains` describes, not {least} to {most}"
        yield at.fault("contains", message, limit, value)


def _all_of(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    for below in limit:
        yield from run.apply(below, value, at.path, seen)


def _any_of(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    branches: list[list[SchemaFault]] = []
    for below in limit:
        faults = run.apply(below, value, at.path, seen)
        if faults:
            branches.append(faults)
        elif not run.tracked:
            return
    if len(branches) == len(limit):
        yield at.fault("anyOf", f"{_value(value)} fits none of the forms", limit, value, branches)


def _one_of(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    branches = [faults for below in limit if (faults := run.apply(below, value, at.path, seen))]
    if len(branches) == len(limit):
        yield at.fault("oneOf", f"{_value(value)} fits none of the forms", limit, value, branches)
    elif len(branches) < len(limit) - 1:
        yield at.fault("oneOf", f"{_value(value)} fits more than one of the forms", limit, value)


def _not(run: SchemaRun, limit: Any, value: Any, at: _At, _: Seen) -> Iterable[SchemaFault]:
    if not run.apply(limit, value, at.path, set()):
        yield at.fault("not", f"{_value(value)} is what `not` forbids", limit, value)


def _if(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    chosen = "else" if run.apply(limit, value, at.path, seen) else "then"
    return run.apply(at.schema.get(chosen, True), value, at.path, seen)


def _dependent(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    run.take(len(limit))
    for name, below in limit.items():
        if name in value:
            yield from run.apply(below, value, at.path, seen)


def _reference(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    return run.apply(run.targets[limit], value, at.path, seen)


def _unevaluated(run: SchemaRun, limit: Any, value: Any, at: _At, seen: Seen) -> Iterable[SchemaFault]:
    keys: Iterable[Any] = value if isinstance(value, Mapping) else range(len(value))
    others = [key for key in keys if key not in seen]
    seen.update(others)
    if limit is not False:
        for key in others:
            yield from run.apply(limit, value[key], (*at.path, key), set())
    elif others:
        message = f"nothing in the schema allows {quoted_list(others, most=10)}"
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

_CLASSES_OF_TYPES: Final[Mapping[str, Any]] = {**_CLASSES, "array": _LISTS, "number": _NUMBERS, "integer": _NUMBERS}


def types_of(keyword: str) -> frozenset[str]:
    """Return the types of values that a keyword applies to; all of them if it does not depend on the type."""
    acting = _KEYWORDS.get(keyword) or _LAST.get(keyword)
    if acting is None or acting.of is _ANY:
        return frozenset(TYPE_NAMES)
    return frozenset(name for name, of in _CLASSES_OF_TYPES.items() if of == acting.of)
