"""Help for syntax errors: the CEL equivalents of other languages' constructs.

Tables of (predicate, text); the first rule whose predicate holds applies. A text that quotes the expression is a
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from .lexer import Token, integer

__all__ = ["CONDITIONAL", "UnexpectedToken", "for_character", "for_token"]

CONDITIONAL: Final = "a choice is written `condition ? value : other`"

_NO_TOKEN: Final = Token("", -1, -1, "")
_NUMBER: Final = frozenset(("int", "double"))
_INSTEAD: Final = {"and": "&&", "or": "||", "not": "!", "is": "==", "eq": "==", "ne": "!=", "mod": "%", "div": "/"}
_TURNED: Final = {"=>": ">=", "=<": "<="}
_UNITS: Final = {
    "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3, "Ti": 1024**4, "Pi": 1024**5,
    "k": 10**3, "K": 1024, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "KB": 1024, "MB": 1024**2, "GB": 1024**3,
}  # fmt: skip
"""Units of memory that users write after a number; those of two letters are binary."""
_TIMES: Final = frozenset(("ns", "us", "ms", "s", "m", "h"))


class UnexpectedToken(NamedTuple):
    """A token that the grammar does not allow at its place, with its surroundings."""

    token: Token
    expected: str
    """The required token, as the message names it."""
    before: Token = _NO_TOKEN
    after: Token = _NO_TOKEN
    expression: str = ""
    unclosed: str = ""
    """The innermost open bracket and its place, `the `(` at line 1, column 3`; empty where all are closed."""

    @property
    def text(self) -> str:
        """The token's text."""
        return self.token.text

    @property
    def word(self) -> str:
        """The token's text if it is a name, else empty."""
        return self.token.text if self.token.kind == "ident" else ""

    @property
    def word_before(self) -> str:
        """The text of the token before if that is a name, else empty."""
        return self.before.text if self.before.kind == "ident" else ""


_Rule: TypeAlias = tuple[Callable[[UnexpectedToken], bool], str | Callable[[UnexpectedToken], str]]


def for_token(unexpected: UnexpectedToken) -> str:
    """Return the help for an unexpected token; empty if there is none."""
    rules = _WHERE_A_VALUE_IS_EXPECTED if unexpected.expected.startswith("a value") else _ANYWHERE_ELSE
    for applies, text in rules:
        if applies(unexpected):
            return text if isinstance(text, str) else text(unexpected)
    return ""


def for_character(text: str, expression: str, offset: int) -> str:
    """Return the help for a character at an offset of an expression that begins no token; empty if there is none."""
    before = expression[max(offset - 2, 0) : offset]
    if text == "=" and before in ("!=", "<=", ">="):
        return f"did you mean `{before}`?"
    turned = _TURNED.get(expression[offset : offset + 2])
    if turned is not None:
        return f"did you mean `{turned}`?"
    return _CHARACTERS.get(text, "")


_CHARACTERS: Final = {
    "=": "did you mean `==`?",
    "&": "did you mean `&&`?",
    "|": "did you mean `||`?",
    "$": "a name holds letters, digits and `_` only",
    "@": "a name holds letters, digits and `_` only",
    "#": "a comment begins with `//`",
    ";": "an expression has one value and no statements: name parts of it under `variables`",
    "^": "there is no such operator",
    "~": "there is no such operator",
    "\\": "a backslash has a meaning inside quotes only",
    "`": "a back-quoted name holds letters, digits, `_ . - /` and blanks, and ends with a back-quote",
    **dict.fromkeys("\u2018\u2019\u201c\u201d", "did you mean `'`?"),
}


def _unit(unexpected: UnexpectedToken) -> str:
    """Return the help for a number with a unit after it; empty for other tokens."""
    number, word = unexpected.before, unexpected.text
    if number.kind not in _NUMBER or number.end != unexpected.token.start:
        return ""
    size = _UNITS.get(word)
    if size is not None and number.kind == "int" and len(number.text) <= 19:
        return f"a number has no unit: write `{integer(number.text) * size}`"
    if word == "m":
        return (f"a number has no unit: a thousandth is written as a whole number (cpu is in milli-cores), "
                f"and minutes as `duration('{number.text}m')`")
    if word in _TIMES:
        return f"a number has no unit: write `duration('{number.text}{word}')`"
    return ""


_WHERE_A_VALUE_IS_EXPECTED: Final[tuple[_Rule, ...]] = (
    (
        lambda at: at.before.text == "%",
        "`%` is the remainder of a division; a percentage is a number, as in `x * 100 / y > 60`",
    ),
    (lambda at: at.text == "+", "there is no unary `+`"),
    (lambda at: at.text == "?" and at.before.text == "?", "there is no `??`: write `x.?y.orValue(z)`"),
    (lambda at: at.text == ">" and at.before.text in ("<", "!=", "=="), "did you mean `!=`?"),
    (lambda at: at.text == "=" and at.before.text in ("<", "!=", "=="), lambda at: f"did you mean `{at.before.text}`?"),
    (
        lambda at: at.text in ("!", "-") and at.before.text in ("!", "-"),
        "put parentheses around the inner part: `!` and `-` cannot follow each other",
    ),
    (lambda at: at.text == ")" and at.before.text == ",", "the arguments of a call take no trailing comma"),
)

_ANYWHERE_ELSE: Final[tuple[_Rule, ...]] = (
    (lambda at: at.text == "not" and at.after.kind == "in", "did you mean `!(x in y)`?"),
    (lambda at: at.word_before in _INSTEAD, lambda at: f"did you mean `{_INSTEAD[at.word_before]}`?"),
    (lambda at: at.word in _INSTEAD, lambda at: f"did you mean `{_INSTEAD[at.word]}`?"),
    (lambda at: bool(_unit(at)), _unit),
    (lambda at: at.word == "if", CONDITIONAL),
    (lambda at: at.text == "," and at.expected == "`)`", "a list is written `[...]`, as in `x in ['a', 'b']`"),
    (lambda at: at.text == "?", "put parentheses around a condition inside a condition"),
    (lambda at: at.text == "(" and at.expected != "the name of a field", "only a name can be called"),
    (
        lambda at: at.text == ":" and at.expected == "`]`",
        "a part of a list is `x.slice(1, 2)`, of a string `x.substring(1, 2)`",
    ),
    (lambda at: at.text == "in" and at.before.text == ".", "this word is never a name: write `x['in']`"),
    (
        lambda at: at.token.kind == "double" and at.text.startswith("."),
        "write `[n]` for an element of a list",
    ),
    (
        lambda at: at.before.kind == "string" and at.token.kind in ("string", "ident"),
        "`+` joins strings, and a quote inside of a string is written `\\'`",
    ),
    (
        lambda at: at.before.kind == "ident" and at.token.kind in ("string", "bytes"),
        "a string begins with a quote, `r'` or `b'`",
    ),
    (
        lambda at: bool(at.word) and bool(at.word_before),
        "write a text in quotes (in YAML: `\"'a text'\"`)",
    ),
    (
        lambda at: at.token.kind == "end" and at.expected == "`:`" and "?." in at.expression,
        "did you mean `.?`, an optional field?",
    ),
    (
        lambda at: at.token.kind == "end" and at.expected.startswith("`") and bool(at.unclosed),
        lambda at: f"{at.unclosed} is not closed",
    ),
)
