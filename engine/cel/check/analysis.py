"""Analysis of checked trees for evaluators: parts of a tree, the paths that they read, whether they may be cached."""

from __future__ import annotations

from dataclasses import replace

from ..syntax.ast import Call, Expr, Literal, Select, children
from .checked_ast import CallReference, Checked, DefinitionReference, Path, VariableReference, reads_of
from .environment import Scope

__all__ = ["column_path", "is_pure", "outermost", "split_reads", "sub_expression"]


def sub_expression(checked: Checked, node: Expr) -> Checked:
    """Return a part of a checked expression as a checked expression."""
    if node is checked.root:
        return checked
    inside: set[int] = set()
    pending = [node]
    while pending:
        each = pending.pop()
        inside.add(each.id)
        pending.extend(children(each))
    references = {number: reference for number, reference in checked.references.items() if number in inside}
    return replace(
        checked, root=node, references=references, reads=reads_of(checked, node), scope=checked.scopes[node.id],
    )


def split_reads(checked: Checked, reads: frozenset[Path]) -> tuple[frozenset[Path], tuple[Path, ...]]:
    """Return the paths below ROW variables, and all others, sorted."""
    declared = checked.environment.variables
    rows = frozenset(path for path in reads if declared[path[0]].scope is Scope.ROW)
    return outermost(rows), tuple(sorted(reads - rows))


def outermost(paths: frozenset[Path]) -> frozenset[Path]:
    """Return the paths without those below another one."""
    return frozenset(path for path in paths if not any(path[:end] in paths for end in range(1, len(path))))


def column_path(checked: Checked, node: Expr) -> Path | None:
    """Return the path of a chain of fields and constant string keys, None for any other node."""
    steps: list[str] = []
    while True:
        reference = checked.references.get(node.id)
        if isinstance(reference, VariableReference):
            return reference.name, *reversed(steps)
        if isinstance(node, Select) and reference is None and not node.test and not node.optional:
            steps.append(node.field)
            node = node.operand
        elif (
            isinstance(node, Call) and node.function == "_[_]" and isinstance(node.args[1], Literal)
            and isinstance(node.args[1].value, str)
        ):
            steps.append(node.args[1].value)
            node = node.args[0]
        else:
            return None


def is_pure(checked: Checked) -> bool:
    """Return whether equal inputs give equal results: every function that is called is pure."""
    pending, seen = [checked], {id(checked)}
    while pending:
        each = pending.pop()
        for reference in each.references.values():
            if isinstance(reference, CallReference) and not all(overload.pure for overload in reference.overloads):
                return False
            if isinstance(reference, DefinitionReference):
                definition = each.definition(reference.name)
                if id(definition) not in seen:  # several definitions may read one variable
                    seen.add(id(definition))
                    pending.append(definition)
    return True
