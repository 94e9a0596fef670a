import math

import pytest

from koordpolicy.engine.cel.syntax.lexer import LiteralError, Token, decode, double, integer, tokenize


def kinds(text: str) -> list[str]:
    return [token.kind for token in tokenize(text)]


def value(text: str) -> object:
    tokens = tokenize(text)
    assert [token.kind for token in tokens[1:]] == ["end"], tokens
    return decode(tokens[0])


def test_tokens_know_their_kind_place_and_text():
    assert tokenize("a >= 'x' // why") == [
        Token("ident", 0, 1, "a"),
        Token(">=", 2, 4, ">="),
        Token("string", 5, 8, "'x'"),
        Token("end", 15, 15, ""),
    ]


def test_the_longest_token_wins():
    assert kinds("a.5") == ["ident", "double", "end"]
    assert kinds("1.e3") == ["int", ".", "ident", "end"]
    assert kinds("1.") == ["int", ".", "end"]
    assert kinds("24.indexOf") == ["int", ".", "ident", "end"]
    assert kinds("0x1Fu") == ["uint", "end"]
    assert kinds("0X1") == ["int", "ident", "end"]
    assert kinds("1e5u") == ["double", "ident", "end"]
    assert kinds("inb in b") == ["ident", "in", "ident", "end"]


def test_prefixes_belong_to_a_string_only_right_before_its_quote():
    assert kinds("r'a' br'b' b'c' rb'd' for'e'") == [
        "string", "bytes", "bytes", "ident", "string", "ident", "string", "end",
    ]  # fmt: skip


def test_only_the_blanks_of_the_language_are_blanks():
    assert kinds("a\t\n\f\r b") == ["ident", "ident", "end"]
    assert kinds("a\x0bb") == ["ident", "fault"]
    assert kinds("a\u00a0b") == ["ident", "fault"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("'a\\n\\x41\\u00e9\\U0001F600\\101'", "a\nAé😀A"),
        (r"'\a\b\f\r\t\v\\\?\"\'\`'", "\a\b\f\r\t\v\\?\"'`"),
        (r'r"\"', "\\"),
        ("'''a\r\nb\rc'''", "a\nb\nc"),
        ('"""a"b""c"""', 'a"b""c'),
        ("r'''a\\'''", "a\\"),
        ("''", ""),
        ("b'\u00ff'", b"\xc3\xbf"),
        (r"b'\377\xff'", b"\xff\xff"),
        (r"bR'\x'", b"\\x"),
        ("007", 7),
        ("0xFF", 255),
        ("18446744073709551615u", 2**64 - 1),
        (".5", 0.5),
        ("1e-400", 0.0),
        ("true", True),
        ("null", None),
    ],
)
def test_literals_are_decoded(text: str, wanted: object):
    assert value(text) == wanted
    assert type(value(text)) is type(wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r"'\z'", r"no such escape: `\z` in '\z'"),
        (r"'\400'", r"no such escape: `\4` in '\400'"),
        (r"'\u00'", r"no such escape: `\u` in '\u00'"),
        (r"'\uD800'", r"invalid unicode code point: `\uD800`"),
        (r"'\U00110000'", r"invalid unicode code point: `\U00110000`"),
        (r"b'\u0041'", r"no such escape in bytes: `\u0041` in b'\u0041'"),
        ("9223372036854775808", "invalid int literal: `9223372036854775808` is out of range"),
        ("18446744073709551616u", "invalid uint literal: `18446744073709551616u` is out of range"),
        ("1e999", "invalid double literal: `1e999` is out of range"),
    ],
)
def test_what_is_no_literal_says_why(text: str, wanted: str):
    with pytest.raises(LiteralError) as caught:
        value(text)
    assert caught.value.message == wanted


def test_the_least_int_exists_with_its_sign_only():
    assert integer("9223372036854775808", negative=True) == -(2**63)
    with pytest.raises(LiteralError):
        integer("9223372036854775809", negative=True)


def test_numbers_of_any_length_are_read_or_refused():
    assert integer("0" * 90_000 + "1") == 1
    with pytest.raises(LiteralError):
        integer("1" * 90_000)
    with pytest.raises(LiteralError):
        integer("0x" + "f" * 90_000)
    assert math.isclose(double("0." + "3" * 90_000), 1 / 3)
    with pytest.raises(LiteralError):
        double("9" * 90_000 + ".0")


def test_what_is_no_token_ends_the_list():
    assert tokenize("a $ b") == [Token("ident", 0, 1, "a"), Token("fault", 2, 3, "$")]
    assert kinds("'a\nb'") == ["fault"]
    assert kinds("'''a") == ["string", "fault"]
