"""Programs: checked expressions with the ways to evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from koordpolicy.engine.source import Source

from ..check.checked_ast import Checked, DefinitionReference, VariableReference
from ..check.checker import check
from ..check.environment import Environment
from ..syntax.parser import parse
from ..values.types import Type

if TYPE_CHECKING:
    from ..vector.frame import ByColumn
    from .budget import Meter
    from .interpreter.interpreter import Interpreter


@dataclass(frozen=True)
class Program:
    """A checked expression and the ways to evaluate it. Immutable; may be called from any thread.

    Compiled at the first call, so that checking alone does not pay for it.
    """

    checked: Checked
    column_plan: ByColumn | None = field(default=None, init=False, repr=False, compare=False)
    """The plan that evaluates it by column, set at its first use; see `vector.plan.evaluate`."""

    @staticmethod
    def of(checked: Checked) -> Program:
        """Return the program of a checked expression."""
        return Program(checked)

    @property
    def source(self) -> Source:
        """The expression's text."""
        return self.checked.source

    @property
    def type(self) -> Type:
        """The type of its value."""
        return self.checked.type

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The environment's variables that it reads, definitions included, in the environment's order."""
        read = _variables_of(self.checked)
        return tuple(name for name in self.checked.environment.variables if name in read)

    @cached_property
    def call(self) -> Callable[..., object]:
        """The function of `variables`, positional, that returns the value or raises `EvaluationError`.

        It is bounded: an evaluation beyond the environment's cost limit is an error with the reason `CostLimit`.
        """
        from .codegen.emit import emit  # noqa: PLC0415 - who only checks does not pay for evaluators
        from .codegen.writer import RefusedError  # noqa: PLC0415 - as above

        names, evaluate, limit = self.variables, self._interpreter.evaluate, self.checked.environment.limits.cost
        meter = self.meter

        def exactly(*values: object) -> object:
            return evaluate(dict(zip(names, values, strict=True)), limit, meter)[0]

        try:
            return emit(self.checked, names, exactly, meter)
        except RefusedError:
            return exactly

    @cached_property
    def meter(self) -> Meter:
        """The cost of its evaluations so far; see `budget`."""
        from .budget import Meter  # noqa: PLC0415 - as above

        return Meter()

    @cached_property
    def _interpreter(self) -> Interpreter:
        from .interpreter.interpreter import interpreter_of  # noqa: PLC0415 - as above

        return interpreter_of(self.checked)

    def use_plan(self, plan: ByColumn) -> ByColumn:
        """Set and return the evaluation by column, given the plan of its expression."""
        wrapped = self.by_column(plan)
        object.__setattr__(self, "column_plan", wrapped)
        return wrapped

    def by_column(self, plan: ByColumn) -> ByColumn:
        """Return the evaluation by column, given the plain plan: programs with tracing or timing wrap it."""
        return plan

    def evaluate(self, bindings: Mapping[str, object]) -> object:
        """Return the value for variables by name; variables that it does not read are ignored.

        Reading a variable without a value is an error.
        """
        try:
            values = [bindings[name] for name in self.variables]
        except KeyError:
            return self.metered(bindings)[0]
        return self.call(*values)

    def metered(self, bindings: Mapping[str, object], limit: float | None = None) -> tuple[object, int]:
        """Return value and cost in Kubernetes' units; `limit` defaults to the environment's.

        Raises `EvaluationError`, of reason `CostLimit` where the limit is exceeded.
        """
        within = self.checked.environment.limits.cost if limit is None else limit
        return self._interpreter.evaluate(bindings, within, self.meter)


def compile(source: Source | str, environment: Environment, *, expected: Type | None = None) -> Program:  # noqa: A001 - the verb of the field
    """Return the program of an expression's text: parsed, checked, and within the environment's limits.

    Raises `PolicyError` with every problem found. `expected` is the type that the value must have.
    """
    whole = source if isinstance(source, Source) else Source("<expression>", source)
    root = parse(whole, limits=environment.limits)
    return Program(check(whole, root, environment, expected=expected))


def _variables_of(checked: Checked) -> frozenset[str]:
    names: set[str] = set()
    seen = {checked}
    pending = [checked]
    while pending:
        each = pending.pop()
        for reference in each.references.values():
            if isinstance(reference, VariableReference):
                names.add(reference.name)
            elif isinstance(reference, DefinitionReference):
                definition = each.definition(reference.name)
                if definition not in seen:
                    seen.add(definition)
                    pending.append(definition)
    return frozenset(names)
