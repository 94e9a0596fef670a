import pytest

from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.source import PolicyError, Source

MILLI = (
    "a number has no unit: a thousandth is written as a whole number (cpu is in milli-cores), and minutes as "
    "`duration('5m')`"
)
QUOTES = "`+` joins strings, and a quote inside of a string is written `\\'`"


def help_for(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        parse(Source("<expression>", text))
    return caught.value.problems[-1].help


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x %", "`%` is the remainder of a division; a percentage is a number, as in `x * 100 / y > 60`"),
        ("+x", "there is no unary `+`"),
        ("x ?? y", "there is no `??`: write `x.?y.orValue(z)`"),
        ("x <> y", "did you mean `!=`?"),
        ("-!x", "put parentheses around the inner part: `!` and `-` cannot follow each other"),
        ("f(x,)", "the arguments of a call take no trailing comma"),
        ("x not in y", "did you mean `!(x in y)`?"),
        ("not x", "did you mean `!`?"),
        ("1 and x", "did you mean `&&`?"),
        ("x < 10Gi", "a number has no unit: write `10737418240`"),
        ("x < 1.5Gi", ""),
        ("x < 5m", MILLI),
        ("x < 1.5s", "a number has no unit: write `duration('1.5s')`"),
        ("x if y", "a choice is written `condition ? value : other`"),
        ("if x", "a choice is written `condition ? value : other`"),
        ("x in ('a', 'b')", "a list is written `[...]`, as in `x in ['a', 'b']`"),
        ("a ? b ? c : d : e", "put parentheses around a condition inside a condition"),
        ("x(y)(z)", "only a name can be called"),
        ("x[1:2]", "a part of a list is `x.slice(1, 2)`, of a string `x.substring(1, 2)`"),
        ("x.in", "this word is never a name: write `x['in']`"),
        ("x.1", "write `[n]` for an element of a list"),
        ("'it's'", QUOTES),
        ("x == 'a' 'b'", QUOTES),
        ("f'{x}'", "a string begins with a quote, `r'` or `b'`"),
        ("x?.y", "did you mean `.?`, an optional field?"),
        ("1 + (x", "the `(` at line 1, column 5 is not closed"),
        ("[\n{'a': (1)", "the `{` at line 2, column 1 is not closed"),
        ("too busy", "write a text in quotes (in YAML: `\"'a text'\"`)"),
        ("x ! y", ""),
        ("x = y", "did you mean `==`?"),
        ("x === y", "did you mean `==`?"),
        ("x !== y", "did you mean `!=`?"),
        ("x =< y", "did you mean `<=`?"),
        ("x <== y", "did you mean `<=`?"),
        ("x => y", "did you mean `>=`?"),
        ("x & y", "did you mean `&&`?"),
        ("x | y", "did you mean `||`?"),
        ("$x", "a name holds letters, digits and `_` only"),
        ("x # y", "a comment begins with `//`"),
        ("x; y", "an expression has one value and no statements: name parts of it under `variables`"),
        ("x ^ y", "there is no such operator"),
        ("\\x", "a backslash has a meaning inside quotes only"),
        ("\u201cx\u201d", "did you mean `'`?"),
    ],
)
def test_what_people_write_instead_of_cel_is_answered_with_what_to_write(text: str, expected: str):
    assert help_for(text) == expected
