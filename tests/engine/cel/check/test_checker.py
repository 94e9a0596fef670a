import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.check.checked_ast import (
    CallReference,
    Checked,
    DefinitionReference,
    LocalReference,
    TypeReference,
    VariableReference,
    reads_of,
)
from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.environment import (
    Environment,
    Function,
    InvalidLiteralError,
    Overload,
    Scope,
    UnknownArgument,
    Variable,
    validator,
)
from koordpolicy.engine.cel.check.signatures import show
from koordpolicy.engine.cel.library import BINDINGS, STANDARD, table
from koordpolicy.engine.cel.syntax.ast import Call, Comprehension, Select, children
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.types import (
    BOOL,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    NULL,
    STRING,
    TIMESTAMP,
    UINT,
    Field,
    ObjectType,
    Type,
    list_of,
    map_of,
    optional_of,
    type_of,
    variable,
)
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.source import PolicyError, Source

A, B, C = variable("A"), variable("B"), variable("C")


def pair(*parameters: Type) -> Type:
    return Type("pair", parameters)


def overload(name: str, parameters: tuple[Type, ...], result: Type, *, member: bool = False) -> Overload:
    def evaluate(*_: object) -> object:
        raise AssertionError("the checker must not run this")

    return Overload(name, parameters, result, evaluate, member=member, pure=False)


EXTRA = (
    Function("pair", (overload("pair", (A, B), pair(A, B)),)),
    Function("twin", (overload("twin", (pair(A, A),), pair(A, A)),)),
    Function("optional.of", (overload("of", (A,), optional_of(A)),)),
    Function("optional.none", (overload("none", (), optional_of(A)),)),
    Function("orValue", (overload("or_value", (optional_of(A), A), A, member=True),)),
    Function("math.greatest", (overload("greatest", (INT, INT), INT),)),
    Function("quantity", (overload("quantity", (STRING,), Type("kubernetes.Quantity")),)),
    Function("format", (overload("format", (STRING, list_of(DYN)), STRING, member=True),)),
)
TYPES = (
    ObjectType("Node", {
        "name": Field(STRING), "labels": Field(map_of(STRING, STRING)), "ports": Field(list_of(Type("Port"))),
        "created": Field(TIMESTAMP), "memory": Field(Type("ResourceList")), "if": Field(INT),
    }),
    ObjectType("Port", {"name": Field(STRING), "number": Field(INT)}),
    ObjectType("ResourceList", {"cpu": Field(INT), "memory": Field(INT)}, index=INT, absent=0),
)  # fmt: skip
PLAIN = Environment(
    variables={
        each.name: each
        for each in (
            Variable("node", Type("Node")), Variable("pod", DYN, Scope.DECISION),
            Variable("usage", Type("ResourceList")), Variable("limit", INT, Scope.CONSTANT),
            Variable("deep.er", STRING), Variable("names", list_of(STRING)),
            Variable("maybe", optional_of(Type("Node"))),
            Variable("size", INT),
        )
    },
    types={each.name: each for each in TYPES},
    functions=table(STANDARD, BINDINGS, EXTRA),
)  # fmt: skip


def analyze(text: str, environment: Environment = PLAIN, **options: object) -> Checked:
    source = Source("<expression>", text)
    return check(source, parse(source), environment, **options)  # type: ignore[arg-type]


def type_of_text(text: str, environment: Environment = PLAIN) -> str:
    return show(analyze(text, environment).type)


def faults(text: str, environment: Environment = PLAIN, **options: object) -> list[tuple[int, str, str]]:
    """Offset, message and help of every complaint."""
    with pytest.raises(PolicyError) as caught:
        analyze(text, environment, **options)
    return [(each.span.start, each.message, each.help) for each in caught.value.problems if each.span is not None]


def fault(text: str, environment: Environment = PLAIN, **options: object) -> tuple[int, str, str]:
    (only,) = faults(text, environment, **options)
    return only


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 + 2", "int"),
        ("'a' + 'b'", "string"),
        ("pod.spec + 1", "int"),
        ("pod.a + pod.b", "dyn"),
        ("pod.a < 1", "bool"),
        ("1 < 1.5 && 1u <= 2", "bool"),
        ("[1, 2][0]", "int"),
        ("{'a': [1u]}.a[0]", "uint"),
        ("[]", "list(dyn)"),
        ("[] + ['a']", "list(string)"),
        ("[[], [[]], [[[]]]]", "list(list(list(list(dyn))))"),
        ("[[[[]]], [], [[]]]", "list(list(list(list(dyn))))"),
        ("true ? 1 : pod.x", "dyn"),
        ("true ? [] : [1]", "list(int)"),
        ("null", "null"),
        ("node.created == null", "bool"),
        ("node == null", "bool"),
        ("type(1) == int", "bool"),
        ("type(pod.x) == google.protobuf.Timestamp", "bool"),
        ("type(quantity('1')) == kubernetes.Quantity", "bool"),
        ("type(type)", "type(type(type))"),
        ("names.all(n, n != '') && names.exists(i, n, i > 0 && n == 'a')", "bool"),
        ("node.ports.map(p, p.number)", "list(int)"),
        ("node.ports.filter(p, p.number > 1)", "list(Port)"),
        ("node.labels.map(k, k)", "list(string)"),
        ("node.labels.filter(k, k == 'a')", "list(string)"),
        ("node.labels.transformMap(k, v, size(v))", "map(string, int)"),
        ("names.transformMap(i, n, n)", "map(int, string)"),
        ("node.labels.transformList(k, v, 1.5)", "list(double)"),
        ("node.labels.transformMapEntry(k, v, {v: k})", "map(string, string)"),
        ("node.ports.sortBy(p, -p.number)", "list(Port)"),
        ("pod.xs.map(x, x.y)", "list(dyn)"),
        ("([].map(x, x))[0].foo", "dyn"),
        ("cel.bind(x, 1, x + x)", "int"),
        ("node.?name", "optional_type(string)"),
        ("node.?ports[0].number", "optional_type(int)"),
        ("maybe.ports[?0].?name.orValue('x')", "string"),
        ("maybe.optMap(n, n.name)", "optional_type(string)"),
        ("maybe.optFlatMap(n, n.?ports)", "optional_type(list(Port))"),
        ("[?node.?name, 'x']", "list(string)"),
        ("{?'a': node.?name}", "map(string, string)"),
        ("[optional.of(1), null]", "list(optional_type(int))"),
        ("[null, node]", "list(Node)"),
        ("[optional.none(), optional.of(1)]", "list(optional_type(int))"),
        ("[optional.of(1), optional.of(dyn(1))]", "list(optional_type(dyn))"),
        ("has(node.labels.x) && has(pod.a.b) && has(maybe.name)", "bool"),
        ("usage.cpu + usage['example.com/gpu'] + usage['cpu']", "int"),
        ("math.greatest(1, 2)", "int"),
        ("deep.er + 'x'", "string"),
        (".node.name", "string"),
        ("size(names) > size", "bool"),
        ("names.exists(size, size(names) > 0 && size == 'x')", "bool"),
        ("pair(1, 2u)", "pair(int, uint)"),
        ("twin(pair(dyn(1), 2u))", "pair(dyn, dyn)"),
        ("[pair(1, 2u), pair(dyn(1), dyn(2u))]", "list(pair(dyn, dyn))"),
        ("'%s %d'.format(['a', 1])", "string"),
        ("1 in [1, 2] && 'a' in node.labels && 1 in pod.x", "bool"),
        ("node.if", "int"),
        ("[1].exists(y, ['a'].exists(y, y == 'a'))", "bool"),
        ("[{'z': 0}].exists(deep, deep.z == 0)", "bool"),
    ],
)  # fmt: skip
def test_expressions_have_the_types_of_their_parts(text: str, wanted: str):
    environment = PLAIN
    if text.startswith(("[optional.of(1)", "[pair(", "[null")):
        # The conformance suites' setting: mixed elements make a list of the more general type.
        environment = Environment(PLAIN.variables, PLAIN.types, PLAIN.functions, homogeneous_literals=False)
    assert type_of_text(text, environment) == wanted


@pytest.mark.parametrize(
    ("text", "position", "message"),
    [
        ("limit == 1.0", 6, "`==` does not take `int` and `double`"),
        ("[1] == [1.0]", 4, "`==` does not take `list(int)` and `list(double)`"),
        ("node.name == null", 10, "`==` does not take `string` and `null`"),
        ("1 + 1u", 2, "`+` does not take `int` and `uint`"),
        ("-'a'", 0, "`-` does not take `string`"),
        ("!1", 0, "`!` does not take `int`"),
        ("1 && true", 2, "`&&` does not take `int` and `bool`"),
        ("1 < 2 < 3", 6, "`<` does not take `bool` and `int`"),
        ("'a' in 'abc'", 4, "`in` does not take `string` and `string`"),
        ("1 ? 2 : 3", 2, "the condition of `?:` must be bool, not `int`"),
        ("true ? 1 : 'a'", 5, "the branches of `?:` must have one type, not `int` and `string`"),
        ("size(1)", 4, "no overload of `size` takes (int)"),
        ("size()", 4, "no overload of `size` takes ()"),
        ("names.startsWith('a')", 16, "no overload of `startsWith` takes `list(string)`.(string)"),
        ("node.name.orValue(1)", 17, "no overload of `orValue` takes `string`.(int)"),
        ("'abc'[0]", 5, "`string` cannot be indexed with `int`"),
        ("names['a']", 5, "`list(string)` cannot be indexed with `string`"),
        ("node.labels[1]", 11, "`map(string, string)` cannot be indexed with `int`"),
        ("node['name']", 4, "`Node` cannot be indexed with `string`"),
        ("node.ports.name", 10, "`list(Port)` has no fields: cannot read `name`"),
        ("has(limit.x)", 9, "`int` has no fields: cannot read `x`"),
        ("node.nam", 4, "no such field `nam` in `Node`"),
        ("has(node.nam)", 8, "no such field `nam` in `Node`"),
        ("usage.memroy", 5, "no such field `memroy` in `ResourceList`"),
        ("[1, 2.0]", 4, "expected `int`, found `double`"),
        ("[1, dyn(2)]", 7, "expected `int`, found `dyn`"),
        ("{'a': 1, 'b': 'x'}", 14, "expected `int`, found `string`"),
        ("{'a': 1, 1: 2}", 9, "expected `string`, found `int`"),
        ("[1].exists(x, x)", 14, "the condition of `exists` must be bool, not `int`"),
        ("'abc'.all(x, true)", 0, "`all` runs over a list or a map, not `string`"),
        ("node.labels.sortBy(k, k)", 4, "`sortBy` runs over a list, not `map(string, string)`"),
        ("names.sortBy(n, [n])", 16, "`sortBy` cannot order by `list(string)`"),
        ("names.transformMapEntry(i, n, n)", 30, "`transformMapEntry` makes a map with one entry, not `string`"),
        ("names.optMap(x, x)", 12, "`optMap` works on an optional, not on `list(string)`"),
        ("maybe.optFlatMap(x, x.name)", 21, "`optFlatMap` makes an optional, not `string`"),
        ("[?1]", 2, "an element marked with `?` must be optional, not `int`"),
        ("nod.x", 0, "no variable `nod`"),
        (".nod", 1, "no variable `nod`"),
        ("foo(1)", 3, "no function `foo`"),
        ("'a'.foo()", 7, "no function `foo`"),
        ("math.geratest(1, 2)", 13, "no function `math.geratest`"),
        ("limit(1)", 5, "no function `limit`"),
        ("quantity", 0, "no variable `quantity`"),
        ("names.all(n)", 9, "`all` does not take 1 argument"),
        ("Pod{a: 1}", 3, "no message type `Pod`"),
        ("int('x')", 4, "type conversion error from 'string' to 'int'"),
        ("false ? duration('bad') : duration('1s')", 17, None),
    ],
)  # fmt: skip
def test_a_fault_is_told_at_its_place(text: str, position: int, message: str | None):
    found = faults(text)[0]
    assert found[0] == position
    assert message is None or found[1] == message


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nod.x", "did you mean `node`?"),
        ("True", "did you mean `true`?"),
        ("None == 1", "did you mean `null`?"),
        ("!node.name == 'a'", "it negates a bool; a comparison needs parentheses: `!(x == y)`"),
        (
            "usage.memroy",
            'did you mean `memory`? (any other name is written in full and in quotes, as in `["nvidia.com/gpu"]`)',
        ),
        ("node.nam", "did you mean `name`?"),
        ("node.zzz", "it has `created`, `if`, `labels`, `memory`, `name`, `ports`"),
        ("math.geratest(1, 2)", "did you mean `math.greatest`?"),
        ("math.max(1, 2)", "did you mean `math.greatest`?"),
        ("max(1, 2)", "did you mean `math.greatest`?"),
        ("len([1])", "did you mean `size`?"),
        ("not(true)", "did you mean `!(...)`?"),
        ("limit == 1.0", "convert one side, as in `double(x) == y`"),
        ("node.name == null", "that is never null; `has(x.y)` tests whether a field is there"),
        ("-'a'", "there is `-int -> int`, `-double -> double`"),
        ("math.greatest('a', 1)", "there is `math.greatest(int, int) -> int`"),
        ("startsWith('a', 'b')", "there is `string.startsWith(string) -> bool`"),
        ("quantity", "`quantity` is a function: call it"),
        ("limit(1)", "`limit` is a variable, not a function"),
        ("names.all(n)", "as in `list.all(x, x > 0)`"),
    ],
)
def test_a_fault_says_what_to_do(text: str, wanted: str):
    assert faults(text)[0][2] == wanted


def test_all_faults_are_told_once_and_nothing_of_what_is_built_on_them():
    text = "node.nam + 1 > 2 &&\n nod.x.all(y, y.z == zz) || size(node.foo[0].bar, 1) + !3 == 7"
    assert [(at, message) for at, message, _ in faults(text)] == [
        (4, "no such field `nam` in `Node`"),
        (21, "no variable `nod`"),
        (41, "no variable `zz`"),
        (57, "no such field `foo` in `Node`"),
        (75, "`!` does not take `int`"),
    ]


@pytest.mark.parametrize("text", ["amounts.capacity['cpu'] > 4", "4 < amounts.capacity.cpu"])
def test_who_compares_an_amount_with_a_number_is_told_of_the_ready_numbers(text: str):
    amounts = Variable("amounts", map_of(STRING, map_of(STRING, STRING)))
    environment = Environment({"amounts": amounts}, PLAIN.types, PLAIN.functions)
    _, _, help_ = fault(text, environment)
    assert help_.startswith("API objects hold amounts as strings; `allocatable.cpu`")


def test_a_variable_or_param_of_the_document_without_its_prefix_is_suggested_with_it():
    params = Variable("params", Type("Params"))
    environment = Environment(
        {**PLAIN.variables, "params": params},
        {**PLAIN.types, "Params": ObjectType("Params", {"quantity": Field(INT), "limt": Field(INT)})}, PLAIN.functions,
    ).with_definition("nod", analyze("1"))
    # Before a function of that name, and before a variable with a similar one.
    assert [fault(text, environment)[2] for text in ("nod", "quantity", "limt", "nodes")] == [
        "did you mean `variables.nod`?", "did you mean `params.quantity`?", "did you mean `params.limt`?",
        "did you mean `node`?",
    ]


def test_mixed_literals_are_looked_at_in_sound_expressions_only():
    assert [message for _, message, _ in faults("[1, 'a'] == nod")] == ["no variable `nod`"]
    assert type_of_text("'%s'.format([1, 'a', {'k': [1, 'x']}])") == "string"
    assert analyze("[1, 'a']", lenient=True).type == list_of(DYN)


@pytest.mark.parametrize(
    ("text", "expected", "wanted"),
    [
        ("limit", BOOL, ("must be bool, not int", "compare it with something")),
        ("pod.x", BOOL, ("must be bool, not dyn", "its type is only known at run time: write `== true`")),
        ("1.5", INT, ("must be int, not double", "write `int(...)`, which truncates")),
        (
            "pod.x", (INT, DOUBLE),
            ("must be int or double, not dyn", "its type is only known at run time: write `int(...)`"),
        ),
        ("1", (BOOL, DYN), ("must be bool, not int", "compare it with something")),
        ("true", (INT, DOUBLE), ("must be int or double, not bool", "`condition ? 1 : 0` makes a number of it")),
    ],
)
def test_a_result_of_another_type_is_refused(text: str, expected: Type, wanted: tuple[str, str]):
    at, message, help_ = fault(text, expected=expected)
    assert (at, message, help_) == (0, *wanted)


def test_a_result_of_the_wanted_type_is_taken():
    assert analyze("limit > 1", expected=BOOL).type == BOOL
    assert analyze("pod.x", expected=(BOOL, DYN)).type == DYN
    assert analyze("[pod.x]", expected=list_of(STRING)).type == list_of(DYN)
    assert analyze("1", expected=(DYN,)).type == INT


def test_names_are_found_from_the_innermost_out():
    environment = Environment(
        variables={name: Variable(name, type_) for name, type_ in
                   (("a.b.x", INT), ("a.x", STRING), ("x", BOOL), ("y", DOUBLE))},
        functions=PLAIN.functions,
        container="a.b",
    )  # fmt: skip
    assert [type_of_text(text, environment) for text in ("x", ".x", "y", ".a.x", "a.x", "b.x")] == [
        "int", "bool", "double", "string", "string", "int",
    ]  # fmt: skip
    assert type_of_text("['s'].map(x, x)", environment) == "list(string)"
    assert type_of_text("['s'].map(x, .x)", environment) == "list(bool)"


def test_the_longest_declared_name_wins():
    environment = PLAIN.with_variables(Variable("node.labels", INT), Variable("node.labels.deep", BOOL))
    assert type_of_text("node.labels", environment) == "int"
    assert type_of_text("node.labels.deep", environment) == "bool"
    assert type_of_text("node.name", environment) == "string"


def test_definitions_are_read_by_name():
    environment = PLAIN.with_definition("cpu", analyze("usage.cpu * 100"))
    environment = environment.with_definition("hot", analyze("variables.cpu > limit", environment))
    checked = analyze("variables.hot && pod.x == 1", environment)
    assert checked.type == BOOL
    assert checked.reads == {("usage", "cpu"), ("limit",), ("pod", "x")}
    assert checked.scope is Scope.ROW
    assert DefinitionReference("hot") in checked.references.values()
    assert fault("variables.hto", environment) == (9, "no variable `variables.hto`", "did you mean `hot`?")
    assert fault("variables", environment)[1:] == (
        "`variables` has no value of its own", "name one of them, as in `variables.cpu`",
    )
    assert fault("has(variables.cpu)", environment)[1] == "`variables.cpu` is declared: it need not be tested"
    assert fault("variables.x") == (
        0, "no variable `variables`", "there are `deep.er`, `limit`, `maybe`, `names`, `node`, `pod`, `size`, `usage`",
    )


def test_every_reference_is_kept():
    checked = analyze("names.all(n, n == deep.er) && math.greatest(1, 2) > 0 && type(limit) == int")
    references = set(map(str, checked.references.values()))
    kinds = {type(each) for each in checked.references.values()}
    assert kinds == {VariableReference, LocalReference, CallReference, TypeReference}
    assert str(TypeReference(INT)) in references
    assert [each.qualified for each in checked.references.values() if isinstance(each, CallReference)].count(True) == 1


def test_static_types_choose_one_overload_and_dyn_leaves_several():
    def chosen(text: str) -> list[str]:
        checked = analyze(text)
        reference = checked.references[checked.root.id]
        assert isinstance(reference, CallReference)
        return [each.id for each in reference.overloads]

    assert chosen("1 + 2") == ["add_int64"]
    assert chosen("pod.x * 2") == ["multiply_int64"]
    assert chosen("pod.x * pod.y") == ["multiply_int64", "multiply_uint64", "multiply_double"]
    assert chosen("size(pod.x)") == ["size_string", "size_bytes", "size_list", "size_map"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "node.labels['a.b/c'] == pod.metadata.labels.x",
            {("node", "labels", "a.b/c"), ("pod", "metadata", "labels", "x")},
        ),
        ("node.ports[0].name", {("node", "ports")}),
        ("node.ports[limit].name", {("node", "ports"), ("limit",)}),
        ("node.labels[pod.x]", {("node", "labels"), ("pod", "x")}),
        ("has(node.labels.x)", {("node", "labels", "x")}),
        ("pod.?a[?'b'].c", {("pod", "a", "b", "c")}),
        ("node.ports.all(p, p.name in pod.names)", {("node", "ports"), ("pod", "names")}),
        ("cel.bind(m, pod.metadata, m.labels.x)", {("pod", "metadata")}),
        ("deep.er + deep.er", {("deep.er",)}),
        ("1 + 2", set()),
        ("node", {("node",)}),
        ("math.greatest(limit, usage.cpu)", {("limit",), ("usage", "cpu")}),
    ],
)
def test_reads_are_exact_paths(text: str, wanted: set[tuple[str, ...]]):
    assert analyze(text).reads == wanted


def test_every_part_has_a_scope_and_its_own_reads():
    checked = analyze("node.ports.exists(p, p.number == pod.port + limit * 2)")
    root = checked.root
    assert isinstance(root, Comprehension)
    assert isinstance(root.predicate, Call)
    number, total = root.predicate.args
    assert isinstance(total, Call)
    assert [checked.scopes[each.id] for each in (root, root.predicate, number, total, total.args[1])] == [
        Scope.ROW, Scope.ROW, Scope.ROW, Scope.DECISION, Scope.CONSTANT,
    ]  # fmt: skip
    assert [checked.locals.get(each.id) for each in (root, root.range, root.predicate, number, total)] == [
        None, None, {"p"}, {"p"}, None,
    ]  # fmt: skip
    assert reads_of(checked, total) == {("pod", "port"), ("limit",)}
    assert reads_of(checked, root.predicate) == {("pod", "port"), ("limit",)}
    assert reads_of(checked, root) == checked.reads == {("node", "ports"), ("pod", "port"), ("limit",)}


def test_a_local_has_the_scope_of_what_it_ranges_over():
    checked = analyze("pod.xs.all(x, [1].all(y, x == y))")
    assert checked.scope is Scope.DECISION
    inner = children(checked.root)[1]
    assert checked.locals[inner.id] == {"x"}
    assert checked.locals[children(inner)[1].id] == {"x", "y"}


def test_comprehensions_nest_to_the_limit_only():
    environment = Environment(PLAIN.variables, PLAIN.types, PLAIN.functions, limits=ExpressionLimits(comprehensions=1))
    assert type_of_text("names.all(a, true) && names.filter(a, true).all(b, true)", environment) == "bool"
    assert fault("names.all(a, names.all(b, true))", environment)[:2] == (22, "comprehensions nest more than 1 deep")


def test_calls_with_literals_that_can_only_fail_are_refused():
    def read(text: str) -> str:
        if text != "good":
            raise EvaluationError("no good")
        return text

    def look(arguments: tuple[object, ...]) -> None:
        assert arguments[0] == UnknownArgument(STRING)
        if arguments[1] == ["a", UnknownArgument(INT), 3]:
            raise InvalidLiteralError("three", 1, 2)

    environment = PLAIN.with_functions(
        Function("read", (Overload("read", (STRING,), STRING, read),)),
        Function(
            "match",
            (Overload("match", (STRING, STRING), BOOL, lambda *_: True, member=True, validate=validator(1, read)),),
        ),
        Function(
            "look", (Overload("look", (STRING, list_of(DYN)), BOOL, lambda *_: True, member=True, validate=look),),
        ),
    )  # fmt: skip
    assert type_of_text("read('good') + read(node.name)", environment) == "string"
    assert fault("true || read('bad') == 'x'", environment)[:2] == (13, "no good")
    assert fault("node.name.match('bad')", environment)[:2] == (16, "no good")
    assert type_of_text("node.name.match('good')", environment) == "bool"
    assert fault("node.name.look(['a', limit, 3])", environment)[:2] == (28, "three")
    assert type_of_text("true ? 1 : 1 / 0") == "int"


def test_a_lenient_check_leaves_types_to_run_time():
    checked = analyze("1 + 'a' == 2.0 || !1 || [1, 'x'][true]", lenient=True)
    assert isinstance(checked.root, Call)
    with pytest.raises(PolicyError):
        analyze("nod == 1", lenient=True)


def test_deep_trees_are_checked():
    text = "+".join(["limit"] * 119)
    assert type_of_text(text) == "int"
    assert type_of_text("[" * 119 + "]" * 119).startswith("list(list(")


def test_the_name_of_a_type_is_a_value():
    checked = analyze("list")
    assert checked.references[checked.root.id] == TypeReference(Type("list"))
    assert checked.type == type_of(list_of(DYN))
    assert analyze("null_type").references == {1: TypeReference(NULL)}
    assert analyze("Node").type == type_of(Type("Node"))


def test_fields_keep_the_place_of_their_dot():
    checked = analyze("node.\n  labels\n .x")
    assert isinstance(checked.root, Select)
    assert checked.types[checked.root.id] == STRING
    assert UINT not in checked.types.values()


PARTS = st.sampled_from(
    [
        "node", "pod.x", "names", "usage.cpu", "limit", "1", "2u", "1.5", "'s'", "null", "[]", "{}", "maybe", "nod",
        "int", "node.ports", "optional.none()", "deep.er", "[1, 'a']",
    ],
)  # fmt: skip


def mixtures(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["||", "&&", "<", "==", "in", "+", "-"])
    return st.one_of(
        st.tuples(inner, operators, inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
        st.tuples(inner, inner, inner).map(lambda each: f"({each[0]} ? {each[1]} : {each[2]})"),
        st.tuples(inner, inner).map(lambda each: f"{each[0]}[{each[1]}]"),
        inner.map(lambda each: f"({each}).name"),
        inner.map(lambda each: f"({each}).?name"),
        st.tuples(inner, inner).map(lambda each: f"({each[0]}).map(v, [v, {each[1]}])"),
        st.tuples(inner, inner).map(lambda each: f"({each[0]}).transformMap(i, v, {each[1]})"),
        st.tuples(inner, inner).map(lambda each: f"({each[0]}).optMap(v, v == {each[1]})"),
        st.tuples(inner, inner).map(lambda each: f"pair({each[0]}, {each[1]})"),
        inner.map(lambda each: f"twin({each})"),
        inner.map(lambda each: f"size({each})"),
    )


@settings(max_examples=200, deadline=None)
@given(st.recursive(PARTS, mixtures, max_leaves=10))
def test_checking_anything_gives_types_or_complaints(text: str):
    try:
        checked = analyze(text)
    except PolicyError as error:
        told = error.problems
        assert all(each.span is not None and each.message and each.code.startswith("cel-") for each in told)
        return
    rest = [checked.root]
    while rest:
        node = rest.pop()
        if not isinstance(checked.references.get(node.id), VariableReference | DefinitionReference | TypeReference):
            reference = checked.references.get(node.id)
            qualified = isinstance(reference, CallReference) and reference.qualified
            rest.extend(node.args if qualified and isinstance(node, Call) else children(node))
        assert not checked.types[node.id].variable
        assert checked.types[node.id].name != "*error*"
        assert node.id in checked.scopes


def test_texts_that_stand_for_times_and_comparisons_that_do_not_chain_are_explained():
    environment = PLAIN.with_variables(Variable("when", TIMESTAMP), Variable("span", DURATION))
    assert fault("when > '2026-01-01T00:00:00Z'", environment)[2] == (
        "a string is not a timestamp: `timestamp('2026-01-31T12:00:00Z')` converts one"
    )
    assert fault("span < '1h'", environment)[2] == "a string is not a duration: `duration('1h30m')` converts one"
    assert fault("1 < 2 < 3", environment)[2] == "comparisons do not chain: write `a < b && b < c`"


def test_what_conversions_make_of_constants_is_known_before_an_expression_runs():
    assert fault("true || int(dyn('x')) == 1")[1] == "type conversion error from 'string' to 'int'"
    assert fault("false && 'a'.matches(string(dyn('(')))")[1].startswith("error parsing regexp")
    assert type_of_text("true || 1 / 0 > 0") == "bool"


def test_binds_are_available_where_the_environment_says_so():
    bare = Environment(functions=table(STANDARD))
    assert fault("1 + cel.bind(x, 1, x)", bare)[:2] == (4, "`cel.bind` is not available here")
