import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.check.environment import Environment, Function, Overload, Scope, Variable
from koordpolicy.engine.cel.library import MATH, STANDARD, table
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.values.types import BOOL, DOUBLE, DYN, INT, STRING, Field, ObjectType, list_of, map_of
from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.bound_plan import SelectedRows
from koordpolicy.engine.cel.vector.plan import evaluate, plan_of
from koordpolicy.engine.cel.vector.row_frame import RowFrame

ROW_TYPE = ObjectType("test.Row", {
    "a": Field(INT), "b": Field(INT), "x": Field(DOUBLE), "y": Field(DOUBLE), "f": Field(BOOL), "s": Field(STRING),
    "m": Field(map_of(STRING, INT)), "l": Field(list_of(INT)), "d": Field(DYN), "e": Field(DYN),
})
AMOUNTS = ObjectType("test.Amounts", {"cpu": Field(INT), "memory": Field(INT)}, index=INT, absent=0)


def environment():
    base = Environment(functions=table((*STANDARD, *MATH))).with_types(ROW_TYPE, AMOUNTS)
    base = base.with_variables(
        Variable("r", ROW_TYPE.type), Variable("have", AMOUNTS.type), Variable("any", DYN),
        Variable("k", INT, Scope.DECISION), Variable("z", DOUBLE, Scope.DECISION),
        Variable("t", STRING, Scope.DECISION), Variable("g", BOOL, Scope.DECISION), Variable("p", DYN, Scope.DECISION),
    )
    share = compile_program("r.a * 100 / r.b", base).checked
    return base.with_definition("share", share)


ENVIRONMENT = environment()


def shown(value):
    if isinstance(value, EvaluationError):
        return "error", value.message, value.offset, value.reason
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value.__class__.__name__, value


class Bindings(dict):
    def get(self, key, default=None):
        value = super().get(key, default)
        if isinstance(value, EvaluationError):
            raise value
        return value


def by_row(program, rows, values):
    found = []
    for row in rows:
        try:
            found.append(shown(program.metered(Bindings(row | values))[0]))
        except EvaluationError as error:
            found.append(shown(error))
    return found


def by_column(program, frame, rows=None):
    column = evaluate(program, frame, rows)
    asked = range(frame.size) if rows is None else rows.tolist()
    return [shown(column.errors.get(row, value)) for row, value in zip(asked, column.values.tolist(), strict=True)]


NUMBERS = [*range(-3, 13), 2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**62, 10**12]
DOUBLES = [0.0, -0.0, 0.5, -2.5, 1e300, math.inf, -math.inf, math.nan, 2.0**63, 3.0, -1.0, 1.0]
STRINGS = ["", "a", "b", "web-1", "1"]
ANYTHING = [*NUMBERS, *DOUBLES, *STRINGS, True, False, None, [1, 2], {"a": 1}, 2**70]


def some_row(random, odd, calm):
    numbers = list(range(1, 13)) if calm else NUMBERS
    fields = {
        "a": random.choice(numbers), "b": random.choice(numbers), "x": random.choice(DOUBLES),
        "y": random.choice(DOUBLES),
        "f": random.random() < 0.5, "s": random.choice(STRINGS), "l": random.sample(range(-3, 12), random.randrange(3)),
        "m": {random.choice(STRINGS): random.choice(numbers) for _ in range(random.randrange(3))},
        "d": random.choice(numbers), "e": random.choice(ANYTHING),
    }
    for name in odd:
        match random.randrange(4):
            case 0:
                del fields[name]
            case 1:
                fields[name] = random.choice(ANYTHING)
    row = {"r": fields, "have": {"cpu": random.choice(numbers)}, "any": random.choice([{"q": 3}, *ANYTHING])}
    if odd and random.random() < 0.1:
        row[random.choice(["r", "have"])] = random.choice([EvaluationError("no metric", reason="NoMetric"), 5, {}])
    return row


def some_rows(random):
    odd = random.choice([(), ("a",), ("x", "f"), ("d", "s", "m", "l", "b")])
    calm = random.random() < 0.4
    return [some_row(random, odd, calm) for _ in range(random.choice([26, 30, 70, 130]))]


def some_values(random):
    values = {
        "k": random.choice(NUMBERS), "z": random.choice(DOUBLES), "t": random.choice(STRINGS),
        "g": random.random() < 0.5,
        "p": {"n": random.choice(NUMBERS), "s": random.choice(STRINGS), "o": random.choice(ANYTHING)},
    }
    if random.random() < 0.3:
        del values["p"][random.choice(["n", "s", "o"])]
    return values


def expressions(kind, depth):
    leaves = {
        "int": [
            "r.a", "r.b", "r.a", "k", "3", "0", "-7", "100", "have.cpu", "have.memory", "have['gpu']",
            "variables.share", "size(r.l)", "r.m['a']", "r.l[0]", "int(r.s)", "int(r.x)", "9223372036854775807",
        ],
        "double": ["r.x", "r.y", "z", "0.5", "0.0", "double(r.a)", "double(k)"],
        "bool": [
            "r.f", "g", "true", "has(r.d)", "has(r.m.a)", "r.s.startsWith('w')", "r.s == t", "t in r.m", "k in r.l",
            "r.l.exists(i, i > k)", "r.l.all(i, i % 2 == 0)", "r.s in ['a', 'b']", "r.e == r.d", "r.d == 3", "r.d < 5",
            "r.d + 1 > r.a", "any.q == 3", "p.o == r.e", "p.s == 'a'", "r.a in [1, 2, 3]", "dyn(r.e)",
        ],
    }
    if depth == 0:
        return st.sampled_from(leaves[kind]).map("({})".format)
    ints, doubles, bools = (expressions(each, depth - 1) for each in ("int", "double", "bool"))
    arithmetic = st.sampled_from(["+", "-", "*", "/"])
    relation = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    if kind == "int":
        return st.one_of(
            st.sampled_from(leaves[kind]).map("({})".format),
            st.builds("({} {} {})".format, ints, st.one_of(arithmetic, st.just("%")), ints),
            st.builds("({} ? {} : {})".format, bools, ints, ints),
            st.builds("(-{})".format, ints),
        )
    if kind == "double":
        return st.one_of(
            st.sampled_from(leaves[kind]).map("({})".format),
            st.builds("({} {} {})".format, doubles, arithmetic, doubles),
            st.builds("({} ? {} : {})".format, bools, doubles, doubles),
            st.builds("double({})".format, ints),
        )
    return st.one_of(
        st.sampled_from(leaves[kind]).map("({})".format),
        st.builds("({} {} {})".format, ints, relation, ints),
        st.builds("({} {} {})".format, doubles, relation, doubles),
        st.builds("({} {} {})".format, ints, st.sampled_from(["<", "<=", ">", ">="]), doubles),
        st.builds("({} {} {})".format, bools, st.sampled_from(["&&", "||"]), bools),
        st.builds("(!{})".format, bools),
        st.builds("({} ? {} : {})".format, bools, bools, bools),
    )


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["int", "double", "bool"]).flatmap(lambda kind: expressions(kind, 3)), st.integers(0, 2**32))
def test_by_column_is_by_row_for_values_and_errors(text, seed):
    random = Random(seed)
    rows, values = some_rows(random), some_values(random)
    program = compile_program(text, ENVIRONMENT)
    expected = by_row(program, rows, values)
    frame = RowFrame(rows, values)
    assert by_column(program, frame) == expected
    assert by_column(program, frame.with_values(values)) == expected
    for step in (2, 5):  # of 130 rows every fifth is few enough to be looked at alone
        wanted = np.arange(0, len(rows), step)
        for fresh in (RowFrame(rows, values), frame.with_values(values)):
            some = by_column(program, fresh, wanted)
            assert some == [expected[row] for row in wanted]


def numeric(kind, depth):
    """Expressions over numbers alone, which one function of whole columns may answer."""
    leaves = {
        "int": ["r.a", "r.b", "have.cpu", "k", "3", "0", "-1", "100"],
        "double": ["r.x", "r.y", "z", "0.5", "double(r.a)"],
        "bool": ["g", "r.a < r.b", "r.a in [1, 2, 3]", "r.x >= r.y"],
    }
    leaf = st.sampled_from(leaves[kind]).map("({})".format)
    if depth == 0:
        return leaf
    ints, doubles, bools = (numeric(each, depth - 1) for each in ("int", "double", "bool"))
    if kind == "int":
        extremes = st.builds("math.{}({}, {})".format, st.sampled_from(["greatest", "least"]), ints, ints)
        return st.one_of(leaf, st.builds("({} {} {})".format, ints, st.sampled_from("+-*/%"), ints), extremes,
                         st.builds("({} ? {} : {})".format, bools, ints, ints), st.builds("(-{})".format, ints))
    if kind == "double":
        extremes = st.builds("math.{}({}, {})".format, st.sampled_from(["greatest", "least"]), doubles, doubles)
        return st.one_of(leaf, st.builds("({} {} {})".format, doubles, st.sampled_from("+-*/"), doubles), extremes)
    relation = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    return st.one_of(
        leaf, st.builds("({} {} {})".format, ints, relation, ints),
        st.builds("({} {} {})".format, doubles, relation, doubles),
        st.builds("({} {} {})".format, bools, st.sampled_from(["&&", "||"]), bools), st.builds("(!{})".format, bools),
    )


@settings(max_examples=130, deadline=None)
@given(
    st.sampled_from(["int", "double", "bool"]).flatmap(lambda kind: numeric(kind, 3)), st.integers(0, 2**32),
    st.booleans(),
)
def test_one_function_for_a_numeric_expression_says_what_its_rows_say(text, seed, calm):
    random = Random(seed)
    rows = [some_row(random, (), calm) for _ in range(60)]
    values = {"k": random.choice([3, *NUMBERS]), "z": random.choice(DOUBLES), "g": random.random() < 0.5}
    program = compile_program(text, ENVIRONMENT)
    expected = by_row(program, rows, values)
    assert by_column(program, RowFrame(rows, values)) == expected
    plan = plan_of(program.checked).bind(RowFrame(rows, values))
    for wanted in (np.array([7]), np.arange(0, 60, 4)):
        assert by_column(program, RowFrame(rows, values), wanted) == [expected[row] for row in wanted]
        said = plan and plan.values(SelectedRows(RowFrame(rows, {}), wanted))
        assert said is None or [shown(value) for value in said.tolist()] == [expected[row] for row in wanted]


@pytest.mark.parametrize(("text", "fused"), [
    ("r.a * 100 / r.b + k > 3 && (r.x < z || !(r.a == 3))", True),
    ("variables.share > 80 ? 0 : 100 - variables.share", True),
    ("r.a in [1, 2] || g", True), ("math.greatest(-r.a % 7, 0)", True),
    ("math.least(100.0, r.x * z, double(r.a))", True),
    ("r.a", False), ("r.s == t", False), ("size(r.l) > 1", False), ("r.d < 5", False), ("r.f && r.a > 3", False),
])
def test_numbers_are_computed_by_one_function_and_nothing_else_is(text, fused):
    program = compile_program(text, ENVIRONMENT)
    frame = RowFrame([some_row(Random(1), (), True) for _ in range(60)], some_values(Random(1)))
    evaluate(program, frame)
    plan, calls = plan_of(program.checked), []
    real = plan._fused
    if real is not None:
        plan._fused = lambda *given: calls.append(given) or real(*given)
    evaluate(program, frame.with_values(some_values(Random(2))), np.arange(10))
    assert (plan.is_fused(), bool(calls)) == (fused, fused)


@pytest.mark.parametrize(("text", "given", "expected"), [
    ("r.a * 2 + k", {"k": 5}, [7, 9, 11]), ("variables.share > 40", {}, [False, True, True]),
    ("double(r.a) / z", {"z": 2.0}, [0.5, 1.0, 1.5]),
    ("r.a * 2 + p.none", {"p": {}}, None), ("r.s == t", {"t": ""}, None), ("k + 1", {"k": 5}, None),
    ("r.a / (r.b - 4)", {}, "fails"), ("r.m.x + r.a", {}, "fails"),
    ("r.m.none + r.a", {}, "fails"), ("variables.share * 9000000000000000000", {}, "fails"),
])
def test_a_bound_plan_needs_nothing_but_numeric_columns(text, given, expected):
    rows = [{"r": {"a": number, "b": 4, "s": "", "m": {"x": 1} if number > 1 else {}}} for number in range(1, 4)]
    plan = plan_of(compile_program(text, ENVIRONMENT).checked).bind(RowFrame([], given))
    if expected is None:
        assert plan is None
    else:
        found = plan.values(SelectedRows(RowFrame(rows, {}), np.arange(3)))
        assert (found is None) if expected == "fails" else found.tolist() == expected


@pytest.mark.parametrize(("text", "given", "expected"), [
    ("r.a > 3 || k < 5", {"k": 3}, set()), ("r.a > 3 || k < 5", {"k": 7}, {("r", "a")}),
    ("k > 3 ? r.a : r.b", {"k": 7}, {("r", "a")}), ("k > 3 ? r.a : r.b", {"k": 1}, {("r", "b")}),
    ("g && r.s == 'a' && r.a > 3", {"g": True}, {("r", "s"), ("r", "a")}), ("g && r.s == 'a'", {"g": False}, set()),
    ("p.none == 1 || r.a > 3", {"p": {}}, {("r", "a")}),
])
def test_what_the_decision_settles_reads_no_row(text, given, expected):
    program = compile_program(text, ENVIRONMENT)
    assert plan_of(program.checked).reads(RowFrame([], given)) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ("p.o", [[1, 2]] * 30),
    ("[k, 3]", [[5, 3]] * 30),
    ("r.l", [[1, 2]] * 30),
    ("{'a': r.s}", [{"a": "x"}] * 30),
    ("r.s + t", ["xy"] * 30),
    ("k", [5] * 30),
    ("p.none", [("error", "no such key: none", 1, "")] * 30),
])
def test_values_of_any_kind_fill_a_column(text, expected):
    rows = [{"r": {"l": [1, 2], "s": "x"}}] * 30
    column = evaluate(compile_program(text, ENVIRONMENT), RowFrame(rows, {"p": {"o": [1, 2]}, "k": 5, "t": "y"}))
    assert [
        shown(column.errors[row]) if row in column.errors else value for row, value in enumerate(column.values)
    ] == expected


def test_answers_are_kept_for_what_was_seen_and_asked_once_for_what_is_new():
    calls = []

    def probe(text):
        calls.append(text)
        return len(text)

    own = Function("probe", (Overload("probe_string", (STRING,), INT, probe),))
    program = compile_program("probe(r.s) + probe(t)", ENVIRONMENT.with_functions(own))
    rows = [{"r": {"s": "ab" if number % 2 else "c"}} for number in range(40)]
    frame = RowFrame(rows, {"t": "xyz"})
    assert by_column(program, frame) == [("int", 5 if number % 2 else 4) for number in range(40)]
    assert sorted(calls) == ["ab", "c", "xyz"]
    evaluate(program, frame.with_values({"t": "wxyz"}))
    assert sorted(calls) == ["ab", "c", "wxyz", "xyz"]


def test_rows_that_are_not_asked_for_are_not_evaluated():
    calls = []

    def probe(number):
        calls.append(number)
        if number == 3:
            raise EvaluationError("no answer")
        return number + 1

    own = Function("probe", (Overload("probe_int", (INT,), INT, probe),))
    program = compile_program("probe(r.a) * k", ENVIRONMENT.with_functions(own))
    frame = RowFrame([{"r": {"a": number}} for number in range(60)], {"k": 2})
    first, second = np.arange(10, 50), np.arange(20, 60)
    for rows, evaluated in ((first, range(10, 50)), (second, range(10, 60)), (first, range(10, 60))):
        # Twice, as another decision of the same values: columns that come again are cached.
        for again in (frame, frame.with_values({"k": 2})):
            assert by_column(program, again, rows) == [("int", 2 * (row + 1)) for row in rows.tolist()]
            assert sorted(set(calls)) == list(evaluated)
    expected = [("int", 2 * (row + 1)) if row != 3 else ("error", "no answer", 0, "") for row in range(60)]
    found = by_column(program, frame.with_values({"k": 2}))
    assert [each[:2] for each in found] == [each[:2] for each in expected]


class ChangingFrame(RowFrame):
    """Rows of which some change between decisions; `log` holds those of each change."""

    __slots__ = ("log",)

    def __init__(self, rows, values):
        super().__init__(rows, values)
        self.log = []

    def change(self, changes):
        for row, value in changes.items():
            self._rows[row] = value
        self._codes, self._numbers, self.decision_cache = {}, {}, {}
        self.log.append(set(changes))

    def stamp(self, paths):
        return len(self.log)

    def changed(self, paths, since):
        return np.array(sorted(set().union(*self.log[since:])), np.intp)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["int", "double", "bool"]).flatmap(lambda kind: expressions(kind, 2)), st.integers(0, 2**32))
def test_any_rows_of_a_frame_that_changes_are_what_each_of_them_is(text, seed):
    random = Random(seed)
    rows, values = some_rows(random), some_values(random)
    program, frame = compile_program(text, ENVIRONMENT), ChangingFrame(rows, values)
    for _ in range(8):
        frame.change({random.randrange(len(rows)): some_row(random, ("a", "s"), calm=True)
                      for _ in range(random.choice([0, 1, 5, 20]))})
        expected = by_row(program, rows, values)
        wanted = np.array(sorted(random.sample(range(len(rows)), random.choice([25, len(rows) - 1, len(rows)]))))
        for asked in (wanted, None if random.random() < 0.3 else wanted):
            chosen = range(len(rows)) if asked is None else asked.tolist()
            assert by_column(program, frame, asked) == [expected[row] for row in chosen]


def test_what_is_not_pure_is_asked_for_every_row():
    calls = []

    def draw(text):
        calls.append(text)
        return len(calls)

    own = Function("draw", (Overload("draw_string", (STRING,), INT, draw, pure=False),))
    program = compile_program("draw(r.s)", ENVIRONMENT.with_functions(own))
    column = evaluate(program, RowFrame([{"r": {"s": "a"}}] * 30, {}))
    assert column.values.tolist() == list(range(1, 31))


MANY = 20_000  # more than are computed at a time
SOME = (0, 1, 99, 8_191, 8_192, 16_383, 16_384, MANY - 1)
SCORE = "(n.free - p.wanted) * 100 / n.size / 2 + (n.load < 0.5 ? 7 : 3)"
NODE = ObjectType("test.Node", {"free": Field(INT), "size": Field(INT), "load": Field(DOUBLE)})
LAST = {
    "as all others": {}, "a divisor of 0": {"size": 0}, "no number": {"load": math.nan}, "an overflow": {"free": 2**62},
    "a string": {"size": "x"}, "another kind of number": {"load": 1},
}


def nodes(**last):
    rows = [{"free": row, "size": 7 + row % 5, "load": row % 10 / 10} for row in range(MANY)]
    rows[-1] |= last
    return [{"n": row} for row in rows]


def answer_of(program, row, pod):
    try:
        return program.metered({**row, "p": pod})[0]
    except EvaluationError as error:
        return error


@pytest.mark.parametrize("of", [DYN, map_of(STRING, DYN), NODE.type], ids=str)
@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
def test_many_rows_are_what_each_of_them_is_whatever_stands_in_the_last(of, last):
    place = Environment(functions=table(STANDARD)).with_types(NODE)
    place = place.with_variables(Variable("n", of, Scope.ROW), Variable("p", DYN, Scope.DECISION))
    program, pod = compile_program(SCORE, place), {"wanted": 5}
    # What was found out about the kinds of one frame's values does not hold for another's.
    others = [{"n": {"free": float(row), "size": 2.0, "load": 0.5}} for row in range(100)]
    for rows in (nodes(**last), others, nodes(**last)):
        column = evaluate(program, RowFrame(rows, {"p": pod}))
        values = column.values.tolist()
        for row in SOME:
            if row < len(rows):
                found = column.errors.get(row, values[row])
                assert shown(found) == shown(answer_of(program, rows[row], pod))
