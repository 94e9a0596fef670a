"""Strategic merge patches of pods."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.manager.strategic_merge import strategic_merge


@pytest.mark.parametrize(("original", "patch", "merged"), [
    ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}, "a": None}, {"b": {"c": 2, "d": 3}}),
    ({"containers": [{"name": "a", "image": "x"}, {"name": "b"}]},
     {"containers": [{"name": "b", "image": "y"}, {"name": "c"}]},
     {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}, {"name": "c"}]}),
    ({"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]},
     {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]},
     {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]}]}),
    ({"volumes": [{"name": "a"}, {"name": "b"}]}, {"volumes": [{"$patch": "delete", "name": "a"}]},
     {"volumes": [{"name": "b"}]}),
    ({"volumes": [{"name": "a"}]}, {"volumes": [{"name": "c"}, {"$patch": "replace"}]}, {"volumes": [{"name": "c"}]}),
    ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
    ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
    ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
    ({"b": {"c": 2}}, {"b": {"$patch": "replace", "d": 3}}, {"b": {"d": 3}}),
    ({"b": {"c": 2}}, {"b": {"$patch": "delete"}}, {}),
    ({}, {"$setElementOrder/containers": [], "spec": {"nodeName": "n"}}, {"spec": {"nodeName": "n"}}),
])
def test_patches_are_merged_as_kubernetes_does(original: Any, patch: Any, merged: Any):
    assert strategic_merge(original, patch) == merged
