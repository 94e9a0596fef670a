from __future__ import annotations

import pytest

from koordpolicy.engine.documents import load
from koordpolicy.engine.experiments.params import params_of, vary
from koordpolicy.engine.source import Source

TEXT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: a.first}
spec:
  params: {percent: 65, nested: {deep: {low: 1}}}
  score: [{name: s, expression: params.percent}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: second}
spec:
  params: {percent: 70}
  paramsSchema: {type: object, properties: {weight: {type: integer, default: 3}}}
  score: [{name: s, expression: params.percent}]
---
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyParams
metadata: {name: shared}
spec:
  params: {limit: 5}
"""


def varied(**values):
    documents = load([Source("p.yaml", TEXT)]).documents
    return {each.name: dict(each.spec.params) for each in vary(documents, values)}


def test_a_param_is_changed_in_every_document_that_has_it():
    assert varied(percent=80) == {
        "a.first": {"percent": 80, "nested": {"deep": {"low": 1}}}, "second": {"percent": 80}, "shared": {"limit": 5}}


def test_a_documents_name_limits_it_to_that_document_also_where_it_has_dots():
    found = varied(**{"a.first.percent": 1, "second.percent": 2})
    assert (found["a.first"]["percent"], found["second"]["percent"]) == (1, 2)


def test_a_path_reaches_into_a_param_that_is_an_object():
    assert varied(**{"nested.deep.low": 9})["a.first"]["nested"] == {"deep": {"low": 9}}
    assert varied(**{"a.first.nested.deep.low": 9})["a.first"]["nested"] == {"deep": {"low": 9}}


def test_a_param_that_has_its_default_only_can_be_changed_and_so_can_shared_ones():
    assert varied(weight=7)["second"] == {"percent": 70, "weight": 7}
    assert varied(limit=6)["shared"] == {"limit": 6}


def test_documents_that_differ_have_other_digests_and_the_originals_stay_as_they_are():
    documents = load([Source("p.yaml", TEXT)]).documents
    found = vary(documents, {"second.percent": 71})
    assert [a.digest == b.digest for a, b in zip(documents, found, strict=True)] == [True, False, True]
    assert documents[1].spec.params["percent"] == 70


def test_a_param_that_nobody_has_is_refused_with_the_word_that_was_meant():
    with pytest.raises(ValueError, match=r"^no policy has the param `percnt`: did you mean `percent`\?$"):
        varied(percnt=1)
    with pytest.raises(
        ValueError, match=r"^no policy has the param `zzz`: there are `limit`, `nested`, `percent`, `weight`$",
    ):
        varied(zzz=1)


def test_only_axes_with_the_prefix_are_params():
    assert params_of({"policy": "x", "params.a.b": 1, "seed": 3}) == {"a.b": 1}
