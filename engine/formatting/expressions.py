"""Blanks between the tokens of an expression.

Only blanks within a line change: line breaks, comments, parentheses and literals are the author's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from koordpolicy.engine.cel.syntax.lexer import Token, tokenize
from koordpolicy.engine.documents import YamlNode

from .edits import Replacement

_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_OPERANDS: Final = frozenset((
    "ident", "escaped", "int", "uint", "double", "string", "bytes", "true", "false", "null", ")", "]", "}",
))
"""Kinds of tokens that end an operand: what follows is a binary operator, a call or an index."""
_BRANCHES: Final = frozenset("?:")
_PREFIXES: Final = frozenset("-!?")
_BLANKS: Final = frozenset(" \t")


def expression_edits(node: YamlNode) -> Iterator[Replacement]:
    """Yield the edits of the file that give an expression the standard blanks; the scalar remains one line of YAML."""
    part, text = node.part, node.source.text
    offsets = part.offsets
    if len(offsets) > 1 and offsets[0] == offsets[-2] and len(part.text) > 1:
        return  # a scalar whose characters have no places
    tokens = tokenize(part.text)
    gaps = [*gaps_of(tokens)]
    before = 0
    for token, standard in zip(tokens, gaps, strict=True):
        start, end = offsets[before], offsets[token.start]
        is_first, before = before == 0, token.end
        found = text[start:end]
        if token.kind == "fault":
            return
        if is_first or token.kind == "end":
            if found and _BLANKS.issuperset(found) and _removable(node, is_first=is_first):
                yield Replacement(start, end, "")
        elif found != standard and _BLANKS.issuperset(found):
            # A plain scalar must not contain `: `, and `://` of a comment is no part of the gap.
            if not (node.style == "" and part.text[token.start - len(found) - 1] == ":"):
                yield Replacement(start, end, standard)
        elif node.style == "|" and "\n" in found and found.strip() == "":
            trailing = len(found) - len(found.lstrip(" \t"))
            if trailing:
                yield Replacement(start, start + trailing, "")


def _removable(node: YamlNode, *, is_first: bool) -> bool:
    # The first line of a block scalar says how far all are indented.
    return node.style in ("'", '"') or (node.style == "|" and not is_first)


def gaps_of(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the blanks in front of each token, none or one, for tokens that stand in one line."""
    previous = ""
    is_prefix = False
    levels: list[int] = [0]
    """The number of `?` that wait for their `:`, per open bracket."""
    for token in tokens:
        kind = token.kind
        binary = previous in _OPERANDS
        is_map_colon = kind == ":" and levels[-1] == 0
        yield "" if _attached(previous, kind, is_map_colon, after_prefix=is_prefix) else " "
        if kind == "?" and binary:
            levels[-1] += 1
        elif kind == ":" and levels[-1]:
            levels[-1] -= 1
        elif kind in _OPENING:
            levels.append(0)
        elif kind in _CLOSING and len(levels) > 1:
            levels.pop()
        is_prefix = kind in _PREFIXES and not binary
        previous = kind


def _attached(previous: str, kind: str, is_map_colon: bool, *, after_prefix: bool) -> bool:
    """Return whether nothing stands between a token and the one before it."""
    if previous in {"", "."} or kind == "." or after_prefix:
        return True
    if previous in _OPENING or kind in _CLOSING or kind == "," or is_map_colon:
        return True
    if kind in ("(", "{"):
        return previous == "ident"
    if kind == "[":
        return previous in _OPERANDS
    return kind == "end"
