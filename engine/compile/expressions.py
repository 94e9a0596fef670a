"""Compilation of one document's expressions: each is parsed once, checked in its slot, and made a program."""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import Checked, Path
from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.cost import check_cost
from koordpolicy.engine.cel.check.environment import Environment, Function, Variable
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.syntax.ast import Expr, Ident, Select, children
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, DYN, INT, STRING, Type, map_of
from koordpolicy.engine.documents import (
    Aggregate,
    AggregateFunction,
    Check,
    Condition,
    Criterion,
    Expression,
    PluginSpec,
    Threshold,
)
from koordpolicy.engine.framework.points import Code
from koordpolicy.engine.framework.slots import AMOUNTS, KEY, NUMBER, SLOTS, Slot, environment
from koordpolicy.engine.framework.typed_values import Typed
from koordpolicy.engine.source import PolicyError, Problem, Problems, Span, did_you_mean
from koordpolicy.engine.texts import quoted_list

from .programs import AggregateProgram, Rule

_VARIABLES: Final = "variables"
_AGGREGATES: Final = "aggregates"


class SeenAggregates(enum.Enum):
    """The aggregates that an expression may read."""

    NONE = enum.auto()
    SIMPLE = enum.auto()
    """Those that read no other: what an aggregate may read."""
    ALL = enum.auto()


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable of the document: its tree, and the variables that it reads. `root` is None if it cannot be parsed."""

    name: str
    expression: Expression
    root: Expr | None
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Scope:
    """The environment of a slot's expressions, and the reasons why some variables cannot be read there (by name)."""

    environment: Environment
    missing: Mapping[str, PolicyError]


@dataclass(slots=True)
class Expressions:
    """A compiler of one document's expressions; it collects problems, and returns None for a faulty expression.

    `slots` are those that the document uses, first the one with the most variables.
    """

    spec: PluginSpec
    params: Typed
    slots: Sequence[Slot]
    problems: Problems
    subject: str = "node"
    thresholds: tuple[str, ...] = ()
    extensions: tuple[Function, ...] = ()
    aggregates: dict[str, Type] = field(default_factory=dict)
    _simple: Mapping[str, Type] = field(default_factory=dict)
    """The aggregates that read no other."""
    _variables: tuple[_Variable, ...] = ()
    _scopes: dict[Hashable, _Scope] = field(default_factory=dict)
    reads: set[Path] = field(default_factory=set)
    """The paths that the compiled programs read."""
    _names: Mapping[str, None] = field(default_factory=dict)
    """The names of all variables, in order."""
    _heights: dict[str, int] = field(default_factory=dict)
    """The nesting depth of each variable, including those that it reads."""

    def __post_init__(self) -> None:
        self._variables = tuple(self._parse_variables())
        self._names = {each.name: None for each in self._variables}

    def program(
        self, expression: Expression, slot: Slot, results: tuple[Type, ...] | None = None, *,
        aggregates: SeenAggregates = SeenAggregates.ALL,
    ) -> Program | None:
        """Return the program of an expression that reads these aggregates; `results` (default: the slot's) are its
        allowed types.
        """
        try:
            root = parse(expression.source)
        except PolicyError as error:
            self.problems.extend(error.problems)
            return None
        # The parser bounds the depth of the tree itself.
        if _VARIABLES in expression.source.text and self._height(root, expression) is None:
            return None
        return self._checked_program(expression, root, slot, SLOTS[slot].results if results is None else results,
                                     aggregates=aggregates)

    def optional(
        self, expression: Expression | None, slot: Slot, results: tuple[Type, ...] | None = None,
    ) -> Program | None:
        """Return the program of an optional expression; None if there is none."""
        return None if expression is None else self.program(expression, slot, results)

    def rule(self, item: Check | Criterion | Threshold | Condition, slot: Slot) -> Rule | None:
        """Return the rule of an item that yields a bool."""
        program = self.program(item.expression, slot, (BOOL,))
        message = message_program = None
        if not isinstance(item, Condition):
            message = item.message
            message_program = self.optional(item.message_expression, slot, (STRING,))
        if program is None:
            return None
        span = item.expression.span if isinstance(item, Condition) else item.span
        code = item.reason if isinstance(item, Check) else Code.UNSCHEDULABLE
        return Rule(item.name, program, item.expression, span, message or "", message_program, code)

    def rules(self, items: Iterable[Check | Criterion | Threshold | Condition], slot: Slot) -> tuple[Rule, ...]:
        """Return the rules of items that yield bools."""
        found = [self.rule(item, slot) for item in items]
        return tuple(rule for rule in found if rule is not None)

    def compile_aggregates(self, items: Iterable[tuple[Aggregate, Slot]]) -> tuple[AggregateProgram, ...]:
        """Return the programs of the aggregates of a document, those that read others last, and declare their types."""
        given = tuple(items)
        readers = {each.name for each, _ in given if self._reads_aggregates(each)}
        found = [self._aggregate(each, slot, SeenAggregates.NONE) for each, slot in given if each.name not in readers]
        self._simple = dict(self.aggregates)
        for each, slot in given:
            if each.name in readers and not self._report_nested(each, readers):
                found.append(self._aggregate(each, slot, SeenAggregates.SIMPLE))
            elif each.name in readers:
                self.aggregates[each.name] = DYN
        return tuple(each for each in found if each is not None)

    def _aggregate(self, item: Aggregate, slot: Slot, aggregates: SeenAggregates) -> AggregateProgram | None:
        before = len(self.problems.found)
        counts = item.function is AggregateFunction.COUNT
        program = group = None
        if item.expression is not None:
            results = (BOOL,) if counts else NUMBER if item.group_by is not None else SLOTS[slot].results
            program = self.program(item.expression, slot, results, aggregates=aggregates)
        if item.group_by is not None:
            group = self.program(item.group_by, slot, KEY, aggregates=aggregates)
        result = program.type if program is not None else DYN
        is_map = program is not None and result in AMOUNTS
        if is_map:
            result = DOUBLE if result == map_of(STRING, DOUBLE) else INT
        if counts or item.function is AggregateFunction.AVG:
            result = INT if counts else DOUBLE
        if group is not None or is_map:
            result = map_of(STRING if group is None else group.type, result)
        self.aggregates[item.name] = result
        if len(self.problems.found) > before:
            return None
        return AggregateProgram(item.name, item.over, item.function, program, group, item.percentile, item.span)

    def _reads_aggregates(self, item: Aggregate) -> bool:
        """Return whether an aggregate reads others, by itself or by the variables that it reads."""
        roots = {each.name: each.root for each in self._variables}
        pending: list[Expr | None] = [self._parsed(each) for each in (item.expression, item.group_by)]
        seen: set[str] = set()
        while pending:
            root = pending.pop()
            if root is None:
                continue
            if _names(root, _AGGREGATES):
                return True
            names = {each.field for each in _selections(root)} - seen
            seen |= names
            pending += [roots.get(name) for name in names]
        return False

    @staticmethod
    def _parsed(expression: Expression | None) -> Expr | None:
        try:
            return None if expression is None else parse(expression.source)
        except PolicyError:
            return None  # it is reported where it is compiled

    def _report_nested(self, item: Aggregate, readers: Collection[str]) -> bool:
        """Report the aggregates that an aggregate reads although they read others; return whether there are any."""
        before = len(self.problems.found)
        for expression in (item.expression, item.group_by):
            root = self._parsed(expression)
            if expression is None or root is None:
                continue
            for node in _selections(root, _AGGREGATES):
                if node.field in readers:
                    itself = "itself" if node.field == item.name else f"`{node.field}`, which reads aggregates, too"
                    self.problems.add(
                        f"the aggregate `{item.name}` reads {itself}", _span(expression, node),
                        help="an aggregate may read those that read no other", code="aggregate-order",
                    )
        return len(self.problems.found) > before

    def finish(self) -> None:
        """Report the variables that no slot can read, with the reason in the slot with the most variables."""
        for variable in self._variables:
            scopes = [self._scope(slot) for slot in self.slots]
            failures = [scope.missing.get(variable.name) for scope in scopes]
            if variable.root is None or not failures or failures[0] is None or None in failures:
                continue
            if not variable.reads & scopes[0].missing.keys():  # else the other variable is reported
                self.problems.extend(failures[0].problems)

    def _parse_variables(self) -> Iterator[_Variable]:
        last = {each.name: place for place, each in enumerate(self.spec.variables)}
        roots: dict[str, Expr | None] = {}
        for each in self.spec.variables:
            try:
                roots[each.name] = parse(each.expression.source)
            except PolicyError as error:
                self.problems.extend(error.problems)
                roots[each.name] = None
        selections = {
            each.name: _reads(root, each.expression) if (root := roots[each.name]) is not None else ()
            for each in self.spec.variables
        }
        reads = {name: frozenset(each.field for each in found) for name, found in selections.items()}
        for place, each in enumerate(self.spec.variables):
            root = roots[each.name]
            for node in selections[each.name] if root is not None else ():
                if last.get(node.field, -1) >= place:
                    self._report_order(each.name, node, each.expression, reads)
                    root = None
            height = None if root is None else self._height(root, each.expression)
            if height is None:
                root = None
            else:
                self._heights[each.name] = height
            yield _Variable(each.name, each.expression, root, reads[each.name])

    def _height(self, root: Expr, expression: Expression) -> int | None:
        """Return the depth of a tree including all variables that it reads; report it and return None if too deep.

        All stages recurse into variables as into sub-expressions, so one bound applies to both together.
        """
        highest, deepest = 0, root
        pending = [(root, 1)]
        while pending:
            node, level = pending.pop()
            while isinstance(node, Select) and not isinstance(node.operand, Ident):
                node, level = node.operand, level + 1
            if isinstance(node, Select) and isinstance(node.operand, Ident) and node.operand.name == _VARIABLES:
                below = level + 1 + self._heights.get(node.field, 0)
                if below > highest:
                    highest, deepest = below, node
                continue
            highest = max(highest, level)
            pending += [(each, level + 1) for each in children(node)]
        most = ExpressionLimits().depth
        if highest <= most:
            return highest
        self.problems.add(
            f"nested too deeply: more than {most} levels, with the variables that are read", _span(expression, deepest),
            help="read fewer variables by way of one another", code="too-deep",
        )
        return None

    def _report_order(
        self, name: str, node: Select, expression: Expression, reads: Mapping[str, frozenset[str]],
    ) -> None:
        other = node.field
        if other == name:
            message, hint = f"`{_VARIABLES}.{name}` reads itself", "remove the reference"
        elif (path := _path(reads, other, name)) is not None:
            chain = " -> ".join(f"`{each}`" for each in (name, *path))
            message, hint = f"variables read each other: {chain}", "break the circle"
        else:
            message = f"`{_VARIABLES}.{name}` reads `{other}`, which is declared after it"
            hint = f"move `{other}` before `{name}`"
        self.problems.extend([Problem(message, _span(expression, node), hint, code="variable-order")])

    def _checked_program(
        self, expression: Expression, root: Expr, slot: Slot, results: tuple[Type, ...], *, aggregates: SeenAggregates,
    ) -> Program | None:
        scope = self._scope(slot, aggregates=aggregates)
        if self._report_missing(expression, root, slot, aggregates=aggregates):
            return None
        try:
            checked = check(expression.source, root, scope.environment, expected=results)
            check_cost(checked)
        except PolicyError as error:
            self.problems.extend(_placed(error, slot))
            return None
        self.reads |= checked.reads
        return Program(checked)

    def _report_missing(self, expression: Expression, root: Expr, slot: Slot, *, aggregates: SeenAggregates) -> bool:
        """Report the variables that an expression reads but cannot; return whether there are any."""
        scope = self._scope(slot, aggregates=aggregates)
        known = self._names
        bad = False
        for node in _reads(root, expression):
            if node.field not in known:
                hint = did_you_mean(node.field, known) or (
                    f"there are {quoted_list(known)}" if known else "declare it under `variables`"
                )
                message = f"no variable `{_VARIABLES}.{node.field}` at {slot.value}"
                self.problems.add(message, _span(expression, node), help=hint, code="cel-name")
                bad = True
            elif node.field in scope.missing:
                bad = True
                # A scope with aggregates is cached, so it must not be made before all of them are known.
                elsewhere = [s for s in self.slots if node.field not in self._scope(s, aggregates=aggregates).missing]
                if elsewhere or _is_of_aggregates(slot):
                    why = scope.missing[node.field].problems[0].message
                    self.problems.add(
                        f"`{_VARIABLES}.{node.field}` cannot be read at {slot.value}: {why}", _span(expression, node),
                        help="repeat here the part of it that can be read" + (f", or move this to {elsewhere[0].value}"
                                                               if elsewhere else ""),
                        code="cel-name",
                    )
        return bad

    def _scope(self, slot: Slot, *, aggregates: SeenAggregates = SeenAggregates.ALL) -> _Scope:
        # Slots with the same variables share the checked expressions; messages name the first of these slots.
        spec = SLOTS[slot]
        key = (id(spec.sees), spec.by_subject, slot is Slot.WHEN, aggregates)
        if key not in self._scopes:
            self._scopes[key] = self._make_scope(slot, aggregates=aggregates)
        return self._scopes[key]

    def _make_scope(self, slot: Slot, *, aggregates: SeenAggregates) -> _Scope:
        known = {SeenAggregates.NONE: None, SeenAggregates.SIMPLE: self._simple, SeenAggregates.ALL: self.aggregates}
        seen = environment(
            slot, subject=self.subject, params=self.params, aggregates=known[aggregates],
            thresholds=self.thresholds if slot is Slot.WHEN else (), extensions=self.extensions,
        )
        missing: dict[str, PolicyError] = {}
        for variable in self._variables:
            found = self._definition(variable, seen, missing)
            if isinstance(found, PolicyError):
                missing[variable.name] = PolicyError(_placed(found, slot))
            else:
                seen = seen.with_definition(variable.name, found)
                continue
            # Its readers are reported once, not again for its type.
            seen = seen.with_variables(Variable(f"{_VARIABLES}.{variable.name}", DYN))
        return _Scope(seen, missing)

    def _definition(
        self, variable: _Variable, seen: Environment, missing: Mapping[str, PolicyError],
    ) -> Checked | PolicyError:
        failed = sorted(variable.reads & missing.keys())
        if failed:
            return missing[failed[0]]
        if variable.root is None:
            return PolicyError([Problem(f"`{_VARIABLES}.{variable.name}` is not valid", variable.expression.span)])
        unknown = sorted(variable.reads - self._names.keys())
        if unknown:
            node = next(each for each in _reads(variable.root, variable.expression) if each.field == unknown[0])
            known = [name for name in self._names if name != variable.name]
            return PolicyError([Problem(
                f"no variable `{_VARIABLES}.{unknown[0]}`", _span(variable.expression, node),
                did_you_mean(unknown[0], known) or "declare it before this one", code="cel-name",
            )])
        try:
            checked = check(variable.expression.source, variable.root, seen)
            check_cost(checked)
        except PolicyError as error:
            return error
        return checked


def _is_of_aggregates(slot: Slot) -> bool:
    return slot in (
        Slot.SCHEDULER_NODES, Slot.SCHEDULER_PODS, Slot.QOS_PODS, Slot.DESCHEDULER_NODES, Slot.DESCHEDULER_PODS,
    )


def _placed(error: PolicyError, slot: Slot) -> Iterator[Problem]:
    """Yield the problems; those of unknown names get the slot's name."""
    for problem in error.problems:
        named = problem.code == "cel-name" and problem.message.startswith("no variable")
        place = f" at {slot.value}"
        placed = named and not problem.message.endswith(place)
        yield replace(problem, message=problem.message + place) if placed else problem


def _reads(root: Expr, expression: Expression) -> tuple[Select, ...]:
    """Return the selections of `variables.<name>` in an expression's tree."""
    return tuple(_selections(root)) if _VARIABLES in expression.source.text else ()


def _names(root: Expr, name: str) -> bool:
    """Return whether a tree has an identifier of this name."""
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Ident) and node.name == name:
            return True
        pending.extend(children(node))
    return False


def _selections(root: Expr, of: str = _VARIABLES) -> Iterator[Select]:
    pending = [root]
    while pending:
        node = pending.pop()
        while isinstance(node, Select):
            if isinstance(node.operand, Ident) and node.operand.name == of:
                yield node
                break
            node = node.operand
        else:
            pending.extend(children(node))


def _path(reads: Mapping[str, frozenset[str]], start: str, goal: str) -> tuple[str, ...] | None:
    """Return the chain by which one variable reads another, directly or through others."""
    pending: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    while pending:
        path = pending.pop(0)
        if path[-1] == goal:
            return path
        for each in sorted(reads.get(path[-1], frozenset()) - seen):
            seen.add(each)
            pending.append((*path, each))
    return None


def _span(expression: Expression, node: Expr) -> Span:
    return expression.source.span(node.start, node.end)
