"""What is wrong with params is reported at their lines."""

from __future__ import annotations

import pytest

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.source import PolicyError, Source

SCHEMA = """\
  paramsSchema:
    type: object
    properties:
      percent: {type: integer, maximum: 100}
      after: {type: string, format: duration, default: soon}
      windows: {type: array, items: {type: string, format: duration}}
"""


def lines(params: str, schema: str = SCHEMA) -> list[int]:
    """Return the lines of the complaints about a document's params; the first line of the document is 1."""
    text = (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata:\n  name: example\nspec:\n"
        f"{params}{schema}  filter:\n  - {{name: it, expression: requests.cpu < 1000}}\n"
    )
    with pytest.raises(PolicyError) as caught:
        compile_documents(load([Source("policy.yaml", text)]))
    return [each.span.place[1] for each in caught.value.problems if each.span is not None]


def test_a_time_that_cannot_be_read_is_reported_at_its_line():
    assert lines("  params:\n    percent: 60\n    after: 5 minutes\n") == [8]


def test_so_is_one_inside_of_a_list():
    assert lines("  params:\n    after: 1h\n    windows:\n    - 1h\n    - never\n") == [10]


def test_a_default_that_cannot_be_read_is_reported_where_it_is_declared():
    assert lines("  params:\n    percent: 60\n") == [12]
