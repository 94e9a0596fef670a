"""Informers and patches of plugins: what they declare, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from koordpolicy.engine.framework.object_access import DeclaredAccess
from koordpolicy.plugin import Handle, Write, field_paths
from koordpolicy.testing import FakeFramework, node, pod


def budget(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": "default", **metadata}, "spec": {"minAvailable": 1}}


class Calls(list[tuple[str, ...]]):
    """The callbacks of an informer, with the names of their objects."""

    def follow(self, handle: Handle, kind: str) -> None:
        def name(item: Any) -> str:
            return f"{item['metadata']['name']}{item['metadata'].get('generation', '')}"

        handle.informer(kind).on(
            added=lambda item: self.append(("added", name(item))),
            updated=lambda old, new: self.append(("updated", name(old), name(new))),
            deleted=lambda item: self.append(("deleted", name(item))))


def test_an_informer_reports_what_is_there_and_then_each_change():
    framework, calls = FakeFramework(budget("a")), Calls()
    handle = framework.handle()
    calls.follow(handle, "PodDisruptionBudget")
    framework.upsert(budget("b"))
    framework.upsert(budget("a", generation=2))
    framework.upsert(node("n"))
    informer = handle.informer("PodDisruptionBudget")
    assert (sorted(informer.all()), informer.get("default/b"), informer.get("default/c")) == (
        ["default/a", "default/b"], budget("b"), None)
    framework.delete("PodDisruptionBudget", "default/a")
    assert calls == [("added", "a"), ("added", "b"), ("updated", "a", "a2"), ("deleted", "a2")]


def test_a_pod_that_has_finished_is_deleted_and_one_that_is_assumed_has_not_changed():
    framework, calls = FakeFramework(node("n"), pod("p")), Calls()
    handle = framework.handle()
    calls.follow(handle, "Pod")
    framework.cluster.assume(framework.pod("p"), "n")
    framework.upsert(pod("p", nodeName="n"))
    framework.upsert({**pod("p", nodeName="n"), "status": {"phase": "Succeeded"}})
    assert (handle.informer("Pod").get("default/p"), dict(handle.informer("Pod").all())) == (None, {})
    framework.delete("Pod", "default/p")
    assert calls == [("added", "p"), ("updated", "p", "p"), ("deleted", "p")]


ACCESS = DeclaredAccess("mine", frozenset({"PodDisruptionBudget"}), (
    Write("PodDisruptionBudget", field_paths("metadata.labels") | {("metadata", "annotations", "example.com/note")}),))


@pytest.fixture
def framework() -> FakeFramework:
    return FakeFramework(budget("a", annotations={"example.com/note": "old", "other": "1"}))


def declared(framework: FakeFramework) -> Handle:
    return replace(framework.handle(), access=ACCESS)


def test_only_kinds_that_are_declared_are_followed(framework: FakeFramework):
    handle = declared(framework)
    assert [handle.informer(kind).kind for kind in ("PodDisruptionBudget", "Node", "Pod")] == [
        "PodDisruptionBudget", "Node", "Pod"]
    with pytest.raises(ValueError, match=r'`mine` does not declare that it reads Device: add `Read\("Device"\)` to'):
        handle.informer("Device")


def test_declared_fields_are_patched_if_they_differ(framework: FakeFramework):
    objects = declared(framework).objects
    item = framework.cluster.object("PodDisruptionBudget", "default/a")
    assert item is not None
    objects.patch(item, {"metadata": {"annotations": {"example.com/note": "old"}}})
    assert framework.client.patches == []
    objects.patch(item, {"metadata": {"annotations": {"example.com/note": None}, "labels": {"a": "b"}}})
    assert framework.client.patches == [(item, budget("a", annotations={"other": "1"}, labels={"a": "b"}))]


@pytest.mark.parametrize(("kind", "fields", "named"), [
    ("PodDisruptionBudget", {"metadata": {"annotations": {"other": "2"}}}, "metadata.annotations.other"),
    ("PodDisruptionBudget", {"metadata": {"labels": {"a": "b"}}, "spec": {"minAvailable": 2}}, "spec.minAvailable"),
    ("PodDisruptionBudget", {"metadata": {"annotations": None}}, "metadata.annotations"),
    ("PodDisruptionBudget", {"metadata": {}}, "metadata"),
    ("Node", {"metadata": {"labels": {"a": "b"}}}, "metadata.labels.a"),
])
def test_other_fields_are_not_patched(framework: FakeFramework, kind: str, fields: dict[str, Any], named: str):
    with pytest.raises(ValueError, match=f"`mine` does not declare that it patches `{named}` of {kind}: add a `Write`"):
        declared(framework).objects.patch({**budget("a"), "kind": kind}, fields)
    assert framework.client.patches == []
