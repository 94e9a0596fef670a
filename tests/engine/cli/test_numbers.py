import argparse

import pytest

from koordpolicy.engine.cli.numbers import number, percent, whole


@pytest.mark.parametrize(("text", "found"), [
    ("0", 0.0), ("80", 80.0), ("12.5%", 12.5), ("0.8%", 0.8), ("100%", 100.0), ("1e1", 10.0),
])
def test_a_percentage_is_read_with_and_without_its_sign(text, found):
    assert percent(text) == found


@pytest.mark.parametrize("text", ["", "%", "-1", "100.1", "nan", "inf", "80%%", "many"])
def test_what_is_no_percentage_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        percent(text)
    assert str(caught.value) == f"`{text}` is not a percentage from 0 to 100"


def test_a_fraction_is_not_taken_for_a_percentage():
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        percent("0.8")
    assert str(caught.value) == "`0.8` is less than 1 %: write 80, or 0.8% if that is meant"


def test_a_number_is_one_that_is_allowed():
    assert number("2.5", "number above 2", lambda value: value > 2) == 2.5
    for text in ("2", "two", "3%"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"^`{text}` is not a number above 2$"):
            number(text, "number above 2", lambda value: value > 2)


def test_a_whole_number_may_be_below_0():
    assert [whole(text) for text in ("7", "0", "-7")] == [7, 0, -7]
    for text in ("", "x", "1.5", "1e3"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"^`{text}` is not a whole number$"):
            whole(text)
