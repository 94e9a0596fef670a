import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.syntax import ast
from koordpolicy.engine.cel.syntax.ast import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    Macro,
    OptionalMap,
    Select,
    children,
)
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.syntax.unparse import unparse
from koordpolicy.engine.source import PolicyError, Source


def read(text: str, **options: object) -> Expr:
    return parse(Source("<expression>", text), **options)  # type: ignore[arg-type]


def refusal(text: str, **options: object) -> tuple[str, int, str]:
    """Message, offset and help of the first complaint."""
    with pytest.raises(PolicyError) as caught:
        read(text, **options)
    first = caught.value.problems[0]
    assert first.span is not None
    assert first.code == "cel-syntax"
    return first.message, first.span.start, first.help


def canonical(text: str) -> str:
    return unparse(read(text, macros=False))


def nodes(root: Expr) -> list[Expr]:
    found = [root]
    for node in found:
        found.extend(children(node))
    return found


def test_a_tree_has_numbers_and_places():
    assert read("a.b + 1") == Call(
        4, 4, 0, 7, "_+_", None, (Select(2, 1, 0, 3, Ident(1, 0, 0, 1, "a"), "b"), Literal(3, 6, 6, 7, 1)),
    )


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("aa + b", 3), ("aa ? b : c", 3), ("aa.f(b)", 4), ("ff(b)", 2), ("aa.b", 2), ("aa[b]", 2), ("[a]", 0),
        ("-a", 0), ("!a", 0), ("'x'", 0), (".x", 1), ("a.?b", 1), ("{a: b}", 0), ("a.b{c: d}", 3), ("- 1", 0),
        ("(a) + (b)", 4),
    ],
)  # fmt: skip
def test_a_node_stands_where_its_operator_does(text: str, position: int):
    assert read(text).position == position


def test_an_extent_holds_all_parts_and_their_parentheses():
    root = read("(a + b) * c.d[0]")
    assert (root.start, root.end) == (0, 16)
    assert [(node.start, node.end) for node in children(root)] == [(1, 6), (10, 16)]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a || b && c == d + e * -f.g", "a || b && c == d + e * -f.g"),
        ("((a || b) && c)", "(a || b) && c"),
        ("a - (b - c) - d", "a - (b - c) - d"),
        ("1 == 1 == true", "1 == 1 == true"),
        ("a ? b : c ? d : e", "a ? b : c ? d : e"),
        ("(a ? b : c) ? (d ? e : f) : g", "(a ? b : c) ? (d ? e : f) : g"),
        ("!!a", "a"),
        ("!!!a", "!a"),
        ("--1", "1"),
        ("-1.f()", "-1.f()"),
        ("-(1)", "-(1)"),
        ("-a.b", "-a.b"),
        ("!-1", "!(-1)"),
        ("[,]", "[]"),
        ("{,}", "{}"),
        ("[a, ?b,]", "[a, ?b]"),
        ("{a: b, ?c: d,}", "{a: b, ?c: d}"),
        ("{a ? b : c: d ? e : f}", "{a ? b : c: d ? e : f}"),
        ("a.?b[?c].d", "a.?b[?c].d"),
        ("a.if.package()", "a.if.package()"),
        (".a.b{c: d, ?e: f}.g", ".a.b{c: d, ?e: f}.g"),
        ("T{}", "T{}"),
        ("a in b in c", "a in b in c"),
        ("x // why\n.y", "x.y"),
        (r"'\'' + r'\d'", r"'\'' + '\\d'"),
        ("1.e3", "1.e3"),
        ("1e3 + 7u", "1000.0 + 7u"),
    ],
)
def test_expressions_are_read_as_they_bind(text: str, wanted: str):
    assert canonical(text) == wanted


def test_chains_of_and_are_balanced_and_keep_their_order():
    root = read(" && ".join(f"x{number}" for number in range(1000)), macros=False)
    names = [node.name for node in in_order(root)]
    assert names == [f"x{number}" for number in range(1000)]
    assert height(root) <= 12


def in_order(node: Expr) -> list[Ident]:
    if isinstance(node, Ident):
        return [node]
    return [each for child in children(node) for each in in_order(child)]


def height(node: Expr) -> int:
    return 1 + max((height(child) for child in children(node)), default=0)


def test_macros_become_nodes():
    expanded = read("a.all(x, x > 0)")
    assert isinstance(expanded, Comprehension)
    assert (expanded.macro, expanded.variable, expanded.variable2, expanded.transform) == (Macro.ALL, "x", None, None)
    assert (expanded.position, unparse(expanded)) == (5, "a.all(x, x > 0)")
    test = read("has(a.b.c)")
    assert isinstance(test, Select)
    assert (test.test, test.field, test.start, test.end) == (True, "c", 0, 10)


@pytest.mark.parametrize(
    ("text", "macro", "predicate", "transform"),
    [
        ("a.exists(i, v, p)", Macro.EXISTS, "p", None),
        ("a.existsOne(i, p)", Macro.EXISTS_ONE, "p", None),
        ("a.map(x, t)", Macro.MAP, None, "t"),
        ("a.map(x, p, t)", Macro.MAP, "p", "t"),
        ("a.filter(x, p)", Macro.FILTER, "p", None),
        ("a.transformList(i, v, t)", Macro.TRANSFORM_LIST, None, "t"),
        ("a.transformMap(i, v, p, t)", Macro.TRANSFORM_MAP, "p", "t"),
        ("a.transformMapEntry(i, v, t)", Macro.TRANSFORM_MAP_ENTRY, None, "t"),
        ("a.sortBy(x, t)", Macro.SORT_BY, None, "t"),
    ],
)
def test_every_macro_knows_its_parts(text: str, macro: Macro, predicate: str | None, transform: str | None):
    node = read(text)
    assert isinstance(node, Comprehension)
    assert node.macro is macro
    assert [each and unparse(each) for each in (node.predicate, node.transform)] == [predicate, transform]


def test_bind_and_the_optional_macros_become_nodes():
    assert isinstance(read("cel.bind(x, 1, x + x)"), Bind)
    node = read("a.?b.optFlatMap(x, x.?c)")
    assert isinstance(node, OptionalMap)
    assert node.flat


def test_a_macro_with_another_number_of_arguments_is_a_call():
    assert isinstance(read("a.all(x)"), Call)
    assert isinstance(read("has(a, b)"), Call)
    assert isinstance(read("a.all(x, x > 0)", macros=False), Call)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a = b", ("unexpected character `=`", 2, "did you mean `==`?")),
        ("a === b", ("unexpected character `=`", 4, "did you mean `==`?")),
        ("a => b", ("unexpected character `=`", 2, "did you mean `>=`?")),
        ("a & b", ("unexpected character `&`", 2, "did you mean `&&`?")),
        ("a | b", ("unexpected character `|`", 2, "did you mean `||`?")),
        ("a and b", ("expected an operator or the end, found `and`", 2, "did you mean `&&`?")),
        ("not a", ("expected an operator or the end, found `a`", 4, "did you mean `!`?")),
        ("a <> b", ("expected a value, found `>`", 3, "did you mean `!=`?")),
        ("+ a", ("expected a value, found `+`", 0, "there is no unary `+`")),
        ("if a then b else c", ("`if` is a reserved word", 0, "a choice is written `condition ? value : other`")),
        ("if (a) b else c", ("`if` is a reserved word", 0, "a choice is written `condition ? value : other`")),
        (
            "b if a else c",
            ("expected an operator or the end, found `if`", 2, "a choice is written `condition ? value : other`"),
        ),
        ("x in ('a', 'b')", ("expected `)`, found `,`", 9, "a list is written `[...]`, as in `x in ['a', 'b']`")),
        ("x > 10Gi", ("expected an operator or the end, found `Gi`", 6, "a number has no unit: write `10737418240`")),
        ("x > 5s", ("expected an operator or the end, found `s`", 5, "a number has no unit: write `duration('5s')`")),
        ("x < 500m", ("expected an operator or the end, found `m`", 7, (
            "a number has no unit: a thousandth is written as a whole number (cpu is in milli-cores), and minutes as "
            "`duration('500m')`"))),
        ("x > 60%", ("expected a value, found the end of the expression", 7, (
            "`%` is the remainder of a division; a percentage is a number, as in `x * 100 / y > 60`"))),
        ("x not in y", ("expected an operator or the end, found `not`", 2, "did you mean `!(x in y)`?")),
        (
            "x[1:2]",
            ("expected `]`, found `:`", 3, "a part of a list is `x.slice(1, 2)`, of a string `x.substring(1, 2)`"),
        ),
        ("x?.y", ("expected `:`, found the end of the expression", 4, "did you mean `.?`, an optional field?")),
        ("'it's'", (
            "expected an operator or the end, found `s`", 4,
            "`+` joins strings, and a quote inside of a string is written `\\'`",
        )),
        ("(a", ("expected `)`, found the end of the expression", 2, "the `(` at line 1, column 1 is not closed")),
        (
            "[1,\n 2",
            ("expected `,` or `]`, found the end of the expression", 6, "the `[` at line 1, column 1 is not closed"),
        ),
        ("a)", ("expected an operator or the end, found `)`", 1, "")),
        ("f(a,)", ("expected a value, found `)`", 4, "the arguments of a call take no trailing comma")),
        ("{1}", ("expected `:`, found `}`", 2, "")),
        ("a ? b", ("expected `:`, found the end of the expression", 5, "")),
        ("a ? b ? c : d : e", ("expected `:`, found `?`", 6, "put parentheses around a condition inside a condition")),
        ("a.b.c(1)(2)", ("expected an operator or the end, found `(`", 8, "only a name can be called")),
        ("a.in", ("expected the name of a field, found `in`", 2, "this word is never a name: write `x['in']`")),
        ("!-a", ("expected a number, found `a`", 2, "")),
        ("", ("expected a value, found the end of the expression", 0, "")),
        ("a.1", ("expected an operator or the end, found `.1`", 1, "write `[n]` for an element of a list")),
        ("has(a)", (
            "`has()` tests a field: it takes a selection such as `x.y`", 4,
            "for a key write `'key' in x`; an optional is tested with `.hasValue()`",
        )),
        ("a.all(x.y, true)", ("a macro's variable must be a simple name", 7, "as in `list.all(x, x > 0)`")),
        ("a.all(i, i, true)", ("`i` names both variables", 9, "give them two names")),
        ("namespace == 'x'", (
            "`namespace` is a reserved word", 0,
            "it can stand after a dot (`x.namespace`), but not name a variable or a function of its own",
        )),
        ("while(x)", (
            "`while` is a reserved word", 0,
            "it can stand after a dot (`x.while`), but not name a variable or a function of its own",
        )),
        ("a.`b-c`", ("back-quoted names are not supported here", 2, "write `x['b-c']` for a key of a map")),
        ("'abc", (
            "unterminated string", 0,
            "it ends with `'` on the same line; a string of several lines stands between '''",
        )),
    ],
)  # fmt: skip
def test_a_fault_says_what_and_where_and_what_to_do(text: str, wanted: tuple[str, int, str]):
    assert refusal(text) == wanted


def test_two_variables_that_are_no_names_are_not_one_name_given_twice():
    with pytest.raises(PolicyError) as caught:
        parse(Source("x", "a.all(1, 2, true)"))
    assert [(each.message, each.span.start) for each in caught.value.problems if each.span is not None] == [
        ("a macro's variable must be a simple name", 6), ("a macro's variable must be a simple name", 9),
    ]


def test_faults_that_do_not_stop_the_reading_are_all_told():
    with pytest.raises(PolicyError) as caught:
        read("if == 99999999999999999999 && has(while)")
    assert [problem.message for problem in caught.value.problems] == [
        "`if` is a reserved word",
        "invalid int literal: `99999999999999999999` is out of range",
        "`has()` tests a field: it takes a selection such as `x.y`",
        "`while` is a reserved word",
    ]


def test_back_quoted_names_are_read_where_they_are_allowed():
    node = read("a.`b-c/d.e f`", escaped_identifiers=True)
    assert isinstance(node, Select)
    assert (node.field, unparse(node)) == ("b-c/d.e f", "a.`b-c/d.e f`")


def test_optional_syntax_can_be_off():
    assert refusal("a.?b", optional_syntax=False)[1] == 2
    assert refusal("[?b]", optional_syntax=False)[1] == 1
    assert isinstance(read("a.optMap(x, x)", optional_syntax=False), Call)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 10_000 + "1" + ")" * 10_000,
        "[" * 10_000,
        "{1:" * 10_000,
        "f(" * 10_000,
        "-(" * 10_000 + "1" + ")" * 10_000,
        "a" + ".b" * 10_000,
        "a" + "[0]" * 10_000,
        "a" + ".f()" * 10_000,
        "+".join(["a"] * 10_000),
        "a < " * 10_000 + "a",
        "a ? b : " * 3_000 + "c",
        "[1].map(x, " * 5_000 + "1" + ")" * 5_000,
    ],
)
def test_what_nests_ten_thousand_deep_is_refused_politely(text: str):
    assert refusal(text)[0].startswith("nested too deeply: more than 120")


def test_runs_of_signs_are_no_nesting():
    assert unparse(read("!" * 10_001 + "a")) == "!a"
    assert unparse(read("- " * 10_000 + "a")) == "a"


def test_limits_are_held_and_can_be_changed():
    assert refusal("a" * 100_001)[0] == "too long: 100001 characters, at most 100000 are allowed"
    assert refusal("a && " * 15_000 + "a")[0] == "too long: more than 20000 parts"
    assert refusal("a.b.c", limits=ExpressionLimits(depth=2))[0] == "nested too deeply: more than 2 levels"
    assert height(read("+".join(["a"] * 40), limits=ExpressionLimits(depth=40))) == 40
    assert isinstance(read("[" + "1," * 9_000 + "]"), ListLiteral)


def test_ids_are_unique_and_count_from_one():
    root = read("[1, a.b].all(x, has(x.y) && {'k': x}['k'].f(x) ? true : T{a: -x} == x)")
    ids: list[int] = []
    rest: list[ast.Node] = [root]
    while rest:
        node = rest.pop()
        ids.append(node.id)
        if isinstance(node, ast.MapLiteral):
            rest.extend(node.entries)
        elif isinstance(node, ast.MapEntry):
            rest.extend((node.key, node.value))
        elif isinstance(node, ast.MessageLiteral):
            rest.extend(node.fields)
        elif isinstance(node, ast.FieldInit):
            rest.append(node.value)
        else:
            rest.extend(children(node))  # type: ignore[arg-type]
    assert len(ids) == len(set(ids))
    assert min(ids) >= 1


WORDS = st.sampled_from(
    [
        "a", "b.c", "has(", "x.all(y,", "(", ")", "[", "]", "{", "}", ",", ":", "?", ".", "1", "1u", "-", "!", "&&",
        "||", "==", "in", "'s'", "b'\\x00'", "r'", '"', "if", "null", "`a`", "/", "//", "\n", " ", "1e9", ".5", "true",
        "\\", "=", "T{", "\u2028",
    ],
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=25).map("".join) | st.text(max_size=40))
def test_reading_anything_gives_a_tree_or_a_complaint(text: str):
    try:
        root = read(text, escaped_identifiers=True)
    except PolicyError as error:
        for problem in error.problems:
            assert problem.span is not None
            assert 0 <= problem.span.start <= len(text)
            assert problem.render()
        return
    for node in nodes(root):
        assert 0 <= node.start <= node.position < node.end <= len(text)
    again = unparse(root)
    assert unparse(read(again, escaped_identifiers=True)) == again


def expressions() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(
        ["a", ".b", "1", "-1", "2u", "1.5", "-0.5", "'t'", "b'o'", "null", "true", "x.y", "[]", "{}"],
    )

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        operators = st.sampled_from(["||", "&&", "<", "==", "in", "+", "-", "*", "%"])
        return st.one_of(
            st.tuples(inner, operators, inner).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
            inner.map(lambda each: f"!({each})"),
            inner.map(lambda each: f"-({each})"),
            st.tuples(inner, inner, inner).map(lambda each: f"({each[0]}) ? ({each[1]}) : ({each[2]})"),
            st.tuples(inner, inner).map(lambda each: f"({each[0]})[{each[1]}]"),
            inner.map(lambda each: f"({each}).f"),
            inner.map(lambda each: f"has(({each}).f)"),
            inner.map(lambda each: f"({each}).?f"),
            st.tuples(inner, inner).map(lambda each: f"({each[0]}).g({each[1]})"),
            st.tuples(inner, inner).map(lambda each: f"({each[0]}).map(v, {each[1]})"),
            st.tuples(inner, inner).map(lambda each: f"[{each[0]}, ?({each[1]})]"),
            st.tuples(inner, inner).map(lambda each: f"{{({each[0]}): {each[1]}}}"),
        )

    return st.recursive(leaves, extend, max_leaves=12)


def shape(node: Expr) -> object:
    """A tree without numbers and places, its chains of `&&` and `||` flat."""
    match node:
        case Literal(value=value, unsigned=unsigned):
            return type(value), repr(value), unsigned
        case Call(function="_&&_" | "_||_" as function):
            return function, *terms(node, function)
    own = [
        getattr(node, name)
        for name in ("name", "field", "function", "test", "optional", "macro", "variable", "rooted")
        if hasattr(node, name)
    ]
    return type(node), own, [shape(child) for child in children(node)]


def terms(node: Expr, function: str) -> list[object]:
    if isinstance(node, Call) and node.function == function:
        return [each for child in node.args for each in terms(child, function)]
    return [shape(node)]


@settings(max_examples=200, deadline=None)
@given(expressions())
def test_a_tree_survives_being_spelled_and_read_again(text: str):
    root = read(text)
    assert shape(read(unparse(root))) == shape(root)
