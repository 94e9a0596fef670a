"""Classes of expressions in which this engine differed from Kubernetes' own, held to its sources."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cel.check import literals
from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.syntax import ast
from koordpolicy.engine.cel.syntax.ast import Expr
from koordpolicy.engine.cel.values.types import DYN
from koordpolicy.engine.cel.values.values import Duration, Uint
from koordpolicy.engine.kubernetes.library import FUNCTIONS
from koordpolicy.engine.kubernetes.quantity import Quantity
from koordpolicy.engine.source import PolicyError
from tests.engine.cel.agreement import agreed

PLACE = Environment(functions=FUNCTIONS).with_variables(Variable("d", DYN), Variable("m", DYN), Variable("xs", DYN))
GIVEN = {"d": {"namespace": "x", "metadata": {"namespace": "y"}}, "m": {"a": "b", "b": "a"}, "xs": [2, 0, 1]}


def value(text: str) -> object:
    return agreed(compile_program(text, PLACE), GIVEN)


def refusal(text: str) -> tuple[int, str]:
    """Return the column and the message of what is wrong with an expression."""
    with pytest.raises(PolicyError) as caught:
        compile_program(text, PLACE)
    (problem,) = caught.value.problems
    assert problem.span is not None
    return problem.span.source.position(problem.span.start)[1], problem.message


def cost(text: str) -> int:
    return compile_program(text, PLACE).metered(GIVEN)[1]


# --- quantities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    ("500m", 500 * 1e-3), ("1.1", 11 * (1e0 / 1e1)), ("3n", 3 * (1.0 / 1e9)),
    ("9223372036854775807", 9223372036854775807e9 * (1.0 / 1e9)),
    ("12345678901234567890123", float(12345678901234567890123 * 10**9) * 1e-9),
    ("0.12345678901234567890123", float(123456790) * 1e-9), ("1e305", 1e32 ** 0 * 1e288 * 1e17),
    ("1.234567890123456789e300", math.inf), ("-1.234567890123456789e300", -math.inf),
    ("123456789012345678Gi", 9223372036854775807.0),
    ("0", 0.0), ("00000000000000000000000", 0.0),
])  # fmt: skip
def test_the_double_of_a_quantity_is_its_digits_times_a_power_of_ten(text: str, expected: float) -> None:
    assert value(f"quantity('{text}').asApproximateFloat()") == expected


@given(st.integers(10**18, 10**40), st.integers(0, 12))
def test_large_quantities_are_counted_in_nanos(digits: int, fraction: int) -> None:
    text = f"{digits}.{'0' * fraction}" if fraction else str(digits)
    assert float(Quantity.parse(text)) == float(digits * 10**9) * (1.0 / 1e9)


@pytest.mark.parametrize("made", [
    "quantity('1')", "ip('1.2.3.4')", "cidr('10.0.0.0/8')", "url('https://a.b/c')", "semver('1.2.3')", "format.uuid()",
])  # fmt: skip
@pytest.mark.parametrize("other", ["1", "'1'", "1.5", "true", "[1]", "{'a': 1}", "timestamp(0)", "int", "b'a'"])
def test_a_value_of_a_library_has_no_equality_with_other_kinds(made: str, other: str) -> None:
    assert value(f"dyn({made}) == dyn({other})") == "error: no such overload"
    assert value(f"dyn({made}) != dyn({other})") is True
    assert value(f"dyn({other}) == dyn({made})") is False
    assert value(f"dyn({other}) != dyn({made})") is True
    assert value(f"dyn({made}) in dyn([{other}])") is False
    assert value(f"dyn([{made}]).indexOf(dyn({other})) == -1") is True
    assert value(f"dyn([{made}]) == dyn([{other}])") is True, "a pair without equality does not tell lists apart"
    assert value(f"dyn([{made}, {made}]) == dyn([{other}])") is False
    assert value(f"dyn({made}) == dyn({other}) || true") is True


@pytest.mark.parametrize("made", ["quantity('1')", "ip('1.2.3.4')", "semver('1.2.3')"])
def test_a_value_of_a_library_is_not_null(made: str) -> None:
    assert value(f"dyn({made}) == dyn(null)") is value(f"dyn(null) == dyn({made})") is False


def test_values_of_two_libraries_have_no_equality() -> None:
    assert value("dyn(quantity('1')) == dyn(ip('::1'))") == "error: no such overload"
    assert value("dyn(ip('::1')) == dyn(quantity('1'))") == "error: no such overload"


# --- lists -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("items", "expected"), [
    ("dyn(1), dyn('a')", True), ("dyn('a'), dyn(1)", True), ("dyn(2), dyn('a'), dyn(1)", True),
    ("dyn(2), dyn(1), dyn('a')", False),
    ("dyn(1), dyn(1.5), dyn(2u)", True), ("dyn(true), dyn(1), dyn(false)", True),
    ("dyn(0.0 / 0.0), dyn(1.0), dyn(0.5)", False),
    ("dyn(2.0), dyn(0.0 / 0.0), dyn(1.0)", True), ("dyn(timestamp(0)), dyn(duration('1s'))", True),
    ("dyn([1]), dyn(1)", "error: no such overload"), ("dyn(1), dyn(null)", "error: no such overload"),
    ("dyn({'a': 1})", "error: no such overload"), ("dyn(2), dyn(1), dyn(null)", False),
    ("dyn(quantity('1'))", "error: no such overload"),
])  # fmt: skip
def test_a_list_is_sorted_where_no_pair_is_found_that_is_not(items: str, expected: object) -> None:
    assert value(f"dyn([{items}]).isSorted()") == expected


@pytest.mark.parametrize(("call", "expected"), [
    ("dyn([dyn(2), dyn('a'), dyn(1)]).min()", 1), ("dyn([dyn('a'), dyn(2), dyn(1)]).max()", "a"),
    ("[1.0, 0.0 / 0.0, 0.5].min()", 0.5), ("[1.0, 0.0 / 0.0, 2.5].max()", 2.5),
    ("dyn([dyn(1), dyn(null)]).min()", "error: no such overload"),
])  # fmt: skip
def test_what_has_no_order_is_passed_over_by_extremes(call: str, expected: object) -> None:
    assert value(call) == expected


def test_an_extreme_that_begins_at_no_number_stays_there() -> None:
    assert value("string([0.0 / 0.0, 1.0].min())") == "NaN"


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", ["ip('1.2.3.4')", "ip('::1')", "cidr('10.0.0.0/8')", "cidr('2001:db8::/64')", "quantity('1')"],
)
def test_equality_of_a_librarys_values_costs_one(made: str) -> None:
    assert cost(f"{made} == {made}") == 2 * cost(made) + 1


def test_inequality_of_addresses_costs_by_their_size() -> None:
    assert cost("ip('::1') != ip('::1')") == 2 * cost("ip('::1')") + 2


@pytest.mark.parametrize(("text", "expected"), [
    # A key that is read counts a step for each field of it, and none for where its reading begins.
    ("m['a']", 2), ("xs[0]", 2), ("xs[xs[0]]", 3), ("m[m['a']]", 3), ("xs[xs[xs[0]]]", 4), ("m[string(m.a)]", 5),
    ("m[m.a]", 3),
    ("m[?m.a].hasValue()", 4),
    ("m.all(k, m[k] != 'z')", 1 + 1 + 2 * (3 + 2 + 1)), ("xs.map(i, xs[i])", 1 + 1 + 3 * (12 + 2)),
    ("{'a': 1, 'b': 2}.all(k, {'a': 1, 'b': 2}[k] > 0)", 1 + 2 * (3 + 2 + 1)),
    ("lists.range(3).map(i, string(xs[i])).join(',')", 11 + 3 + 1 + 3 * (12 + 1 + 2) + 1),
])  # fmt: skip
def test_a_key_that_is_read_costs_a_step_less(text: str, expected: int) -> None:
    assert cost(text) == expected


# --- formats and templates -------------------------------------------------------------------------------------------

DOTS = ["must not contain dots"]


@pytest.mark.parametrize(("text", "expected"), [
    ("a.b", DOTS), ("a.b.c-d", DOTS), ("1.2", DOTS), (f"{'a' * 62}.b", ["must be no more than 63 characters", *DOTS]),
])  # fmt: skip
def test_a_label_with_dots_is_told_so(text: str, expected: list[str]) -> None:
    assert value(f"format.dns1123Label().validate('{text}').value()") == expected


@pytest.mark.parametrize("text", ["A.b", "a..b", ".a", "a.", "a_b", "-a.b", ""])
def test_a_label_that_is_no_subdomain_either_is_told_what_labels_are(text: str) -> None:
    (message,) = value(f"format.dns1123Label().validate('{text}').value()")  # type: ignore[misc]
    assert message.startswith("a lowercase RFC 1123 label must consist of")


def test_prefixes_of_labels_have_no_dots_and_other_labels_say_nothing_of_them() -> None:
    assert value("format.dns1123LabelPrefix().validate('a.b-').value()") == DOTS
    (message,) = value("format.dns1035Label().validate('a.b').value()")  # type: ignore[misc]
    assert message.startswith("a DNS-1035 label must consist of")


@pytest.mark.parametrize("text", [
    "dns1123LabelPrefix().validate('a.-')", "dns1123LabelPrefix().validate('A-')",
    "dns1123LabelPrefix().validate('a_-')", "dns1123SubdomainPrefix().validate('a_-')",
    "dns1123SubdomainPrefix().validate('a..-')", "dns1035LabelPrefix().validate('a.-')",
    "dns1035LabelPrefix().validate('aA-')", "dns1123LabelPrefix().validate('a-b-')",
])
def test_the_dash_that_ends_a_prefix_is_dropped_with_the_character_before_it(text: str) -> None:
    assert value(f"format.{text}.hasValue()") is False


@pytest.mark.parametrize("text", ["-", "a\u00e9-", "\u00e9-", "a--b.-c"])
@pytest.mark.parametrize("name", ["dns1123LabelPrefix", "dns1035LabelPrefix"])
def test_other_prefixes_are_checked_as_names(name: str, text: str) -> None:
    message = LABEL if name == "dns1123LabelPrefix" else "a DNS-1035 label must consist of"
    (fault,) = value(f"format.{name}().validate('{text}').value()")  # type: ignore[misc]
    assert fault.startswith(message)


FORMATTING = "error during formatting: "
LABEL = "a lowercase RFC 1123 label must consist of"


@pytest.mark.parametrize(("text", "fault"), [
    ("", '"": empty url'), ("a", '"a": invalid URI for request'), (":", '":": missing protocol scheme'),
    ("a\\u007f\\u200b\\U000e0001", r'"a\x7f\u200b\U000e0001": net/url: invalid control character in URL'),
    ("http://a^/", '"http://a^/": invalid character "^" in host name'),
    ("http://a%20/", '"http://a%20/": invalid URL escape "%20"'), ("/%2", '"/%2": invalid URL escape "%2"'),
    ("http://a/%2\u00e9", '"http://a/%2\u00e9": invalid URL escape "%2\\xc3"'),
    ("http://a:b:80/", '"http://a:b:80/": invalid port ":b:80" after host'),
    ("http://u^@a/", '"http://u^@a/": net/url: invalid userinfo'),
    ("http://u:%zz@a/", '"http://u:%zz@a/": invalid URL escape "%zz"'),
    ("http://[::1/", '"http://[::1/": missing \']\' in host'),
    ("http://[::1]x/", '"http://[::1]x/": invalid port "x" after host'),
    ("http://[::1%eth0]/", '"http://[::1%eth0]/": invalid URL escape "%et"'),
    ("http://[::1%25%2F]/", '"http://[::1%25%2F]/": invalid URL escape "%2F"'),
    ("http://[x]/", '"http://[x]/": invalid host: ParseAddr("x"): unable to parse IP'),
    ("http://[a%FF]/", r'"http://[a%FF]/": invalid host: ParseAddr("a\xff"): unable to parse IP'),
    ("http://[1.2.3.4]/", '"http://[1.2.3.4]/": invalid IP-literal'),
    ("http://a[::1]/", '"http://a[::1]/": invalid IP-literal'),
])
def test_a_fault_of_a_uri_is_said_in_the_words_of_go(text: str, fault: str) -> None:
    assert value(f'format.uri().validate("{text}") == optional.of([r\'\'\'parse {fault}\'\'\'])') is True
    assert value(f'isURL("{text}")') is False


@pytest.mark.parametrize(("text", "host"), [
    ("http://[::1%25eth0]:80/", "[::1%eth0]:80"), ("http://[::1%25%20]/", "[::1% ]"),
    ("http://a%C3%A9/", "a\u00e9"), ("http://u:p@a/", "a"), ("http://[::ffff:1.2.3.4]/", "[::ffff:1.2.3.4]"),
    ("http://a%FF/", "a\ufffd"), ("http://a%E2%82:1/", "a\ufffd\ufffd:1"),
])
def test_the_host_of_a_url_is_unescaped(text: str, host: str) -> None:
    assert value(f"url('{text}').getHost()") == host


@pytest.mark.parametrize(("text", "expected"), [
    ("'%.3e'.format([2.5])", "2.500000\u00d710\u2070\u2070"),
    ("'%.0e'.format([123456789.123])", "1.234568\u00d710\u2070\u2078"),
    ("'%.16e'.format([-1.5])", "  -1.500000\u00d710\u2070\u2070"), ("'%.5e'.format(['NaN'])", "  NaN"),
    ("'%e'.format([-0.0])", "0.000000\u00d710\u2070\u2070"), ("'%.3f'.format([-0.0])", "0.000"),
    ("'%.3f'.format([-0.0001])", "-0.000"), ("'%.3f'.format([1234567.8912])", "1,234,567.891"),
    ("'%f'.format([1e21])", "1,000,000,000,000,000,000,000.000000"), ("'%.256f'.format([1.5])", "1.5"),
    ("'%.258f'.format([1.0])", "1.00"), ("'%.32768f'.format([0.1])", "0.1"), ("'%.65536f'.format([0.1])", "0"),
    ("'%.260f'.format([0.5])", "0.5000"), ("'%.10000010f'.format([1.0])", "%!(NOVERB)"),
    ("'%.10000009f'.format([1.0]).size()", 139), ("'%.65537e'.format(['NaN'])", "NaN"),
    ("'%.100000e'.format(['NaN']).size()", 34_464), ("'%.99999999999s'.format(['a'])", "a"),
    ("'%.000000000000000000002f'.format([1.0])", "1.00"), ("'%%%%s'.format([])", "%%s"),
    ("'%f'.format([xs[0]])", f"error: {FORMATTING}fixed-point clause can only be used on doubles, was given int"),
    ("'%e'.format([xs[0]])", f"error: {FORMATTING}scientific clause can only be used on doubles, was given int"),
])
def test_a_double_is_formatted_as_with_the_locale_of_kubernetes(text: str, expected: object) -> None:
    assert value(text) == expected


def test_a_text_that_becomes_too_long_is_refused_before_it_is_made() -> None:
    text = "lists.range(1000).map(x, '%.65535e').join().format(lists.range(1000).map(x, 1.5))"
    assert value(text) == "error: the string would be longer than 10000000 characters"


@pytest.mark.parametrize(("text", "expected"), [
    ("optional.of(Q) == optional.of(dyn(1))", "error: no such overload"),
    ("optional.of(Q) == optional.of(null)", "error: no such overload"),
    ("optional.of(optional.of(Q)) == optional.of(optional.of(dyn(1)))", "error: no such overload"),
    ("optional.of(Q) == optional.of(dyn(url('http://a')))", "error: no such overload"),
    ("optional.of(Q) != optional.of(dyn(1))", True), ("optional.of(Q) == optional.none()", False),
    ("optional.of(dyn(1)) == optional.of(Q)", False), ("optional.of(Q) == optional.of(dyn(quantity('1000m')))", True),
    ("[optional.of(Q)] == [optional.of(dyn(1))]", True), ("[optional.of(Q)] == [optional.of(null)]", True),
    ("{'a': optional.of(optional.of(Q))} == {'a': optional.of(optional.of(dyn(1)))}", True),
    ("optional.of([optional.of(Q)]) == optional.of([optional.of(dyn(1))])", True),
    ("optional.of(Q) in [optional.of(dyn(1))]", False), ("[dyn(optional.of(Q))] == [dyn(1)]", False),
    ("sets.contains([optional.of(Q)], [optional.of(dyn(1))])", False),
])
def test_an_optional_is_compared_as_what_it_holds(text: str, expected: object) -> None:
    assert value(text.replace("Q", "dyn(quantity('1'))")) == expected


BAD = "could not parse formatting clause: "
PRECISION = f"{BAD}error while parsing precision: "


@pytest.mark.parametrize(("text", "column", "message"), [
    ("'abc %s %q'.format([1, 2])", 19, f'{BAD}unrecognized formatting clause "q"'),
    ("'é%ü'.format([1])", 13, f'{BAD}unrecognized formatting clause "ü"'),
    ("'%.3z'.format([1])", 14, f'{BAD}unrecognized formatting clause "z"'),
    ("'%'.format([1])", 11, "unexpected end of string"), ("'%'.format([])", 11, "unexpected end of string"),
    ("'%.'.format([1])", 12, f"{PRECISION}could not find end of precision specifier"),
    ("'%.12'.format([1])", 14, f"{PRECISION}could not find end of precision specifier"),
    (
        "'%.s'.format([1])", 13,
        f'{PRECISION}error while converting precision to integer: strconv.Atoi: parsing "": invalid syntax',
    ),
    ("'%s %s'.format([1])", 15, "index 1 out of range"), ("'%q %s'.format([])", 15, "index 0 out of range"),
    ("'%s'.format([1, 2])", 12, "too many arguments supplied to string.format (expected 1, got 2)"),
    (
        "'%d'.format(['a'])", 14,
        "error during formatting: decimal clause can only be used on integers, was given string",
    ),
    (
        "'%s %d'.format([1, 2.5])", 20,
        "error during formatting: decimal clause can only be used on integers, was given double",
    ),
    ("'%f'.format([1])", 14, "error during formatting: fixed-point clause can only be used on doubles, was given int"),
    (
        "'%e'.format([true])", 14,
        "error during formatting: scientific clause can only be used on doubles, was given bool",
    ),
    (
        "'%b'.format([1.5])", 14,
        "error during formatting: only integers and bools can be formatted as binary, was given double",
    ),
    ("'%o'.format(['7'])", 14, "error during formatting: octal clause can only be used on integers, was given string"),
    ("'%X'.format([1.5])", 14, (
        "error during formatting: only integers, byte buffers, and strings can be formatted as hex, was given double"
    )),
])  # fmt: skip
def test_a_bad_clause_is_said_in_kubernetes_words_where_kubernetes_says_it(
    text: str, column: int, message: str,
) -> None:
    assert refusal(text) == (column, message)


@pytest.mark.parametrize(("template", "values", "expected"), [
    ("%q", "[1]", f'{BAD}unrecognized formatting clause "q"'), ("%", "[1]", "unexpected end of string"),
    ("%s%s", "[1]", "index 1 out of range"),
    ("%d", "['a']", "error during formatting: decimal clause can only be used on integers, was given string"),
])  # fmt: skip
def test_a_template_that_is_computed_fails_in_the_same_words(template: str, values: str, expected: str) -> None:
    assert value(f"('' + '{template}').format({values})") == f"error: {expected}"


@pytest.mark.parametrize(("text", "expected"), [
    ("'%.2f%%'.format([dyn(1.0)])", "1.00%"), ("'%%%s%%'.format([1])", "%1%"), ("('%' + 's').format([1, 2])", "1"),
])  # fmt: skip
def test_sound_templates_are_filled_in(text: str, expected: str) -> None:
    assert value(text) == expected


# --- names and conversions -------------------------------------------------------------------------------------------


def test_names_are_escaped_in_declared_objects_only() -> None:
    assert value("d.namespace") == "x"
    assert value("d.metadata.namespace") == "y"
    assert value("d.__namespace__") == "error: no such key: __namespace__"
    assert value("has(d.metadata.__namespace__)") is False


@pytest.mark.parametrize(
    "text", ["duration(5)", "duration(-5)", "duration(0)", "duration(1 + 1)", "duration(5u)", "duration(1.5)"],
)
def test_a_number_is_no_duration(text: str) -> None:
    assert refusal(text)[1].startswith("no overload of `duration` takes (")


@pytest.mark.parametrize("text", ["duration(xs[0])", "duration(d.metadata)", "[dyn(5)].map(x, duration(x))"])
def test_a_number_of_unknown_type_is_no_duration_either(text: str) -> None:
    assert value(f"{text} == dyn(1)") == "error: no such overload"


def test_a_constant_number_is_no_duration_in_any_branch() -> None:
    assert refusal("true || duration(dyn(5)) == duration('5ns')") == (
        21, "no such overload")


NO_NUMBERS = {
    "int": [
        "1_0", " 1", "1 ", "0x10", "\u0661", "1.0", "1e3", "", "+", "9223372036854775808", "--1", "\u22121", "0b1",
        "1l",
    ],
    "uint": ["1_0", "+5", "-1", " 1", "0x10", "\u0661", "18446744073709551616", "1u"],
    "double": [
        "1_0", "1_0.5", "1.0_0", "1e1_0", "0x_1p-2", "0x1", "0x1.8", " 1", "1 ", "1\\n", "\u0661", "1,5", "1e400",
        "infin", "-nan", "+nan",
        "nan(1)", "snan", "1.5f", "", ".", "e5", "1e", "0b1", "1d",
    ],
    "bool": ["yes", "TrUe", "tRUE", " true", "", "2", "on"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in NO_NUMBERS.items() for text in texts])
def test_a_text_that_go_does_not_read_is_refused(kind: str, text: str) -> None:
    message = f"type conversion error from 'string' to '{kind}'"
    assert refusal(f"{kind}('{text}')")[1] == message
    assert value(f"{kind}('' + '{text}')") == f"error: {message}"


@pytest.mark.parametrize(("text", "expected"), [
    ("int('+5')", 5), ("int('-007')", -7), ("double('.5')", 0.5), ("double('5.')", 5.0), ("double('+Inf')", math.inf),
    ("double('-infinity')", -math.inf), ("double('0x1p-2')", 0.25), ("double('0X1.8P+1')", 3.0),
    ("double('1e-400')", 0.0),
    ("double('iNF')", math.inf), ("uint('007') == 7u", True), ("bool('T')", True),
])  # fmt: skip
def test_a_text_that_go_reads_is_read(text: str, expected: object) -> None:
    assert value(text) == expected


# --- what a program of Kubernetes' own library says (tests/e2e/expressions) -------------------------------------------


@pytest.mark.parametrize(("text", "expected"), [
    ("[0.5].filter(x, false).sum()", 0.0), ("[1u].filter(x, false).sum()", Uint(0)), ("dyn([]).sum()", 0),
    ("[duration('1s')].filter(x, false).sum()", Duration(0)), ("string([-0.0].sum())", "0"),
    ("dyn(1).orValue(2)", 1), ("dyn('a').or(dyn(2))", "a"), ("optional.of(1).optFlatMap(x, dyn(x + 1))", 2),
    ("null.optMap(x, 1) == optional.of(2) || true", True),
    ("dyn(1.5).?a.hasValue()", False), ("dyn(null).?a.b.orValue(3)", 3), ("dyn('a')[?0].hasValue()", False),
    ("{'a': optional.of(1)}.a.orValue(2)", 1),
    ("optional.ofNonZeroValue(timestamp(0)).hasValue()", True),
    ("optional.ofNonZeroValue(timestamp('0001-01-01T00:00:00Z')).hasValue()", False),
    ("optional.ofNonZeroValue(optional.none()).hasValue()", True),
    ("-dyn(duration('90s')) == duration('-90s')", True),
    (r"'\\C'.matches('\\Q\\C\\E')", True), (r"'\\C'.matches('^\\\\C$')", True),
    ("string(duration('9223372036854775807ns'))", "9223372036.854776s"), ("string(duration('-0.1s'))", "-0.1s"),
    ("'%s'.format([duration('123456789.123456789s')])", "123456789.12345679s"),
    ("-(dyn(optional.of(-1.0 / 0.0)).value())", math.inf), ("-(dyn(optional.of(2.5)).value())", -2.5),
    ("[dyn(optional.of(1)).value(), 2]", [1, 2]), ("[2, dyn(optional.of(1)).value()].max()", 2),
    ("[[2], [dyn(optional.of(1)).value()]][1][0]", 1), ("dyn([1.5]).first().value()", 1.5),
    ("'abc'.indexOf('', 100)", 100), ("'abc'.lastIndexOf('', 100)", 100), ("'abc'.indexOf('', -1)", -1),
    ("'abc'.lastIndexOf('')", 3), ("'abc'.lastIndexOf('b', 100)", -1),
    ("dyn('%f').format([dyn('Infinity')])", "\u221e"), ("'%f'.format([-1.0 / 0.0])", "-\u221e"),
    ("dyn('%e').format([dyn('NaN')])", "   NaN"), ("'%.2e'.format([1.0 / 0.0])", " \u221e"),
    ("'%s'.format([1.0 / 0.0])", "Infinity"),
])  # fmt: skip
def test_values_are_those_of_kubernetes(text: str, expected: object) -> None:
    found = value(text)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(("text", "message"), [
    ("{'a': optional.of(1)}.b.orValue(2)", "no such key: b"), ("dyn(1)[0]", "no such key: 0"),
    ("dyn('abc')[0]", "no such key: 0"), ("dyn([1]).?a", "unsupported index type 'string' in list"),
    ("timestamp(0) - duration('-9223372036854775808ns')", "integer overflow"),
    ("dyn('a').value()", "no such overload"),
    ("-(dyn(optional.of(1u)).value())", "no such overload"), ("int(dyn(optional.of([1])).value())", "no such overload"),
    ("!(dyn(optional.of('a')).value())", "no such overload"), ("'a'.matches(dyn(1.5))", "no such overload"),
    ("'%s'.format([b'\\xff'])", ('error during formatting: could not convert argument "invalid UTF-8 in bytes, cannot '
                                     'convert to string" to string')),
    ("'a'.find(dyn([1]))", "no such overload"), ("'a'.replace('a', dyn(1))", "no such overload"),
    ("[1][?dyn(1e30)]", "unsupported index value 1e+30 in list"),
    ("[1][dyn(-9223372036854775808.0)]", "unsupported index value -9.223372036854776e+18 in list"),
    ("[1][?dyn(18446744073709551615u)]", "unsupported index value 18446744073709551615 in list"),
    ("'a'.find(xs == [] ? '' : 'a\\\\C')", "error parsing regexp: invalid escape sequence: `\\C`: `a\\C`"),
])  # fmt: skip
def test_errors_are_those_of_kubernetes(text: str, message: str) -> None:
    assert value(text) == f"error: {message}"


@pytest.mark.parametrize(("text", "column", "message"), [
    ("[dyn(optional.of(1)).value(), 2, 'a']", 34, "expected `int`, found `string`"),
    ("[2, dyn(optional.of(1)).value(), 'a']", 34, "expected `int`, found `string`"),
    ("[[dyn(optional.of(1)).value()], 2]", 33, "expected `list(dyn)`, found `int`"),
    ("[string(dyn(optional.of(1)).value()), 2]", 39, "expected `string`, found `int`"),
    ("[1, size([dyn(optional.of(1)).value()]), 'a']", 42, "expected `int`, found `string`"),
    ("{'a': [string(dyn(optional.of(1)).value())], 'b': [2]}", 51, "expected `list(string)`, found `list(int)`"),
])  # fmt: skip
def test_only_the_value_of_an_unknown_optional_stands_beside_any_element(text: str, column: int, message: str) -> None:
    assert refusal(text) == (column, message)


def test_no_element_is_searched_for_unknown_optionals_more_than_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: Counter[int] = Counter()

    def children(node: Expr) -> Iterable[Expr]:
        searched[node.id] += 1
        return ast.children(node)

    monkeypatch.setattr(literals, "children", children)
    compile_program(f"[[dyn(optional.of(1)).value(){', 1' * 100}]{', [1]' * 100}]", PLACE)
    assert (len(searched) > 100, max(searched.values())) == (True, 1)


@pytest.mark.parametrize(("function", "other"), [
    ("int", "1"), ("string", "1"), ("timestamp", "1"), ("duration", "'1s'"),
])
def test_null_is_converted_to_nothing_not_even_in_a_branch_that_is_not_taken(function: str, other: str) -> None:
    text = f"true || {function}(null) == {function}(dyn({other}))"
    assert refusal(text) == (text.index("null") + 1, f"`{function}` does not take null")


@pytest.mark.parametrize(("text", "expected"), [
    ("[[1, 2], [3]].indexOf([4])", 3),
    ("[{'0123456789': 1}].indexOf({'a': 1})", 2), ("['\u00e9\u00e9\u00e9\u00e9\u00e9'].indexOf('a')", 1),
])
def test_the_cost_of_a_search_counts_the_entries_of_maps_and_the_bytes_of_texts(text: str, expected: int) -> None:
    assert cost(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("timestamp('2026-01-01T00:00:00+24:00').getDate()", 31),
    ("timestamp('2026-01-01T10:00:00Z').getHours('+5:3')", 15),
    ("timestamp('2026-01-01T10:00:00Z').getMinutes('-5:3')", 57),
    ("timestamp('2026-01-01T10:00:00Z').getHours('+25:00')", 11),
    ("timestamp('9999-12-31T23:59:59Z').getFullYear('+01:00')", 10000),
    ("timestamp('9999-12-31T23:59:59Z').getMonth('Europe/Berlin')", 0),
    ("timestamp('9999-12-31T23:59:59Z').getDayOfWeek('+01:00')", 6),
    ("timestamp('0001-01-01T00:00:00Z').getFullYear('-01:00')", 0),
    ("timestamp('0001-01-01T00:00:00Z').getDayOfYear('-01:00')", 365),
])  # fmt: skip
def test_local_times_may_be_of_a_year_that_no_timestamp_has(text: str, expected: int) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("semver('18446744073709551615.9223372036854775807.0').major()", -1),
    ("semver('18446744073709551615.9223372036854775807.0').minor()", 2**63 - 1),
    ("semver('18446744073709551615.0.0').compareTo(semver('1.0.0'))", 1),
    ("isSemver('18446744073709551616.0.0')", False),
])  # fmt: skip
def test_numbers_of_a_version_are_unsigned_and_wrap_around_as_ints(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("url('http://') == url('http:')", True), ("url('HTTP://h/é') == url('http://h/%C3%A9')", True),
    ("url('http://h/a b') == url('http://h/a%20b')", True), ("url('/a?') == url('/a')", False),
    ("url('http://h/') == url('http://h')", False), ("url('/a#') == url('/a')", True),
    ("url('mailto:a#b') == url('mailto:a')", False), ("url('/p#é f') == url('/p#%C3%A9%20f')", True),
    ("url('/a##b') == url('/a#%23b')", True), ("url('/a?x#b') == url('/a?x#%62')", False),
    ("url('http://h/p#frag').getEscapedPath()", "/p"), ("url('/a?x=1#b').getQuery()", {"x": ["1"]}),
    ("url('/a#b?c').getQuery()", {}), ("isURL('http://h#b')", False), ("isURL('http://h?x#%zz')", True),
    ("url('/a%62').getEscapedPath()", "/a%62"), ('url("/a\'%2fb c").getEscapedPath()', "/a%27/b%20c"),
    ("url('http://[fe80::1%25eth0]/').getHost()", "[fe80::1%eth0]"),
    ("url('http://a%FFb@h/') == url('http://a%EF%BF%BDb@h/')", False),
    ("url('http://a%FFb@h/') == url('http://a%ffb@h/')", True),
    ("url('http://a:%FF@h/') == url('http://a:%FE@h/')", False),
    ("url('http://h%FF/') == url('http://h%EF%BF%BD/')", False), ("url('http://h%FF/') == url('http://h%ff/')", True),
    ("url('http://h%FF/') == url('http://h%FE/')", False),
    ("url('/?a=%E2%82').getQuery()", {"a": ["\ufffd\ufffd"]}),
])  # fmt: skip
def test_urls_have_the_parts_that_go_tells_and_equal_by_their_escaped_string(text: str, expected: object) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("dyn(d)", 2), ("dyn(1)", 0), ("'abcdefghijklmnopqrstu'.startsWith('a')", 3),
    ("'a'.endsWith('abcdefghijklmnopq')", 1),
    ("'abcdefghijklmnopqrstu'.contains('abcdefghijkl')", 6), ("matches('abcdefghijklmnopqrstu', 'abcdefghi')", 1),
    ("'abcdefghijklmnopqrstu'.matches('abcdefghi')", 9),
    ("[1, 2].map(x, 'a')", 5), ("[1, 2].map(x, x)", 27), ("[1, 2].map(x, true, {'a': 1})", 5),
    ("[1, 2].map(x, int)", 5),
    ("[1, 2].transformList(i, x, 'a')", 5), ("bytes(dyn('abcdefghijklmnopqrstu'))", 0), ("1 in dyn([1, 2, 3])", 1),
    ("cidr('10.0.0.0/8').containsIP('10.0.0.1')", 3), ("cidr('10.0.0.0/8').containsIP(dyn('10.0.0.1'))", 2),
    ("cidr('2001:db8::/32').containsCIDR(dyn('2001:db8::1/128'))", 5),
    ("2 in [1, 2]", 0), ("b'a' in [b'a', b'b']", 2), ("dyn('a') in [dyn('a')]", 0), ("[1] in [[1], [2]]", 2),
    ("dyn(1 / 0).a == 1 || true", 4), ("has(dyn(1 / 0).a) || true", 2), ("has({'a': dyn({})}.c.b) || true", 1),
    ("{'a': dyn({})}.c.b == 1 || true", 3),
])  # fmt: skip
def test_costs_are_those_of_kubernetes(text: str, expected: int) -> None:
    assert cost(text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("[0.0 / 0.0].map(d, d in {d: 1})", [False]), ("[0.0 / 0.0].map(d, {d: 1}[?d].hasValue())", [False]),
    ("[0.0 / 0.0].map(d, {d: 1, d: 2}.size())", [2]), ("[{0.0 / 0.0: 1}].map(m, m == m)", [False]),
    ("[0.0 / 0.0].map(d, {d: 1}[d])", "error: no such key: NaN"), ("{1.5: 1} == {1.5: dyn(1)}", True),
])
def test_a_key_that_is_no_number_is_never_found(text: str, expected: object) -> None:
    assert value(text) == expected
