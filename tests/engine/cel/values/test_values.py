from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.cel.values.types import Type
from koordpolicy.engine.cel.values.values import (
    FALSE_KEY,
    NONE,
    TRUE_KEY,
    Duration,
    EvaluationError,
    Optional,
    Timestamp,
    Uint,
    compare,
    equal,
    find,
    index,
    key_of,
    text_of_double,
    type_of_value,
)

BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0), (1, Uint(1)), (Uint(1), 1.0), (BIG, float(BIG)), (2**63 - 1, float(2**63)),
        ([1, 2.0], [1.0, Uint(2)]),
        ({"a": 1}, {"a": 1.0}), ({1: "a"}, {Uint(1): "a"}), (None, None), (b"a", b"a"), (Type("int"), Type("int")),
        (Timestamp(5, 0), Timestamp(5, 3600)), (Duration(5), Duration(5)), (NONE, NONE), (Optional(1), Optional(1.0)),
    ],
)
def test_equal_values_are_equal_both_ways(left: object, right: object) -> None:
    assert (equal(left, right), equal(right, left)) == (True, True)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True), (0, False), (0, None), ("1", 1), ("a", b"a"), ([1], [True]), ({"a": True}, {"a": 1}),
        (math.nan, math.nan),
        ([math.nan], [math.nan]), ([], {}), ("", None), ([1], [1, 2]), ({"a": 1}, {"b": 1}), ({1: 1}, {TRUE_KEY: 1}),
        (NONE, Optional(None)),
        (Type("int"), Type("uint")), (Duration(5), 5), (Timestamp(5), Duration(5)),
    ],
)
def test_other_values_are_not(left: object, right: object) -> None:
    assert (equal(left, right), equal(right, left)) == (False, False)


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        (1, 2, -1), (1, 1.5, -1), (Uint(2**64 - 1), -1, 1), (-1, Uint(0), -1), (2**63 - 1, float(2**63), 0),
        (False, True, -1),
        ("\U0001f600", "\ufffd", 1), (b"\x01", b"\xff", -1), (Timestamp(1), Timestamp(2), -1),
        (Duration(1), Duration(1), 0), (1, math.inf, -1),
    ],
)
def test_order_looks_across_numbers_and_nothing_else(left: object, right: object, order: int) -> None:
    assert (compare(left, right), compare(right, left)) == (order, -order)


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, "1"), (True, 1), (None, None), ([1], [1]), (math.nan, 1.0), (1, math.nan), (Duration(1), Timestamp(1))],
)
def test_what_has_no_order_is_an_error(left: object, right: object) -> None:
    with pytest.raises(EvaluationError):
        compare(left, right)


def test_keys_are_found_by_number_and_true_is_not_one() -> None:
    mapping = {key_of(1): "one", key_of(True): "true", key_of("a"): "text"}
    looked = [find(mapping, key, None) for key in (1, 1.0, Uint(1), True, False, "a", 1.5, math.nan, None, [])]
    assert looked == ["one", "one", "one", "true", None, "text", None, None, None, None]
    assert key_of(False) is FALSE_KEY


@pytest.mark.parametrize("position", [-1, 2, 1.5, math.nan, "0", True, None, 2.0])
def test_an_index_is_whole_and_in_range(position: object) -> None:
    with pytest.raises(EvaluationError):
        index([1, 2], position)


def test_a_whole_number_of_any_kind_is_an_index() -> None:
    assert [index(["a", "b"], each) for each in (1, 1.0, Uint(1))] == ["b", "b", "b"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"), (100000.0, "100000"), (1e6, "1e+06"), (1234567.0, "1.234567e+06"), (123456.789, "123456.789"),
        (1e-4, "0.0001"),
        (1e-5, "1e-05"), (-0.0, "-0"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"), (5e-324, "5e-324"),
        (12.5, "12.5"),
    ],
)
def test_a_double_is_printed_as_go_prints_it(number: float, text: str) -> None:
    assert text_of_double(number) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_the_text_of_a_double_reads_back_as_the_same_double(number: float) -> None:
    assert struct.pack("d", float(text_of_double(number))) == struct.pack("d", number)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z"), ("2026-01-02T03:04:05.1200Z", "2026-01-02T03:04:05.12Z"),
        ("2026-01-02T03:04:05,5+05:30", "2026-01-02T03:04:05.5+05:30"),
        ("2026-01-02T03:04:05.1234567899Z", "2026-01-02T03:04:05.123456789Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999999999Z"),
    ],
)
def test_a_timestamp_keeps_its_offset_and_drops_trailing_zeros(text: str, shown: str) -> None:
    assert str(Timestamp.parse(text)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02", "2026-01-02t03:04:05z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z",
        "2026-01-01T00:00:00", "2026-01-01T00:00:00+25:00", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00",
        " 2026-01-02T03:04:05Z", "10000-01-01T00:00:00Z", "",
    ],
)
def test_other_texts_are_no_timestamps(text: str) -> None:
    with pytest.raises(EvaluationError):
        Timestamp.parse(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1h30m", "5400s"), ("-1.5s", "-1.5s"), ("0", "0s"), ("1us", "0.000001s"), ("1µs", "0.000001s"),
        (".5s", "0.5s"), ("1.s", "1s"), ("1m1h", "3660s"), ("1h1h", "7200s"), ("+5ms", "0.005s"),
        ("1.5ns", "0.000000001s"), ("9223372036.854775807s", "9223372036.854775807s"),
    ],
)
def test_a_duration_is_read_as_go_reads_it(text: str, shown: str) -> None:
    assert str(Duration.parse(text)) == shown


@pytest.mark.parametrize("text", ["", "5", "1d", "1h 30m", "s", ".s", "1e3s", "--1s", "9223372037s", "1H"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(EvaluationError):
        Duration.parse(text)


def test_every_kind_has_a_type() -> None:
    values: list[object] = [
        None, True, 1, Uint(1), 1.0, "a", b"a", [], {}, Timestamp(0), Duration(0), NONE, Type("int"),
    ]
    assert [type_of_value(each).name for each in values] == [
        "null", "bool", "int", "uint", "double", "string", "bytes", "list", "map", "google.protobuf.Timestamp",
        "google.protobuf.Duration",
        "optional_type", "type",
    ]


def test_an_error_keeps_its_first_place() -> None:
    error = EvaluationError("no metric", reason="NoMetric").at(3).at(5)
    assert (error.message, error.offset, error.reason, error.final) == ("no metric", 3, "NoMetric", False)
