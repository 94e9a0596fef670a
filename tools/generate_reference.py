"""Write the reference pages from the tables that the engine itself reads: documents' fields, points, functions.

    python tools/generate_reference.py          # writes docs/fields.md, docs/points.md and docs/functions.md
    python tools/generate_reference.py --check  # writes nothing; exit code 1 if a page is not what the tables say

Nothing on these pages is written by hand; a test compares them with a fresh run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.cel import library
from koordpolicy.engine.cel.check.environment import Function, Overload
from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.framework import slots
from koordpolicy.engine.framework.discovery import FRAMEWORKS
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.variable_types import TYPES
from koordpolicy.engine.kubernetes import library as kubernetes_library

PROJECT: Final = Path(__file__).parents[1]
SCHEMAS: Final = PROJECT / "schemas" / "v1alpha2"
KINDS: Final = ("SchedulerPlugin", "QoSPlugin", "DeschedulerPlugin", "PolicyParams", "PolicyTest")
PLUGINS: Final = KINDS[:3]
GENERATED: Final = "<!-- Written by tools/generate_reference.py; edit the tables, not this page. -->"


# -- Markdown ------------------------------------------------------------------------------------------------------


def code(text: object) -> str:
    """Return a text as code that may stand in a table."""
    escaped = str(text).replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in escaped else f"`{escaped}`"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a table; without rows there is none."""
    heads, found = list(heads), [list(row) for row in rows]
    if not found:
        return []
    lines = [heads, ["---"] * len(heads), *found]
    return [f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |" for line in lines]


def page(title: str, *parts: Iterable[str]) -> str:
    """Return a page of parts with an empty line between them."""
    blocks = ["\n".join(part) for part in parts]
    return "\n\n".join([f"# {title}", GENERATED, *(block for block in blocks if block)]) + "\n"


# -- fields of documents -------------------------------------------------------------------------------------------


def resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with what it refers to in place; its own words win."""
    found: dict[str, Any] = {}
    reference = schema.get("$ref")
    if reference is not None:
        found = resolved(definitions[reference.rpartition("/")[2]], definitions)
    return {**found, **{key: value for key, value in schema.items() if key != "$ref"}}


def kind_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the common name of the type of a field."""
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(each) for each in schema["enum"])
    named = schema.get("type")
    if named == "array":
        return f"list of {kind_of(resolved(schema.get('items', {}), definitions), definitions)}"
    names = {"string": "string", "object": "mapping", "integer": "integer", "number": "number", "boolean": "bool"}
    if isinstance(named, list):
        return " or ".join(names.get(each, each) for each in named)
    options = schema.get("oneOf") or schema.get("anyOf")
    if named is None and options:
        return " or ".join(dict.fromkeys(kind_of(resolved(each, definitions), definitions) for each in options))
    return names.get(named or "", "anything")


def fields(
    schema: Mapping[str, Any], path: str, definitions: Mapping[str, Any],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every field below a schema with its path; items of lists stand under `[]`."""
    for name, part in schema.get("properties", {}).items():
        field = resolved(part, definitions)
        where = f"{path}.{name}" if path else name
        yield where, {**field, "required": name in schema.get("required", ())}
        yield from fields(field, where, definitions)
        if field.get("type") == "array":
            yield from fields(resolved(field.get("items", {}), definitions), f"{where}[]", definitions)


def field_row(path: str, field: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    """Return the row of one field."""
    default = json.dumps(field["default"]) if "default" in field else ""
    needed = "required" if field["required"] else code(default) if default else ""
    return [code(path), kind_of(field, definitions), needed, field.get("description", "")]


def write_fields() -> str:
    """Return the page of all fields of all kinds."""
    shared_definitions = json.loads((SCHEMAS / "definitions.json").read_text(encoding="utf-8"))["$defs"]
    schemas = {kind: json.loads((SCHEMAS / f"{kind}.json").read_text(encoding="utf-8")) for kind in KINDS}
    shared = set.intersection(*(set(schemas[kind]["properties"]["spec"]["properties"]) for kind in PLUGINS))
    heads = ("field", "type", "default", "meaning")
    parts: list[list[str]] = [[
        "Every field of every kind, from the schemas of `v1alpha2`. Paths use `[]` for the items of a list. What the",
        "concepts mean is on [documents](documents.md); which variables an expression sees, on [points](points.md).",
    ]]
    for kind, schema in schemas.items():
        definitions = {**shared_definitions, **schema.get("$defs", {})}
        found = [each for each in fields(schema, "", definitions) if each[0] not in ("apiVersion", "kind")]
        is_shared = {path: is_plugin(kind) and part_of_spec(path) in shared for path, _ in found}
        envelope = [each for each in found if each[0].partition(".")[0] == "metadata"]
        if kind == PLUGINS[0]:
            parts += [["## Shared by the three kinds of plugins"], table(heads, (
                field_row(path, field, definitions)
                for path, field in [*envelope, *(each for each in found if is_shared[each[0]])]
            ))]
        parts += [[f"## {kind}"], [schema["description"]], table(heads, (
            field_row(path, field, definitions) for path, field in found
            if not is_shared[path] and path.partition(".")[0] != "metadata" and path != "spec"
        ))]
    return page("Fields", *parts)


def is_plugin(kind: str) -> bool:
    """Return whether a kind declares a plugin."""
    return kind in PLUGINS


def part_of_spec(path: str) -> str:
    """Return which field of the spec a path leads into; empty for what is not in the spec."""
    steps = path.replace("[]", "").split(".")
    return steps[1] if steps[0] == "spec" and len(steps) > 1 else ""


# -- points --------------------------------------------------------------------------------------------------------


def type_name(type_: Type) -> str:
    """Return a type as people write it."""
    known = {
        "google.protobuf.Timestamp": "timestamp", "google.protobuf.Duration": "duration", "optional_type": "optional",
    }
    name = known.get(type_.name, type_.name)
    return f"{name}({', '.join(map(type_name, type_.parameters))})" if type_.parameters else name


def seen_rows(seen: Iterable[slots.VisibleVariable]) -> Iterator[list[str]]:
    """Yield the rows of variables."""
    for each in seen:
        yield [code(each.name), code(type_name(each.type)), each.unit, each.doc]


def write_points() -> str:
    """Return the page of extension points, places of expressions, variables and types."""
    parts: list[list[str]] = [[
        "The extension points: order of calls, variables of expressions, results, and effects of errors. The table is",
        "`engine/framework/slots.py`; compiler, frameworks and this page read it.",
    ]]
    titles = {
        Framework.SCHEDULER: "Scheduler", Framework.QOS: "QoS manager",
        Framework.DESCHEDULER: "Descheduler",
    }
    parts += [["## Points"], table(
        ("framework", "point", "the question", "documents", "Python plugins"),
        ([titles[spec.framework], code(point.value), spec.doc, "yes" if spec.available else "not yet",
          "yes" if point in FRAMEWORKS[spec.framework] else "not yet"] for point, spec in slots.POINTS.items()),
    )]
    parts += [["## Expressions"], [
        "A row is what one evaluation is about. An error is what `failurePolicy` decides about: `Fail` unless it says",
        "`Ignore`. A false result is never an error. Besides what is listed, every expression sees `params`, the",
        "`variables` that are declared and, but for those of aggregates themselves, `aggregates`.",
    ], table(
        ("framework", "where", "row", "yields", "an error with `Fail`", "with `Ignore`"),
        ([titles[spec.framework], slot.value, spec.rows or "the pod", " or ".join(map(type_name, spec.results)),
          spec.on_fail, spec.on_ignore] for slot, spec in slots.SLOTS.items()),
    )]
    parts += [["## Variables"]]
    groups: dict[tuple[slots.VisibleVariable, ...], list[str]] = {}
    for slot, spec in slots.SLOTS.items():
        if spec.by_subject:
            continue
        groups.setdefault(spec.sees, []).append(f"{titles[spec.framework].lower()}: {slot.value}")
    for sees, places in groups.items():
        parts += [[f"### {'; '.join(places)}"], table(("variable", "type", "unit", "meaning"), seen_rows(sees))]
    for subject in ("node", "pod", "container", "qosClass"):
        parts += [[f"### qos manager: thresholds, when, targets with `forEach: {subject}`"], table(
            ("variable", "type", "unit", "meaning"), seen_rows(slots.seen(slots.Slot.THRESHOLD, subject=subject)),
        )]
    parts += [["## Types"], [
        "API objects have the types of the Kubernetes and Koordinator APIs (`schemas/kubernetes/`). These are ours:",
    ]]
    for each in TYPES:
        parts += [[f"### {each.name}"], [each.doc], table(
            ("field", "type", "meaning"),
            ([code(name), code(type_name(field.type)), field.doc] for name, field in each.fields.items()),
        )]
        if each.index is not None:
            parts += [[f'Any other name in brackets: `x["nvidia.com/gpu"]`, {code(type_name(each.index))}.']]
    return page("Points", *parts)


# -- functions -----------------------------------------------------------------------------------------------------


LIBRARIES: Final[tuple[tuple[str, tuple[Function, ...]], ...]] = (
    ("Core", library.CORE), ("Regular expressions", (*library.REGEX, *kubernetes_library.REGEX)),
    ("Time", library.TIME), ("Strings", library.STRINGS_V2), ("Lists", (*library.LISTS, *kubernetes_library.LISTS)),
    ("Sets", library.SETS), ("Optional values", library.OPTIONALS), ("Numbers", library.MATH),
    ("Bindings", library.BINDINGS), ("Encodings", library.ENCODERS), ("Quantities", kubernetes_library.QUANTITIES),
    ("Koordinator", kubernetes_library.KOORDINATOR), ("Versions", kubernetes_library.SEMVER),
    ("Formats", kubernetes_library.FORMAT), ("URLs", kubernetes_library.URLS),
    ("IP addresses", kubernetes_library.NETWORK),
)


def signature(name: str, overload: Overload) -> str:
    """Return how an overload is called, and what it yields."""
    parameters = [type_name(each) for each in overload.parameters]
    result = type_name(overload.result)
    if name in ("@in", "_in_"):
        return f"{parameters[0]} in {parameters[1]} -> {result}"
    if name == "_[_]":
        return f"{parameters[0]}[{parameters[1]}] -> {result}"
    if "_" in name and not name.isidentifier():
        shown = name
        for each in parameters:
            shown = shown.replace("_", f" {each} ", 1)
        return f"{' '.join(shown.split())} -> {result}"
    if overload.member:
        return f"{parameters[0]}.{name}({', '.join(parameters[1:])}) -> {result}"
    return f"{name}({', '.join(parameters)}) -> {result}"


MEASURED: Final = {
    **dict.fromkeys(("_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_"), "0.1 per character or element of the smaller side"),
    "_+_": "1; of strings 0.1 per character of both",
    **dict.fromkeys(("_&&_", "_||_", "_?_:_"), "0"),
    **dict.fromkeys(("matches", "find", "findAll"), "0.1 per character times 0.25 per character of the pattern"),
    **dict.fromkeys(
        ("isSorted", "sum", "min", "max", "indexOf", "lastIndexOf"), "1 per element; of strings 0.1 per character",
    ),
    "lists.range": "11, and 1 per number",
    "sort": "11, and 2 per pair of elements",
    "distinct": "11, and 2 per pair of elements",
    "slice": "11, and 1 per element of the result",
    "flatten": "11, and 1 per element and level",
    "join": "0.2 per character of the result",
    "cel.bind": "that of its parts",
    "validate": "0.1 per character times 0.25 per character of the format's pattern",
    "tolerates": "1, and 3 per toleration",
    "toleratesNode": "1, and 3 per toleration and taint",
    "matchesSelector": "1, and 3 per requirement",
    "matchesNodeAffinity": "1, and 3 per requirement",
    "containsIP": "1 to 4, and 0.1 per character of a string",
    "containsCIDR": "2 to 7, and 0.1 per character of a string",
}
"""Costs of functions that are measured by another rule than a sum over sizes, in words."""


def cost_of(function: Function) -> str:
    """Return the cost of a call beyond its arguments, in words."""
    if function.name in MEASURED:
        return MEASURED[function.name]
    unknown = [each.id for each in function.overloads if each.measure is not None]
    if unknown:
        raise SystemExit(f"say what `{function.name}` costs: it is measured by a rule of its own")
    return "; ".join(dict.fromkeys(cost_text(each) for each in function.overloads))


def cost_text(overload: Overload) -> str:
    """Return the cost of an overload as a table says it."""
    cost, names = overload.cost, ("first", "second", "third", "fourth")
    terms = [
        f"{factor:g} per character or element" + (f" of the {names[place]}" if len(overload.parameters) > 1 else "")
        for place, factor in cost.per_size
    ]
    joined = (" times " if cost.product else ", and ").join(terms)
    if not terms:
        return str(cost.base)
    return f"{cost.base}, and {joined}" if cost.base else joined


def write_functions() -> str:
    """Return the page of functions."""
    offered = slots.functions()
    parts: list[list[str]] = [[
        f"Expressions have {sum(not name.startswith('@not') for name in offered)} functions and operators.",
        "Every example is true; a test evaluates each. [Language](language.md) describes macros (`has`, `all`,",
        "`exists`, `map`, ...) and evaluation. Costs are in Kubernetes' units, in addition to the costs of the",
        "arguments; the receiver of a call counts as its first argument.",
    ]]
    written: set[str] = set()
    for title, functions in LIBRARIES:
        rows = []
        for name in dict.fromkeys(each.name for each in functions):
            function = offered.get(name)
            if function is None or name in written or name.startswith("@not"):
                continue
            written.add(name)
            signatures = "<br>".join(code(signature(name, each)) for each in function.overloads if not each.dynamic)
            rows.append([signatures or code(name), function.doc, cost_of(function), code(function.example)])
        if rows:
            parts += [[f"## {title}"], table(("signature", "meaning", "cost", "example"), rows)]
    missing = sorted(name for name in offered if name not in written and not name.startswith("@not"))
    if missing:
        raise SystemExit(f"functions of no library that this page knows: {', '.join(missing)}")
    return page("Functions", *parts)


PAGES: Final = {"fields.md": write_fields, "points.md": write_points, "functions.md": write_functions}


def main() -> int:
    """Write the pages, or compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 where a page differs")
    options = parser.parse_args()
    stale = []
    for name, write in PAGES.items():
        path = PROJECT / "docs" / name
        text = write()
        if options.check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not options.check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"not what the tables say: {', '.join(stale)}; run tools/generate_reference.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
