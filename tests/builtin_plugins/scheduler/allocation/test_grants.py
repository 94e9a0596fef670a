"""Annotations record what pods hold; a grant counts until they do, and what cannot be read is nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from koordpolicy.builtin_plugins.scheduler.allocation.grants import Grants
from koordpolicy.engine.cluster.objects.pods import PodInfo


@dataclass(frozen=True)
class Grant:
    uid: str
    node: str
    held: str


def read(annotations: Any) -> str:
    text = str(annotations.get("held", ""))
    if text == "?":
        raise ValueError("unreadable")
    return text


def of_pod(held: str, pod: PodInfo) -> str:
    return f"{held} of {pod.name}"


def pod(name: str, **annotations: str) -> PodInfo:
    return PodInfo.of({"metadata": {"name": name, "namespace": "d", "uid": name, "annotations": annotations},
                       "spec": {"containers": [{"name": "c"}]}})


@pytest.mark.parametrize(("annotations", "grant", "wanted"), [
    ({"held": "gpu"}, None, {"d/p": "gpu of p"}),
    ({"held": "gpu"}, Grant("p", "n", "nic"), {"d/p": "gpu of p"}),
    ({"held": "?"}, None, {}),
    ({"held": "?"}, Grant("p", "n", "nic"), {"d/p": "nic"}),
    ({}, Grant("p", "n", "nic"), {"d/p": "nic"}),
    ({}, Grant("p", "m", "nic"), {}),
    ({}, Grant("q", "n", "nic"), {}),
])
def test_what_a_pod_holds(annotations: dict[str, str], grant: Grant | None, wanted: dict[str, str]) -> None:
    changed: list[str] = []
    grants: Grants[Grant, str] = Grants(read, of_pod, "", changed.append)
    asked = pod("p", **annotations)
    if grant is not None:
        grants.give(asked, grant)
    assert grants.held_on("n", [asked]) == (wanted, {})
    assert changed == ([grant.node] if grant else [])
