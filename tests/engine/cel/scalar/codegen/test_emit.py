from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.check.environment import Environment, Variable
from koordpolicy.engine.cel.library import BINDINGS, LISTS, MATH, OPTIONALS, STANDARD, STRINGS, table
from koordpolicy.engine.cel.scalar.codegen.emit import emit
from koordpolicy.engine.cel.scalar.codegen.writer import RefusedError
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.values.types import (
    BOOL,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    Field,
    ObjectType,
    Type,
    list_of,
    map_of,
)
from koordpolicy.engine.cel.values.values import TRUE_KEY, EvaluationError, Timestamp, equal
from koordpolicy.engine.source import PolicyError

RESOURCES = ObjectType("resources", {"cpu": Field(INT), "memory": Field(INT)}, index=INT, absent=0)
PORT = ObjectType("Port", {"name": Field(STRING), "number": Field(INT)})
THING = ObjectType(
    "Thing",
    {
        "name": Field(STRING), "count": Field(INT), "ratio": Field(DOUBLE), "on": Field(BOOL), "any": Field(DYN),
        "tags": Field(list_of(STRING)), "labels": Field(map_of(STRING, STRING)), "ports": Field(list_of(Type("Port"))),
        "inner": Field(Type("Thing")), "requests": Field(Type("resources")), "created": Field(TIMESTAMP),
        "age": Field(DURATION), "numbers": Field(list_of(INT)),
    },
)
ENVIRONMENT = (
    Environment(functions=table(STANDARD, STRINGS, MATH, LISTS, OPTIONALS, BINDINGS))
    .with_types(THING, PORT, RESOURCES)
    .with_variables(Variable("a", Type("Thing")), Variable("b", Type("Thing")), Variable("d", DYN), Variable("n", INT))
)


def answer(program: Program, values: Mapping[str, object]) -> tuple[str, object]:
    try:
        return "value", program.evaluate(values)
    except EvaluationError as error:
        return "error", (error.message, error.offset)


def exact(program: Program, values: Mapping[str, object]) -> tuple[str, object]:
    try:
        return "value", program.metered(values)[0]
    except EvaluationError as error:
        return "error", (error.message, error.offset)


def same(left: tuple[str, object], right: tuple[str, object]) -> bool:
    if left[0] != right[0]:
        return False
    if left[0] == "error":
        return left == right
    if isinstance(left[1], float) and isinstance(right[1], float) and math.isnan(left[1]):
        return math.isnan(right[1])
    return left[1].__class__ is right[1].__class__ and equal(left[1], right[1])


ints = st.sampled_from(["0", "1", "2", "-3", "9223372036854775807", "n", "a.count", "b.count", "a.requests.cpu",
                        "b.requests['gpu']", "a.inner.count", "a.numbers[1]", "size(a.tags)", "b.requests.memory"])
doubles = st.sampled_from(["0.0", "1.5", "-2.5", "a.ratio", "b.ratio", "double(a.count)"])
texts = st.sampled_from(
    ["''", "'a'", "'b'", "a.name", "b.name", "a.labels.x", "a.labels['y']", "a.tags[0]", "b.tags[n]"],
)
anys = st.sampled_from(["d", "d.x", "d.y", "d['x']", "a.any", "dyn(1)", "dyn('a')", "dyn(1.0)", "d[0]"])
lists = st.sampled_from(["a.tags", "b.tags", "['a', 'b']", "[a.name]"])
loops = st.sampled_from(["all", "exists", "exists_one"])


def conditions(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(children, children)
    return st.one_of(
        pair.map(lambda p: f"({p[0]} && {p[1]})"),
        pair.map(lambda p: f"({p[0]} || {p[1]})"),
        children.map(lambda p: f"!({p})"),
        st.tuples(children, children, children).map(lambda p: f"({p[0]} ? {p[1]} : {p[2]})"),
        st.tuples(loops, lists, children).map(lambda p: f"{p[1]}.{p[0]}(x, x == 'a' || {p[2]})"),
        st.tuples(loops, children).map(lambda p: f"a.ports.{p[0]}(x, x.number > 1 && {p[1]})"),
        st.tuples(loops, children).map(lambda p: f"a.ports.{p[0]}(x, b.ports.exists(y, y.name == x.name || {p[1]}))"),
        st.tuples(loops, children).map(lambda p: f"a.labels.{p[0]}(k, v, k == v || {p[1]})"),
        st.tuples(loops, anys, children).map(lambda p: f"{p[1]}.{p[0]}(x, x == 1 || {p[2]})"),
        children.map(lambda p: f"a.ports.filter(x, x.number >= n && {p}).map(x, x.name).size() > 0"),
        children.map(lambda p: f"a.numbers.map(x, {p}, x + n).exists(x, x > 2)"),
        children.map(lambda p: f"cel.bind(v, a.count + 1, v > 1 && {p})"),
    )


arithmetic = st.recursive(
    ints, lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
    max_leaves=4,
)
relation = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
leaves = st.one_of(
    st.tuples(arithmetic, relation, arithmetic).map(" ".join),
    st.tuples(doubles, relation, doubles).map(" ".join),
    st.tuples(arithmetic, st.sampled_from(["<", ">="]), doubles).map(" ".join),
    st.tuples(texts, relation, texts).map(" ".join),
    st.tuples(anys, relation, st.one_of(anys, texts, ints)).map(" ".join),
    st.tuples(texts, lists).map(lambda p: f"{p[0]} in {p[1]}"),
    st.tuples(texts, st.sampled_from(["contains", "startsWith", "endsWith"]), texts).map(
        lambda p: f"{p[0]}.{p[1]}({p[2]})",
    ),
    st.sampled_from(
        [
            "a.on", "b.on", "has(a.name)", "has(a.inner)", "has(a.labels.x)", "has(d.x)", "has(d.x.y)", "true",
            "has(a.inner.requests)", "'x' in a.labels", "d.x", "a.inner == null", "d.y == null", "a == b",
            "a.created < b.created", "a.age > duration('1h')", "b.created - a.created > a.age",
            "a.?inner.?name.orValue('z') == 'z'", "a.?inner.labels.?x.orValue('z') == 'a'", "d.?x.?y.orValue(1) == 1",
            "a.?count.orValue(b.count) > 1", "a.labels.?x.orValue(a.name) == 'b'", "a.name.matches('^[ab]$')",
            "a.?labels[?'x'].orValue('z') == 'a'", "a.labels[?b.name].orValue(b.name) == 'b'",
            "d[?'x'][?n].orValue(1) == 1",
            "d.?x['y'].orValue(n) == 1", "d[?d.x].orValue(d.y) == 1", "a.?tags[?n].orValue(a.name) == 'b'",
            "a.ports[?0].?name.orValue('z') == 'a'", "a.?inner.ports[n].number.orValue(2) > 1",
            "a.?requests[?'gpu'].orValue(3) > 2", "a.requests[?b.name].orValue(3) > 2", "d.?x[?'y'].?x.orValue(0) == 1",
            "a.numbers[?size(a.numbers) - n].orValue(n) > 1",
            "n in a.numbers", "1 in d", "has(d.x) && d.x == 'a'", "!has(d.x) || d.x == d.y",
            "has(d.x.y) ? d.x.y : d.x",
            "has(a.name) && a.name == 'a'", "!has(a.count) || a.count > n", "has(a.any) && a.any == 1",
            "has(a.labels.x) ? a.labels.x == 'a' : a.labels.x == null",
            "has(a.ratio) && a.ratio < 1.0 && a.ratio > 0.1",
            "has(a.inner) && has(a.inner.name) && a.inner.name == b.name", "d.x - d.y > n", "(d.x - 1) * 2 / n >= d.y",
            "d.x * n % d.y == 0", "d.x + d.y == d.z", "d.exists(k, d[k] == d.x)", "d.all(k, k in d.x)",
            "d.x in ['a', 'b']",
        ],
    ),
)
expressions = st.recursive(leaves, conditions, max_leaves=6)

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from([1.0, 1.5, math.nan]),
    st.sampled_from(["a", "b", ""]),
)
wild = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xy"), inner, max_size=2)),
    max_leaves=4,
)


def field(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly what was declared."""
    return st.one_of(good, good, good, good, wild)


def thing(depth: int = 1) -> st.SearchStrategy[Any]:
    parts: dict[str, st.SearchStrategy[Any]] = {
        "name": field(st.sampled_from(["a", "b"])), "count": field(st.one_of(st.integers(-3, 5), st.just(2**63 - 1))),
        "ratio": field(st.one_of(st.sampled_from([0.5, math.nan, math.inf]), st.integers(0, 2))),
        "on": field(st.booleans()),
        "any": wild, "tags": field(st.lists(field(st.sampled_from(["a", "b"])), max_size=3)),
        "labels": field(st.dictionaries(st.sampled_from("xy"), field(st.sampled_from("ab")), max_size=2)),
        "ports": field(
            st.lists(
                field(
                    st.fixed_dictionaries(
                        {}, optional={"name": field(st.sampled_from("ab")), "number": field(st.integers(0, 3))},
                    ),
                ),
                max_size=3,
            ),
        ),
        "requests": field(
            st.dictionaries(st.sampled_from(["cpu", "memory", "gpu"]), field(st.integers(0, 4)), max_size=3),
        ),
        "created": field(st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00+02:00"])),
        "age": field(st.sampled_from(["1h", "90m", "-5s"])),
        "numbers": field(st.lists(field(st.integers(-1, 3)), max_size=3)),
    }
    if depth:
        parts["inner"] = field(thing(depth - 1))
    return st.fixed_dictionaries({}, optional=parts)


@settings(max_examples=200, deadline=None)
@given(expressions, field(thing()), field(thing()), wild, field(st.integers(-2, 3)))
def test_the_emitted_function_answers_as_the_exact_evaluator_does(
    text: str, a: object, b: object, d: object, n: object,
) -> None:
    try:
        program = compile_program(text, ENVIRONMENT)
    except PolicyError:
        return
    values = {"a": a, "b": b, "d": d, "n": n}
    assert same(answer(program, values), exact(program, values)), text


def emitted(text: str) -> bool:
    """Return whether an expression gets an emitted function at all."""
    program = compile_program(text, ENVIRONMENT)
    try:
        emit(program.checked, program.variables, lambda *_: pytest.fail("handed over"))
    except RefusedError:
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [
        "a.count + 1 > b.requests.cpu && a.name == 'x' || !a.on", "a.ports.all(p, b.ports.exists(q, q.name == p.name))",
        "a.?inner.?name.orValue('z') == a.?name.orValue('y')",
        "a.?inner.?labels[?'x'].orValue('z') == a.labels[?b.name].orValue('y')",
        "d.?x['y'].orValue(0) == a.ports[?0].?number.orValue(1)",
        "has(a.inner) ? a.inner.ratio < 0.5 : a.tags.filter(t, t.startsWith('x')).size() == 0",
        "a.labels.exists(k, v, k in b.labels && b.labels[k] == v)", "d.x > 3 && d['y'] in d.z",
        "cel.bind(x, a.count, x * x)",
    ],
)
def test_ordinary_policies_are_emitted(text: str) -> None:
    assert emitted(text)


def test_the_ordinary_case_is_not_handed_over() -> None:
    program = compile_program("a.count * 100 / b.count >= 50 && a.labels['x'] == 'y'", ENVIRONMENT)
    rule = emit(program.checked, program.variables, lambda *_: pytest.fail("handed over"))
    assert rule({"count": 3, "labels": {"x": "y"}}, {"count": 6}) is True


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("d.x - d.y", 1.5), ("(d.x - d.y) * 2.0 >= d.y", True), ("has(d.z) || d.x > 1.0", True),
        ("!has(d.z) || d.z > 1.0", True), ("has(d.text) && d.text == 'a' ? d.text : 'b'", "a"),
        ("d.items.exists(each, each == d.text)", True),
        ("d.map.all(key, key in d.map && d.map[key] == d.map[key])", True),
        ("d.text == d.x", False), ("d.x in ['a', 'b']", False),
    ],
)
def test_values_of_other_kinds_than_the_usual_ones_are_not_handed_over(text: str, value: object) -> None:
    program = compile_program(text, ENVIRONMENT)
    rule = emit(program.checked, program.variables, lambda *_: pytest.fail("handed over"))
    assert rule({"x": 3.5, "y": 2.0, "text": "a", "items": [1, "a"], "map": {"k": 1}}) == value


class Unmeasured(dict[str, int]):
    def get(self, key: str, default: object = None) -> Any:
        raise EvaluationError("no metric", reason="NoMetric")

    __getitem__ = get


def test_an_error_of_an_input_comes_through_with_its_reason_and_a_place() -> None:
    program = compile_program("1 < a.requests.cpu", ENVIRONMENT)
    with pytest.raises(EvaluationError) as caught:
        program.call({"requests": Unmeasured()})
    assert (caught.value.message, caught.value.reason, caught.value.offset) == ("no metric", "NoMetric", 14)


def test_a_shared_error_does_not_keep_a_growing_traceback() -> None:
    shared = EvaluationError("no metric", reason="NoMetric")

    class Shared(dict[str, int]):
        def get(self, key: str, default: object = None) -> Any:
            raise shared.at(-1)

    program = compile_program("a.requests.cpu", ENVIRONMENT)
    for _ in range(3):
        with pytest.raises(EvaluationError):
            program.call({"requests": Shared()})
    assert shared.__traceback__ is None


@pytest.mark.parametrize(
    ("text", "thing_", "message"),
    [
        ("a.count == 1", {"count": "1"}, "no such overload: expected int, found string"),
        ("a.count == 1", {"count": True}, "no such overload: expected int, found bool"),
        ("a.count == 1", {}, "no such key: count"),
        ("a.count == 1", {"count": None}, "no such key: count"),
        ("a.name.contains('x')", {"name": ["x"]}, "no such overload: expected string, found list"),
        ("a.tags[0] == 'x'", {"tags": "xyz"}, "no such overload: expected list, found string"),
        ("a.tags[-1] == 'x'", {"tags": ["x"]}, "index out of bounds: -1"),
        ("'x' in a.labels", {"labels": "xyz"}, "no such overload: expected map, found string"),
        ("a.ports.all(p, p.number > 0)", {"ports": "xyz"}, "no such overload: expected list, found string"),
        ("a.inner.name == 'x'", {"inner": "xyz"}, "no such overload: expected map, found string"),
        ("a.count + 9223372036854775807 > 0", {"count": 1}, "integer overflow"),
        ("-2 - a.any > 0", {"any": 2**63 - 1}, "integer overflow"),
        ("a.any - 1 > 0", {"any": True}, "no such overload"),
        ("a.any - a.count > 0", {"any": "x", "count": 1}, "no such overload"),
        ("has(a.any.x) && a.any.x == 1", {"any": [1]}, "unsupported index type 'string' in list"),
        ("has(a.name) && a.name == 'x'", {"name": 1}, "no such overload: expected string, found int"),
        ("1 / a.count > 0", {"count": 0}, "division by zero"),
        ("1 % a.count > 0", {"count": 0}, "modulus by zero"),
        ("a.ratio < 1.0", {"ratio": math.nan}, "NaN values cannot be ordered"),
        (
            "a.created < timestamp(0)", {"created": "yesterday"},
            "`yesterday` is not a timestamp: write it as 2006-01-02T15:04:05Z",
        ),
    ],
)
def test_a_malformed_object_is_an_error_and_never_an_answer(text: str, thing_: object, message: str) -> None:
    program = compile_program(text, ENVIRONMENT)
    with pytest.raises(EvaluationError) as caught:
        program.call(thing_)
    assert caught.value.message == message
    assert caught.value.offset >= 0


@pytest.mark.parametrize(
    ("text", "thing_", "value"),
    [
        ("a.requests.cpu", {"requests": {}}, 0),
        ("a.requests['nvidia.com/gpu']", {"requests": {"nvidia.com/gpu": 2}}, 2),
        ("a.ratio", {"ratio": 2}, 2.0), ("-7 / a.count", {"count": 2}, -3), ("-7 % a.count", {"count": 2}, -1),
        ("7 % a.count", {"count": -2}, 1), ("a.created", {"created": "1970-01-01T00:00:01Z"}, Timestamp(10**9)),
        ("has(a.inner)", {"inner": None}, False), ("has(a.labels.x)", {"labels": {"x": None}}, True),
        ("a.count > 0 || a.on", {"on": True}, True), ("a.on && a.count > 0", {"on": False}, False),
        ("a.count > 0 && a.on", {"on": False}, False), ("a.count - 1", {"count": -(2**63) + 1}, -(2**63)),
        ("a.count + 1", {"count": 2**63 - 2}, 2**63 - 1), ("a.any - 1", {"any": -(2**63) + 1}, -(2**63)),
        ("a.any - 1.5", {"any": 2.0}, 0.5), ("a.any in ['a', 'b']", {"any": 1}, False),
        ("a.any in ['a', 'b']", {"any": ["a"]}, False), ("a.any.exists(k, k)", {"any": {TRUE_KEY: 1}}, True),
        ("a.tags.all(t, t.size() > 1)", {"tags": ["ab", 1, "c"]}, False),
    ],
)
def test_values_are_those_of_the_specification(text: str, thing_: object, value: object) -> None:
    program = compile_program(text, ENVIRONMENT)
    found = program.call(thing_)
    assert (found, type(found)) == (value, type(value))


def test_a_definition_is_evaluated_at_most_once_and_only_when_it_is_needed() -> None:
    cpu = compile_program("a.count * 2", ENVIRONMENT)
    environment = ENVIRONMENT.with_definition("cpu", cpu.checked)
    twice = compile_program("variables.cpu + 1", environment)
    environment = environment.with_definition("more", twice.checked)
    program = compile_program(
        "a.on && (variables.more > 3 || variables.cpu == 0) && variables.more + variables.cpu > 0", environment,
    )
    assert program.variables == ("a",)
    reads: list[str] = []

    class Watched(dict[str, object]):
        def __getitem__(self, key: str) -> object:
            reads.append(key)
            return super().__getitem__(key)

    assert program.call(Watched(on=True, count=5)) is True
    assert reads.count("count") == 1
    reads.clear()
    assert program.call(Watched(on=False, count=5)) is False
    assert reads == ["on"]


def test_a_failed_definition_is_the_error_of_who_reads_it() -> None:
    checked = compile_program("a.count * 2", ENVIRONMENT).checked
    program = compile_program("true && variables.cpu > 1", ENVIRONMENT.with_definition("cpu", checked))
    with pytest.raises(EvaluationError) as caught:
        program.call({})
    assert (caught.value.message, caught.value.offset) == ("no such key: count", 17)


def test_a_runaway_comprehension_is_stopped_and_cannot_be_absorbed() -> None:
    program = compile_program(
        "a.numbers.all(x, a.numbers.all(y, a.numbers.all(z, x + y + z >= 0))) || true", ENVIRONMENT,
    )
    with pytest.raises(EvaluationError) as caught:
        program.call({"numbers": list(range(1000))})
    assert (caught.value.reason, caught.value.final) == ("CostLimit", True)


def test_texts_that_double_are_stopped() -> None:
    text = "a.name"
    for number in range(40):
        text = f"cel.bind(x{number}, {text}, x{number} + x{number})"
    environment = replace(ENVIRONMENT, limits=ExpressionLimits(cost=100_000))
    with pytest.raises(EvaluationError, match="cost limit"):
        compile_program(f"size({text}) > 0", environment).call({"name": "a" * 100})


def test_no_name_of_an_expression_reaches_python() -> None:
    program = compile_program("d.__class__ == 1 || d.x.__init__.__globals__ == 2", ENVIRONMENT)
    with pytest.raises(EvaluationError, match="no such key: __class__"):
        program.call({"x": {}})


def test_not_even_a_strange_input_gets_a_python_error_through() -> None:
    class Strange(dict[str, object]):
        def get(self, key: str, default: object = None) -> Any:
            raise RuntimeError if key == "runtime" else ZeroDivisionError

        __getitem__ = get

    for thing_ in (Strange(), object(), 10**400, {"ratio": 10**400}):
        with pytest.raises(EvaluationError):
            compile_program("a.ratio > 1.0", ENVIRONMENT).call(thing_)
