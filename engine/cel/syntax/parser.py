"""Parser: tokens to a syntax tree.

An operator-precedence parser with two explicit stacks: deep nesting fills a list, not Python's call stack. The height
of the tree is bounded (`ExpressionLimits.depth`), so that all later stages may recurse over it: chains of `&&` and `||`
are balanced, any other expression that is too deep is an error at its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Never

from koordpolicy.engine.source import PolicyError, Problem, Source
from koordpolicy.engine.texts import beginning

from . import suggestions
from .ast import (
    Call,
    Constant,
    Expr,
    FieldInit,
    Ident,
    ListLiteral,
    Literal,
    MapEntry,
    MapLiteral,
    MessageLiteral,
    Select,
)
from .lexer import RESERVED, LiteralError, Token, decode, double, integer, tokenize
from .limits import ExpressionLimits
from .macros import MacroCall, expand
from .suggestions import UnexpectedToken

_BINARY: Final = {
    "||": (2, "_||_"), "&&": (3, "_&&_"),
    "<": (4, "_<_"), "<=": (4, "_<=_"), ">": (4, "_>_"), ">=": (4, "_>=_"), "==": (4, "_==_"), "!=": (4, "_!=_"),
    "in": (4, "@in"),
    "+": (5, "_+_"), "-": (5, "_-_"),
    "*": (6, "_*_"), "/": (6, "_/_"), "%": (6, "_%_"),
}  # fmt: skip
_LIMITS: Final = ExpressionLimits()
_OPEN, _TERNARY, _OR, _AND, _UNARY = 0, 1, 2, 3, 7

_LITERALS: Final = frozenset(("string", "int", "true", "false", "null", "double", "uint", "bytes"))
_ENDS: Final = frozenset(("end", ")", "]", "}"))
_CLOSING: Final = {"(": ")", "call": ")", "[": "]", "list": "]", "map": "}", "message": "}"}


def parse(
    source: Source,
    *,
    macros: bool = True,
    escaped_identifiers: bool = False,
    limits: ExpressionLimits = _LIMITS,
    optional_syntax: bool = True,
) -> Expr:
    """Return the tree of an expression; raise `PolicyError` with the errors and their places (code `cel-syntax`).

    `macros`: calls of macros become their nodes; otherwise they stay calls. `escaped_identifiers`: back-quoted field
    names are read. `optional_syntax`: `.?name`, `[?index]`, `[?element]`, `{?key: value}` and optMap are read.
    Node ids count from 1 and are unique. Of `limits`, the characters, the nodes and the depth apply.
    Never recurses, and never raises anything else, for any text.
    """
    return _Parser(source, macros, escaped_identifiers, limits, optional_syntax).parse()


_GATHERING: Final = frozenset(("list", "map", "message", "[", "&&", "||"))


class _Pending:
    """A pending operator or bracket; `base` is the index of its first operand.

    `optional`: indexes of optional elements; of an index, not empty where it is `[?`. `positions`: of all operators of
    a chain of `&&` or `||`, of the colons of a map, of the names and colons of a message. Only the kinds of
    `_GATHERING` have these lists, and may add to them.
    """

    __slots__ = (
        "base", "kind", "level", "member", "name", "names", "optional", "position", "positions", "rooted", "start",
    )

    optional: list[int]
    positions: list[int]
    names: list[str]

    def __init__(
        self, level: int, kind: str, position: int, start: int, base: int = 0, *,
        name: str = "", member: bool = False, rooted: bool = False,
    ) -> None:
        self.level = level
        self.kind = kind
        self.position = position
        self.start = start
        self.base = base
        self.name = name
        self.member = member
        self.rooted = rooted
        if kind in _GATHERING:
            self.optional = []
            self.positions = []
            self.names = []


class _Chain(NamedTuple):
    """The terms of a chain of `&&` or `||`, their extents, and the places of the operators between them."""

    function: str
    terms: Sequence[Expr]
    starts: Sequence[int]
    ends: Sequence[int]
    heights: Sequence[int]
    positions: Sequence[int]


class _Parser:
    def __init__(
        self, source: Source, macros: bool, escaped_identifiers: bool, limits: ExpressionLimits, optional_syntax: bool,
    ) -> None:
        self.source = source
        self.macros = macros
        self.escaped_identifiers = escaped_identifiers
        self.limits = limits
        self.depth = limits.depth
        self.size = limits.nodes
        self.optional_syntax = optional_syntax
        self.tokens: list[Token] = []
        self.index = 0
        self.last_id = 0
        self.problems: list[Problem] = []
        # Operands with the offset of each (with its parentheses) and the height of its tree.
        self.values: list[Expr] = []
        self.starts: list[int] = []
        self.heights: list[int] = []
        self.pending: list[_Pending] = []
        self.nesting = 0

    # -- errors --------------------------------------------------------------------------------------------------

    def note(self, message: str, start: int, end: int, help: str = "") -> None:  # noqa: A002 - as `Problem` calls it
        self.problems.append(Problem(message, self.source.span(start, end), help, code="cel-syntax"))

    def fail(self, message: str, start: int, end: int, help: str = "") -> Never:  # noqa: A002 - as `Problem` calls it
        self.note(message, start, end, help)
        raise PolicyError(self.problems)

    def fail_at(self, token: Token, expected: str) -> Never:
        """Report that `expected` is missing at `token`."""
        kind, start, end, text = token
        if kind == "fault":
            self.fail_at_fault(token)
        found = "the end of the expression" if kind == "end" else f"`{beginning(text)}`"
        help_ = suggestions.for_token(self.unexpected(token, expected))
        self.fail(f"expected {expected}, found {found}", start, max(end, start + 1), help_)

    def unexpected(self, token: Token, expected: str) -> UnexpectedToken:
        """Return a token with its surroundings."""
        index, tokens = self.index, self.tokens
        opened = next((each for each in reversed(self.pending) if each.kind in _CLOSING), None)
        unclosed = ""
        if opened is not None:
            line, column = self.source.position(opened.position)
            unclosed = f"the `{self.source.text[opened.position]}` at line {line}, column {column}"
        found = UnexpectedToken(
            token, expected, after=tokens[min(index + 1, len(tokens) - 1)], expression=self.source.text,
            unclosed=unclosed,
        )
        return found._replace(before=tokens[index - 1]) if index else found

    def fail_at_fault(self, token: Token) -> Never:
        """Report text that is not a token."""
        start, text = token.start, token.text
        code = self.source.text
        quote = start
        while quote < len(code) and quote < start + 2 and code[quote] in "bBrR":
            quote += 1
        if quote < len(code) and code[quote] in "\"'":
            long = code[quote] * 3
            if code.startswith(long, quote):
                self.fail("unterminated string", start, quote + 3, f"it ends with {long}")
            end = code.find("\n", quote)
            self.fail(
                "unterminated string", start, len(code) if end == -1 else end,
                f"it ends with `{code[quote]}` on the same line; a string of several lines stands between {long}",
            )  # fmt: skip
        shown = text if text.isprintable() else f"U+{ord(text):04X}"
        self.fail(
            f"unexpected character `{shown}`", start, start + 1, suggestions.for_character(text, code, start),
        )  # fmt: skip

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def push(self, node: Expr, start: int, height: int) -> None:
        """Push a complete sub-expression, if the limits allow it."""
        if height > self.depth:
            self.fail(
                f"nested too deeply: more than {self.depth} levels", node.position, node.position + 1,
                "split it up into variables",
            )  # fmt: skip
        if self.last_id > self.size:
            self.fail(
                f"too long: more than {self.limits.nodes} parts", node.position, node.position + 1,
                "split it up into variables",
            )  # fmt: skip
        self.values.append(node)
        self.starts.append(start)
        self.heights.append(height)

    def open(self, pending: _Pending) -> None:
        self.nesting += 1
        if self.nesting > self.limits.depth:
            self.fail(
                f"nested too deeply: more than {self.limits.depth} open brackets", pending.position,
                pending.position + 1, "split it up into variables",
            )  # fmt: skip
        self.pending.append(pending)

    # -- the loop ------------------------------------------------------------------------------------------------

    def parse(self) -> Expr:
        text = self.source.text
        if len(text) > self.limits.characters:
            self.fail(
                f"too long: {len(text)} characters, at most {self.limits.characters} are allowed",
                self.limits.characters, len(text), "split it up into variables",
            )  # fmt: skip
        tokens = self.tokens = tokenize(text)
        pending = self.pending
        operand = True
        while True:
            token = tokens[self.index]
            kind = token[0]
            if operand:
                # Fast path: most operands are variables.
                if kind == "ident" and token[3] not in RESERVED and tokens[self.index + 1][0] != "(":
                    _, start, end, word = token
                    self.index += 1
                    self.last_id += 1
                    self.push(Ident(self.last_id, start, start, end, word), start, 1)
                    operand = False
                else:
                    operand = self.read_operand()
                continue
            binary = _BINARY.get(kind)
            if kind == ".":
                name, following = tokens[self.index + 1], tokens[min(self.index + 2, len(tokens) - 1)]
                if name[0] == "ident" and following[0] != "(":
                    self.index += 2
                    self.last_id += 1
                    start = self.starts.pop()
                    field_ = Select(self.last_id, token[1], start, name[2], self.values.pop(), name[3])
                    self.push(field_, start, self.heights.pop() + 1)
                else:
                    self.read_selection(token)
                    operand = self.opened_call()
            elif binary is not None:
                level, function = binary
                self.reduce(level + 1 if level <= _AND else level)
                self.index += 1
                if level <= _AND:
                    if pending and pending[-1].level == level:
                        pending[-1].positions.append(token[1])
                    else:
                        chain = _Pending(level, kind, token[1], self.starts[-1], len(self.values) - 1, name=function)
                        chain.positions.append(token[1])
                        pending.append(chain)
                else:
                    pending.append(_Pending(level, kind, token[1], self.starts[-1], name=function))
                operand = True
            elif kind in _ENDS:
                self.reduce(_TERNARY)
                if kind == "end" and not pending:
                    break
                self.close(token)
            elif kind == ",":
                self.reduce(_TERNARY)
                operand = self.separate(token)
            elif kind == "[":
                self.index += 1
                optional = self.question()
                self.open(_Pending(_OPEN, "[", token[1], self.starts[-1]))
                if optional:
                    pending[-1].optional.append(1)
                operand = True
            elif kind == "?":
                self.reduce(_OR)
                if pending and pending[-1].kind == "?":
                    self.fail_at(token, "`:`")
                pending.append(_Pending(_TERNARY, "?", token[1], self.starts[-1]))
                self.index += 1
                operand = True
            elif kind == ":":
                self.colon(token)
                operand = True
            elif kind == "{":
                operand = self.begin_message(token)
            else:
                self.fail_at(token, self.allowed())
        if self.problems:
            raise PolicyError(self.problems)
        return self.values[0]

    def allowed(self) -> str:
        """Return the tokens that are allowed here, after a value, in words."""
        for each in reversed(self.pending):
            if each.kind == "?":
                return "`:`"
            if each.kind in _CLOSING:
                if each.kind == "map" and len(each.positions) == (len(self.values) - each.base) // 2:
                    return "`:`" if (len(self.values) - each.base) % 2 else "`,` or `}`"
                closing = f"`{_CLOSING[each.kind]}`"
                return closing if each.kind in ("(", "[") else f"`,` or {closing}"
        return "an operator or the end"

    def question(self) -> bool:
        """Skip the `?` of an optional step or element, if there is one."""
        token = self.tokens[self.index]
        if token.kind != "?" or not self.optional_syntax:
            return False
        self.index += 1
        return True

    # -- operands ------------------------------------------------------------------------------------------------

    def read_operand(self) -> bool:
        """Read the first token of a value; return whether another one is needed before an operator may follow."""
        token = self.tokens[self.index]
        kind, start, end, text = token
        if kind == "ident":
            self.index += 1
            self.name(text, start, start, end, rooted=False)
            return self.opened_call()
        if kind in _LITERALS:
            self.index += 1
            self.literal(token)
            return False
        if kind == "(":
            self.index += 1
            self.open(_Pending(_OPEN, "(", start, start))
            return True
        if kind == "[":
            self.index += 1
            self.open(_Pending(_OPEN, "list", start, start, len(self.values)))
            return self.begin_elements("]")
        if kind == "{":
            self.index += 1
            self.open(_Pending(_OPEN, "map", start, start, len(self.values)))
            return self.begin_elements("}")
        if kind == "!":
            return self.unary(token, "!_")
        if kind == "-":
            follower = self.tokens[self.index + 1]
            if follower.kind in ("int", "double"):
                self.index += 2
                self.literal(follower, sign=token)
                return False
            return self.unary(token, "-_")
        if kind == ".":
            name = self.tokens[self.index + 1]
            if name.kind != "ident":
                self.index += 1
                self.fail_at(name, "a name")
            self.index += 2
            self.name(name.text, name.start, start, name.end, rooted=True)
            return self.opened_call()
        if kind == "?" and self.optional_syntax and self.pending and self.pending[-1].kind in ("list", "map"):
            before = self.tokens[self.index - 1].kind
            group = self.pending[-1]
            if before in ("[", "{", ","):
                count = len(self.values) - group.base
                group.optional.append(count if group.kind == "list" else count // 2)
                self.index += 1
                return True
        return self.fail_at(token, "a value")

    def opened_call(self) -> bool:
        """Return whether the last token opened a call that has arguments."""
        top = self.pending[-1] if self.pending else None
        return top is not None and top.kind == "call" and self.tokens[self.index - 1].kind == "("

    def name(self, text: str, position: int, start: int, end: int, *, rooted: bool) -> None:
        """Push a variable, or open the call of a function."""
        if text == "if" and self.tokens[self.index].kind in ("ident", "(", "!", *_LITERALS):
            self.fail("`if` is a reserved word", position, end, suggestions.CONDITIONAL)
        if text in RESERVED:
            self.note(
                f"`{text}` is a reserved word", position, end,
                f"it can stand after a dot (`x.{text}`), but not name a variable or a function of its own",
            )  # fmt: skip
        following = self.tokens[self.index]
        if following.kind == "(":
            self.begin_call(_Pending(_OPEN, "call", following.start, start, len(self.values), name=text, rooted=rooted))
        else:
            self.push(Ident(self.next_id(), position, start, end, text, rooted), start, 1)

    def begin_call(self, call: _Pending) -> None:
        self.index += 1
        self.open(call)
        if self.tokens[self.index].kind == ")":
            self.close(self.tokens[self.index])

    def literal(self, token: Token, sign: Token | None = None) -> None:
        kind, first, end, text = token
        start = first if sign is None else sign.start
        value: Constant = None
        try:
            if kind == "int":
                value = integer(text, negative=sign is not None)
            elif kind == "double":
                value = double(text) if sign is None else -double(text)
            else:
                value = decode(token)
        except LiteralError as fault:
            self.note(fault.message, start, end, fault.help)
        self.push(Literal(self.next_id(), start, start, end, value, kind == "uint"), start, 1)

    def unary(self, token: Token, function: str) -> bool:
        """Read a run of `!` or `-`: an even number cancels out, an odd number is one operator."""
        tokens = self.tokens
        count = 0
        while tokens[self.index].kind == token.kind:
            count += 1
            self.index += 1
        following = tokens[self.index]
        if following.kind in ("!", "-"):
            # Only the sign of a number is allowed here.
            number = following.kind == "-" and tokens[self.index + 1].kind in ("int", "double")
            if not number:
                self.index += following.kind == "-"
                self.fail_at(tokens[self.index], "a value" if following.kind == "!" else "a number")
        if count % 2:
            self.pending.append(_Pending(_UNARY, "unary", token.start, token.start, name=function))
        else:
            self.pending.append(_Pending(_UNARY, "unary", token.start, token.start))
        return True

    # -- what follows a value ------------------------------------------------------------------------------------

    def read_selection(self, dot: Token) -> None:
        self.index += 1
        optional = self.question()
        name = self.tokens[self.index]
        kind, _, end, text = name
        if kind == "escaped" and self.escaped_identifiers:
            text = text[1:-1]
        elif kind == "escaped":
            self.fail(
                "back-quoted names are not supported here", name.start, end,
                f"write `x['{text[1:-1]}']` for a key of a map",
            )  # fmt: skip
        elif kind != "ident":
            self.fail_at(name, "the name of a field")
        self.index += 1
        start = self.starts[-1]
        following = self.tokens[self.index]
        if following.kind == "(" and not optional and kind == "ident":
            self.begin_call(
                _Pending(_OPEN, "call", following.start, start, len(self.values) - 1, name=text, member=True),
            )  # fmt: skip
            return
        operand = self.values.pop()
        self.starts.pop()
        height = self.heights.pop() + 1
        self.push(Select(self.next_id(), dot.start, start, end, operand, text, False, optional), start, height)

    def begin_message(self, brace: Token) -> bool:
        """Read `{` after a value: allowed after a qualified name only. Return whether a value must follow."""
        node = self.values[-1]
        names: list[str] = []
        while isinstance(node, Select) and not node.optional and node.start == self.starts[-1]:
            names.append(node.field)
            node = node.operand
        if not isinstance(node, Ident) or node.start != self.starts[-1] or self.tokens[self.index - 1].kind != "ident":
            self.fail_at(brace, self.allowed())
        names.append("." + node.name if node.rooted else node.name)
        start = self.starts.pop()
        self.values.pop()
        self.heights.pop()
        self.index += 1
        self.open(_Pending(_OPEN, "message", brace.start, start, len(self.values), name=".".join(reversed(names))))
        return self.begin_elements("}")

    def begin_elements(self, closing: str) -> bool:
        """Skip the contents of an empty literal; return whether a value must follow."""
        if self.tokens[self.index].kind == "," and self.tokens[self.index + 1].kind == closing:
            self.index += 1
        if self.tokens[self.index].kind == closing:
            self.close(self.tokens[self.index])
            return False
        if self.pending[-1].kind == "message":
            self.begin_field()
        return True

    def begin_field(self) -> None:
        """Read `name:` of a message literal."""
        message = self.pending[-1]
        if self.question():
            message.optional.append(len(message.names))
        name = self.tokens[self.index]
        escaped = name.kind == "escaped" and self.escaped_identifiers
        if name.kind != "ident" and not escaped:
            self.fail_at(name, "the name of a field")
        self.index += 1
        colon = self.tokens[self.index]
        if colon.kind != ":":
            self.fail_at(colon, "`:`")
        self.index += 1
        message.names.append(name.text.strip("`"))
        message.positions.append(name.start)
        message.positions.append(colon.start)

    def separate(self, comma: Token) -> bool:
        """Read `,` between elements, or a trailing one with the closing bracket; return whether a value must follow."""
        group = self.pending[-1] if self.pending else None
        if group is None or group.kind not in ("call", "list", "map", "message"):
            self.fail_at(comma, self.allowed())
        if group.kind == "map" and (len(self.values) - group.base) % 2:
            self.fail_at(comma, "`:`")
        self.index += 1
        following = self.tokens[self.index]
        if group.kind != "call" and following.kind == _CLOSING[group.kind]:
            self.close(following)
            return False
        if group.kind == "message":
            self.begin_field()
        return True

    # -- reductions ----------------------------------------------------------------------------------------------

    def colon(self, token: Token) -> None:
        self.reduce(_OR)
        pending = self.pending
        if pending and pending[-1].kind == "?":
            pending[-1].kind = "?:"
        else:
            self.reduce(_TERNARY)
            group = pending[-1] if pending else None
            if group is None or group.kind != "map" or (len(self.values) - group.base) % 2 == 0:
                self.fail_at(token, self.allowed())
            group.positions.append(token.start)
        self.index += 1

    def reduce(self, level: int) -> None:
        """Reduce all pending operators that bind at least as tightly as `level`."""
        pending = self.pending
        while pending and pending[-1].level >= level:
            top = pending[-1]
            if top.level <= _AND:
                if top.kind == "?":
                    self.fail_at(self.tokens[self.index], "`:`")
                pending.pop()
                if top.kind == "?:":
                    self.build_call("_?_:_", top, 3)
                else:
                    self.build_chain(top)
            else:
                pending.pop()
                if top.level != _UNARY:
                    self.build_call(top.name, top, 2)
                elif top.name:
                    self.build_call(top.name, top, 1)
                else:
                    self.starts[-1] = top.start

    def build_call(self, function: str, top: _Pending, count: int) -> None:
        values, starts, heights = self.values, self.starts, self.heights
        args = tuple(values[-count:])
        start = top.start if count == 1 else starts[-count]
        height = max(heights[-count:]) + 1
        del values[-count:], starts[-count:], heights[-count:]
        self.last_id += 1
        end = self.tokens[self.index - 1][2]
        self.push(Call(self.last_id, top.position, start, end, function, None, args), start, height)

    def build_chain(self, top: _Pending) -> None:
        """Build a chain of `&&` or `||` as a balanced tree, in the order in which it is written."""
        terms = self.values[top.base :]
        starts = self.starts[top.base :]
        heights = self.heights[top.base :]
        del self.values[top.base :], self.starts[top.base :], self.heights[top.base :]
        # The extent of a term in parentheses is without them.
        ends = [each.end for each in terms]
        ends[-1] = self.tokens[self.index - 1].end
        chain = _Chain(top.name, terms, starts, ends, heights, top.positions)
        node, height = self.balance(chain, 0, len(terms) - 1)
        self.push(node, starts[0], height)

    def balance(self, chain: _Chain, low: int, high: int) -> tuple[Expr, int]:
        """Return the tree of the terms `low` to `high`, and its height."""
        if low == high:
            return chain.terms[low], chain.heights[low]
        middle = (low + high) // 2
        left, left_height = self.balance(chain, low, middle)
        right, height = self.balance(chain, middle + 1, high)
        node = Call(
            self.next_id(), chain.positions[middle], chain.starts[low], chain.ends[high], chain.function, None,
            (left, right),
        )
        return node, max(left_height, height) + 1

    def close(self, token: Token) -> None:
        """Build the node that the bracket at `token` closes."""
        pending = self.pending
        top = pending[-1] if pending else None
        if top is None or _CLOSING.get(top.kind) != token.kind:
            self.fail_at(token, self.allowed())
        kind = top.kind
        base = top.base
        if kind == "map" and (len(self.values) - base) % 2:
            self.fail_at(token, "`:`")
        self.index += 1
        self.nesting -= 1
        pending.pop()
        if kind == "(":
            self.starts[-1] = top.start
            return
        if kind == "[":
            function = "_[?_]" if top.optional else "_[_]"
            self.build_call(function, top, 2)
            return
        values = tuple(self.values[base:])
        height = max(self.heights[base:], default=0) + 1
        del self.values[base:], self.starts[base:], self.heights[base:]
        node: Expr
        position, start, end = top.position, top.start, token.end
        if kind == "call":
            node = self.build_function(top, values, end)
        elif kind == "list":
            node = ListLiteral(self.next_id(), position, start, end, values, frozenset(top.optional))
        elif kind == "map":
            entries = tuple(
                MapEntry(self.next_id(), colon, key.start, value.end, key, value, number in top.optional)
                for number, (colon, key, value) in enumerate(
                    zip(top.positions, values[::2], values[1::2], strict=True),
                )
            )
            node = MapLiteral(self.next_id(), position, start, end, entries)
        else:
            fields = tuple(
                FieldInit(self.next_id(), colon, first, value.end, name, value, number in top.optional)
                for number, (first, colon, name, value) in enumerate(
                    zip(top.positions[::2], top.positions[1::2], top.names, values, strict=True),
                )
            )
            node = MessageLiteral(self.next_id(), position, start, end, top.name, fields)
        self.push(node, start, height)

    def build_function(self, top: _Pending, values: tuple[Expr, ...], end: int) -> Expr:
        name = top.name
        target = values[0] if top.member else None
        args = values[1:] if top.member else values
        if self.macros and not top.rooted:
            node = expand(self, MacroCall(name, target, args, top.position, top.start, end))
            if node is not None:
                return node
        return Call(self.next_id(), top.position, top.start, end, name, target, args, top.rooted)
