"""Distances of an expression's clauses from an expected result, as findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from koordpolicy.engine.cel.check.checked_ast import reads_of
from koordpolicy.engine.cel.explain.clauses import Clause, Distance, alternatives, distance_of
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.explanation import Finding, left_out, plain, shortened, shown
from koordpolicy.engine.framework.slots import unit_of

_MOST_DISTANCES: Final = 3
_MOST_SOURCES: Final = 6


def distances_to(program: Program, bindings: Mapping[str, object], *, expected: bool = True) -> tuple[Finding, ...]:
    """Return the distances of an expression from the result `expected`, or, if it has that result, from losing it.

    Clauses that are not comparisons are reported as their text.
    """
    ways = alternatives(program.checked, bindings, expected)
    verb = "must be"
    if () in ways:
        ways, verb = alternatives(program.checked, bindings, not expected), "until"
    found = tuple(distances_of(((way, bindings) for way in ways), verb=verb))
    if found or verb == "until":
        return found
    clauses = dict.fromkeys(f"`{shortened(clause.text, 120)}` is {'false' if clause.expected else 'true'}"
                            for way in ways for clause in way)
    findings = tuple(Finding("clause", text) for text in [*clauses][:_MOST_DISTANCES])
    more = len(clauses) - _MOST_DISTANCES
    return findings if more <= 0 else (*findings, left_out(more, "clause"))


def distances_of(
    failing: Iterable[tuple[tuple[Clause, ...], Mapping[str, object]]], *, verb: str = "must be",
) -> Iterator[Finding]:
    """Yield the distances of the clauses from their expected results, each once, with the values that they read.

    A finding `more` with the number of the others follows the first few.
    """
    seen: set[str] = set()
    for place, (way, bindings) in enumerate(failing):
        for clause in way:
            found = distance_finding(clause, bindings, verb=verb)
            if found is None or found.text in seen:
                continue
            if len(seen) < _MOST_DISTANCES:
                yield replace(found, text=f"or {found.text}") if place and seen else found
            seen.add(found.text)
    if len(seen) > _MOST_DISTANCES:
        yield left_out(len(seen) - _MOST_DISTANCES, "clause")


def distance_finding(clause: Clause, bindings: Mapping[str, object], *, verb: str = "must be") -> Finding | None:
    """Return the distance of a clause from its expected result: `cpu 71 %, must be below 65 %: over by 6 %`.

    None if the clause is not a comparison: then the values of the sub-expressions explain it.
    """
    distance = distance_of(clause, bindings, unit_of)
    if distance is None:
        return None
    unit = distance.unit
    text = f"{shortened(distance.what, 80)} {_is(distance.value, unit)}"
    limit = ", ".join(shown(each, unit) for each in distance.limit) if isinstance(distance.limit, list | tuple) else (
        shown(distance.limit, unit))
    relation = f"{distance.relation} " if distance.relation else ""
    text += f", {verb} {relation}{shortened(limit, 120)}"
    if distance.bound and not isinstance(distance.limit, list | tuple):
        text += f" ({shortened(distance.bound, 60)})"
    if distance.difference:
        over = distance.relation in ("below", "at most")
        text += f": {'over' if over else 'short'} by {shown(distance.difference, unit)}"
    everything = _sources(clause, bindings, distance)
    sources = dict([*everything.items()][:_MOST_SOURCES])
    rest = len(everything) - len(sources)
    return Finding("distance", text, facts={
        "what": distance.what, "value": plain(distance.value), "relation": distance.relation or "equal to",
        "limit": plain(distance.limit), "bound": distance.bound, "difference": distance.difference, "unit": unit,
        "clause": clause.text,
        **({"from": sources} if sources else {}), **({"fromLeftOut": rest} if rest else {}),
    }, parts=(Finding("from", "from " + ", ".join(f"{name} {text}" for name, text in sources.items())),)
        if sources else ())


def _is(value: object, unit: str) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return shown(value, unit) if is_number else f"is {shown(value)}"


def _sources(clause: Clause, bindings: Mapping[str, object], distance: Distance) -> dict[str, str]:
    """Return the scalar values that a clause read of pod and node, if the comparison does not show all of them."""
    found: dict[str, str] = {}
    for path in sorted(reads_of(clause.owner, clause.node)):
        if path[0] in ("params", "aggregates", "now"):
            continue
        try:
            value: Any = bindings[path[0]]
            for key in path[1:]:
                value = value[key]
        except (LookupError, TypeError, EvaluationError):
            continue
        text = path[0] + "".join(f".{key}" if key.isidentifier() else f"[{key}]" for key in path[1:])
        if isinstance(value, int | float | str) and text not in (distance.what, distance.bound):
            found[text] = shown(value, unit_of(path))
    return found
