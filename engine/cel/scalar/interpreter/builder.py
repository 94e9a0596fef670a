"""The tree whose steps are being built: types and references of its nodes, and the slots of its variables.

The modules beside this one build the steps, each those of some kinds of nodes, by functions of a `StepBuilder`;
`interpreter` has the builder that chooses among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from ...check.checked_ast import Checked
from ...syntax.ast import Expr
from ...values.types import ObjectType
from ...values.values import EvaluationError
from ..evaluation import Evaluation, Step
from ..reading import Reader, reader


class StepBuilder(ABC):
    """Builder of the steps of one tree."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        self.environment = checked.environment
        self.types = checked.types
        self.references = checked.references
        self.slots = 0
        """The number of slots that an evaluation needs."""
        self.scope: dict[str, tuple[int, bool]] = {}
        """Slot of each variable of an enclosing loop or bind, and whether it is evaluated lazily."""

    @abstractmethod
    def build(self, node: Expr) -> Step:
        """Return the step of a node."""

    @abstractmethod
    def definition(self, name: str) -> tuple[Checked, Step]:
        """Return a definition of the environment, and the step that evaluates it."""

    @contextmanager
    def inner_scope(self) -> Iterator[None]:
        """At the end of the context, forget the variables that were declared in it."""
        outer = dict(self.scope)
        yield
        self.scope = outer

    def declare(self, name: str, *, lazy: bool = False) -> int:
        """Declare a variable in the scope; return its slot."""
        slot = self.slots
        self.slots += 1
        self.scope[name] = (slot, lazy)
        return slot

    def reader(self, node: Expr) -> Reader | None:
        """Return the reader of a node's value; None if any value is valid."""
        return reader(self.types[node.id], self.environment)

    def declared_object(self, node: Expr) -> ObjectType | None:
        """Return the declaration of a node's type; None if it is not the type of an object."""
        return self.environment.types.get(self.types[node.id].name)

    def is_optional(self, node: Expr) -> bool:
        """Return whether a node's value is an optional."""
        return self.types[node.id].name == "optional_type"


def failing(message: str, position: int) -> Step:
    """Return a step that always fails."""

    def fail(_: Evaluation) -> object:
        raise EvaluationError(message, offset=position)

    return fail
