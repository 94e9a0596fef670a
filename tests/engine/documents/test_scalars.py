"""Every character of a scalar's value must be found where it stands in the file."""

from __future__ import annotations

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from koordpolicy.engine.documents import read
from koordpolicy.engine.documents.scalars import locate
from koordpolicy.engine.source import Source

words = st.text(alphabet="ab c\t'\"\\:#é\U0001f600-", min_size=1, max_size=12)
lines = st.lists(st.one_of(st.just(""), words), min_size=1, max_size=6)


def whole(style: str, pieces: list[str], indent: int, header: str) -> str:
    blank = " " * indent
    if style in ("|", ">"):
        return f"a:\n  k: {style}{header}\n" + "".join(
            f"{blank if each else ''}{each}\n" for each in pieces
        ) + "  z: 1\n"
    inner = f"\n{blank}".join(pieces)
    if style == "'":
        inner = "'" + inner.replace("'", "''") + "'"
    elif style == '"':
        inner = '"' + inner.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"a:\n  k: {inner}\n  z: 1\n"


def check(text: str) -> None:
    try:
        events = [e for e in yaml.parse(text, Loader=yaml.CLoader) if isinstance(e, yaml.ScalarEvent)]
    except yaml.YAMLError:  # no scalar, no place
        return
    for event in events:
        start, end = event.start_mark.index, event.end_mark.index
        offsets = locate(text, start, end, event.style or "", event.value)
        assert len(offsets) == len(event.value) + 1
        assert list(offsets) == sorted(offsets)
        if len(event.value) > 1:
            assert len(set(offsets)) == len(offsets), "the fall-back for what cannot be decoded was used"
        for character, offset in zip(event.value, offsets, strict=False):
            there = text[offset]
            assert there == character or there in "\n\\\r\x85" or character == "\n", (character, there)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["", "'", '"', "|", ">"]), lines, st.integers(4, 8),
    st.sampled_from(["", "-", "+", "2", "4", "2-", "+4"]),
)
@example(">", ["a", "  b", "", "c", "", ""], 4, "+")
@example("|", ["  a", "b"], 4, "2")
def test_every_character_of_a_scalar_knows_its_place(style: str, pieces: list[str], indent: int, header: str) -> None:
    check(whole(style, pieces, indent, header))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                "a", " ", "\t", "\\n", "\\t", "\\x41", "\\u00e9", "\\U0001F600", "\\\n  ", "\n  ", "\n", "'", '\\"',
                "\\\\", "\r\n  ", "\u2028", "\x85",
            ],
        ),
        max_size=14,
    ),
)
def test_escapes_and_folds_of_double_quotes_are_followed(pieces: list[str]) -> None:
    check('k: "' + "".join(pieces) + '"\n')


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(["|", ">", "|-", ">+", "|2", ">1-"]), st.text(alphabet="ab \n\r\u2028\x85", max_size=30))
def test_block_scalars_of_any_shape_are_followed(header: str, body: str) -> None:
    check(f"k: {header}\n" + "".join(f"  {line}" if line.strip() else line for line in body.splitlines(keepends=True)))


def place_of(text: str, wanted: str) -> str:
    (node,) = read(Source("a.yaml", text))
    field = node.at("k")
    assert field is not None
    start = field.part.text.index(wanted)
    return str(field.part.span(start, start + len(wanted)))


def test_a_word_of_a_folded_scalar_is_found_in_its_line() -> None:
    assert place_of("k: >-\n  one two\n  three nod\n\n  four\n", "nod") == "a.yaml:3:9"


def test_a_word_behind_escapes_is_found_in_its_column() -> None:
    assert place_of('k: "\\u0041 \\"x\\" \\\n   nod"\n', "nod") == "a.yaml:2:4"


def test_a_word_behind_doubled_quotes_is_found_in_its_column() -> None:
    assert place_of("k: 'it''s ''a'' nod'\n", "nod") == "a.yaml:1:17"


def test_a_word_in_a_literal_with_an_indentation_indicator_is_found() -> None:
    assert place_of("k: |2-\n    deep\n  nod\n", "nod") == "a.yaml:3:3"


def test_a_document_inside_a_document_points_into_the_outer_file() -> None:
    outer = "data:\n  a.yaml: |\n    k: >-\n      one\n      nod\n"
    (manifest,) = read(Source("map.yaml", outer))
    held = manifest.at("data", "a.yaml")
    assert held is not None
    (inner,) = read(held.part)
    field = inner.at("k")
    assert field is not None
    start = field.part.text.index("nod")
    assert str(field.part.span(start)) == "map.yaml:5:7"
