"""Long texts are the same in blocks as they are at once."""

from __future__ import annotations

import json
from pathlib import Path

from koordpolicy.engine.serving.long_texts import in_blocks, json_blocks


def test_json_in_blocks_is_the_same_json():
    data = {"a": [{"b": number, "c": {"d": [None] * number}} for number in range(40)], 1: (), "e": {},
            None: {"f": "\u00e4"}, "g": [[1] * 40] * 40, 'q"': Path("x")}
    assert b"".join(json_blocks(data)) == json.dumps(data, default=str).encode()
    assert [b"".join(json_blocks(each)) for each in ([], {}, "x", None)] == [b"[]", b"{}", b'"x"', b"null"]


def test_blocks_have_a_bounded_size_and_all_of_the_text():
    blocks = list(in_blocks(f"{number:99}\n" for number in range(2_000)))
    assert [len(block) for block in blocks] == [65_600, 65_600, 65_600, 3_200]
    assert b"".join(blocks).split() == [str(number).encode() for number in range(2_000)]


def test_a_text_without_an_encoding_does_not_take_the_others_with_it():
    assert list(in_blocks(("a\n", "\udc80\n"))) == [b"a\n?\n"]
