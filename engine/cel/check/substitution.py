"""Substitution of a string for the variable of a loop.

`selector.all(k, labels[k] == selector[k])` reads all labels. With `zone` for `k` it reads one of them: rows that
agree on that label have the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..syntax.ast import Call, Comprehension, Expr, Ident, Literal, Select, children
from ..values.types import STRING, Type
from .checked_ast import Checked, LocalReference, Reference, path_of, reads_of
from .environment import Scope


def looks_up(checked: Checked, loop: Comprehension) -> bool:
    """Return whether a loop's body has its variable as a key of a row's value, and no node that cannot be rewritten."""
    found = False
    rest = [loop.predicate]
    while rest:
        node = rest.pop()
        if not isinstance(node, Literal | Ident | Select | Call):
            return False
        if isinstance(node, Call) and node.function in ("_[_]", "@in"):
            container, key = node.args if node.function == "_[_]" else node.args[::-1]
            row = checked.scopes[container.id] is Scope.ROW and path_of(checked, container) is not None
            found = found or (row and isinstance(key, Ident) and key.name == loop.variable)
        rest.extend(children(node))
    return found


def with_text(checked: Checked, loop: Comprehension, text: str) -> Checked:
    """Return the body of a loop for which `looks_up` holds, with a string in place of its variable."""
    types: dict[int, Type] = dict(checked.types)
    references: dict[int, Reference] = dict(checked.references)
    scopes: dict[int, Scope] = dict(checked.scopes)

    def written(node: Expr) -> Expr:
        reference = checked.references.get(node.id)
        if isinstance(node, Ident) and reference == LocalReference(loop.variable):
            types[node.id], scopes[node.id] = STRING, Scope.CONSTANT
            del references[node.id]
            return Literal(node.id, node.position, node.start, node.end, text)
        if isinstance(node, Select):
            return replace(node, operand=written(node.operand))
        if isinstance(node, Call):
            target = None if node.target is None else written(node.target)
            return replace(node, target=target, args=tuple([written(each) for each in node.args]))
        return node

    assert loop.predicate is not None
    root = written(loop.predicate)
    body = replace(
        checked, root=root, types=types, references=_below(root, references), scopes=scopes, locals={},
        scope=scopes[root.id],
    )
    return replace(body, reads=reads_of(body, root))


def _below(root: Expr, references: Mapping[int, Reference]) -> dict[int, Reference]:
    found = {}
    rest = [root]
    while rest:
        node = rest.pop()
        if node.id in references:
            found[node.id] = references[node.id]
        rest.extend(children(node))
    return found
