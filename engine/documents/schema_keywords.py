"""Keywords of a valid JSON Schema that have no effect: unknown ones, and those that validation does not check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from koordpolicy.engine.source import did_you_mean

from .json_schema import JsonSchema
from .schema_check import KEYWORDS, subschemas
from .schema_faults import Path
from .schema_run import types_of

FORMATS: Final = ("byte", "date-time", "duration")
"""The formats that expressions read as another type than string."""
EXTENSIONS: Final = ("x-kubernetes-int-or-string", "x-kubernetes-list-map-keys", "x-kubernetes-list-type")
"""The extensions of Kubernetes that have an effect on the types of params; others that begin with `x-` are notes."""

_REFERENCES: Final = ("$ref", "$dynamicRef")
_DEFINITIONS: Final = ("$defs", "definitions")
_OF_OTHERS: Final[Mapping[str, str]] = MappingProxyType({
    "additionalItems": "write `items` beside `prefixItems`",
    "dependencies": "write `dependentRequired` or `dependentSchemas`",
    "discriminator": "it is OpenAPI's: remove it",
    "example": "write `examples`, a list",
    "externalDocs": "it is OpenAPI's: remove it",
    "id": "remove it",
    "nullable": "it is OpenAPI's: write a list of types, such as `type: [string, 'null']`",
    "xml": "it is OpenAPI's: remove it",
})
"""Keywords of OpenAPI and of older drafts, with what JSON Schema 2020-12 has instead."""
_NOT_CHECKED: Final[Mapping[str, str]] = MappingProxyType({
    "contentEncoding": "write `format: byte` for base64, or a `pattern`",
    "contentMediaType": "remove it, or write it into the `description`",
    "contentSchema": "declare the content as a param of its own",
})
_PARTNERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({
    "if": ("then", "else"), "then": ("if",), "else": ("if",), "minContains": ("contains",),
    "maxContains": ("contains",),
})
"""Keywords that have an effect only beside one of others."""


@dataclass(frozen=True, slots=True)
class _Values:
    """The values of an extension that have an effect, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


_VALUES: Final[Mapping[str, _Values]] = MappingProxyType({
    "x-kubernetes-int-or-string": _Values("`true` or `false`", lambda value: isinstance(value, bool)),
    "x-kubernetes-list-type": _Values("`atomic`, `set` or `map`", lambda value: value in ("atomic", "set", "map")),
    "x-kubernetes-list-map-keys": _Values(
        "a list of names", lambda value: isinstance(value, list) and bool(value)
        and all(isinstance(each, str) for each in value)),
})
_MOST_WORDS: Final = 100
"""The maximal number of different unknown keywords of a schema for which a similar one is looked up."""


@dataclass(frozen=True, slots=True)
class IdleKeyword:
    """A keyword without effect, at `path` from the root of the schema.

    `message` is a fragment that names it; `similar` is the keyword that it is probably meant to be, or empty.
    """

    path: Path
    message: str
    help: str
    similar: str = ""


def idle_keywords(schema: JsonSchema) -> Iterator[IdleKeyword]:
    """Yield the keywords of a schema that have no effect on validation and types, in the order of the text.

    Annotations (`title`, `description`, `examples`, `$comment` and the like) are not among them, nor is a keyword into
    which a reference leads.
    """
    live = _live(schema)
    referenced = {id(schema.targets[each[keyword]]) for _, each in live for keyword in _REFERENCES if keyword in each}
    hints = _Hints()
    for path, each in live:
        for keyword, value in each.items():
            below = (*path, keyword)
            if keyword in _DEFINITIONS and isinstance(value, dict):
                yield from _unused_definitions(below, value, referenced)
            elif keyword in EXTENSIONS:
                yield from _extension(below, value, each)
            elif keyword not in KEYWORDS:
                yield from _unknown(below, value, referenced, hints)
            else:
                yield from _without_effect(below, value, each)


def _live(schema: JsonSchema) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return the schemas that may apply to a value, each once, in the order of the text.

    A definition is among them only if a reference leads to it.
    """
    places = {id(each): path for path, each in _all(schema.declared, ())}
    pending: list[tuple[Path, Any]] = [((), schema.declared)]
    seen: set[int] = set()
    found: list[tuple[Path, Mapping[str, Any]]] = []
    while pending:
        path, each = pending.pop()
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        found.append((path, each))
        for keyword, value in each.items():
            if keyword in _REFERENCES:
                target = schema.targets[value]
                pending.append((places.get(id(target), _pointed(value)), target))
            elif keyword not in _DEFINITIONS:
                pending.extend(((*path, keyword, *steps), below) for steps, below in subschemas(keyword, value))
    positions = {key: number for number, key in enumerate(places)}
    found.sort(key=lambda one: positions.get(id(one[1]), len(positions)))
    return found


def _pointed(reference: str) -> Path:
    """Return the path of a reference into an unknown keyword, which the walk of all schemas does not visit."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in reference.split("/")[1:])


def _all(declared: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield all schemas in a schema, in the order of the text, also unused definitions; one that is shared once."""
    pending: list[tuple[Path, Any]] = [(path, declared)]
    seen: set[int] = set()
    while pending:
        path, each = pending.pop()
        if isinstance(each, dict) and id(each) not in seen:
            seen.add(id(each))
            yield path, each
            below = [((*path, keyword, *steps), inner) for keyword, value in each.items()
                     for steps, inner in subschemas(keyword, value)]
            pending.extend(reversed(below))


def _unused_definitions(path: Path, value: Mapping[str, Any], referenced: set[int]) -> Iterator[IdleKeyword]:
    for name, each in value.items():
        if isinstance(each, dict) and not _is_referenced(each, referenced):
            place = (*path, name)
            yield IdleKeyword(place, f"nothing refers to the definition `{name}`",
                              f"write `$ref: '#/{'/'.join(map(str, place))}'` where it applies, or remove it")


def _is_referenced(value: Any, referenced: set[int]) -> bool:
    """Return whether a reference leads to plain data or to a part of it."""
    pending, seen = [value], set[int]()
    while pending:
        each = pending.pop()
        if not isinstance(each, dict | list) or id(each) in seen:
            continue
        if id(each) in referenced:
            return True
        seen.add(id(each))
        pending.extend(each.values() if isinstance(each, dict) else each)
    return False


class _Hints:
    """Hints for unknown keywords; the number of those that are looked up is bounded."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], str] = {}

    def similar(self, keyword: str) -> str:
        """Return the known keyword that is similar, or an empty string."""
        extension = keyword.startswith("x-")
        key = keyword, extension
        if key not in self._found:
            if len(self._found) >= _MOST_WORDS:
                return ""
            hint = did_you_mean(keyword, EXTENSIONS if extension else sorted(KEYWORDS))
            self._found[key] = hint.partition("`")[2].rstrip("`?")
        return self._found[key]


def _unknown(path: Path, value: Any, referenced: set[int], hints: _Hints) -> Iterator[IdleKeyword]:
    keyword = str(path[-1])
    if keyword.startswith("x-") and not keyword.startswith("x-kubernetes-"):
        return
    if _is_referenced(value, referenced):
        return
    if keyword in _OF_OTHERS:
        yield IdleKeyword(path, f"`{keyword}` is not a keyword of JSON Schema 2020-12", _OF_OTHERS[keyword])
        return
    similar = hints.similar(keyword)
    if keyword.startswith("x-"):
        help_ = f"did you mean `{similar}`?" if similar else "params have " + _listed(EXTENSIONS)
        yield IdleKeyword(path, f"`{keyword}` has no effect on params", help_, similar)
    else:
        help_ = f"did you mean `{similar}`?" if similar else "remove it; names of your own begin with `x-`"
        yield IdleKeyword(path, f"`{keyword}` is not a keyword of JSON Schema", help_, similar)


def _extension(path: Path, value: Any, schema: Mapping[str, Any]) -> Iterator[IdleKeyword]:
    """Yield an extension of Kubernetes whose value, neighbours or place leave it without effect."""
    keyword = str(path[-1])
    values = _VALUES[keyword]
    lists = keyword != "x-kubernetes-int-or-string"
    if not values.holds(value):
        yield IdleKeyword(path, f"`{keyword}` has no effect with this value", f"it is {values.words}")
    elif not _has_type(path[:-1]) or (lists and path[-3:-2] != ("properties",)):
        yield IdleKeyword(path, f"`{keyword}` has no effect here",
                          "write it where the param is declared, under `properties`")
    elif lists and schema.get("type", "array") != "array":
        yield IdleKeyword(path, f"`{keyword}` has no effect on the type {schema['type']}", "it applies to array")
    elif keyword == "x-kubernetes-list-map-keys" and schema.get("x-kubernetes-list-type") != "map":
        yield IdleKeyword(path, f"`{keyword}` has no effect without `x-kubernetes-list-type: map`",
                          "add it, or remove the keys")
    elif value == "map" and "x-kubernetes-list-map-keys" not in schema:
        yield IdleKeyword(path, f"`{keyword}: map` has no effect without `x-kubernetes-list-map-keys`",
                          "add the keys that identify an element, or write `set`")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in names)


def _without_effect(path: Path, value: Any, schema: Mapping[str, Any]) -> Iterator[IdleKeyword]:
    keyword = str(path[-1])
    check = _CHECKS.get(keyword)
    if check is not None:
        yield from check(path, value, schema)
        return
    partners = _PARTNERS.get(keyword)
    if partners is not None and not any(each in schema for each in partners):
        yield IdleKeyword(path, f"`{keyword}` has no effect without {' or '.join(f'`{each}`' for each in partners)}",
                          f"add {' or '.join(f'`{each}`' for each in partners)}, or remove it")
        return
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else set(declared or ())
    applies = types_of(keyword)
    if types and not applies & types:
        yield IdleKeyword(path, f"`{keyword}` has no effect on the type {' or '.join(sorted(types))}",
                          f"it applies to {' or '.join(sorted(applies))}")


def _not_checked(path: Path, _: Any, __: Mapping[str, Any]) -> Iterator[IdleKeyword]:
    yield IdleKeyword(path, f"`{path[-1]}` is not checked", _NOT_CHECKED[str(path[-1])])


def _format(path: Path, value: str, schema: Mapping[str, Any]) -> Iterator[IdleKeyword]:
    if value not in FORMATS:
        hint = did_you_mean(value, FORMATS) or f"checked are {_listed(FORMATS)}; write a `pattern` for others"
        yield IdleKeyword(path, f"the format `{value}` is not checked", hint)
    elif schema.get("type") != "string":
        yield IdleKeyword(path, f"the format `{value}` is checked beside `type: string` only", "add `type: string`")
    elif not _has_type(path[:-1]):
        yield IdleKeyword(path, f"the format `{value}` is not checked here",
                          "write it where the param is declared, under `properties`, `items` or `additionalProperties`")


def _has_type(path: Path) -> bool:
    """Return whether the checker takes the type of a param, or of a part of one, from the schema at a path."""
    steps = list(path)
    if steps[:1] != ["properties"]:
        return False
    while steps:
        keyword = steps.pop(0)
        if keyword == "properties":
            steps.pop(0)
        elif keyword not in ("items", "additionalProperties"):
            return False
    return True


def _default(path: Path, _: Any, __: Mapping[str, Any]) -> Iterator[IdleKeyword]:
    if len(path) != 3 or path[0] != "properties":
        yield IdleKeyword(path, "`default` has no effect here", "write it for the param as a whole")


_CHECKS: Final[Mapping[str, Callable[[Path, Any, Mapping[str, Any]], Iterator[IdleKeyword]]]] = {
    **dict.fromkeys(_NOT_CHECKED, _not_checked), "format": _format, "default": _default,
}
"""Keywords with a check of their own."""
