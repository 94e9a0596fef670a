from __future__ import annotations

import pytest

from koordpolicy.engine.experiments.axes import Axis, count, describe, parse, points


@pytest.mark.parametrize(("text", "values"), [
    ("policy=Random,FGD", ("Random", "FGD")),
    ("seed=42..45", (42, 43, 44, 45)),
    ("seed=1,5..7,9", (1, 5, 6, 7, 9)),
    ("params.cpuPercent=55..90:5", (55, 60, 65, 70, 75, 80, 85, 90)),
    ("x=55..60:4", (55, 59)),
    ("x=0.1..0.3:0.1", (0.1, 0.2, 0.3)),
    ("x=0..1:0.25", (0.0, 0.25, 0.5, 0.75, 1.0)),
    ("x=-2..0", (-2, -1, 0)),
    ("x=true,false,1,1.5", (True, False, 1, 1.5)),
    ("policy=../mine, other/dir", ("../mine", "other/dir")),
])
def test_an_axis_lists_values_and_ranges_with_both_their_ends(text, values):
    axis = parse(text)
    assert axis.values == values
    assert [type(value) for value in axis.values] == [type(value) for value in values]


@pytest.mark.parametrize(("text", "message"), [
    ("seed", "`seed` is not an axis: write NAME=VALUE[,VALUE...], where a value may be FIRST..LAST[:STEP]"),
    ("=1", "`=1` is not an axis: write NAME=VALUE[,VALUE...], where a value may be FIRST..LAST[:STEP]"),
    ("seed=1,,2", "`seed=1,,2` has an empty value"),
    ("seed=", "`seed=` has an empty value"),
    ("seed=3..1", "`3..1` ends before it begins"),
    ("seed=1..3:0", "the step of `1..3:0` must be above 0"),
    ("seed=1..3:-1", "the step of `1..3:-1` must be above 0"),
    ("seed=0..9999999", "`0..9999999` has more than 100000 values"),
    ("seed=0..99999,200000..299999", "`seed` has more than 100000 values"),
    ("seed=1..3,2", "`seed` has the value `2` twice"),
])
def test_what_is_no_axis_is_refused(text, message):
    with pytest.raises(ValueError, match=r".") as caught:
        parse(text)
    assert str(caught.value) == message


def test_every_combination_is_an_experiment_and_the_last_axis_changes_fastest():
    axes = [Axis("policy", ("a", "b")), Axis("seed", (1, 2, 3))]
    found = [describe(point) for point in points(axes)]
    assert found == [f"policy={policy} seed={seed}" for policy in "ab" for seed in (1, 2, 3)]
    assert count(axes) == 6
