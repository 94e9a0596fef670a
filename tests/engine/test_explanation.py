from __future__ import annotations

import json
import re

import pytest

from koordpolicy.engine.explanation import Finding, Mark, Table, counted, heading, listed, plain, plain_or_cut, shown

TREE = Finding("node", parts=(
    Finding("choice", "n is refused"),
    heading("filters", (
        Finding("plugin", "A, B", Mark.PASSED, {"plugins": ["A", "B"]}),
        Finding("plugin", "C: too hot", Mark.REFUSED, {"plugin": "C", "kind": "never seen"}, (
            Finding("distance", "cpu 71 %, must be below 65 %: over by 6 %", facts={"difference": 6}),
        )),
    )),
    heading("errors"),
    heading("scores", table=Table(("plugin", "weight", "n"), (("C", 1, 7), ("longer", 10, 100)))),
    heading("it would run if", (Finding("change", "the pod did\nand more", Mark.CHANGE, lead="- "),)),
))


def test_a_tree_is_lines_for_people():
    assert TREE.as_text() == (
        "n is refused\n"
        "\n"
        "filters\n"
        "  passed   A, B\n"
        "  refused  C: too hot\n"
        "           cpu 71 %, must be below 65 %: over by 6 %\n"
        "\n"
        "scores\n"
        "  plugin  weight    n\n"
        "  C            1    7\n"
        "  longer      10  100\n"
        "\n"
        "it would run if\n"
        "  - the pod did\n"
        "    and more"
    )


def test_colour_is_the_readers_business_and_never_touches_the_indentation():
    text = TREE.as_text(lambda word, mark: f"<{mark.name}>{word}</>")
    assert "  <REFUSED>refused</>  C: too hot\n" in text
    assert "\n<HEADING>filters</>\n" in text
    assert re.sub("<[A-Z/]*>", "", text) == TREE.as_text()


def test_a_tree_is_plain_data_for_machines():
    assert json.loads(json.dumps(TREE.to_json())) == {"kind": "node", "parts": [
        {"kind": "choice", "text": "n is refused"},
        {"kind": "part", "text": "filters", "parts": [
            {"kind": "plugin", "text": "A, B", "outcome": "passed", "plugins": ["A", "B"]},
            {"kind": "plugin", "text": "C: too hot", "outcome": "refused", "plugin": "C", "parts": [
                {"kind": "distance", "text": "cpu 71 %, must be below 65 %: over by 6 %", "difference": 6},
            ]},
        ]},
        {"kind": "part", "text": "errors"},
        {"kind": "part", "text": "scores", "rows": [
            {"plugin": "C", "weight": 1, "n": 7}, {"plugin": "longer", "weight": 10, "n": 100},
        ]},
        {"kind": "part", "text": "it would run if", "parts": [
            {"kind": "change", "text": "the pod did\nand more"},
        ]},
    ]}


def test_findings_are_found_by_their_kind():
    assert [each.text for each in TREE.find("plugin")] == ["A, B", "C: too hot"]


@pytest.mark.parametrize(("value", "unit", "text"), [
    (1500, "milli-cores", "1.5 cores"), (1000, "milli-cores", "1 core"), (2, "cores", "2 cores"),
    (3 * 1024**3, "bytes", "3Gi"), (1024**3 - 5, "bytes", "1Gi"), (100, "bytes", "100 bytes"),
    (-1536, "bytes", "-1.5Ki"), (71, "%", "71 %"),
    (200, "seconds", "200 s"), (0.5, "", "0.5"), (0.00001, "", "1e-05"), (2**53 + 1, "", "9007199254740993"),
    (float("nan"), "", "nan"), (float("inf"), "%", "inf"), (True, "%", "true"), (None, "", "null"),
    ("a\nb", "", "'a b'"), ({"a": (1, b"x")}, "", "{'a': [1, '78']}"),
])
def test_values_are_shown_in_peoples_units(value, unit, text):
    assert shown(value, unit) == text


def test_lists_are_cut_and_things_counted():
    assert listed(["a", "b", "c", "d"]) == "a, b, c and 1 more"
    assert (counted(1, "node"), counted(0, "node")) == ("1 node", "0 nodes")


def test_what_is_told_cannot_steer_a_terminal():
    hostile = Finding("x", "a\x1b[2Jb\rc\x07\u202e", table=Table(("n\x1b",), (("\x9b1m",),)))
    assert hostile.as_text() == "a\ufffd[2Jb\ufffdc\ufffd\ufffd\n  n\ufffd\n  \ufffd1m"


def test_long_texts_are_wrapped_below_their_own_beginning_and_names_stay_whole():
    found = heading("filters", (Finding("plugin", "one two three four five six-seven-eight nine", Mark.REFUSED, {}, (
        Finding("x", "a" * 50),)),))
    assert found.as_text(width=41) == (
        "\nfilters\n"
        "  refused  one two three four five\n"
        "           six-seven-eight nine\n"
        "           " + "a" * 50
    )


def test_a_value_that_holds_a_part_many_times_is_written_out_as_far_as_it_goes():
    value: object = ["x"]
    for _ in range(60):
        value = [value, {"again": value}]
    assert len(shown(value)) <= 303
    assert len(json.dumps(plain(value, 1_000))) < 20_000
    assert plain([1, [2, {"a": 3, "b": 4}, 5], 6], 6) == [1, [2, {"a": 3, "...": "..."}, "..."], "..."]


def test_facts_that_were_cut_say_so():
    assert plain_or_cut([1, [2]], 3) == ([1, ["..."]], True)
    assert plain_or_cut([1, [2]], 4) == ([1, [2]], False)
    value: object = ["x"]
    for _ in range(25):
        value = [value, value]
    found = Finding("values", facts={"values": value}).to_json()
    assert (found["kind"], found["truncated"]) == ("values", True)
    assert Finding("values", facts={"values": [1]}).to_json() == {"kind": "values", "values": [1]}
