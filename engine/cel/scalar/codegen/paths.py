"""Paths of an expression that are read more than once, for the code generator."""

from __future__ import annotations

from collections.abc import Iterable

from ...check.checked_ast import Checked, LocalReference, VariableReference
from ...syntax import ast
from ...syntax.ast import Expr


class _Path:
    """A variable, or a field of another path, with the nodes that read it or test its presence."""

    __slots__ = ("fields", "nodes", "uses")

    def __init__(self) -> None:
        self.fields: dict[object, _Path] = {}
        self.nodes: list[int] = []
        self.uses = 0
        """Reads of the value itself, and fields that are read of it: a field is read once, then known itself."""

    def field(self, key: object) -> _Path:
        """Return the path of a field."""
        found = self.fields.get(key)
        if found is None:
            found = self.fields[key] = _Path()
            self.uses += 1
        return found


def repeated_paths(expressions: Iterable[Checked]) -> frozenset[int]:
    """Return the identities of the nodes whose value is used again, by the same or by another one of the expressions.

    A presence test is among them if the field is read somewhere. Locals of one name count as one.
    """
    variables = _Path()
    paths: list[_Path] = []
    tests: list[tuple[_Path, int]] = []

    def read(node: Expr, checked: Checked) -> _Path | None:
        """Find the paths of a node and of all below it."""
        match checked.references.get(node.id):
            case VariableReference(name=name) | LocalReference(name=name):
                return variables.field(name)
            case _:
                pass
        match node:
            case ast.Select(operand=operand, field=key, test=test, optional=optional):
                of = read(operand, checked)
                if of is None or optional:
                    return None
                if test:
                    tests.append((of.field(key), id(node)))
                    return None
            case ast.Call(function="_[_]", args=[operand, ast.Literal(value=str() | int() as key)]):
                of = read(operand, checked)
                if of is None:
                    return None
            case _:
                for each in ast.children(node):
                    found = read(each, checked)
                    if found is not None:
                        found.uses += 1
                return None
        found = of.field(key)
        found.nodes.append(id(node))
        paths.append(found)
        return found

    for checked in expressions:
        found = read(checked.root, checked)
        if found is not None:
            found.uses += 1
    repeated = {node for path in paths if path.uses > 1 for node in path.nodes}
    repeated.update(node for path, node in tests if path.nodes)
    return frozenset(repeated)
