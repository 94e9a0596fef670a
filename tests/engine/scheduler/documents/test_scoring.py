import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordpolicy.engine.documents import Normalize
from koordpolicy.engine.scheduler.documents.scoring import normalize


@pytest.mark.parametrize(("how", "values", "wanted"), [
    (Normalize.IDENTITY, [3, 200, -1], [3, 200, -1]),
    (Normalize.MAX, [1, 2, 3], [33, 66, 100]), (Normalize.MAX, [0, 0], [0, 0]),
    (Normalize.MAX_REVERSE, [1, 2, 3], [67, 34, 0]), (Normalize.MAX_REVERSE, [0, 0], [100, 100]),
    (Normalize.MIN_MAX, [1, 2, 4], [0, 33, 100]), (Normalize.MIN_MAX, [5, 5], [0, 0]),
    (Normalize.MIN_MAX_REVERSE, [1, 2, 4], [100, 67, 0]), (Normalize.MIN_MAX_REVERSE, [5, 5], [100, 100]),
    (Normalize.MIN_MAX, [-(2**63), 2**63 - 1], [0, 100]), (Normalize.MAX, [2**62, 2**63 - 1], [50, 100]),
])
def test_normalizing_is_integer_arithmetic(how: Normalize, values: list[int], wanted: list[int]) -> None:
    assert normalize(np.array(values, np.int64), how).tolist() == wanted


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5), st.sampled_from(list(Normalize)[1:]))
def test_normalized_scores_are_in_range(values: list[int], how: Normalize) -> None:
    found = normalize(np.array(values, np.int64), how)
    assert 0 <= found.min() <= found.max() <= 100
