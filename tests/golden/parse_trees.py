"""cel-go's own parse results, tree by tree and error by error.

The golden trees have the macros not expanded, optional syntax and back-quoted names on, and a recursion limit of
1000. Chains of `&&` and `||` are flattened on both sides: how they are balanced means nothing.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from koordpolicy.engine.cel.syntax.ast import (
    Call,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    MessageLiteral,
    Select,
)
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.source import PolicyError, Source

from .result import Result


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Compare every case of `cel_parse_trees.json`."""
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    for number, case in enumerate(cases):
        yield Result("parse_trees", f"parse:{number:04} {case['expr']}", *_compare(case))


def _compare(case: dict[str, object]) -> tuple[bool, str]:
    source = Source("<expression>", str(case["expr"]))
    wanted = case.get("tree")
    try:
        root = parse(source, macros=False, escaped_identifiers=True, limits=ExpressionLimits(depth=1000))
    except PolicyError as error:
        first = error.problems[0]
        if wanted is not None:
            return False, f"refused: {first.message}"
        assert first.span is not None
        line, column = source.position(first.span.start)
        # cel-go counts the column of an error in an empty string from 0.
        place = (case["line"], max(1, int(str(case["col"]))))
        return (line, column) == place, f"{case['error']}: at {place} wanted, {(line, column)} found"
    if wanted is None:
        return False, f"accepted, but: {case['error']}"
    found, tree = _flatten(_read(_shown(root))), _flatten(_read(str(wanted)))
    return found == tree, f"wanted {wanted}, found {_shown(root)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _shown(node: Expr) -> str:
    match node:
        case Literal(value=None):
            return "null"
        case Literal(value=bool(value)):
            return f"bool:{str(value).lower()}"
        case Literal(value=int(value), unsigned=unsigned):
            return f"{'uint' if unsigned else 'int'}:{value}"
        case Literal(value=float(value)):
            return f"double:{struct.pack('>d', value).hex()}"
        case Literal(value=str(value)):
            return f"string:{_quoted(value)}"
        case Literal(value=bytes(value)):
            return f"bytes:{base64.b64encode(value).decode()}"
        case Ident(name=name, rooted=rooted):
            return "." + name if rooted else name
        case Select(operand=operand, field=field, optional=True):
            return f"(call _?._ {_shown(operand)} string:{_quoted(field)})"
        case Select(operand=operand, field=field):
            return f"(. {_shown(operand)} {field})"
        case Call(function=function, target=None, args=args, rooted=rooted):
            return f"({' '.join(['call', '.' + function if rooted else function, *map(_shown, args)])})"
        case Call(function=function, target=target, args=args) if target is not None:
            return f"({' '.join(['mcall', function, _shown(target), *map(_shown, args)])})"
        case ListLiteral(elements=elements, optional=optional):
            shown = [f"{'?' if index in optional else ''}{_shown(each)}" for index, each in enumerate(elements)]
            return f"({' '.join(['list', *shown])})"
        case MapLiteral(entries=entries):
            shown = [f"{'?' if each.optional else ''}{_shown(each.key)} {_shown(each.value)}" for each in entries]
            return f"({' '.join(['map', *shown])})"
        case MessageLiteral(type_name=name, fields=fields):
            shown = [f"{'?' if each.optional else ''}{each.field} {_shown(each.value)}" for each in fields]
            return f"({' '.join(['struct', name, *shown])})"
    raise AssertionError(node)


_ATOM = re.compile(r'\(|\)|\??string:"(?:[^"\\]|\\.)*"|[^\s()]+')


def _read(text: str) -> list[object]:
    stack: list[list[object]] = [[]]
    for atom in _ATOM.findall(text):
        if atom == "(":
            stack.append([])
        elif atom == ")":
            last = stack.pop()
            stack[-1].append(last)
        elif (quote := atom.find('string:"')) in (0, 1):
            # Two writers of JSON may escape different characters.
            stack[-1].append((atom[:quote], json.loads(atom[quote + 7 :])))
        else:
            stack[-1].append(atom)
    return stack[0]


def _flatten(tree: object) -> object:
    if not isinstance(tree, list):
        return tree
    parts = [_flatten(part) for part in tree]
    if parts[:2] in (["call", "_||_"], ["call", "_&&_"]):
        terms: list[object] = []
        for part in parts[2:]:
            terms.extend(part[2:] if isinstance(part, list) and part[:2] == parts[:2] else [part])
        return [*parts[:2], *terms]
    return parts
