from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.kubernetes.quantity import Quantity


@pytest.mark.parametrize(
    ("text", "canonical", "milli", "value"),
    [
        ("0", "0", 0, 0),
        ("100m", "100m", 100, 1),
        ("1000m", "1", 1000, 1),
        ("0.5", "500m", 500, 1),
        (".5", "500m", 500, 1),
        ("5.", "5", 5000, 5),
        ("+5", "5", 5000, 5),
        ("-1.5", "-1500m", -1500, -2),
        ("1024Mi", "1Gi", 2**30 * 1000, 2**30),
        ("1.5Gi", "1536Mi", 1536 * 2**20 * 1000, 1536 * 2**20),
        ("1500Mi", "1500Mi", 1500 * 2**20 * 1000, 1500 * 2**20),
        ("0.5Ki", "512", 512_000, 512),
        ("0.1Ki", "102400m", 102_400, 103),
        ("100k", "100k", 10**8, 10**5),
        ("1500k", "1500k", 15 * 10**8, 1_500_000),
        ("2000k", "2M", 2 * 10**9, 2_000_000),
        ("1e3", "1e3", 10**6, 1000),
        ("12E3", "12e3", 12 * 10**6, 12_000),
        ("1E", "1E", 10**21, 10**18),
        ("1n", "1n", 1, 1),
        ("0.1n", "1n", 1, 1),
        ("-0.1n", "-1n", -1, -1),
        ("1u", "1u", 1, 1),
        ("Mi", "0", 0, 0),
        ("007", "7", 7000, 7),
        ("9Ei", str(2**63 - 1), (2**63 - 1) * 1000, 2**63 - 1),
    ],
)
def test_a_text_gives_kubernetes_amount_and_canonical_form(text: str, canonical: str, milli: int, value: int) -> None:
    amount = Quantity.parse(text)
    assert (str(amount), amount.milli, amount.value) == (canonical, milli, value)


@pytest.mark.parametrize(
    "text",
    [
        "", " 1", "1 ", "12Zi", "200K", "1,3G", "1e3Ki", "0x10", "\uff11", "Three", "--1", "1.1.M", "1+1.0M", "0.1mi",
        "-3.01e-", "1e999999999", "Ei", "1" * 2000,
    ],
)
def test_a_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        Quantity.parse(text)


def test_the_refusal_names_the_suffix() -> None:
    with pytest.raises(ValueError, match="not a quantity") as caught:
        Quantity.parse("12Zi")
    assert str(caught.value).startswith("`12Zi` is not a quantity: ")


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("50k", 50_000), ("1", 1), ("100m", None), ("1000m", None), ("9223372036854775807", None), ("10E", None),
        ("1Ki", 1024),
    ],
)
def test_only_the_small_form_without_fraction_is_an_integer(text: str, integer: int | None) -> None:
    assert Quantity.parse(text).integer() == integer


def test_sums_and_differences_are_exact_and_keep_the_first_format() -> None:
    assert str(Quantity.parse("1Gi") - Quantity.parse("1G")) == "73741824"
    assert str(Quantity.parse("50k") + Quantity.parse("20k")) == "70k"
    assert str(Quantity.parse("0") + Quantity.parse("1Gi")) == "1Gi"


def test_equal_amounts_are_equal_and_hash_alike() -> None:
    assert len({Quantity.parse(each) for each in ("1", "1000m", "1e0", "0.001k")}) == 1
    assert Quantity.parse("1.5G") == Quantity.parse("1500M")
    assert Quantity.parse("1") != "1"


suffixes = st.sampled_from(["n", "u", "m", "", "k", "M", "G", "Ki", "Mi", "Gi", "e2", "E-2"])
texts = st.builds(
    "{}{}.{}{}".format, st.sampled_from(["", "-", "+"]), st.integers(0, 10**12), st.integers(0, 10**6), suffixes,
)


def exact(amount: Quantity) -> Fraction:
    return Fraction(amount.digits) * Fraction(10) ** amount.scale


@given(texts)
def test_the_canonical_form_stands_for_the_same_amount(text: str) -> None:
    amount = Quantity.parse(text)
    assert Quantity.parse(str(amount)) == amount


@given(texts, texts)
def test_order_sum_and_rounding_agree_with_exact_fractions(left: str, right: str) -> None:
    a, b = Quantity.parse(left), Quantity.parse(right)
    assert (a < b, a == b) == (exact(a) < exact(b), exact(a) == exact(b))
    assert exact(a + b) == exact(a) + exact(b)
    assert exact(a - b) == exact(a) - exact(b)
    assert abs(a.milli) - 1 < abs(exact(a) * 1000) <= abs(a.milli)
