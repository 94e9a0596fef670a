"""Macros: calls that become nodes of their own, as `cel-go` expands them.

The nodes are not the loops of the expansion: a comprehension keeps its macro, so that messages and explanations can
name it.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from .ast import Bind, Comprehension, Expr, Ident, Literal, Macro, OptionalMap, Select

_ONE_VARIABLE: Final = {
    ("all", 2): Macro.ALL, ("exists", 2): Macro.EXISTS, ("exists_one", 2): Macro.EXISTS_ONE,
    ("existsOne", 2): Macro.EXISTS_ONE, ("map", 2): Macro.MAP, ("map", 3): Macro.MAP, ("filter", 2): Macro.FILTER,
    ("sortBy", 2): Macro.SORT_BY,
}  # fmt: skip
_TWO_VARIABLES: Final = {
    ("all", 3): Macro.ALL, ("exists", 3): Macro.EXISTS, ("exists_one", 3): Macro.EXISTS_ONE,
    ("existsOne", 3): Macro.EXISTS_ONE, ("transformList", 3): Macro.TRANSFORM_LIST,
    ("transformList", 4): Macro.TRANSFORM_LIST, ("transformMap", 3): Macro.TRANSFORM_MAP,
    ("transformMap", 4): Macro.TRANSFORM_MAP, ("transformMapEntry", 3): Macro.TRANSFORM_MAP_ENTRY,
    ("transformMapEntry", 4): Macro.TRANSFORM_MAP_ENTRY,
}  # fmt: skip
_OPTIONAL_MAP: Final = frozenset((("optMap", 2), ("optFlatMap", 2)))
_PREDICATES: Final = frozenset((Macro.ALL, Macro.EXISTS, Macro.EXISTS_ONE, Macro.FILTER))


class MacroCall(NamedTuple):
    """A call that may be of a macro, and its place; `target` is None for a function."""

    name: str
    target: Expr | None
    args: tuple[Expr, ...]
    position: int
    start: int
    end: int


class MacroParser(Protocol):
    """The parser, as macros use it."""

    optional_syntax: bool

    def next_id(self) -> int:
        """Return the id of the next node."""
        ...

    def note(self, message: str, start: int, end: int, help: str = "") -> None:  # noqa: A002 - as `Problem` calls it
        """Report an error at a place of the text; the parser goes on."""
        ...


def expand(parser: MacroParser, call: MacroCall) -> Expr | None:
    """Return the node of a macro, or None if this is a plain call."""
    name, target, args, position, start, end = call
    if target is None:
        return _presence(parser, call) if name == "has" and len(args) == 1 else None
    key = (name, len(args))
    macro, two = _ONE_VARIABLE.get(key), False
    if macro is None:
        macro, two = _TWO_VARIABLES.get(key), True
    if macro is not None:
        return _comprehension(parser, call, target, macro, two=two)
    if key == ("bind", 3) and isinstance(target, Ident) and target.name == "cel" and not target.rooted:
        return Bind(parser.next_id(), position, start, end, _variable(parser, args[0]), args[1], args[2])
    if parser.optional_syntax and key in _OPTIONAL_MAP:
        return OptionalMap(
            parser.next_id(), position, start, end, target, _variable(parser, args[0]), args[1], name == "optFlatMap",
        )
    return None


def _presence(parser: MacroParser, call: MacroCall) -> Expr:
    (field,) = call.args
    if not isinstance(field, Select) or field.optional or field.test:
        parser.note(
            "`has()` tests a field: it takes a selection such as `x.y`", field.position, field.position + 1,
            "for a key write `'key' in x`; an optional is tested with `.hasValue()`",
        )  # fmt: skip
        return Literal(parser.next_id(), call.position, call.start, call.end, False)
    return Select(parser.next_id(), field.position, call.start, call.end, field.operand, field.field, True)


def _comprehension(parser: MacroParser, call: MacroCall, target: Expr, macro: Macro, *, two: bool) -> Expr:
    variable = _variable(parser, call.args[0])
    second = _variable(parser, call.args[1]) if two else None
    if variable and variable == second:
        parser.note(
            f"`{second}` names both variables", call.args[1].start, call.args[1].end, "give them two names",
        )  # fmt: skip
    rest = call.args[2 if two else 1:]
    predicate: Expr | None = None
    transform: Expr | None = None
    if macro in _PREDICATES:
        (predicate,) = rest
    elif len(rest) == 2:
        predicate, transform = rest
    else:
        (transform,) = rest
    return Comprehension(
        parser.next_id(), call.position, call.start, call.end, macro, target, variable, second, predicate, transform,
    )


def _variable(parser: MacroParser, node: Expr) -> str:
    """Return the name of a macro's variable."""
    if isinstance(node, Ident) and not node.rooted:
        return node.name
    parser.note(
        "a macro's variable must be a simple name", node.position, node.position + 1,
        "as in `list.all(x, x > 0)`",
    )  # fmt: skip
    return ""
