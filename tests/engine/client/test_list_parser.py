"""Lists are split into their objects while they arrive, wherever the pieces end."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.client.list_parser import ListParser

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=12)
ITEMS = st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=6)


def parsed(pieces: list[bytes]) -> tuple[list[Any], str, str | None]:
    parser = ListParser()
    found = [each for piece in pieces for each in parser.feed(piece)] + parser.close()
    assert parser.metadata is not None
    return [msgspec.json.decode(each.raw) for each in found], parser.metadata.resourceVersion, parser.metadata.next


@given(ITEMS, st.permutations(["kind", "apiVersion", "metadata", "items", "more"]), JSON, st.sampled_from([None, 1, 2]),
       st.data())
def test_a_list_is_split_as_it_is_decoded_whole(items: Any, order: list[str], more: Any, indent: Any, data: Any):
    fields = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "x"},
              "items": items, "more": more}
    ordered = {key: fields[key] for key in order}
    text = json.dumps(ordered, indent=indent, ensure_ascii=data.draw(st.booleans())).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(pieces) == (items, "7", "x")


ALIKE = st.lists(st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": JSON})}, optional={
    "templates": st.lists(st.fixed_dictionaries({"metadata": JSON}), max_size=4), "text": st.just('},{"metadata":'),
    "spec": JSON}), max_size=8)


@given(ALIKE, st.data())
def test_objects_that_begin_alike_are_told_from_what_they_hold(items: Any, data: Any):
    text = json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}, separators=(",", ":")).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(pieces) == (items, "7", None)


def test_an_object_among_such_that_begin_alike_must_be_one():
    with pytest.raises(ValueError, match=r"\w"):
        parsed([b'{"metadata":{},"items":[{"metadata":{}},{"metadata":{},},{"metadata":{}}]}'])


def test_a_list_without_items_is_empty():
    assert parsed([b'{"metadata":{"resourceVersion":"7"},"items":null}\n']) == ([], "7", None)
    assert parsed([b'{"metadata":{"resourceVersion":"7"}}']) == ([], "7", None)


@pytest.mark.parametrize("text", [
    b"", b"[]", b'"x"', b"7", b"{", b"{}", b'{"items":[]}', b'{"metadata":7}', b'{"metadata":{},"items":{}}',
    b'{"metadata":{},"items":[7]}', b'{"metadata":{},"items":[{}', b'{"metadata":{},"items":[{}]',
    b'{"metadata":{}} {}',
    b'{"metadata":{},"items":[{},]}', b'{"metadata":{} "items":[]}', b'{"metadata":{},"items":[{"a":}]}', b"\xff\xfe",
    b"{7:{}}", b"Too many requests",
])
def test_a_text_that_is_not_a_list_of_objects_is_refused(text: bytes):
    with pytest.raises(ValueError, match=r"\w"):
        parsed([text])


def test_an_object_that_arrives_in_many_pieces_is_read_a_few_times_only(monkeypatch: pytest.MonkeyPatch):
    seen = 0
    original = ListParser._end_of_value

    def counted(self: ListParser, place: int) -> int | None:
        nonlocal seen
        seen += len(self._buffer) - place
        return original(self, place)

    monkeypatch.setattr(ListParser, "_end_of_value", counted)
    text = json.dumps({"metadata": {}, "items": [{"a": "x" * 1_000_000}]}).encode()
    assert parsed([text[at:at + 1000] for at in range(0, len(text), 1000)])[0] == [{"a": "x" * 1_000_000}]
    assert seen < 5 * len(text)
