"""The function that is being generated: its blocks, locals and constants, and what is known of the values in them.

The modules beside this one generate the parts of an expression, each by functions of a `FunctionWriter`; `emit` has the
writer that chooses among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from ...check.checked_ast import Checked, DefinitionReference
from ...syntax.ast import Expr
from ...values.types import BOOL, ObjectType, Type
from ..budget import Meter
from . import python_nodes as py
from . import python_tree as tree
from .paths import repeated_paths
from .runtime import MeteredCalls


class RefusedError(Exception):
    """The tree has a node that only the interpreter supports."""


class FunctionWriter(ABC):
    """Writer of one function. Statements are added to `block`; most nodes are one Python expression and need none."""

    def __init__(self, checked: Checked, names: Iterable[str], meter: Meter) -> None:
        """`names` are the variables that become the function's parameters, in their order."""
        self.checked = checked
        """The expression, or the definition, that is being written."""
        self.parameters = {name: f"v{number}" for number, name in enumerate(names)}
        self.constants: dict[str, object] = {}
        self.metered = MeteredCalls(meter)

        # The place that is being written.
        self.block: list[py.stmt] = []
        self.locals: dict[str, str] = {}
        """The locals of the variables of loops and binds around the place."""
        self.loops = 0
        """The number of loops and binds around the place."""
        self._numbers = 0

        # What is known where the place is reached.
        self.known: dict[object, str] = {}
        """The local of every path that is read and checked in all branches that lead here."""
        self.fields: dict[object, str] = {}
        """The local of every path whose presence was tested in all branches that lead here; its value is unchecked."""

        # What holds for the whole function.
        self.any_loop = False
        self.any_bounded = False
        """True if it calls an operation that counts against the meter."""
        self.definitions: dict[Checked, str] = {}
        """The locals of definitions that are computed at most once."""
        self.uses = _uses_of_definitions(checked)
        self.repeated = repeated_paths([checked, *self.uses])
        """The identities of nodes whose value is used again."""
        self.present: dict[int, tuple[object, str]] = {}
        """By the identity of a presence test: the path, and the local that holds its value where the test holds."""

        # Sizes and ranges of values.
        self.sharing: dict[str, bool] = {}
        """Locals of loops and binds: whether their value may contain a part more than once."""
        self.lengths: dict[str, int] = {}
        """Locals of binds: the number of strings or lists of which their value is a concatenation."""
        self.joins: dict[Checked, int] = {}
        """Definitions: the number of strings or lists of which their value is a concatenation."""
        self.unchecked: set[int] = set()
        """The identities of operations on ints whose result needs no range check."""
        self.typed: set[int] = set()
        """Operations whose operands are all known to be ints."""

    @abstractmethod
    def value(self, node: Expr) -> py.expr:
        """Return the Python expression of a node; a value that is read is checked."""

    @abstractmethod
    def chain(self, node: Expr) -> py.expr:
        """Return the Python expression of a node that is only subscripted by a string or read by `.get`.

        Anything but a map raises then, so it needs no check.
        """

    # names and places

    def fresh(self) -> str:
        """Return the name of another local."""
        self._numbers += 1
        return f"t{self._numbers}"

    def constant(self, value: object) -> py.expr:
        """Return the expression that reads a constant of the function."""
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return tree.name(name)

    def stored(self, value: py.expr) -> tuple[py.expr, py.expr]:
        """Return an expression that computes a value and stores it in a local, and one that reads the local."""
        if isinstance(value, py.Name | py.Constant):
            return value, value
        if isinstance(value, py.NamedExpr):
            return value, tree.name(value.target.id)
        name = self.fresh()
        return tree.walrus(name, value), tree.name(name)

    @contextmanager
    def branch(self) -> Iterator[list[py.stmt]]:
        """Write into a new block, which may not run."""
        outer, known, fields = self.block, self.known, self.fields
        self.block, self.known, self.fields = [], dict(known), dict(fields)
        try:
            yield self.block
        finally:
            self.block, self.known, self.fields = outer, known, fields

    @contextmanager
    def inside(self, definition: Checked) -> Iterator[None]:
        """Write, or analyse, a definition, which cannot read the variables of loops around its use."""
        outer, locals_ = self.checked, self.locals
        self.checked, self.locals = definition, {}
        try:
            yield
        finally:
            self.checked, self.locals = outer, locals_

    # nodes

    def type_of(self, node: Expr) -> Type:
        """Return the type that the checker found."""
        return self.checked.types[node.id]

    def object_type_of(self, node: Expr) -> ObjectType | None:
        """Return the declaration of the fields of a node's value, if it has one."""
        return self.checked.environment.types.get(self.type_of(node).name)

    def condition(self, node: Expr) -> py.expr:
        """Return a value that is checked to be a bool."""
        value = self.value(node)
        if self.type_of(node) == BOOL:
            return value
        first, again = self.stored(value)
        return py.IfExp(tree.has_class(first, "bool"), again, tree.GIVE_UP)

    def arguments(self, nodes: Sequence[Expr]) -> list[py.expr]:
        """Return the values of nodes, which are evaluated in this order."""
        return self.in_order([partial(self.value, node) for node in nodes])

    def in_order(self, parts: Sequence[Callable[[], py.expr]]) -> list[py.expr]:
        """Return expressions that are evaluated in this order, even where a later one needs statements.

        A local that one part sets may be read by the next, so correctness depends on the order.
        """
        values: list[py.expr] = []
        for part in parts:
            before = len(self.block)
            value = part()
            if len(self.block) > before:
                # The expressions so far are computed before those statements.
                for position, earlier in enumerate(values):
                    if not isinstance(earlier, py.Name | py.Constant):
                        name = self.fresh()
                        self.block.insert(before, tree.assign(name, earlier))
                        before += 1
                        values[position] = tree.name(name)
            values.append(value)
        return values


def _uses_of_definitions(checked: Checked) -> Mapping[Checked, int]:
    """Return the number of mentions of each definition, by the expression and by definitions that it mentions."""
    uses: dict[Checked, int] = {}
    pending = [checked]
    while pending:
        each = pending.pop()
        for reference in each.references.values():
            if isinstance(reference, DefinitionReference):
                definition = each.definition(reference.name)
                if definition not in uses:
                    pending.append(definition)
                uses[definition] = uses.get(definition, 0) + 1
    return uses
