"""Mutation testing of policies: a mutant differs in one thing, and a case that tests that thing kills it.

Mutated are constants (65 to 64 and 66), comparisons (`<` to `<=`), `&&`, `||` and `!`, sums and products, `all` and
`exists`, and values outside of expressions: params, limits, durations of thresholds, orders of sorts. Messages are not
mutated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from koordpolicy.engine.cel.syntax.ast import Call, Comprehension, Expr, Literal, Macro, children
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.syntax.unparse import unparse_constant
from koordpolicy.engine.documents import (
    Case,
    Document,
    Expression,
    Kind,
    SortKey,
    SortOrder,
    Survivor,
    format_duration,
    place_of,
)
from koordpolicy.engine.source import PolicyError, Source, Span

from .cases import run_case
from .instruments import places
from .suites import Suite

_SWAPS: Final[Mapping[str, tuple[str, str]]] = {
    "_<_": ("<", "<="), "_<=_": ("<=", "<"), "_>_": (">", ">="), "_>=_": (">=", ">"), "_==_": ("==", "!="),
    "_!=_": ("!=", "=="), "_&&_": ("&&", "||"), "_||_": ("||", "&&"), "_+_": ("+", "-"), "_-_": ("-", "+"),
    "_*_": ("*", "/"), "_/_": ("/", "*"),
}
_NAMES: Final = {"greatest": "least", "least": "greatest", "min": "max", "max": "min"}
_MACROS: Final = {Macro.ALL: "exists", Macro.EXISTS: "all"}
_SECOND: Final = 1_000_000_000
_NUDGED: Final = frozenset((
    "for_ns", "cool_down_ns", "window_ns", "timeout_ns", "consecutive", "per_node", "per_namespace", "per_workload",
    "per_owner", "total",
))
"""Numbers outside of expressions that affect decisions."""

_Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mutated document: the place, the change, and the new text."""

    at: str
    change: str
    span: Span = field(repr=False)
    original: Document = field(repr=False)
    document: Document = field(repr=False)

    @property
    def place(self) -> str:
        """File and line."""
        return str(self.span)


@dataclass(frozen=True, slots=True)
class Fate:
    """The result of a mutant: the case that killed it (empty: none), or why it is justified to survive."""

    mutant: Mutant
    killed_by: str = ""
    justified: str = ""

    @property
    def survives(self) -> bool:
        """True if no case killed it and no justification exists."""
        return not self.killed_by and not self.justified

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        file, line, column = self.mutant.span.place
        return {
            "policy": self.mutant.original.name, "at": self.mutant.at, "change": self.mutant.change, "file": file,
            "line": line, "column": column, "killedBy": self.killed_by, "justified": self.justified,
        }


@dataclass(frozen=True, slots=True)
class MutationOutcome:
    """The results of all mutants, and the unused justifications."""

    fates: tuple[Fate, ...]
    stale: tuple[tuple[str, Survivor], ...]
    """By the name of their suite."""

    @property
    def survivors(self) -> tuple[Fate, ...]:
        """The mutants that survived without a justification."""
        return tuple(fate for fate in self.fates if fate.survives)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "mutants": len(self.fates), "killed": sum(bool(fate.killed_by) for fate in self.fates),
            "justified": sum(bool(fate.justified) for fate in self.fates),
            "survivors": [fate.to_json() for fate in self.survivors],
            "stale": [{"suite": suite, "at": each.at, "change": each.change} for suite, each in self.stale],
        }


def mutate(
    suites: Sequence[Suite], progress: Callable[[int, int], None] = lambda _done, _total: None, *,
    policies: Container[str] | None = None,
) -> MutationOutcome:
    """Run the cases of suites over every mutant of their policies, or of those named.

    `progress` is called with the number of finished mutants and of all. Every suite of the mutated policy is run.
    """
    of_document: dict[Document, list[Suite]] = {}
    for suite in suites:
        for document in suite.documents:
            if policies is not None and document.name not in policies:
                continue
            of_document.setdefault(document, []).append(suite)
    mutants = [each for document in of_document for each in mutants_of(document)]
    cases = {document: [(suite, case) for suite in concerned for case in suite.spec.cases
                        if case.expect_invalid is None] for document, concerned in of_document.items()}
    fates: list[Fate] = []
    used: set[Survivor] = set()
    for number, mutant in enumerate(mutants, start=1):
        fate = _fate(mutant, of_document[mutant.original], cases[mutant.original])
        if fate is not None and not fate.killed_by:
            for suite in of_document[mutant.original]:
                for each in suite.spec.survivors:
                    if (each.at, each.change) == (mutant.at, mutant.change):
                        used.add(each)
                        fate = replace(fate, justified=each.because)
        if fate is not None:
            fates.append(fate)
        progress(number, len(mutants))
    complete = [suite for suite in suites if all(document in of_document for document in suite.documents)]
    stale = tuple((suite.name, each) for suite in complete for each in suite.spec.survivors if each not in used)
    return MutationOutcome(tuple(fates), stale)


def _fate(mutant: Mutant, suites: Iterable[Suite], cases: list[tuple[Suite, Case]]) -> Fate | None:
    """Return a case that kills a mutant; None for a mutant that is not a valid policy.

    That case moves to the front of `cases`: it probably kills the next mutant too, which is often one of the same
    expression.
    """
    mutated: dict[Document, Suite] = {}

    def over(suite: Suite) -> Suite:
        if suite.document not in mutated:
            mutated[suite.document] = suite.over(
                [mutant.document if each is mutant.original else each for each in suite.documents])
        return mutated[suite.document]

    try:
        for number, (suite, case) in enumerate(cases):
            if not run_case(over(suite), case).passed:
                cases.insert(0, cases.pop(number))
                return Fate(mutant, f"{suite.name}/{case.name}")
        for suite in suites:  # those without cases that run are compiled too
            over(suite)
    except PolicyError:
        return None
    return Fate(mutant)


def mutants_of(document: Document) -> Iterator[Mutant]:
    """Yield all mutants of a document, those of expressions first, in order of place."""
    if document.kind is Kind.TEST:
        return
    seen: dict[tuple[str, str], int] = {}

    def mutant(at: str, change: str, span: Span, path: _Path, value: Any) -> Mutant:
        count = seen[at, change] = seen.get((at, change), 0) + 1
        shown = change if count == 1 else f"{change} ({count})"
        return Mutant(at, shown, span, document, replace(document, spec=_with(document.spec, path, value)))

    known = places(document)
    for path, leaf in _leaves(document.spec, ()):
        if isinstance(leaf, Expression):
            place = known[leaf.source]
            if place.is_message:
                continue
            for start, end, text in _edits(leaf.source, parse(leaf.source)):
                old = leaf.source.text[start:end]
                changed = leaf.source.text[:start] + text + leaf.source.text[end:]
                new = Expression(Source(leaf.source.name, changed), leaf.field)
                change = f"`{old.strip()}` to `{text.strip()}`" if text.strip() else f"`{old.strip()}` taken away"
                yield mutant(place.name, change, leaf.source.span(start, end), path, new)
        else:
            at, show = _named(document, path)
            span = place_of(document, "spec", *path)
            for value in _nudged(leaf, is_duration=str(path[-1]).endswith("_ns")):
                yield mutant(at, f"`{show(leaf)}` to `{show(value)}`", span, path, value)


def _named(document: Document, path: _Path) -> tuple[str, Callable[[Any], str]]:
    """Return the name of a place outside of expressions, and the format of its values."""
    words: list[str] = []
    value: Any = document.spec
    for step in path:
        value = value[step] if isinstance(step, int) or isinstance(value, Mapping) else getattr(value, step)
        name = getattr(value, "name", None) if isinstance(step, int) else None
        words.append(str(name or step))
    last = words[-1].removesuffix("_ns")
    first, *rest = last.split("_")
    words[-1] = first + "".join(each.capitalize() for each in rest) if words[0] != "params" else last
    if str(path[-1]).endswith("_ns"):
        return ".".join(words), format_duration
    return ".".join(words), lambda each: str(each.value) if isinstance(each, SortOrder) else str(each)


def _leaves(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    """Yield the paths of expressions and of other values to mutate."""
    if isinstance(value, Expression):
        yield path, value
    elif isinstance(value, SortKey):
        yield (*path, "expression"), value.expression
        yield (*path, "order"), value.order
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _leaves(each, (*path, number))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | Span):
        for each in dataclasses.fields(value):
            below = getattr(value, each.name)
            if each.name == "params" and isinstance(below, Mapping):
                yield from _values(below, (*path, each.name))
            elif each.name in _NUDGED:
                if isinstance(below, int) and below > 0:
                    yield (*path, each.name), below
            else:
                yield from _leaves(below, (*path, each.name))


def _values(value: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _values(each, (*path, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _values(each, (*path, number))
    elif value is not None:
        yield path, value


def _with(value: Any, path: _Path, new: Any) -> Any:
    """Return data with another value at a path."""
    if not path:
        return new
    step, *rest = path
    if isinstance(value, Mapping):
        return {**value, step: _with(value[step], tuple(rest), new)}
    if isinstance(value, list | tuple):
        assert isinstance(step, int)
        return type(value)((*value[:step], _with(value[step], tuple(rest), new), *value[step + 1 :]))
    return replace(value, **{str(step): _with(getattr(value, str(step)), tuple(rest), new)})


def _nudged(value: Any, *, is_duration: bool = False) -> tuple[Any, ...]:
    """Return a constant's neighbours: one less and one more (durations: a second), a tenth for doubles."""
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        step = _SECOND if is_duration and value >= _SECOND else 1
        return value - step, value + step
    if isinstance(value, float):
        return (value * 0.9, value * 1.1) if value else (-1.0, 1.0)
    if isinstance(value, SortOrder):
        return (SortOrder.ASCENDING if value is SortOrder.DESCENDING else SortOrder.DESCENDING,)
    if isinstance(value, str):
        return (f"{value}~",)
    return ()


def _edits(source: Source, root: Expr) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and new text of every change to an expression, in order of place."""
    found: list[tuple[int, int, str]] = []
    pending = [root]
    while pending:
        node = pending.pop()
        pending.extend(children(node))
        found.extend(_edits_of(source.text, node))
    yield from sorted(found)


def _edits_of(text: str, node: Expr) -> Iterator[tuple[int, int, str]]:
    if isinstance(node, Literal):
        if isinstance(node.value, bool | int | float | str):
            for value in _nudged(node.value):
                if not (node.unsigned and value < 0):
                    yield node.start, node.end, unparse_constant(value, unsigned=node.unsigned)
    elif isinstance(node, Call):
        swap = _SWAPS.get(node.function)
        if swap is not None:
            at = text.find(swap[0], node.args[0].end, node.args[1].start)
            if at >= 0:
                yield at, at + len(swap[0]), swap[1]
        elif node.function == "!_":
            yield node.start, node.start + 1, " "
        elif node.function in _NAMES and node.target is not None:
            at = text.find(node.function, node.target.end)
            yield at, at + len(node.function), _NAMES[node.function]
    elif isinstance(node, Comprehension) and node.macro in _MACROS:
        at = text.find(node.macro.value, node.range.end)
        yield at, at + len(node.macro.value), _MACROS[node.macro]
