"""Instrumented plugins: their programs report to an observer, and each has the name of its field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from koordpolicy.engine.cel.check.checked_ast import Checked, DefinitionReference
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.tracing import NO_ROW, EvaluationObserver, ObservedProgram, observe
from koordpolicy.engine.cel.syntax.ast import Expr, Literal
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.compile import programs as holders
from koordpolicy.engine.documents import Document, Expression, NamedExpression
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Source
from koordpolicy.engine.texts import beginning, camel

_MOST_VALUES = 40


@dataclass(frozen=True, slots=True)
class ExpressionPlace:
    """The place of an expression: the field's path, and its short name (`filter.below-watermark`)."""

    field: str
    name: str
    expression: Expression
    is_variable: bool = False
    is_message: bool = False


def places(document: Document) -> Mapping[Source, ExpressionPlace]:
    """Return the places of all expressions of a document by their text's source, in the document's order."""
    found = {place.expression.source: place for place in _places(document.spec, "", "")}
    return dict(sorted(found.items(), key=lambda item: item[1].expression.span.place))


def _places(value: Any, path: str, name: str) -> Iterator[ExpressionPlace]:
    if isinstance(value, Expression):
        short = value.field.removeprefix("spec.").rpartition(".")[2]
        text = path if short == "expression" and name else _joined(path, short)
        yield ExpressionPlace(value.field, text, value, is_message=short == "messageExpression")
    elif isinstance(value, NamedExpression):
        yield ExpressionPlace(value.expression.field, f"variables.{value.name}", value.expression, is_variable=True)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            own = str(getattr(each, "name", number))
            yield from _places(each, _joined(path, own), own)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            below = getattr(value, each.name)
            # Only lists of items lengthen a name: `filter.below-watermark`, `nodes.source`.
            inner = isinstance(below, tuple) or (is_dataclass(below) and not isinstance(below, Expression))
            yield from _places(below, _joined(path, camel(each.name)) if inner else path, name)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def instrumented(holder: Any, observer: EvaluationObserver) -> Any:
    """Return compiled programs (see `compile.programs`), observed."""
    return holders.with_programs(holder, lambda program: ObservedProgram(program.checked, observer))


def programs_of(holder: Any) -> Iterator[Program]:
    """Yield all programs of a compiled plugin."""
    if isinstance(holder, Program):
        yield holder
    elif isinstance(holder, tuple):
        for each in holder:
            yield from programs_of(each)
    elif is_dataclass(holder) and type(holder).__module__ == holders.__name__:
        for each in dataclasses.fields(holder):
            if each.name not in ("document", "spec"):
                yield from programs_of(getattr(holder, each.name))


def compiled_of(plugin: Plugin, args: Mapping[str, Any]) -> Any:
    """Return the compiled programs of a document's plugin; raise `ValueError` for invalid args."""
    return plugin.make(args, None)


def observed_plugin(plugin: Plugin, observer: EvaluationObserver) -> Plugin:
    """Return a document's plugin whose instances are observed."""
    return dataclasses.replace(plugin, make=lambda args, handle: instrumented(plugin.make(args, handle), observer))


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """One evaluation of one program: its row, and its value or `EvaluationError`."""

    program: Program = field(repr=False)
    row: int
    result: object
    bindings: Mapping[str, object] = field(repr=False)


@dataclass(slots=True)
class CallTally:
    """The evaluations of a case."""

    everything: list[ProgramCall] = field(default_factory=list)
    _by_place: dict[tuple[Source, int], list[ProgramCall]] = field(default_factory=dict)

    def evaluated(self, program: Program, row: int, result: object, bindings: Mapping[str, object]) -> None:
        """Record an evaluation."""
        each = ProgramCall(program, row, result, bindings)
        self.everything.append(each)
        self._by_place.setdefault((program.source, row), []).append(each)

    def calls(self, program: Program, row: int) -> list[ProgramCall]:
        """Return the evaluations of a program at a row since the last `turn`."""
        return self._by_place.get((program.source, row), [])

    def turn(self) -> None:
        """Begin with another subject: `calls` returns only later evaluations."""
        self._by_place = {}

    def clear(self) -> None:
        """Begin with another case."""
        self.everything, self._by_place = [], {}

    @property
    def rules(self) -> int:
        """The number of expressions that were evaluated."""
        return len({each.program.source for each in self.everything})

    @property
    def rows(self) -> int:
        """The most rows that one expression was evaluated for."""
        counts: dict[Source, set[int]] = {}
        unrowed: dict[Source, int] = {}
        for each in self.everything:
            if each.row == NO_ROW:
                unrowed[each.program.source] = unrowed.get(each.program.source, 0) + 1
            else:
                counts.setdefault(each.program.source, set()).add(each.row)
        return max((*map(len, counts.values()), *unrowed.values()), default=0)


@dataclass(frozen=True, slots=True)
class Both:
    """An observer that reports to two others."""

    first: EvaluationObserver
    second: EvaluationObserver

    def evaluated(self, program: Program, row: int, result: object, bindings: Mapping[str, object]) -> None:
        """Report to both."""
        self.first.evaluated(program, row, result, bindings)
        self.second.evaluated(program, row, result, bindings)


def values_of(call: ProgramCall) -> tuple[tuple[tuple[int, str, object], ...], int]:
    """Return depth, text and value of the evaluated sub-expressions, and the number of omitted ones.

    Those of a definition follow the mention of it, one level deeper.
    """
    found: dict[tuple[Checked, int], tuple[Expr, object]] = {}
    loops: dict[tuple[Checked, int], bool] = {}

    def note(owner: Checked, node: Expr, value: object) -> None:
        key = (owner, node.id)
        loops[key] = key in found
        found[key] = node, value

    observe(call.program.checked, call.bindings, note)
    lines: list[tuple[int, str, object]] = []

    def add(owner: Checked, depth: int) -> None:
        nodes = sorted(
            ((node, value) for (of, _), (node, value) in found.items() if of is owner),
            key=lambda each: (each[0].start, -each[0].end),
        )
        for node, value in nodes:
            # Long values (a pod), and those of single iterations of a loop, are omitted.
            if isinstance(node, Literal) or isinstance(value, Mapping) or loops[owner, node.id]:
                continue
            text = " ".join(owner.source.text[node.start : node.end].split())
            lines.append((depth, text, value))
            reference = owner.references.get(node.id)
            if isinstance(reference, DefinitionReference):
                definition = owner.definition(reference.name)
                if (definition, definition.root.id) in found and depth < 4:
                    add(definition, depth + 1)

    add(call.program.checked, 0)
    unique = dict.fromkeys((depth, text, _shown(value)) for depth, text, value in lines)
    return tuple(unique)[:_MOST_VALUES], len(unique) - min(len(unique), _MOST_VALUES)


def _shown(value: object) -> object:
    if isinstance(value, EvaluationError):
        return f"error: {value.message}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return beginning(str(value))
