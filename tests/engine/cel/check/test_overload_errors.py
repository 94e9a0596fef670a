import pytest

from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import STANDARD, table
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import (
    BOOL,
    DURATION,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    ObjectType,
    Type,
    map_of,
)
from koordpolicy.engine.source import PolicyError, Source

NODE = ObjectType("Node", {"allocatable": Field(map_of(STRING, STRING))})
ENVIRONMENT = Environment(functions=table(STANDARD)).with_types(NODE).with_variables(
    Variable("count", INT),
    Variable("name", STRING),
    Variable("hot", BOOL),
    Variable("created", TIMESTAMP),
    Variable("age", DURATION),
    Variable("amount", Type("kubernetes.Quantity")),
    Variable("node", NODE.type),
)
AMOUNTS = (
    "API objects hold amounts as strings; `allocatable.cpu`, `requests.memory` and the like are numbers, and "
    "`quantity(x).asApproximateFloat()` makes one"
)
SIZE = (
    "there is `size(string) -> int`, `size(bytes) -> int`, `size(list(A)) -> int`, `size(map(A, B)) -> int`, "
    "`string.size() -> int`, `bytes.size() -> int`, `list(A).size() -> int`, `map(A, B).size() -> int`"
)
PLUS = (
    "there is `int + int -> int`, `uint + uint -> uint`, `double + double -> double`, `string + string -> string`, "
    "`bytes + bytes -> bytes`, `list(A) + list(A) -> list(A)`, `duration + duration -> duration`, "
    "`timestamp + duration -> timestamp` and 1 more"
)


def complaint(text: str) -> tuple[str, str]:
    """Message and help."""
    source = Source("<expression>", text)
    with pytest.raises(PolicyError) as caught:
        check(source, parse(source), ENVIRONMENT)
    (only,) = caught.value.problems
    return only.message, only.help


@pytest.mark.parametrize(
    ("text", "message", "help_"),
    [
        ("!name", "`!` does not take `string`", "it negates a bool; a comparison needs parentheses: `!(x == y)`"),
        ("count + 1.5", "`+` does not take `int` and `double`", "convert one side, as in `double(x) + y`"),
        (
            "amount < count",
            "`<` does not take `kubernetes.Quantity` and `int`",
            "`.asInteger()` or `.asApproximateFloat()` makes a number of an amount",
        ),
        ("node.allocatable['cpu'] > 1", "`>` does not take `string` and `int`", AMOUNTS),
        ("node.allocatable.cpu > 1", "`>` does not take `string` and `int`", AMOUNTS),
        (
            "name > 1",
            "`>` does not take `string` and `int`",
            "a string is not a number: `int(x)` reads digits, and `quantity(x).asInteger()` an amount such as `4Gi`",
        ),
        (
            "name + 1",
            "`+` does not take `string` and `int`",
            "a string is not a number: `string(x)` and `int(x)` convert",
        ),
        (
            "age > 3600",
            "`>` does not take `duration` and `int`",
            "a number is not a duration: `duration('1h30m')` reads one",
        ),
        (
            "created - 3600",
            "`-` does not take `timestamp` and `int`",
            "a number is not a duration: `duration('1h30m')` reads one",
        ),
        (
            "created > 3600",
            "`>` does not take `timestamp` and `int`",
            "a number is not a timestamp: `timestamp('2026-01-31T12:00:00Z')` reads one",
        ),
        (
            "created > name",
            "`>` does not take `timestamp` and `string`",
            "a string is not a timestamp: `timestamp('2026-01-31T12:00:00Z')` converts one",
        ),
        (
            "age > name",
            "`>` does not take `duration` and `string`",
            "a string is not a duration: `duration('1h30m')` converts one",
        ),
        (
            "1 < count < 3",
            "`<` does not take `bool` and `int`",
            "comparisons do not chain: write `a < b && b < c`",
        ),
        (
            "count != null",
            "`!=` does not take `int` and `null`",
            "that is never null; `has(x.y)` tests whether a field is there",
        ),
        (
            "hot == age",
            "`==` does not take `bool` and `duration`",
            "both sides must have one type; `dyn(x)` leaves it to run time",
        ),
        ("hot + hot", "`+` does not take `bool` and `bool`", PLUS),
        ("size(count)", "no overload of `size` takes (int)", SIZE),
        (
            "name.startsWith(1)",
            "no overload of `startsWith` takes `string`.(int)",
            "there is `string.startsWith(string) -> bool`",
        ),
    ],
)
def test_a_call_that_fits_no_overload_is_reported_with_what_was_meant(text: str, message: str, help_: str):
    assert complaint(text) == (message, help_)


@pytest.mark.parametrize(
    ("text", "message", "help_"),
    [
        ("[1].all()", "`all` does not take 0 arguments", "as in `list.all(x, x > 0)`"),
        ("len(name)", "no function `len`", "did you mean `size`?"),
        ("sizes(name)", "no function `sizes`", "did you mean `size`?"),
        ("created(1)", "no function `created`", "`created` is a variable, not a function"),
    ],
)
def test_an_unknown_function_is_reported_with_the_known_one(text: str, message: str, help_: str):
    assert complaint(text) == (message, help_)
