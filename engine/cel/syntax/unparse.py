"""Unparser: the canonical text of a tree, with only the parentheses that are needed."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Final

from .ast import (
    Bind,
    Call,
    Comprehension,
    Constant,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    OptionalMap,
    Select,
)
from .lexer import WORDS

_BINARY: Final = {
    "_||_": ("||", 2), "_&&_": ("&&", 3), "_<_": ("<", 4), "_<=_": ("<=", 4), "_>_": (">", 4), "_>=_": (">=", 4),
    "_==_": ("==", 4), "_!=_": ("!=", 4), "@in": ("in", 4), "_+_": ("+", 5), "_-_": ("-", 5), "_*_": ("*", 6),
    "_/_": ("/", 6), "_%_": ("%", 6),
}  # fmt: skip
_TERNARY, _ANY, _UNARY, _MEMBER = 1, 2, 7, 8
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")
_ESCAPES: Final = {
    "\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\v": "\\v",
}  # fmt: skip


def unparse(node: Expr) -> str:
    """Return the text of a tree; parsing it gives an equal tree (but for ids and places).

    Field names that are no names are back-quoted. Raises `ValueError` for a number without a literal (NaN, infinity).
    """
    return _text(node, _TERNARY)


def unparse_constant(value: Constant, *, unsigned: bool = False) -> str:
    """Return the literal of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value}u" if unsigned else str(value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"there is no literal for {value}")
            text = repr(value)
            return text if "." in text or "e" in text else f"{text}.0"
        case str():
            return "'" + "".join(map(_escaped, value)) + "'"
        case bytes():
            return "b'" + "".join(map(_escaped_octet, value)) + "'"


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable() or 0xD800 <= ord(character) <= 0xDFFF:
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_octet(octet: int) -> str:
    character = chr(octet)
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if 0x20 <= octet < 0x7F else f"\\x{octet:02x}"


def _text(node: Expr, level: int) -> str:
    """Return the text of a node as an operand of at least this level."""
    match node:
        case Literal(value=value, unsigned=unsigned):
            return unparse_constant(value, unsigned=unsigned)
        case Ident(name=name, rooted=rooted):
            return f".{name}" if rooted else name
        case Select(operand=operand, field=field, test=test, optional=optional):
            text = f"{_text(operand, _MEMBER)}{'.?' if optional else '.'}{_field(field)}"
            return f"has({text})" if test else text
        case Call():
            return _call(node, level)
        case ListLiteral(elements=elements, optional=marked):
            parts = [("?" if index in marked else "") + _text(each, _TERNARY) for index, each in enumerate(elements)]
            return f"[{', '.join(parts)}]"
        case MapLiteral(entries=entries):
            parts = [
                f"{'?' if each.optional else ''}{_text(each.key, _TERNARY)}: {_text(each.value, _TERNARY)}"
                for each in entries
            ]
            return f"{{{', '.join(parts)}}}"
        case MessageLiteral(type_name=name, fields=fields):
            parts = [
                f"{'?' if each.optional else ''}{_field(each.field)}: {_text(each.value, _TERNARY)}" for each in fields
            ]
            return f"{name}{{{', '.join(parts)}}}"
        case Comprehension():
            names = [node.variable] if node.variable2 is None else [node.variable, node.variable2]
            parts = [*names, *(_text(each, _TERNARY) for each in (node.predicate, node.transform) if each is not None)]
            return f"{_text(node.range, _MEMBER)}.{node.macro.value}({', '.join(parts)})"
        case Bind(variable=name, init=init, body=body):
            return f"cel.bind({name}, {_text(init, _TERNARY)}, {_text(body, _TERNARY)})"
        case OptionalMap(target=target, variable=name, body=body, flat=flat):
            return f"{_text(target, _MEMBER)}.{'optFlatMap' if flat else 'optMap'}({name}, {_text(body, _TERNARY)})"


def _field(name: str) -> str:
    plain = name not in WORDS and _NAME.issuperset(name) and name[:1] not in frozenset("0123456789") and name
    return name if plain else f"`{name}`"


def _call(node: Call, level: int) -> str:
    function, args = node.function, node.args
    if function in _BINARY and len(args) == 2:
        symbol, own = _BINARY[function]
        # Chains of && and || are the same however they are balanced; other operators associate to the left.
        right = own if own <= 3 else own + 1
        text = f"{_text(args[0], own)} {symbol} {_text(args[1], right)}"
        return f"({text})" if own < level else text
    if function == "_?_:_":
        text = f"{_text(args[0], _ANY)} ? {_text(args[1], _ANY)} : {_text(args[2], _TERNARY)}"
        return f"({text})" if level > _TERNARY else text
    if function in ("!_", "-_"):
        symbol = function[0]
        inner = _text(args[0], _MEMBER)
        # `-1` would be a literal and `!!x` no operator at all.
        if inner[0] in "-!" or (symbol == "-" and (inner[0].isdigit() or inner[0] == ".")):
            inner = f"({inner})"
        text = symbol + inner
        return f"({text})" if level > _UNARY else text
    if function in ("_[_]", "_[?_]"):
        mark = "?" if function == "_[?_]" else ""
        return f"{_text(args[0], _MEMBER)}[{mark}{_text(args[1], _TERNARY)}]"
    arguments = ", ".join(map(_text, args, repeat(_TERNARY)))
    if node.target is not None:
        return f"{_text(node.target, _MEMBER)}.{function}({arguments})"
    return f"{'.' if node.rooted else ''}{function}({arguments})"
