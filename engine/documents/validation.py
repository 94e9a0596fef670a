"""Validation of nodes against JSON Schemas: every problem with its place in the file.

The schemas are data under `schemas/<version>/<name>.json` (draft 2020-12); `definitions.json` beside them has their
common definitions. `x-wanted` in a schema is the text for people if its `pattern` does not match; `x-language: cel`
marks the text of an expression.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.check.patterns import charge
from koordpolicy.engine.cel.library.regex import matches
from koordpolicy.engine.source import Problem, Problems, Span, did_you_mean
from koordpolicy.engine.texts import beginning, quoted_list

from .json_schema import JsonSchema
from .nodes import YamlNode, to_plain
from .schema_faults import BadSchema, SchemaFault
from .schema_predicate import Holds, predicate
from .schema_run import Steps, identity

# `schemas` is a sibling of `engine`, in the work tree as in a wheel.
_DIRECTORY: Final = Path(__file__).parents[2] / "schemas"

Schema: TypeAlias = Mapping[str, Any]
_FieldPath: TypeAlias = tuple[str | int, ...]

_WANTED: Final = {
    "string": "a string", "integer": "a whole number", "number": "a number", "boolean": "`true` or `false`",
    "array": "a list", "object": "a mapping", "null": "nothing",
}
_OLD_BOOLEANS: Final = frozenset(("yes", "no", "on", "off", "y", "n"))


@functools.cache
def schema(name: str, version: str = "v1alpha2") -> Schema:
    """Return a schema with its references inlined; `version` is `v1alpha2` or `internal`.

    Raises `KeyError` if there is no such schema.
    """
    return _inlined(_read(name, version), name, version)  # type: ignore[no-any-return]


@functools.cache
def _read(name: str, version: str) -> Any:
    path = _DIRECTORY / version / f"{name}.json"
    if not path.is_file():
        raise KeyError(f"{version}/{name}")
    return json.loads(path.read_bytes())


def _inlined(part: Any, name: str, version: str) -> Any:
    # Inlined once, references cost nothing later; our schemas are not recursive.
    if isinstance(part, list):
        return [_inlined(each, name, version) for each in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    rest = {key: _inlined(each, name, version) for key, each in part.items() if key not in ("$ref", "$id", "$defs")}
    if not isinstance(reference, str):
        return rest
    file, _, pointer = reference.partition("#")
    holder = file.removesuffix(".json") or name
    target = _read(holder, version)
    for step in pointer.strip("/").split("/"):
        target = target[step]
    return {**_inlined(target, holder, version), **rest}


class _OwnSchema:
    """A schema of the project, validated by the library jsonschema.

    The schema is trusted and the data is not, so checks that are quadratic in the data are replaced. For schemas of
    users, which are not trusted, see `json_schema`.
    """

    def __init__(self, declared: Schema) -> None:
        import jsonschema.validators  # noqa: PLC0415 - its import takes as long as a small run
        import referencing  # noqa: PLC0415 - as above

        def unique(_: Any, expected: Any, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
            if expected and isinstance(value, list) and len({identity(each) for each in value}) < len(value):
                yield jsonschema.ValidationError("has equal items")

        extend: Any = jsonschema.validators.extend
        validator = extend(jsonschema.Draft202012Validator, {"uniqueItems": unique})
        # An empty registry fetches nothing.
        self._validator = validator(declared, registry=referencing.Registry())

    def faults(self, data: Any) -> list[SchemaFault]:
        """Return the faults of plain data; empty if it is valid."""
        return [_fault_of(each) for each in self._validator.iter_errors(data)]


def _fault_of(error: Any) -> SchemaFault:
    keyword, value, limit = error.validator, error.instance, error.validator_value
    branches: dict[Any, list[SchemaFault]] = {}
    if keyword == "additionalProperties" and isinstance(value, Mapping):
        limit = [key for key in value if key not in error.schema.get("properties", {})]
    elif keyword == "required":
        limit = next(name for name in limit if name not in value and repr(name) in error.message)
    elif keyword in ("anyOf", "oneOf"):
        for below in error.context:
            branches.setdefault(below.schema_path[0], []).append(_fault_of(below))
    message = error.message if len(error.message) <= _LONGEST_MESSAGE else f"does not hold for `{keyword}`"
    return SchemaFault(tuple(error.absolute_path), keyword, message, limit, error.schema, value,
                 tuple(map(tuple, branches.values())))


@functools.cache
def _schema(name: str, version: str) -> _OwnSchema:
    return _OwnSchema(schema(name, version))


@functools.cache
def _predicate(name: str, version: str) -> Holds:
    return predicate(schema(name, version))


def has_schema(name: str, version: str = "v1alpha2") -> bool:
    """Return whether there is such a schema; the name may be any text."""
    return name.isidentifier() and (_DIRECTORY / version / f"{name}.json").is_file()


def validate(node: YamlNode, schema_name: str, version: str = "v1alpha2") -> Iterator[Problem]:
    """Yield the problems of a node against a schema."""
    data = to_plain(node)
    if _predicate(schema_name, version)(data):
        return iter(())
    return _at_most(_complaints(_schema(schema_name, version).faults(data), node), node)


def prune(node: YamlNode, schema_name: str, version: str = "v1alpha2") -> YamlNode | None:
    """Return a node without its invalid parts, so that the others can be checked.

    None if too little remains: a part that everything depends on is faulty.
    """
    for _ in range(_PRUNINGS):
        faulty: set[_FieldPath] = set()
        for error in _schema(schema_name, version).faults(to_plain(node)):
            if error.path == _NAME and isinstance(error.value, str):
                continue  # an invalid name is still a name: the rest can be checked under it
            if error.keyword == "additionalProperties":
                faulty.update((*error.path, key) for key in error.limit)
            else:
                faulty.add(error.path)
        if not faulty:
            return node
        if any(len(path) < 2 or path[0] != "spec" or path[1] in _READ_ELSEWHERE for path in faulty):
            return None
        node = _without(node, (), faulty)
    return None


_PRUNINGS: Final = 5
_NAME: Final = ("metadata", "name")
_READ_ELSEWHERE: Final = frozenset(("variables", "params", "paramsSchema", "paramsFrom", "aggregates", "thresholds"))


def _without(node: YamlNode, path: _FieldPath, faulty: AbstractSet[_FieldPath]) -> YamlNode:
    value = node.value
    if isinstance(value, Mapping):
        value = {key: _without(each, (*path, key), faulty) for key, each in value.items() if (*path, key) not in faulty}
    elif isinstance(value, tuple):
        value = tuple(
            _without(each, (*path, place), faulty) for place, each in enumerate(value) if (*path, place) not in faulty
        )
    else:
        return node
    return replace(node, value=value)


def validate_plain(data: Any, schema_name: str, version: str = "internal") -> Iterator[str]:
    """Yield the faults of plain data against a schema, as text with the path."""
    if _predicate(schema_name, version)(data):
        return
    for error in _schema(schema_name, version).faults(data):
        yield f"`{path_text(error.path)}`: {error.message}"


def validate_against(node: YamlNode, data: Any, declared: JsonSchema, steps: Steps) -> Iterator[Problem]:
    """Yield the problems of params against the schema that a user declared for them.

    Places are looked up below `node`.
    """
    return _at_most(_complaints(declared.faults(data, steps), node, "params"), node)


def read_schema(node: YamlNode, declared: Any, problems: Problems) -> JsonSchema | None:
    """Return the JSON Schema that a user declared; report its faults and return None if it is invalid.

    Its patterns count towards the thread's current `PatternBudget`; raises as `PatternBudget.add` does.
    """
    def count(path: _FieldPath, pattern: str, states: int) -> None:
        charge(pattern, states, _nearest(node, path).span)

    try:
        return JsonSchema(declared, count)
    except BadSchema as error:
        for fault in error.faults:
            place = _nearest(node, fault.path)
            problems.add(f"not a JSON Schema: `{path_text(fault.path) or 'the schema'}` {fault.message}", place.span,
                         code="bad-schema")
    return None


def path_text(path: Sequence[str | int] | Any) -> str:
    """Return a path as text: `spec.filter[0].expression`; an empty key is `['']`."""
    text = ""
    for step in path:
        if isinstance(step, int) or not step:
            text += f"[{step!r}]"
        else:
            text += f".{step}" if text else step
    return text


def _nearest(node: YamlNode, path: Any) -> YamlNode:
    """Return the node at a path, or its nearest ancestor."""
    for step in path:
        below = node.at(step)
        if below is None:
            break
        node = below
    return node


def _at_most(complaints: Iterator[Problem], node: YamlNode) -> Iterator[Problem]:
    """Yield the first complaints about a node, and one that says so if there are more: each value may have one."""
    yield from itertools.islice(complaints, _MOST_COMPLAINTS)
    if next(complaints, None) is not None:
        yield Problem(f"there are more than {_MOST_COMPLAINTS:,} faults here: the others are not shown", node.place,
                      code="invalid-value")


_MOST_COMPLAINTS: Final = 1000


def _complaints(faults: Sequence[SchemaFault], node: YamlNode, whole: str = "") -> Iterator[Problem]:
    """Yield the faults as problems; `whole` names the root if it is a field, not the document.

    A field that is missing because its name is misspelt, or because it is further down, is one problem: that of the
    unknown field.
    """
    required = {(fault.path, fault.limit) for fault in faults if fault.keyword == "required"}
    misplaced: dict[tuple[_FieldPath, str], _FieldPath] = {}
    misspelt: dict[_FieldPath, set[str]] = {}
    for fault in faults:
        if fault.keyword == "additionalProperties":
            given = _nearest(node, fault.path).fields
            for key in fault.limit:
                misspelt.setdefault(fault.path, set()).add(_similar(key, fault.rule.get("properties", {}), given))
                above = (fault.path[:length] for length in range(len(fault.path)))
                place = next((path for path in above if (path, key) in required), None)
                if place is not None:
                    misplaced[fault.path, key] = place
                    misspelt.setdefault(place, set()).add(key)
    for fault in faults:
        if misspelt.get(fault.path, set()).isdisjoint(_missing(fault)):
            yield from _complaint(fault, node, whole, misplaced)


def _missing(fault: SchemaFault) -> Iterable[str]:
    """Return the names of which a mapping lacks one; empty if the fault is another one."""
    if fault.keyword == "required":
        return (fault.limit,)
    if fault.keyword in ("oneOf", "anyOf") and isinstance(fault.value, Mapping):
        choices = _required_names(fault.limit)
        return () if any(choice in fault.value for choice in choices) else choices
    return ()


def _complaint(
    fault: SchemaFault, root: YamlNode, whole: str, misplaced: Mapping[tuple[_FieldPath, str], _FieldPath],
) -> Iterator[Problem]:
    """Explain a fault; `misplaced` are the mappings that lack an unknown field, by its path and name."""
    place = _nearest(root, fault.path)
    if fault.keyword == "bound":
        yield Problem(fault.message, place.place, code="invalid-value")
        return
    field = path_text(fault.path) or whole
    if fault.keyword == "additionalProperties":
        known = fault.rule.get("properties", {})
        for key in fault.limit:
            below = place.at(key)
            problem = _unknown(key, field, known, place.fields, below.place if below else place.place)
            if (fault.path, key) in misplaced:
                holder = path_text(misplaced[fault.path, key]) or whole
                problem = replace(problem, help=f"move it to {f'`{holder}`' if holder else _DOCUMENT}, which lacks it")
            yield problem
        return
    if fault.keyword in ("oneOf", "anyOf"):
        yield from _branches(fault, root, place, field, whole)
        return
    message, hint, span = _explain(fault, place, field or _DOCUMENT)
    yield Problem(message, span, hint, code=_CODES.get(fault.keyword, "invalid-value"))


_DOCUMENT: Final = "the document"
_LONGEST_MESSAGE: Final = 200
_MOST_ADDED: Final = 30
_CODES: Final = {"required": "missing-field", "type": "wrong-type"}


_RENAMED: Final[Mapping[str, str]] = {"podStatusPhases": "states"}
"""Fields of component configurations by the name that they had in former versions of their API."""


def _similar(key: str, known: Collection[str], given: Container[str]) -> str:
    """Return the field that an unknown key is probably meant to be, and that is not given, or an empty string."""
    renamed = _RENAMED.get(key, "")
    if renamed in known and renamed not in given:
        return renamed
    hint = did_you_mean(key, [each for each in known if each not in given])
    return hint.partition("`")[2].rstrip("`?")


def _unknown(key: str, field: str, known: Mapping[str, Any], given: Container[str], span: Span) -> Problem:
    where = f" in `{field}`" if field else ""
    similar = _similar(key, known, given)
    hint = f"did you mean `{similar}`?" if similar else ""
    if not hint and not field and key in known.get("spec", {}).get("properties", {}):
        hint = "indent it under `spec`"
    if not hint and known:
        hint = f"known: {quoted_list(sorted(known))}"
    return Problem(f"unknown field {_named(key)}{where}", span, hint, code="unknown-field")


def _named(key: str) -> str:
    return f"`{key}`" if key else "without a name"


def _branches(fault: SchemaFault, root: YamlNode, place: YamlNode, field: str, whole: str) -> Iterator[Problem]:
    """Explain a choice by its branch with the smallest faults."""
    choices = _required_names(fault.limit)
    if choices and isinstance(fault.value, Mapping):
        given = [choice for choice in choices if choice in fault.value]
        if given:
            second = place.at(given[1])
            yield Problem(
                f"`{field}` has both `{given[0]}` and `{given[1]}`", second.place if second else place.place,
                "make it two items", code="invalid-value",
            )
        else:
            hint = f"one of {quoted_list(choices)}"
            yield Problem(f"missing field in `{field}`", place.place, hint, code="missing-field")
        return
    if not fault.branches:
        yield Problem(f"`{field}` fits more than one of its forms", place.place, code="invalid-value")
        return

    def distance(faults: Sequence[SchemaFault]) -> tuple[bool, int]:
        wrong_type = any(below.keyword == "type" and below.path == fault.path for below in faults)
        return wrong_type, len(faults)

    if all(distance(faults)[0] for faults in fault.branches):
        wrong = [below.limit for each in fault.branches for below in each if below.keyword == "type"]
        expected = " or ".join(dict.fromkeys(map(_expected, wrong)))
        yield Problem(f"`{field}` is {_shown(fault.value)}", place.span, f"write {expected}", code="wrong-type")
        return
    yield from _complaints(min(fault.branches, key=distance), root, whole)


def _required_names(branches: Sequence[Any]) -> tuple[str, ...]:
    """Return the fields of which a mapping must have one, if the branches of a choice require nothing else."""
    names = [tuple(each["required"]) for each in branches if isinstance(each, Mapping) and set(each) == {"required"}]
    if len(names) < len(branches) or any(len(each) != 1 for each in names) or len(set(names)) < len(names):
        return ()
    return tuple(name for (name,) in names)


def _explain(fault: SchemaFault, place: YamlNode, field: str) -> tuple[str, str, Span]:
    rule, keyword, value, limit = fault.rule, fault.keyword, fault.value, fault.limit
    match keyword:
        case "required":
            declared = rule.get("properties", {}).get(limit)
            hint = _added(limit, declared if isinstance(declared, Mapping) else {})
            where = f" in `{field}`" if field != _DOCUMENT else ""
            return f"missing field {_named(limit)}{where}", hint, place.place
        case "type":
            hint = f"write {_expected(limit)}"
            if "boolean" in limit and str(value).lower() in _OLD_BOOLEANS:
                hint += ": YAML 1.2 has no other booleans"
            elif limit == "string" and isinstance(value, bool | int | float):
                fits = matches(place.text, rule.get("pattern", ""))
                hint = "put it in quotes" if fits else f"write {rule.get('x-wanted', 'a string')}"
            elif limit == "array" and isinstance(value, Mapping):
                hint += ": each item begins with `- `"
            elif limit == "array" and isinstance(value, str) and value.replace("-", "").isalnum():
                hint += f", such as `[{value}]`"
            subject = f"`{field}`" if field != _DOCUMENT else field
            return f"{subject} is {_shown(value)}, not {_expected(limit)}", hint, place.span
        case "enum" | "const":
            values = [limit] if keyword == "const" else limit
            before = "one of" if len(values) > 1 else "write"
            hint = did_you_mean(written(value), map(written, values)) or f"{before} {quoted_list(values, written)}"
            return f"`{written(value)}` is not a value of `{field}`", hint, place.span
        case "pattern":
            return f"`{_short(value)}` is not a value of `{field}`", f"write {rule.get('x-wanted', limit)}", place.span
        case "minLength" | "minItems" | "minProperties" if not value:
            return f"`{field}` is empty", "fill it in or leave it out", place.place
        case "maxLength" | "maxItems" | "maxProperties":
            if limit == 0:
                return f"`{field}` must be empty here", "leave it out", place.place
            unit = {"maxLength": "characters", "maxItems": "items", "maxProperties": "fields"}[keyword]
            return f"`{field}` has more than {limit:,} {unit}", "shorten it", place.place
        case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
            low, high = rule.get("minimum"), rule.get("maximum")
            bounds = f"at most {high}" if low is None else f"{low} or more" if high is None else f"{low} to {high}"
            return f"`{field}` is {value}", f"write {bounds}", place.span
        case "uniqueItems":
            seen: set[Any] = set()
            for node in place.items:
                plain = to_plain(node)
                if identity(plain) in seen:
                    return f"{_shown(plain)} is in `{field}` twice", "remove one of them", node.span
                seen.add(identity(plain))
        case _:
            pass
    return f"{field if field == _DOCUMENT else f'`{field}`'}: {fault.message}", "", place.place


def _added(name: str, declared: Mapping[str, Any]) -> str:
    """Return the advice for a missing field."""
    examples, values = declared.get("examples"), declared.get("enum")
    if examples and isinstance(examples[0], str):
        return f"for example `{name}: {examples[0]}`"
    if values:
        shown = [f"`{name}: {written(each)}`" for each in values[:_MOST_ADDED]]
        if len(values) > _MOST_ADDED:
            return f"write {', '.join(shown)} or one of {len(values) - _MOST_ADDED:,} others"
        return "write " + " or ".join((", ".join(shown[:-1]), shown[-1]) if len(shown) > 1 else shown)
    return "add it"


def _expected(types: str | Sequence[str]) -> str:
    names = [types] if isinstance(types, str) else types
    return " or ".join(_WANTED.get(each, each) for each in names)


def written(value: object) -> str:
    """Return a value as a YAML document has it: `true`, not `True`; long ones shortened."""
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _short(value: object) -> str:
    return beginning(" ".join(str(value).split()))


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return f"the boolean `{str(value).lower()}`"
    if isinstance(value, str):
        return f"the string `{_short(value)}`"
    if isinstance(value, int | float):
        return f"the number `{value}`"
    return "a list" if isinstance(value, list) else "a mapping"
