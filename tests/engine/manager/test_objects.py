"""The objects that the manager follows."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from koordpolicy.engine.client.informer import Change
from koordpolicy.engine.manager.objects import ManagedObjects


def change(kind: str, name: str, version: int = 1, *, deleted: bool = False, **content: Any) -> Change:
    namespace = "shop" if kind == "Pod" else ""
    raw = json.dumps({**content, "metadata": {
        "name": name, "namespace": namespace, "uid": "u", "resourceVersion": str(version),
        **content.get("metadata", {})}}).encode()
    return Change(kind, namespace, name, "u", msgspec.Raw(raw), deleted=deleted)


def pod(name: str, node: str, quota: str = "", version: int = 1, **more: Any) -> Change:
    labels = {"quota.scheduling.koordinator.sh/name": quota} if quota else {}
    return change("Pod", name, version, metadata={"labels": labels}, spec={
        "nodeName": node, "containers": [{"name": "c", "image": "x"}]}, **more)


def test_pods_are_found_by_node_and_by_quota_and_move_with_their_changes():
    objects, seen = ManagedObjects(), list[tuple[str, str]]()
    objects.apply([pod("b", "n1", "q"), pod("a", "n1", "q"), pod("c", "n2")], lambda *each: seen.append(each))
    assert [each.name for each in objects.pods_of_quota("q")] == ["a", "b"]
    objects.apply([pod("b", "n1", "other", 2), pod("a", "n1", deleted=True)], lambda *each: seen.append(each))
    assert [[each.name for each in objects.pods_of(node)] for node in ("n1", "n2", "n3")] == [["b"], ["c"], []]
    assert (objects.pods_of_quota("q"), [each.name for each in objects.pods_of_quota("other")]) == ((), ["b"])
    assert seen[-1] == ("Pod", "shop/a")


def test_only_fields_that_are_read_are_held():
    objects = ManagedObjects()
    objects.apply([pod("a", "n1")], lambda *_: None)
    assert objects.pods_of("n1")[0].object["spec"] == {"nodeName": "n1", "containers": [{"name": "c"}]}


def test_an_older_version_does_not_replace_a_newer_one():
    objects = ManagedObjects()
    objects.apply([change("NodeSLO", "n", 5, spec={"a": 1})], lambda *_: None)
    objects.apply([change("NodeSLO", "n", 4, spec={"a": 2})], lambda *_: None)
    assert (objects.object("NodeSLO", "n") or {})["spec"] == {"a": 1}
    objects.apply([change("NodeSLO", "n", 4, metadata={"uid": "other"})], lambda *_: None)
    assert "spec" not in (objects.object("NodeSLO", "n") or {})


def test_an_unreadable_object_costs_itself_only(caplog: Any):
    objects = ManagedObjects()
    broken = Change("Pod", "shop", "x", "u", msgspec.Raw(b'{"metadata": {"name": "x"}, "spec": {"containers": 5}}'))
    objects.apply([broken, pod("a", "n1")], lambda *_: None)
    assert objects.keys("Pod") == ("shop/a",)
    assert "Pod shop/x cannot be read, and is left out" in caplog.text
