"""Values that hold a part more than once: built in a few steps, and far too large to look through."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cel.check.call_cost import call_cost
from koordpolicy.engine.cel.check.checker import check
from koordpolicy.engine.cel.check.environment import TEXTS, Cost, Environment, Function, Overload, Scope, Variable
from koordpolicy.engine.cel.library import BINDINGS, ENCODERS, MATH, table
from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.cel.syntax.limits import ExpressionLimits
from koordpolicy.engine.cel.syntax.parser import parse
from koordpolicy.engine.cel.values.traversal import MOST, comparison, deep_size, everything, levels, nothing, texts
from koordpolicy.engine.cel.values.types import BOOL, BYTES, DYN, INT, STRING, TIMESTAMP, Type, list_of
from koordpolicy.engine.cel.values.values import NONE, EvaluationError, Optional, Timestamp, equal, text_of
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cel.vector.row_frame import RowFrame
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.kubernetes.library import FUNCTIONS, KOORDINATOR
from koordpolicy.engine.kubernetes.library.format import FORMATS
from koordpolicy.engine.kubernetes.library.network import cidr
from koordpolicy.engine.source import Source

EVERY = table(FUNCTIONS.values(), BINDINGS, MATH, ENCODERS, KOORDINATOR)
LEVELS = 30
PLACE = Environment(functions=EVERY, limits=ExpressionLimits(cost=100_000), homogeneous_literals=False).with_variables(
    Variable("one", INT, Scope.ROW), Variable("d", DYN, Scope.ROW), Variable("t", STRING, Scope.ROW),
)
GIVEN = {"one": 1, "d": {"a": [1, {"b": "x"}]}, "t": "abcdefgh" * 4}

STEPS = {
    "lists": ("[one]", "[Y, Y]"),
    "lists of something read": ("[d]", "[Y, Y]"),
    "maps": ("{'a': one}", "{'a': Y, 'b': Y}"),
    "lists of unknown type": ("dyn([one])", "dyn([Y, Y])"),
    "loops": ("[one]", "[1, 2].map(a, Y)"),
    "loops over two variables": ("[one]", "[1, 2].transformList(i, a, Y)"),
    "loops that make maps": ("dyn([one])", "dyn({'a': 1, 'b': 2}.transformMap(k, a, Y))"),
    "optionals": ("optional.of(dyn([one]))", "optional.of(dyn([Y, Y]))"),
    "filtered lists": ("[one]", "[Y, Y].filter(a, true)"),
}


def scope_with(first: str, step: str, levels: int = LEVELS, place: Environment = PLACE) -> Environment:
    """Return an environment in which `variables.v` holds its beginning 2 to the power of `levels` times."""
    for level in range(levels + 1):
        text = first if level == 0 else step.replace("Y", f"variables.v{level - 1}")
        source = Source("a.yaml", text)
        place = place.with_definition(f"v{level}", check(source, parse(source), place))
    source = Source("a.yaml", f"variables.v{levels}")
    return place.with_definition("v", check(source, parse(source), place))


def of_v(text: str) -> str:
    return re.sub(r"\bV\b", "variables.v", text)


def bound(first: str, step: str, text: str, levels: int = LEVELS) -> str:
    """Return an expression in which `variables.v` is a name of `cel.bind`."""
    inner = text.replace("variables.v", f"w{levels}")
    for level in range(levels, -1, -1):
        value = first if level == 0 else step.replace("Y", f"w{level - 1}")
        inner = f"cel.bind(w{level}, {value}, {inner})"
    return inner


def outcome(program: Program) -> object:
    """Return the value, or the reason of the error, which both evaluators must agree about."""
    found: list[object] = []
    for run in (lambda: program.evaluate(GIVEN), lambda: program.metered(GIVEN)[0]):
        try:
            found.append(run())
        except EvaluationError as error:
            found.append(error.reason or error.message)
    column = evaluate(program, RowFrame([GIVEN] * 2, {}))
    found += [column.errors[row].reason or column.errors[row].message if row in column.errors else column.values[row]
              for row in range(2)]
    assert all(equal(each, found[0]) or "CostLimit" in (each, found[0]) for each in found[1:2]), found
    return found[1]


OF_ANY = {
    "equality": "dyn(V) == dyn(V)",
    "inequality": "dyn(V) != dyn(V)",
    "equality with the same again": "dyn([V]) == dyn([V])",
    "an element of a list": "dyn(V) in [dyn(V)]",
    "a list of many": "dyn(V) in dyn([1, dyn(V)])",
    "in a loop": "[1, 2].all(x, dyn(V) == dyn(V))",
    "distinct": "[dyn(V), dyn(V)].distinct().size() == 1",
    "the first place": "[dyn(V)].indexOf(dyn(V)) == 0",
    "the last place": "[dyn(V)].lastIndexOf(dyn(V)) == 0",
    "a part of a set": "sets.contains([dyn(V)], [dyn(V)])",
    "the same set": "sets.equivalent([dyn(V)], [dyn(V)])",
    "a common element": "sets.intersects([dyn(V)], [dyn(V)])",
    "sorted by": "[1, 2].sortBy(x, dyn(V) == dyn(V)).size() == 2",
    "the key of an entry": "{'a': dyn(V)} == {'a': dyn(V)}",
    "optionals": "optional.of(dyn(V)) == optional.of(dyn(V))",
}
PRINTED = {"a string": "'%s'.format([dyn(V)]).size() > 0", "a part of a text": "'%s %s'.format([1, dyn(V)]).size() > 0"}


@pytest.mark.parametrize(
    ("first", "step", "text"),
    [
        pytest.param(*steps, text, id=f"{kind}, {name}")
        for kind, steps in STEPS.items() for name, text in (OF_ANY | PRINTED).items()
        if not (kind == "optionals" and name in PRINTED)  # they have no text
    ],
)
def test_what_looks_through_a_value_is_stopped_where_the_value_is_too_large(first: str, step: str, text: str) -> None:
    assert outcome(compile_program(of_v(text), scope_with(first, step))) == "CostLimit"


@pytest.mark.parametrize("text", OF_ANY.values(), ids=OF_ANY)
def test_names_of_binds_are_no_way_around(text: str) -> None:
    first, step = STEPS["lists"]
    expression = bound(first, step, of_v(text), levels=20)
    assert outcome(compile_program(expression, replace(PLACE, limits=replace(PLACE.limits, depth=250)))) == "CostLimit"


OF_LISTS = {
    "flattened to the end": "dyn(V).flatten(100).size() > 0",
    "the least": "dyn([dyn(V)]).min() == 1",
    "sorted": "dyn([dyn(V), dyn(V)]).isSorted()",
    "a sum": "dyn([dyn(V)]).sum() == 1",
}


@pytest.mark.parametrize("text", OF_LISTS.values(), ids=OF_LISTS)
def test_what_looks_through_a_list_is_stopped_where_the_list_is_too_large(text: str) -> None:
    program = compile_program(of_v(text), scope_with(*STEPS["lists of unknown type"]))
    assert outcome(program) == "CostLimit"


SHALLOW = {
    "size": ("dyn(V).size()", 2),
    "one level": ("dyn(V).flatten().size()", 4),
    "reversed": ("dyn(V).reverse().size()", 2),
    "a slice": ("dyn(V).slice(0, 1).size()", 1),
    "the first": ("dyn(V).first().value().size()", 2),
    "the type": ("type(dyn(V)) == list", True),
    "an index": ("dyn(V)[1][0][1].size()", 2),
    "another kind": ("dyn(V) == dyn('a')", False),
    "another size": ("dyn(V) == dyn([1])", False),
    "a small one": ("dyn([1, 2]) == dyn(V)", False),
    "not in a map": ("dyn(V) in {'a': 1}", False),
    "a key": ("dyn({'a': 1})[dyn(V)]", "no such key"),
    "a key of a literal": ("{dyn(V): 1}.size()", "unsupported key type"),
    "an index that is none": ("[1][dyn(V)]", "unsupported index type 'list' in list"),
    "counted": ("dyn(V).map(x, size(x)).sum()", 4),
    "all": ("dyn(V).all(x, x.size() == 2)", True),
    "an optional": ("optional.of(dyn(V)).hasValue()", True),
    "joined": ("(dyn(V) + dyn(V)).size()", 4),
}


@pytest.mark.parametrize(("text", "expected"), SHALLOW.values(), ids=SHALLOW)
def test_what_looks_at_no_more_than_a_level_has_its_answer(text: str, expected: object) -> None:
    program = compile_program(of_v(text), scope_with(*STEPS["lists of unknown type"]))
    found = outcome(program)
    assert str(found).startswith(expected) if isinstance(expected, str) else found == expected


GROWING = {
    "texts": ("t", "Y + Y"),
    "texts of unknown type": ("dyn(t)", "Y + Y"),
    "octets": ("bytes(t)", "Y + Y"),
    "lists": ("[one]", "Y + Y"),
    "lists of unknown type": ("dyn([one])", "Y + Y"),
    "joined texts": ("t", "[Y, Y].join('-')"),
    "replaced parts": ("t", "Y.replace('a', Y)"),
    "replaced nothing": ("t", "Y.replace('', Y)"),
    "templates": ("t", "'%s%s'.format([Y, Y])"),
    "octets as hexadecimal": ("t", "'%x'.format([Y])"),
    "quoted texts": (r"'\"' + t", "strings.quote(Y)"),
    "encoded texts": ("t", "base64.encode(bytes(Y + Y))"),
    "flattened lists": ("[one]", "[Y, Y].flatten()"),
    "flattened lists of unknown type": ("dyn([one])", "dyn([Y, Y]).flatten()"),
    "loops over loops": ("[1, 2, 3]", "[1, 2].map(a, Y).flatten()"),
    "entries": ("{'a': [one]}", "{'a': Y.a + Y.a}"),
    "elements": ("[t]", "[Y[0] + Y[0]]"),
    "choices": ("t", "one == 1 ? Y + Y : Y"),
    "what is bound": ("t", "cel.bind(x, Y + Y, x)"),
    "loops over texts": ("[t]", "Y.map(x, x + x)"),
    "optional texts": ("optional.of(t)", "optional.of(Y.value() + Y.value())"),
    "hidden types": ("t", "dyn(Y) + dyn(Y)"),
}


@pytest.mark.parametrize(("first", "step"), GROWING.values(), ids=GROWING)
def test_what_grows_with_every_step_is_stopped_before_memory_is(first: str, step: str) -> None:
    place = scope_with(first, step)
    found = outcome(compile_program("size([variables.v]) > 0", place))
    assert found == "CostLimit" or "would be longer than" in str(found)


COSTLY = {
    "searching from the end": "(variables.v + 'b').lastIndexOf('b' + variables.v)",
    "comparing texts of unknown type": "lists.range(90).filter(x, dyn(variables.v) < dyn(variables.v + 'a')).size()",
    "replacing much": "lists.range(90).map(x, variables.v.replace('a', variables.v)).size()",
    "sorting long texts": "lists.range(90).map(x, variables.v + string(x)).sort().size()",
    "searching for one large pattern": "('ab' + variables.v).matches('(.{0,900}b){1}(.{0,900}c)')",
    "finding one large pattern": "('ab' + variables.v).findAll('(.{0,900}b){1}(.{0,900}c)').size()",
    "searching for large patterns": "lists.range(900).filter(x, variables.v.substring(0, 3000).matches('(.{0,900}c)'))",
    "searching for patterns": "lists.range(90).filter(x, variables.v.matches('(.?.?.?.?.?.?.?.?.?){100}' + "
                              "string(x))).size()",
}


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_long_texts_are_no_way_around(text: str) -> None:
    place = scope_with("'aaaaaaaaaa'", "Y + Y", 14)
    program = compile_program(text, replace(place, limits=ExpressionLimits(cost=100_000)))
    assert outcome(program) in ("CostLimit", "the string would be longer than 10000000 characters")


FOUND = {
    "lists of numbers": "lists.range(3000).map(x, lists.range(x + 90000)).size()",
    "lists of one number": "lists.range(3000).map(x, lists.range(90000)).size()",
    "counted numbers": "lists.range(3000).all(x, lists.range(90000).size() > one)",
    "many matches": "lists.range(900).map(x, variables.v.findAll('a')).size()",
    "searches that each read the whole text": "variables.v.findAll('a(.*b)?').size()",
}


@pytest.mark.parametrize("text", FOUND.values(), ids=FOUND)
def test_steps_that_only_the_result_of_a_call_tells_are_counted(text: str) -> None:
    place = replace(scope_with("'aaaaaaaaaa'", "Y + Y", 12), limits=ExpressionLimits())
    assert outcome(compile_program(text, place)) == "CostLimit"


@pytest.mark.parametrize(("text", "expected"), [
    ("lists.range(1000).map(x, lists.range(10)).flatten().sum()", 45_000),
    ("'ab12 c3'.findAll('[0-9]+')", ["12", "3"]),
    ("(variables.v + '1').findAll('[0-9]+')", ["1"]),
    ("variables.v.findAll('a(.*b)?', 3)", ["a", "a", "a"]),
])
def test_ordinary_lists_and_matches_are_no_large_results(text: str, expected: object) -> None:
    place = replace(scope_with("'aaaaaaaaaa'", "Y + Y", 12), limits=ExpressionLimits())
    assert outcome(compile_program(text, place)) == expected


@pytest.mark.parametrize("text", [
    "lists.range(1000000000).size()", "[1, 2].map(x, lists.range(99999)).flatten().size()",
    "lists.range(99999).map(x, lists.range(99999)).size()", "9223372036854775807 * 9223372036854775807 > 0",
    "quantity('1e400').add(quantity('1e-9')).isGreaterThan(quantity('1'))", "quantity('9' + '9' + 'E').asInteger() > 0",
    "duration('9223372036854775807' + 's') > duration('0s')",
    "timestamp('9999-12-31T23:59:59Z') + duration('2562047h') > timestamp(0)",
    "('%.1000000000' + 'f').format([1.0]).size()", "'%.1000f'.format([1e308]).size()",
    "math.bitShiftLeft(1, 9223372036854775807)",
    "int('9' + '99999999999999999999999999999999999')", "double('1e' + '999999999999') > 0.0",
])  # fmt: skip
def test_absurd_amounts_are_errors_or_values_at_once(text: str) -> None:
    outcome(compile_program(text, PLACE))


@pytest.mark.parametrize("text", [
    (
        "matchesSelector({'a': 'b'}, dyn({'matchExpressions': [{'key': dyn('a'), 'operator': dyn('In'), 'values': "
        "dyn(V)}]}))"
    ),
    (
        "matchesNodeAffinity(dyn({'spec': {'affinity': {'nodeAffinity': "
        "{'requiredDuringSchedulingIgnoredDuringExecution':"
        " {'nodeSelectorTerms': [{'matchFields': [{'values': dyn(V)}]}]}}}}}), dyn({}))"
    ),
    "gpuWorth([dyn({'models': dyn(V)})], 1, [1], '') > 0.0", "resourceList(dyn({'cpu': dyn(V)})).cpu > 0",
])  # fmt: skip
def test_functions_of_objects_look_through_what_they_read(text: str) -> None:
    place = environment(Slot.FILTER)
    place = scope_with("[pod]", "[Y, Y]", place=replace(place, limits=replace(place.limits, cost=100_000)))
    with pytest.raises(EvaluationError) as caught:
        compile_program(of_v(text), place).evaluate({"pod": {}})
    assert caught.value.reason == "CostLimit"


@pytest.mark.parametrize("text", [
    "qosClass(dyn({'spec': {'containers': variables.v}})) == ''",
    "priorityBand(dyn({'spec': {'containers': variables.v}})) == ''",
    "tolerates(dyn({'spec': {'tolerations': variables.v}}), dyn({'key': 'a'}))",
    "toleratesNode(dyn({'spec': {'tolerations': variables.v}}), dyn({'spec': {'taints': variables.v}}))",
    "ownedBy(dyn({'metadata': {'ownerReferences': variables.v}}), 'Job')",
])
def test_functions_of_objects_count_what_a_loop_makes_them_do(text: str) -> None:
    place = environment(Slot.FILTER)
    place = scope_with(
        "[dyn({'effect': 'NoSchedule'})]", "Y + Y", 14, replace(place, limits=replace(place.limits, cost=1_000_000)),
    )
    with pytest.raises(EvaluationError) as caught:
        compile_program(f"lists.range(1000).all(x, ({text}) || true)", place).evaluate({})
    assert caught.value.reason == "CostLimit"


# --- the table of functions ------------------------------------------------------------------------------------------

HANDED_ON = {
    "add_list", "index_list", "index_map", "in_map", "type", "to_dyn", "list_slice", "list_first", "list_last",
    "optional_of",
    "optional_ofNonZeroValue", "optional_hasValue", "optional_value", "optional_orValue_value", "optional_or_optional",
}  # fmt: skip
"""Overloads that look at no more than kind, size or one element of an argument: all others count their steps."""
SHORT = {
    "string_to_int64", "string_to_uint64", "string_to_double", "string_to_string", "string_to_bool", "bytes_to_bytes",
    "string_char_at_int",
}  # fmt: skip
"""Overloads of strings that read no more of them than a number has digits."""
OF_STATES = {
    "matches", "matches_string", "string_find_string", "string_find_all_string", "string_find_all_string_int",
}
"""Overloads that count the length of a string times the states of a pattern."""
OF_A_ZONE = {each for each in (overload.id for function in EVERY.values() for overload in function.overloads)
             if each.endswith("_with_tz")}
"""Overloads that read the file of a time zone, whose name has 64 characters at most."""


def overloads() -> Iterator[tuple[Function, Overload]]:
    for function in EVERY.values():
        for overload in function.overloads:
            yield function, overload


def holds(of: Type) -> bool:
    """Return whether values of a type may hold others."""
    return of.variable or of.name in ("dyn", "list", "map", "optional_type") or of.name.startswith("kubernetes.")


def test_every_function_of_lists_and_maps_says_how_many_steps_it_takes() -> None:
    for _, overload in overloads():
        if any(map(holds, overload.parameters)):
            assert overload.walk is not None, overload.id
    free = {each.id for _, each in overloads() if each.walk is nothing}
    sizes = {each for each in free if "size_" in each}
    extremes = {each for each in free if each.startswith(("math_max_mixed_", "math_min_mixed_"))}
    assert free - sizes - extremes == HANDED_ON | SHORT


def test_a_function_that_says_nothing_is_taken_to_look_through_all() -> None:
    assert Overload("f", (DYN,), BOOL, bool).walk is everything
    assert Overload("f", (INT, STRING), BOOL, bool).walk is texts
    assert Overload("f", (BYTES,), BOOL, bool).walk is texts
    assert Overload("f", (INT,), BOOL, bool).walk is None
    assert Overload("f", (STRING,), BOOL, bool, cost=Cost(0, ((0, 0.1),))).walk is None


def charged(overload: Overload, size: int) -> int:
    """Return the units or steps of a call whose strings have a length, and whose other arguments are small."""
    small = {
        "int": 1, "bool": True, "double": 1.0, TIMESTAMP.name: Timestamp(0),
        "kubernetes.NamedFormat": FORMATS["uri"], "net.CIDR": cidr("10.0.0.0/8"),
    }
    longest = {"string": "a" * size, "bytes": b"a" * size, "list": ["a" * size]}
    arguments = tuple({**small, **longest}.get(each.name, {}) for each in overload.parameters)
    steps = 0 if overload.walk is None else overload.walk(*arguments)
    return max(call_cost(overload, arguments), steps)


def test_every_function_of_strings_counts_their_length() -> None:
    texts_of = {overload.id: overload for _, overload in overloads() if any(
        each.name in TEXTS or each == list_of(STRING) for each in overload.parameters)}
    sizes = {each for each in texts_of if "size_" in each}
    excepted = SHORT | OF_STATES | OF_A_ZONE | HANDED_ON | sizes | {"owned_by"}  # which compares with short strings
    linear = {id_: charged(overload, 100_000) for id_, overload in texts_of.items() if id_ not in excepted}
    assert {id_: units for id_, units in linear.items() if units < 100_000 // 10} == {}
    assert {charged(texts_of[id_], 100_000) for id_ in OF_A_ZONE} == {100}
    assert {texts_of[id_].walk("a" * 100_000, "a{50}") >= 100_000 // 10 for id_ in OF_STATES} == {True}


@pytest.mark.parametrize("text", [
    "isURL(variables.u)", "duration(variables.u) != duration('1s')", "timestamp(variables.u) != timestamp(0)",
    "variables.url.getQuery() != {}", "variables.url.getEscapedPath() != ''", "variables.url != variables.other",
    "format.named(variables.u).hasValue()", "sets.contains(variables.many, [])", "sets.equivalent([], variables.many)",
])
@pytest.mark.parametrize("loop", ["{}", "lists.range(200).all(x, {} || true)"])
def test_the_length_of_a_string_counts_where_kubernetes_takes_it_for_one(text: str, loop: str) -> None:
    given = {
        "u": "'1s' + lists.range(3000).map(i, 'aaaaaaaaaa').join()", "many": "lists.range(9000)",
        "url": "url('http://h/?' + lists.range(3000).map(i, 'a=bbbbbbb&').join())",
        "other": "url('http://h/?' + lists.range(3000).map(i, 'a=bbbbbbb&').join() + 'c')",
    }
    place = replace(PLACE, limits=ExpressionLimits(cost=450_000))
    for name, each in given.items():
        source = Source("a.yaml", each)
        place = place.with_definition(name, check(source, parse(source), place))
    program = compile_program(loop.format(text), place)
    outcomes = []
    for run in (program.evaluate, program.metered):
        try:
            run(GIVEN)
            outcomes.append("")
        except EvaluationError as error:
            outcomes.append(error.reason)
    assert outcomes == [program_reason(loop)] * 2


def program_reason(loop: str) -> str:
    """Return the reason of an error: once is within the limit, often is not."""
    return "" if loop == "{}" else "CostLimit"


# --- sizes -----------------------------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False, width=16) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text(max_size=12), inner, max_size=4,
    ) | inner.map(Optional),
    max_leaves=20,
)


def counted(value: object) -> int:
    """Return the size of a value by walking it."""
    match value:
        case str():
            return 1 + len(value) // 10
        case list():
            return 1 + sum(map(counted, value))
        case dict():
            return 1 + sum(counted(key) + counted(each) for key, each in value.items())
        case Optional():
            return 1 + counted(value.value)
        case _:
            return 1


@given(VALUES)
def test_a_size_is_the_number_of_steps_of_walking_a_value(value: object) -> None:
    assert deep_size(value) == counted(value)


@given(VALUES, VALUES)
def test_a_comparison_takes_no_more_than_the_smaller_value_has(left: object, right: object) -> None:
    assert 0 <= comparison(left, right) <= min(counted(left), counted(right))
    if equal(left, right) and isinstance(left, list | dict):
        assert comparison(left, right) == min(counted(left), counted(right))


def test_sizes_saturate() -> None:
    value: object = [1]
    for _ in range(200):
        value = [value, value]
    assert deep_size(value) == deep_size({"a": value}) == levels([value], 1_000) == MOST
    assert text_of(value).startswith("[" * 200)
    assert len(text_of(value)) == len(text_of({"a": value})) == len(text_of("x" * 1_000)) == 203


def test_an_ordinary_value_is_shown_whole() -> None:
    value = [1, 2.5, None, True, "x", {"a": [NONE, Optional(1)]}]
    assert text_of(value) == "[1, 2.5, null, true, x, {a: [optional.none(), optional.of(1)]}]"


def test_equal_parts_of_objects_that_were_read_are_compared_as_before() -> None:
    pod = {"metadata": {"labels": {f"key-{number}": "x" * 50 for number in range(200)}}}
    place = Environment(functions=EVERY).with_variables(Variable("a", DYN), Variable("b", DYN))
    program = compile_program(
        "a == b && a.metadata.labels == b.metadata.labels && b in [1.5, a]", replace(place, homogeneous_literals=False),
    )
    assert program.evaluate({"a": pod, "b": {**pod}}) is True
