from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koordpolicy.engine.documents.internal_form import canonical
from koordpolicy.engine.documents.nodes import read
from koordpolicy.engine.source import PolicyError, Source

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner), max_leaves=30)


@given(_PLAIN, st.integers(0, 6))
def test_the_canonical_text_is_the_same_in_however_many_pieces_it_is_written(value, pieces):
    whole = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert "".join(canonical(value, pieces)) == whole


@pytest.mark.parametrize("offset", [0, 65_535, 65_536, 131_071, 199_999])
def test_a_forbidden_character_is_found_wherever_it_stands(offset):
    text = "#" * offset + "\0" + "#" * (200_000 - offset)
    with pytest.raises(PolicyError) as raised:
        read(Source("a.yaml", text))
    assert [(each.message, each.span.start) for each in raised.value.problems] == [
        ("the character U+0000 is not allowed in YAML", offset)]
