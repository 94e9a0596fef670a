"""Lexer: text to tokens.

One regular expression finds the tokens, longest first; literals are decoded here, digit by digit as the language
defines them (cel-spec `doc/langdef.md`, "Syntax"), never by Python, whose literals differ.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from koordpolicy.engine.texts import beginning

from .ast import Constant

RESERVED: Final = frozenset((
    "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package",
    "namespace", "return", "var", "void", "while",
))  # fmt: skip
"""Reserved words: they may name a field or a method, but not a variable or a global function."""

WORDS: Final = frozenset(("true", "false", "null", "in"))
"""Words that are separate tokens and never a name."""

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class Token(NamedTuple):
    """A token: its kind, its offset, and its text.

    `kind` is the text itself for punctuation and the words `true false null in`; otherwise `ident`, `escaped` (a
    back-quoted name), `int`, `uint`, `double`, `string`, `bytes`, `end`, or `fault`: text that is not a token,
    which ends the list in place of `end`.
    """

    kind: str
    start: int
    end: int
    text: str


_TOKEN: Final = re.compile(
    r"""
    [ \t\n\f\r]*+ (?://[^\n]*+[ \t\n\f\r]*+)*+
    (?:
      (?P<ident>[_ac-qs-zAC-QS-Z][_a-zA-Z0-9]*+|(?!(?:[bB][rR]?|[rR])["'])[bBrR][_a-zA-Z0-9]*+)
    | (?P<mark>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:,()\[\]{}]|\.(?![0-9]))
    | (?P<string>
          [bB]?[rR](?:\"{3}(?s:.*?)\"{3}|'{3}(?s:.*?)'{3}|"[^"\n\r]*"|'[^'\n\r]*')
        | [bB]?(?:
              \"{3}(?:[^\\"]|\\(?s:.)|"(?!""))*\"{3}
            | '{3}(?:[^\\']|\\(?s:.)|'(?!''))*'{3}
            | "[^"\\\n\r]*(?:\\[^\n\r][^"\\\n\r]*)*"
            | '[^'\\\n\r]*(?:\\[^\n\r][^'\\\n\r]*)*'
          )
      )
    | (?P<double>(?:[0-9]+\.[0-9]+|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    | (?P<uint>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])
    | (?P<int>0x[0-9a-fA-F]+|[0-9]+)
    | (?P<escaped>`[a-zA-Z0-9_.\-/\x20]+`)
    | (?P<end>\Z)
    )
    """,
    re.VERBOSE,
)


_KINDS: Final = {number: name for name, number in _TOKEN.groupindex.items()}
_IDENT: Final = _TOKEN.groupindex["ident"]
_MARK: Final = _TOKEN.groupindex["mark"]
_BLANK: Final = re.compile(r"(?:[ \t\n\f\r]+|//[^\n]*)*+")


def tokenize(text: str) -> list[Token]:
    """Return the tokens of `text`; the last one is of kind `end` or `fault`, never raises.

    Without blanks and comments. Literals are validated by `decode`.
    """
    tokens: list[Token] = []
    append = tokens.append
    make = tuple.__new__
    end = 0
    for match in _TOKEN.finditer(text):
        start, stop = match.span()
        if start != end:
            break
        end = stop
        number = match.lastindex or 0
        word = match[number]
        if number == _MARK:
            kind = word
        elif number == _IDENT:
            kind = word if word in WORDS else "ident"
        else:
            kind = _KINDS[number]
            if kind == "string" and word[0] in "bB":
                kind = "bytes"
        append(make(Token, (kind, end - len(word), end, word)))
        if kind == "end":
            return tokens
    # finditer skips text that is not a token: the fault is where a match does not begin at the end of the previous one.
    blank = _BLANK.match(text, end)
    start = end if blank is None else blank.end()
    append(Token("fault", start, start + 1, text[start]))
    return tokens


class LiteralError(Exception):
    """A literal without a value: out of range, or with an unknown escape."""

    def __init__(self, message: str, help: str = "") -> None:  # noqa: A002 - as `Problem` calls it
        super().__init__(message)
        self.message = message
        self.help = help


def integer(text: str, *, negative: bool = False) -> int:
    """Return the value of an int token; raise `LiteralError` outside -2^63..2^63-1."""
    value = _natural(text)
    if negative:
        value = -value
    if not INT_MIN <= value <= INT_MAX:
        raise LiteralError(
            f"invalid int literal: `{'-' if negative else ''}{beginning(text)}` is out of range",
            help=f"an int is between {INT_MIN} and {INT_MAX}",
        )
    return value


def unsigned(text: str) -> int:
    """Return the value of a uint token; raise `LiteralError` above 2^64-1."""
    value = _natural(text[:-1])
    if value > UINT_MAX:
        raise LiteralError(
            f"invalid uint literal: `{beginning(text)}` is out of range", help=f"a uint is between 0 and {UINT_MAX}",
        )
    return value


def double(text: str) -> float:
    """Return the value of a double token; raise `LiteralError` if it is not finite."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise LiteralError(f"invalid double literal: `{beginning(text)}` is out of range")
    return value


def _natural(text: str) -> int:
    if text.startswith("0x"):
        return int(text, 16)
    digits = text.lstrip("0")
    # Python refuses to parse very long numbers, which are out of range anyway.
    return int(digits or "0") if len(digits) <= 20 else UINT_MAX + 1


_ESCAPE: Final = re.compile(
    r"\\(?:(?P<plain>[abfnrtv\\?\"'`])|[xX](?P<hex>[0-9a-fA-F]{2})|u(?P<u4>[0-9a-fA-F]{4})"
    r"|U(?P<u8>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<bad>.?))",
    re.DOTALL,
)
_PLAIN: Final = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}
_ESCAPES_HELP: Final = (
    "escapes are `\\n \\r \\t \\\\ \\' \\\" \\` \\? \\a \\b \\f \\v \\xHH \\uHHHH \\UHHHHHHHH` and three octal digits; "
    "in a raw string (`r'...'`) a backslash stands for itself"
)


def string(text: str) -> str:
    """Return the value of a string token; raise `LiteralError` for an unknown escape."""
    body, raw = _body(text)
    if raw or "\\" not in body:
        return body
    return "".join(part if isinstance(part, str) else part.decode() for part in _pieces(text, body, octets=False))


def octets(text: str) -> bytes:
    """Return the value of a bytes token: text as UTF-8, `\\x` and octal escapes as octets."""
    body, raw = _body(text)
    if raw or "\\" not in body:
        return body.encode(errors="surrogatepass")
    return b"".join(
        part.encode(errors="surrogatepass") if isinstance(part, str) else part
        for part in _pieces(text, body, octets=True)
    )


def decode(token: Token) -> Constant:
    """Return the value of a literal token; raise `LiteralError` if it has none."""
    match token.kind:
        case "string":
            return string(token.text)
        case "bytes":
            return octets(token.text)
        case "int":
            return integer(token.text)
        case "uint":
            return unsigned(token.text)
        case "double":
            return double(token.text)
        case "true":
            return True
        case "false":
            return False
        case _:
            return None


def _body(text: str) -> tuple[str, bool]:
    """Return the text between the quotes, and whether it is raw."""
    first = 0
    raw = False
    while text[first] not in "\"'":
        raw = raw or text[first] in "rR"
        first += 1
    if text[first : first + 3] in ('"""', "'''") and len(text) >= first + 6:
        body = text[first + 3 : -3]
        # Only these may contain line ends, which are normalized.
        if "\r" in body:
            body = body.replace("\r\n", "\n").replace("\r", "\n")
        return body, raw
    return text[first + 1 : -1], raw


def _pieces(text: str, body: str, *, octets: bool) -> list[str | bytes]:
    parts: list[str | bytes] = []
    position = 0
    for match in _ESCAPE.finditer(body):
        parts.append(body[position : match.start()])
        position = match.end()
        kind = match.lastgroup
        digits = match[kind] if kind else ""
        if kind == "plain":
            parts.append(_PLAIN[digits])
            continue
        if kind == "bad" or (octets and kind in ("u4", "u8")):
            fault = "no such escape in bytes" if kind in ("u4", "u8") else "no such escape"
            raise LiteralError(f"{fault}: `{match[0]}` in {beginning(text)}", help=_ESCAPES_HELP)
        code = int(digits, 8 if kind == "octal" else 16)
        if octets:
            parts.append(bytes((code,)))
        elif code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise LiteralError(
                f"invalid unicode code point: `{match[0]}`", help="code points are 0 to 10FFFF without D800 to DFFF",
            )
        else:
            parts.append(chr(code))
    parts.append(body[position:])
    return parts
