from __future__ import annotations

import difflib

import pytest

from koordpolicy.engine.source import (
    PolicyError,
    Problem,
    Problems,
    Severity,
    Source,
    did_you_mean,
    in_order,
    render,
)

FILE = Source("zone.yaml", "spec:\n  filter:\n  - expression: nod.name\n")


def test_a_position_counts_lines_and_code_points_from_one():
    source = Source("a", "x\nÿyz\r\n\n")
    assert [source.position(offset) for offset in range(len(source.text) + 1)] == [
        (1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (3, 1), (4, 1),
    ]


def test_characters_that_only_python_takes_for_line_ends_do_not_end_a_line():
    assert Source("a", "x\x0by\u2028z").position(4) == (1, 5)


def test_an_offset_beyond_the_text_is_its_end():
    assert Source("a", "xy").position(99) == (1, 3)


def test_a_problem_shows_the_line_and_underlines_the_span():
    start = FILE.text.index("nod")
    problem = Problem("no variable `nod`", FILE.span(start, start + 3), "did you mean `node`?")
    assert problem.render() == (
        "zone.yaml:3:17: error: no variable `nod`\n"
        " 3 |   - expression: nod.name\n"
        "   |                 ^^^ did you mean `node`?"
    )


def test_a_problem_in_a_part_points_into_the_file_it_was_cut_from():
    file = Source("p.yaml", 'a: "x\\ty && nod"\n')
    # The value is x<TAB>y && nod: the escape takes two characters of the file.
    value = "x\ty && nod"
    offsets = [4, 5, *range(7, 7 + len(value) - 2), 7 + len(value) - 2]
    part = file.part(value, offsets)
    start = value.index("nod")
    assert Problem("m", part.span(start, start + 3)).render() == (
        'p.yaml:1:13: error: m\n 1 | a: "x\\ty && nod"\n   |             ^^^'
    )


def test_a_part_of_a_part_points_into_the_outermost_file():
    outer = Source("config-map.yaml", "data: [abcdef]")
    inner = outer.part("abcdef", range(7, 14))
    innermost = inner.part("cd", [2, 3, 4])
    assert innermost.span(1, 2).place == ("config-map.yaml", 1, 11)


def test_a_message_that_quotes_thousands_of_characters_is_shown_by_its_ends():
    told = Problem(f"no variable `{'x' * 5000}` at filter").render()
    assert told == f"error: no variable `{'x' * 487} ... {'x' * 489}` at filter"


def test_an_empty_span_at_the_end_still_has_one_caret():
    assert Problem("m", Source("e", "ab").span(2, 2)).render() == "e:1:3: error: m\n 1 | ab\n   |   ^"


def test_tabs_before_the_caret_stay_tabs_and_control_characters_are_not_printed():
    assert Problem("m", Source("e", "\t\x1b[31mx").span(6, 7)).render() == (
        "e:1:7: error: m\n 1 | \t\N{REPLACEMENT CHARACTER}[31mx\n   | \t     ^"
    )


def test_of_a_very_long_line_only_the_surroundings_of_the_fault_are_shown():
    text = Problem("m", Source("e", "x" * 10_000).span(5_000)).render()
    assert max(map(len, text.splitlines())) < 200
    assert text.splitlines()[2].endswith("^")


def test_a_part_must_say_where_every_character_came_from():
    with pytest.raises(ValueError, match="a part of 2 characters needs 3 offsets, got 2"):
        FILE.part("ab", [0, 1])


def test_problems_are_sorted_by_place_and_told_once():
    first, second = Problem("b", FILE.span(0)), Problem("a", FILE.span(8))
    general = Problem("no policies here")
    assert in_order([second, first, general, second]) == (general, first, second)


def test_an_error_carries_its_problems_and_reads_like_them():
    error = PolicyError([Problem("b", FILE.span(8)), Problem("a", FILE.span(0))])
    assert [problem.message for problem in error.problems] == ["a", "b"]
    assert str(error) == render(error.problems)


def test_warnings_alone_raise_nothing():
    problems = Problems()
    problems.add("odd", severity=Severity.WARNING)
    problems.raise_errors()
    problems.add("wrong")
    with pytest.raises(PolicyError):
        problems.raise_errors()


def test_beyond_a_hundred_problems_only_their_number_is_told():
    text = render([Problem(f"p{number}") for number in range(103)])
    assert text.splitlines()[-1] == "... and 3 more"


def test_an_error_is_shown_however_many_warnings_and_notes_come_before_it():
    many = [Problem(f"p{number}", severity=Severity(1 + number % 2)) for number in range(200)]
    lines = render([*many, Problem("wrong")]).splitlines()
    assert lines == [f"warning: p{number}" for number in range(0, 198, 2)] + ["error: wrong", "... and 101 more"]


def test_machines_get_the_same_facts_as_people():
    assert Problem("m", FILE.span(8, 14), "h", code="c").to_json() == {
        "severity": "error", "code": "c", "message": "m", "help": "h",
        "file": "zone.yaml", "line": 2, "column": 3, "endLine": 2, "endColumn": 9,
    }


@pytest.mark.parametrize(("word", "hint"), [
    ("expresion", "did you mean `expression`?"), ("Expression", "did you mean `expression`?"), ("zebra", ""),
    ("x" * 100, ""),
])
def test_a_hint_is_given_only_where_a_known_word_is_near(word, hint):
    assert did_you_mean(word, ["expression", "name"]) == hint


def test_a_hint_among_many_long_words_compares_only_those_that_are_most_alike(monkeypatch):
    compared = []
    closest = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda word, words, **options: (
        compared.append(len(words)) or closest(word, words, **options)))
    words = [f"{'ab' * 25}{'xyz'[number % 3] * 5}-{number:03}" for number in range(200)]

    misspelt = words[77].replace("ab", "ba", 1)

    assert did_you_mean(misspelt, words) == f"did you mean `{words[77]}`?"
    assert compared[0] <= 4


def test_the_caret_stands_under_the_fault_also_behind_characters_that_are_two_columns_wide() -> None:
    source = Source("a.yaml", "\u65e5\u672c e\u0301 x")
    problem = Problem("wrong", source.span(source.text.index("x")))
    assert problem.render() == "a.yaml:1:7: error: wrong\n 1 | \u65e5\u672c e\u0301 x\n   |        ^"
