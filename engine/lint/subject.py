"""Input of the rules: one document with its checked expressions, and the whole set of documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from koordpolicy.engine.cel.check.checked_ast import Checked, DefinitionReference
from koordpolicy.engine.cel.syntax.ast import Call, Expr, Literal
from koordpolicy.engine.cel.values.types import BOOL
from koordpolicy.engine.compile import (
    Compiled,
    CompiledQoS,
    CompiledScheduler,
    EvictProgram,
    Rule,
    SuppressCPUProgram,
    settings_of,
)
from koordpolicy.engine.documents import Document, Kind, ParamsSpec, PluginSpec, YamlNode, node_of
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Severity, Source, Span

from .ranges import Analyses, parts


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replace characters `start` to `end` of a file by `text`."""

    source: Source
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of a rule: a lower-case fragment, its place, the help, and related places.

    `fix` returns None where the file is written in a way that it does not understand.
    """

    message: str
    span: Span | None
    help: str = ""
    related: tuple[Span, ...] = ()
    fix: Callable[[], TextEdit | None] | None = None
    severity: Severity | None = None
    """The severity, if it differs from the rule's."""


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """An expression with its place. `role` is the name of its list (`filter`, `score`, `message`, ...)."""

    role: str
    checked: Checked
    name: str = ""
    item: Any = None
    """The rule or score item of the document that it belongs to, or the name of the field of an action."""

    def span(self, node: Expr | None = None) -> Span:
        """Return the place of a part of it, or of the whole."""
        return span_of(self.checked, node)


def span_of(checked: Checked, node: Expr | None = None) -> Span:
    """Return the place of a part of an expression, or of the whole."""
    node = checked.root if node is None else node
    return checked.source.span(node.start, node.end)


@dataclass(eq=False)
class LintSubject:
    """A valid document. `params` are its own merged with referenced ones; `compiled` is None for PolicyParams and
    PolicyTests.
    """

    document: Document
    compiled: Compiled | None
    params: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spec(self) -> PluginSpec:
        """The spec of a plugin's document."""
        assert isinstance(self.document.spec, PluginSpec)
        return self.document.spec

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """All expressions of the document except its variables."""
        return tuple(_placed(self.compiled)) if self.compiled is not None else ()

    @cached_property
    def definitions(self) -> Mapping[str, Checked]:
        """Its variables, as seen by the first expression that can read them."""
        found: dict[str, Checked] = {}
        for each in self.placed:
            for name, checked in each.checked.definitions.items():
                found.setdefault(name, checked)
        return found

    @cached_property
    def everything(self) -> tuple[Placed, ...]:
        """All expressions, each variable once."""
        variables = (Placed("variable", checked, name) for name, checked in self.definitions.items())
        return (*variables, *self.placed)

    @cached_property
    def analyses(self) -> Analyses:
        """The analyses of the expressions, for unknown params."""
        return Analyses()

    @cached_property
    def as_written(self) -> Analyses:
        """The analyses of the expressions, with the document's own params."""
        return Analyses(self.params, self.analyses)

    @cached_property
    def parts(self) -> tuple[tuple[Placed, tuple[Expr, ...]], ...]:
        """All parts of each expression."""
        return tuple((each, tuple(parts(each.checked))) for each in self.everything)

    @cached_property
    def calls(self) -> tuple[tuple[Placed, Call], ...]:
        """All calls and operators."""
        return tuple((placed, node) for placed, nodes in self.parts for node in nodes if isinstance(node, Call))

    @cached_property
    def constant_truths(self) -> tuple[tuple[Placed, Expr, bool | None], ...]:
        """The outermost parts that are always or never true, and (None) branches that are never taken; includes a bare
        `true` or `false`.
        """
        found: list[tuple[Placed, Expr, bool | None]] = []
        for placed in self.everything:
            root = placed.checked.root
            if BOOL not in placed.checked.types.values():
                continue
            if isinstance(root, Literal) and isinstance(root.value, bool):
                found.append((placed, root, root.value))
            else:
                found.extend((placed, node, value) for node, value in self.analyses.of(placed.checked).determined())
        return tuple(found)

    @cached_property
    def used(self) -> frozenset[str]:
        """The variables that are read, directly or through another one."""
        found: set[str] = set()
        pending = [each.checked for each in self.placed]
        while pending:
            checked = pending.pop()
            for reference in checked.references.values():
                if isinstance(reference, DefinitionReference) and reference.name not in found:
                    found.add(reference.name)
                    pending.append(checked.definition(reference.name))
        return frozenset(found)

    @cached_property
    def params_read(self) -> frozenset[str] | None:
        """The params that expressions read; None if they are read as a whole."""
        paths = {path for each in self.everything for path in each.checked.reads if path[0] == "params"}
        return None if ("params",) in paths else frozenset(path[1] for path in paths)

    @cached_property
    def node(self) -> YamlNode | None:
        """The YAML node of the document. The text is read again: only reports need it."""
        return node_of(self.document)

    def place(self, *path: str | int) -> Span:
        """Return the place of a field, or of the name if there is no such field."""
        node = self.node.at(*path) if self.node is not None else None
        return node.place if node is not None else self.document.span


def _placed(compiled: Compiled) -> Iterator[Placed]:
    for aggregate in compiled.aggregates:
        for role, program in (("aggregate", aggregate.program), ("group", aggregate.group_by)):
            if program is not None:
                yield Placed(role, program.checked, aggregate.name)
    if isinstance(compiled, CompiledScheduler):
        yield from _rules("condition", compiled.conditions)
        yield from _rules("preEnqueue", compiled.pre_enqueue)
        yield from _rules("preFilter", compiled.pre_filter)
        yield from _rules("filter", compiled.filter)
        for score in compiled.score:
            yield Placed("score", score.program.checked, score.item.name, score.item)
    elif isinstance(compiled, CompiledQoS):
        yield from _rules("condition", compiled.match_conditions)
        yield from _rules("threshold", (each.rule for each in compiled.thresholds))
        for action in compiled.actions:
            if action.when is not None:
                yield Placed("when", action.when.checked, action.name)
            if isinstance(action.effect, SuppressCPUProgram):
                yield Placed("target", action.effect.target.checked, action.name)
            elif isinstance(action.effect, EvictProgram):
                yield from _rules("criterion", action.effect.criteria)
                yield from (Placed("sort", each.program.checked, action.name) for each in action.effect.sort)
                if action.effect.amount is not None:
                    yield Placed("amount", action.effect.amount.checked, action.name)
                if action.effect.past_budget is not None:
                    yield Placed("when", action.effect.past_budget.checked, action.name)
            else:
                for field, setting in settings_of(action.effect).items():
                    yield Placed("setting", setting.checked, action.name, field)
    else:
        yield from _rules("condition", compiled.match_conditions)
        for role, program in (
            ("source", compiled.source), ("destination", compiled.target), ("until", compiled.until),
            ("fit", compiled.fit), ("room", None if compiled.room is None else compiled.room.of_target),
            ("taken", None if compiled.room is None else compiled.room.of_pod),
        ):
            if program is not None:
                yield Placed(role, program.checked, role)
        yield from _rules("criterion", compiled.criteria)
        yield from (Placed("source sort", each.program.checked) for each in compiled.source_sort)
        yield from (Placed("sort", each.program.checked) for each in compiled.sort)
        for role, program in (
            ("eviction mode", compiled.eviction_mode), ("grace period", compiled.eviction_grace_period),
        ):
            if program is not None:
                yield Placed(role, program.checked, role)


def _rules(role: str, rules: Iterable[Rule]) -> Iterator[Placed]:
    for rule in rules:
        yield Placed(role, rule.program.checked, rule.name, rule)
        if rule.message_program is not None:
            yield Placed("message", rule.message_program.checked, rule.name, rule)


@dataclass(eq=False)
class Whole:
    """All valid documents, the component configurations, the existing plugins, and the PolicyTests."""

    subjects: tuple[LintSubject, ...]
    configurations: tuple[YamlNode, ...] = ()
    plugins: Mapping[Framework, frozenset[str]] = field(default_factory=dict)
    suites: tuple[LintSubject, ...] = ()
    files: frozenset[str] | None = None
    """The files whose violations are reported; None means all files."""

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Cached values that several rules share, by name."""
        return {}

    def of(self, kind: type[Compiled]) -> Iterator[LintSubject]:
        """Yield the subjects of one kind."""
        return (each for each in self.subjects if isinstance(each.compiled, kind))


def whole_of(
    documents: Iterable[Document], compiled: Iterable[Compiled], plugins: Iterable[Plugin],
    configurations: tuple[YamlNode, ...] = (),
) -> Whole:
    """Return the input of the rules; `plugins` are those of these documents and those in Python."""
    documents, plugins = tuple(documents), tuple(plugins)
    names = {framework: frozenset(each.name for each in plugins if each.framework is framework)
             for framework in Framework}
    return Whole(subjects(documents, compiled), configurations, names, suites(documents))


def subjects(documents: Iterable[Document], compiled: Iterable[Compiled]) -> tuple[LintSubject, ...]:
    """Return the subjects of the rules, in the documents' order, without documents that do not compile."""
    documents = tuple(documents)
    programs = {id(each.document): each for each in compiled}
    shared = {each.name: each.spec.params for each in documents if isinstance(each.spec, ParamsSpec)}
    found: list[LintSubject] = []
    for document in documents:
        if isinstance(document.spec, ParamsSpec) and not document.faulty:
            found.append(LintSubject(document, None, document.spec.params))
        elif id(document) in programs and isinstance(document.spec, PluginSpec):
            params: dict[str, Any] = {}
            for reference in document.spec.params_from:
                params |= shared.get(reference.name, {})
            found.append(LintSubject(document, programs[id(document)], {**params, **document.spec.params}))
    return tuple(found)


def suites(documents: Iterable[Document]) -> tuple[LintSubject, ...]:
    """Return the subjects of the rules about PolicyTests."""
    return tuple(LintSubject(each, None) for each in documents if each.kind is Kind.TEST and not each.faulty)
