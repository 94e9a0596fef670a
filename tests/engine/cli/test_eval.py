from __future__ import annotations

import functools
import importlib
from pathlib import Path

import pytest

from koordpolicy.engine.explanation import plain_or_cut

from .conftest import Outcome, Run


def test_an_expression_has_a_type_and_a_value(run: Run):
    assert run("eval", "1 + 1").out == "type   int\nvalue  2\n"
    assert run("eval", "1 + 1", "--output", "json").json == {"type": "int", "value": 2}


def test_variables_are_given_as_json(run: Run):
    done = run(
        "eval", "names.filter(n, n.startsWith(prefix))", "--var", 'names=["eu-1", "us-1"]', "--var", 'prefix="eu"',
    )
    assert done.out == 'type   list(string)\nvalue  ["eu-1"]\n'


def test_fields_of_a_given_mapping_are_checked(run: Run):
    done = run("eval", "limits_of.cpi", "--var", 'limits_of={"cpu": 1, "name": "x"}')
    assert done.exit == 3
    assert "no such field `cpi`" in done.err


def test_a_given_time_is_a_timestamp(run: Run):
    done = run("eval", "now.getFullYear()", "--var", 'now="2026-05-01T00:00:00Z"')
    assert done.out == "type   int\nvalue  2026\n"


def test_a_text_that_is_no_json_says_how_to_write_it(run: Run):
    done = run("eval", "a", "--var", "a=x")
    assert (done.exit, done.out) == (2, "")
    assert done.err == (
        "koord-policy: `--var a=x`: `x` is not JSON; a string needs quotes: `--var 'a=\"x\"'`\n"
    )


def test_an_invalid_expression_is_shown_with_a_caret(run: Run):
    done = run("eval", "usage.memroy / 3")
    assert (done.exit, done.out) == (3, "")
    assert done.err == (
        "<expression>:1:6: error: no such field `memroy` in `Usage`\n"
        " 1 | usage.memroy / 3\n"
        "   |      ^^^^^^^ did you mean `memory`? "
        '(any other name is written in full and in quotes, as in `["nvidia.com/gpu"]`)\n'
    )


def test_an_error_of_the_evaluation_is_no_value(run: Run):
    done = run("eval", "1 / 0")
    assert (done.exit, done.out) == (5, "type   int\nerror  division by zero\n")
    assert run("eval", "1 / 0", "--output", "json").json == {"type": "int", "error": "division by zero"}


def test_what_is_read_but_not_given_is_named(run: Run, dump: Path):
    assert run("eval", "usage.cpu").err == (
        "koord-policy: the expression reads `usage`: name a cluster with `--cluster`, or give it with `--var "
        "'usage=JSON'`\n"
    )
    done = run("eval", "requests.cpu", "--cluster", dump)
    assert done.err == (
        "koord-policy: the expression reads `requests`: name a pod with `--pod`, or give it with `--var "
        "'requests=JSON'`\n"
    )
    assert done.exit == 2


def test_without_a_node_all_nodes_answer(run: Run, dump: Path):
    done = run("eval", "allocatable.cpu - requested.cpu", "--cluster", dump)
    assert done.out == "node    int\ncool   3000\nhot    4000\nsmall  1000\n"


def test_nodes_without_a_value_are_errors_of_their_own(run: Run, dump: Path):
    done = run("eval", "usage.memory", "--cluster", dump, "--output", "json")
    assert done.exit == 5
    assert done.json == {
        "type": "int", "values": {}, "errors": dict.fromkeys(("cool", "hot", "small"), "no metric of `memory`"),
    }


def test_one_node_is_evaluated_with_its_steps(run: Run, dump: Path):
    done = run("eval", "usage.cpu * 100 / allocatable.cpu", "--cluster", dump, "--node", "hot", "--steps", "-o", "json")
    assert done.json["value"] == 75
    assert done.json["steps"][:2] == [
        {"expression": "usage.cpu * 100 / allocatable.cpu", "value": 75},
        {"expression": "usage.cpu * 100", "value": 300000},
    ]


def test_the_pod_is_seen(run: Run, dump: Path):
    done = run("eval", "requests.cpu <= allocatable.cpu - requested.cpu", "--cluster", dump, "--pod", "web-3")
    assert done.out == "node   bool\ncool   true\nhot    true\nsmall  false\n"
    assert run(
        "eval", "podInfo.name", "--cluster", dump, "--pod", "shop/web-2",
    ).out == 'type   string\nvalue  "web-2"\n'


def test_the_dump_tells_the_time_unless_it_is_given(run: Run, dump: Path):
    assert run("eval", "now", "--cluster", dump).out.splitlines()[1] == 'value  "2026-01-02T12:00:00Z"'
    done = run("eval", "nodeInfo.measured", "--cluster", dump, "--now", "2026-01-02T13:00:00Z", "--node", "hot")
    assert done.out == "type   bool\nvalue  false\n"
    assert run("eval", "now", "--cluster", dump, "--now", "noon").err == (
        "koord-policy: `--now`: `noon` is not a time like 2026-01-31T12:00:00Z\n"
    )


@pytest.mark.parametrize(("arguments", "message"), [
    (("--node", "hto"), "there is no node `hto` in the cluster: did you mean `hot`?"),
    (("--pod", "web-22"), "there is no pod `web-22` in the cluster: did you mean `web-2`?"),
    (("--pod", "data/web-1"), "there is no pod `data/web-1` in the cluster: did you mean `shop/web-1`?"),
    (("--pod", "shop/wep-1"), "there is no pod `shop/wep-1` in the cluster: did you mean `shop/web-1`?"),
])
def test_an_unknown_name_says_which_is_near(run: Run, dump: Path, arguments: tuple[str, ...], message: str):
    done = run("eval", "1", "--cluster", dump, *arguments)
    assert (done.exit, done.err) == (2, f"koord-policy: {message}\n")


def test_a_node_without_a_cluster_is_a_usage_error(run: Run):
    done = run("eval", "1", "--node", "n")
    assert (done.exit, done.err) == (2, "koord-policy: `--node` and `--pod` need a cluster: name it with `--cluster`\n")


def test_the_second_engine_answers_for_one_place_at_a_time(run: Run, dump: Path):
    assert run("eval", "[1, 2].map(x, x * x)", "--engine", "cel-python").out == "type   list(int)\nvalue  [1, 4]\n"
    expression = "usage.cpu * 100 / allocatable.cpu"
    ours = run("eval", expression, "--cluster", dump, "--node", "hot")
    assert run("eval", expression, "--cluster", dump, "--node", "hot", "--engine", "cel-python") == ours
    done = run("eval", expression, "--cluster", dump, "--engine", "cel-python")
    assert (done.exit, done.err) == (2, (
        "koord-policy: cel-python answers for one node at a time: name it with `--node`\n"
    ))


def test_the_plan_of_an_expression_is_shown_and_nothing_evaluated(run: Run):
    done = run("eval", "requests.cpu > 0 && usage.cpu < 65", "--plan")
    assert (done.exit, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[:2] == ["type   bool", "cost   3 to 6 by row, of at most 1,000,000"]
    assert [line.split("  ")[-1].strip() for line in lines[6:]] == ["6", "3", "3", "2"]
    found = run("eval", "requests.cpu > 0 && usage.cpu < 65", "--plan", "--output", "json").json
    assert [(part["depth"], part["expression"], part["evaluated"]) for part in found["parts"]] == [
        (0, "requests.cpu > 0 && usage.cpu < 65", "by column"), (1, "requests.cpu > 0", "once per decision"),
        (1, "usage.cpu < 65", "by column"), (2, "usage.cpu", "numeric column"),
    ]
    assert found["parts"][0]["readsOfDecision"] == ["requests.cpu"]


def test_values_that_are_cut_say_so(run: Run, dump: Path, monkeypatch: pytest.MonkeyPatch):
    command = importlib.import_module("koordpolicy.engine.cli.eval")
    monkeypatch.setattr(command, "plain_or_cut", functools.partial(plain_or_cut, most=3))
    assert run("eval", "[1, 2, 3]", "--output", "json").json == {
        "type": "list(int)", "value": [1, 2, "..."], "truncated": True}
    assert run("eval", "[1, 2]", "--output", "json").json == {"type": "list(int)", "value": [1, 2]}
    found = run("eval", "[usage.cpu, 2, 3]", "--cluster", dump, "--output", "json").json
    assert (found["truncated"], found["values"]["hot"]) == (["cool", "hot", "small"], [3000, 2, "..."])


@pytest.mark.parametrize(("written", "why"), [
    ("9" * 23, (f"`{'9' * 23}` is beyond the integers, which go from -9223372036854775808 to 9223372036854775807; with "
               "a decimal point or an exponent (`1e20`) it is a double")),
    ("-9223372036854775809", ("`-9223372036854775809` is beyond the integers, which go from -9223372036854775808 to "
                             "9223372036854775807; with a decimal point or an exponent (`1e20`) it is a double")),
    ("[1e999]", "`1e999` is beyond the doubles, of which the largest is 1.79769e+308"),
    ("NaN", "`NaN` is not JSON; in the expression it is `double('NaN')`"),
])
def test_numbers_that_no_type_holds_are_refused(run: Run, written: str, why: str):
    assert run("eval", "x", "--var", f"x={written}") == Outcome(2, "", f"koord-policy: `--var x={written}`: {why}\n")


def test_a_number_of_thousands_of_digits_is_not_printed_whole(run: Run):
    assert run("eval", "x", "--var", f"x={'9' * 5000}").err == (
        f"koord-policy: `--var x={'9' * 58}...`: `{'9' * 60}...` is beyond the integers, which go from "
        "-9223372036854775808 to 9223372036854775807; with a decimal point or an exponent (`1e20`) it is a double\n")


def test_the_outermost_integers_are_values(run: Run):
    assert run("eval", "x", "--var", "x=[-9223372036854775808, 9223372036854775807]").out == (
        "type   list(int)\nvalue  [-9223372036854775808, 9223372036854775807]\n")
