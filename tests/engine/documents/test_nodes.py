"""The YAML reader accepts YAML 1.2, and survives every text."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.documents import decode, read, read_file, to_plain
from koordpolicy.engine.source import PolicyError, Problems, Source


def plain(text: str) -> object:
    (node,) = read(Source("a.yaml", text))
    return to_plain(node)


def complaint(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        read(Source("a.yaml", text))
    return str(caught.value)


def test_scalars_mean_what_yaml_1_2_says() -> None:
    assert plain("[yes, no, on, off, true, False, TRUE, null, ~, 012, 0o14, 0x1F, +1, -1, 1_000]") == [
        "yes", "no", "on", "off", True, False, True, None, None, 12, 12, 31, 1, -1, "1_000",
    ]
    assert plain("[1.5, 1e3, .5, -.inf, 1:30, 2024-01-01, '1', \"true\", 1., =, 12e03]") == [
        1.5, 1000.0, 0.5, float("-inf"), "1:30", "2024-01-01", "1", "true", 1.0, "=", 12000.0,
    ]
    assert plain("[!!str 5, !!int '7', !!float 2, !!bool true, ! 5]") == ["5", 7, 2.0, True, "5"]


SCALARS = st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(
    st.characters(codec="utf-8", exclude_characters="\x7f\ufeff\ufffe\uffff", exclude_categories=["Cc", "Cs"]),
    max_size=20,
)


def containers(below: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.lists(below, max_size=4) | st.dictionaries(st.sampled_from("abcdefgh"), below, max_size=4)


@settings(max_examples=100, deadline=None)
@given(SCALARS | containers(st.recursive(st.none() | SCALARS, containers, max_leaves=20)))
def test_json_is_read_as_json_means_it(value: object) -> None:
    assert plain(json.dumps(value, ensure_ascii=False)) == value
    assert plain(json.dumps(value, ensure_ascii=False, indent=2)) == value


def test_aliases_stand_for_what_they_name() -> None:
    assert plain("a: &x {b: [1]}\nc: *x\nd: [*x, *x]") == {
        "a": {"b": [1]}, "c": {"b": [1]}, "d": [{"b": [1]}, {"b": [1]}],
    }


def test_an_alias_bomb_is_refused_at_once() -> None:
    text = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
    started = time.process_time()
    assert complaint(text).startswith("a.yaml:6:25: error: the aliases of this file stand for more than 100000 nodes")
    assert time.process_time() - started < 1


@pytest.mark.parametrize(("long", "alias"), [("x" * 1_000_000, "*a"), (f"[{'x' * 1_000_000}]", "[*a]")])
def test_aliases_of_a_long_text_are_refused_at_once(long: str, alias: str) -> None:
    text = f"a: &a {long}\nb: [{', '.join([alias] * 30_000)}]\n"
    assert "the aliases of this file stand for more than 10485760 characters" in complaint(text).splitlines()[0]


def test_aliases_of_long_keys_are_refused_at_once() -> None:
    keys = ", ".join(f"{number:0>1000}: 1" for number in range(1000))
    text = f"a: &a {{{keys}}}\nb: [{', '.join(['*a'] * 11)}]\n"
    assert "the aliases of this file stand for more than 10485760 characters" in complaint(text).splitlines()[0]


def test_ten_aliases_of_a_long_text_are_read() -> None:
    long = "x" * 1_000_000
    assert plain(f"a: &a {long}\nb: [{', '.join(['*a'] * 10)}]\n") == {"a": long, "b": [long] * 10}


@pytest.mark.parametrize("text", ["[" * 10_000, "{a: " * 10_000, "- " * 10_000 + "a", "[" * 10_000 + "]" * 10_000])
def test_what_is_nested_ten_thousand_deep_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    assert "error: nested deeper than 64 levels" in complaint(text)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(("text", "message"), [
    ("[" + "a," * 4_000_000 + "]", "there are more than 250000 nodes in this file"),
    ("a: 1\n" * 1_000_000, "the key `a` is here twice, first at 1:1"),
    ("---\n[\n" * 1_000_000, "did not find expected node content"),
    ("!x a\n---\n" * 500_000, "the tag `!x` is not supported"),
], ids=["nodes", "keys", "errors", "tags"])
def test_ten_megabytes_of_nonsense_are_refused_soon(text: str, message: str) -> None:
    problems = Problems()
    started = time.process_time()
    read(Source("a.yaml", text), problems)
    assert time.process_time() - started < 30
    assert message in problems.found[0].message
    assert len(problems.found) <= 200


def test_a_file_beyond_the_limit_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    with pytest.raises(PolicyError) as caught:
        read_file(path, name="big.yaml")
    assert str(caught.value).splitlines()[0] == "big.yaml:1:1: error: `big.yaml` is larger than 10485760 bytes"


def test_bytes_that_are_not_utf_8_are_named_with_their_place() -> None:
    with pytest.raises(PolicyError) as caught:
        decode("a.yaml", "a: b\nc: é".encode() + b"\xff\n")
    assert str(caught.value).splitlines()[0] == "a.yaml:2:5: error: byte 0xff at offset 10 is not UTF-8"


def test_utf_16_and_binary_files_are_told_apart() -> None:
    with pytest.raises(PolicyError) as caught:
        decode("a.yaml", "a: b".encode("utf-16"))
    assert str(caught.value).startswith("a.yaml:1:1: error: the file is UTF-16")
    assert complaint("a: \0\0").startswith("a.yaml:1:4: error: the character U+0000 is not allowed in YAML")
    assert complaint("a: \x07").startswith("a.yaml:1:4: error: the character U+0007 is not allowed in YAML")


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    (node,) = read(decode("a.yaml", b"\xef\xbb\xbfa: 1\n"))
    assert to_plain(node) == {"a": 1}
    assert str(node.fields["a"].place) == "a.yaml:1:1"


def test_reading_goes_on_after_a_syntax_error_at_the_next_document() -> None:
    problems = Problems()
    nodes = read(Source("a.yaml", "a: 1\n---\nb: [\n---\nc: }\n---\nd: 1\n"), problems)
    assert [to_plain(node) for node in nodes] == [{"a": 1}, {"d": 1}]
    assert [str(problem.span) for problem in problems.found] == ["a.yaml:4:1", "a.yaml:5:4"]


@pytest.mark.parametrize("cut", range(0, 200, 7))
def test_a_truncated_file_is_read_or_refused_but_never_fails_otherwise(cut: int) -> None:
    text = (
        "a: &x\n  b: 'it''s'\n  c: \"d\\u0041\"\nlist:\n- {f: [1, 2], g: *x}\n- |2\n   h\n- >-\n  i\n\n  j\n---\nk: l\n"
    )
    problems = Problems()
    read(Source("a.yaml", text[:cut]), problems)
    assert all(problem.span is not None for problem in problems.found)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab:- \n\t[]{}'\"|>#&*!%@`?,\\~=0", max_size=60))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    problems = Problems()
    for node in read(Source("a.yaml", text), problems):
        for each in node.walk():
            assert str(each.span)
            assert each.part.text == each.text
    str(problems.errors and PolicyError(problems.found))


def test_a_path_leads_to_a_node_and_its_place() -> None:
    (node,) = read(Source("a.yaml", "spec:\n  filter:\n  - {name: a}\n"))
    found = node.at("spec", "filter", 0, "name")
    assert found is not None
    assert (found.scalar, str(found.span), str(found.place)) == ("a", "a.yaml:3:12", "a.yaml:3:6")
    assert node.at("spec", "filter", 1) is None
    assert node.at("spec", 0) is None


@pytest.mark.parametrize(
    "text", ["a: &x word", "a: !!str word", "a: &x !!str 'word'", "a: !!str &x # why\n  word", "a: &x |\n  word"],
)
def test_the_characters_of_a_scalar_stand_behind_its_anchor_and_tag(text: str) -> None:
    (node,) = read(Source("a.yaml", text))
    part = node.fields["a"].part
    assert (part.text.strip(), part.span(0, 4).root().start) == ("word", text.index("word"))


def test_an_anchored_scalar_without_text_is_where_its_anchor_ends() -> None:
    (node,) = read(Source("a.yaml", "a: &x\nb: 1"))
    assert (node.fields["a"].scalar, str(node.fields["a"].span), node.fields["b"].scalar) == (None, "a.yaml:1:6", 1)


@pytest.mark.parametrize("before", range(-4, 5))
def test_a_file_is_decoded_in_pieces_as_it_is_as_a_whole(before):
    text = "\ufeff" + "x" * (65_536 + before) + "\u00e4\u20ac\U0001f600" * 40_000
    assert decode("a.yaml", text.encode()).text == text[1:]
    data = text.encode()
    for broken in (data + b"\xff", data[:-1], data[:65_540] + b"\xff" + data[65_540:]):
        with pytest.raises(UnicodeDecodeError) as wanted:
            broken.decode()
        with pytest.raises(PolicyError) as caught:
            decode("a.yaml", broken)
        (problem,) = caught.value.problems
        assert (problem.message, problem.span.start) == (
            f"byte 0x{broken[wanted.value.start]:02x} at offset {wanted.value.start} is not UTF-8",
            len(broken[:wanted.value.start].decode()))


def test_places_in_a_long_text_are_those_of_its_characters():
    text = "# \u00e4\U0001f600\n" * 30_000 + "a: [1]\nb: " + "y" * 100_000 + "\nc: 2\n"
    (node,) = read(Source("a.yaml", text))
    assert [(key, each.place.start, each.start) for key, each in node.fields.items()] == [
        (key, text.index(f"{key}: "), text.index(f"{key}: ") + 3) for key in "abc"]


@pytest.mark.parametrize(("text", "taken"), [
    ("9" * 50, 2**63 - 1), ("+" + "9" * 50, 2**63 - 1), ("9" * 5_000, 2**63 - 1), ("0x" + "f" * 50, 2**63 - 1),
    ("0o" + "7" * 50, 2**63 - 1), ("-" + "9" * 50, -(2**63)), (str(2**64), 2**63 - 1), (str(-(2**63) - 1), -(2**63)),
])
def test_a_number_beyond_64_bits_is_named_and_taken_for_the_nearest_one(text: str, taken: int) -> None:
    problems = Problems()
    (node,) = read(Source("a.yaml", f"a: {text}"), problems)
    assert [(str(each.span), each.message) for each in problems.found] == [
        ("a.yaml:1:4", f"the number {text[:40]} does not fit in 64 bits")]
    assert to_plain(node) == {"a": taken}


def test_zeros_before_a_number_do_not_count() -> None:
    assert plain(f"[{'0' * 60}5, -{'0' * 60}7, 0x{'0' * 60}f]") == [5, -7, 15]
