"""The plugins follow the release of their profile where kube-scheduler's releases differ."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.handle import Handle
from koordpolicy.engine.kubernetes.release import KUBERNETES_1_35, KUBERNETES_1_36, BehaviourChange, Release
from koordpolicy.plugin import CycleState, Event

BY_NAME = {plugin.name: plugin for plugin in PLUGINS}
ROOT = Path(__file__).parents[4]
GIB = 1024**3
LEAST, MOST = 23 * 1024**2, 1000 * 1024**2


def made(name: str, kubernetes: Release) -> Any:
    handle = Handle("p", Cluster().snapshot, lambda: 0, logging.getLogger("p"), kubernetes=kubernetes)
    return BY_NAME[name].make(BY_NAME[name].check_args({}), handle)


def pod(name: str, *, node: str = "", nominated: str = "", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "d", "labels": labels}, "status": {"nominatedNodeName": nominated},
            "spec": {"nodeName": node, "containers": [{"name": "c"}]}}


def event(old: dict[str, Any], new: dict[str, Any] | None) -> Event:
    """Return the event of a cluster in which a pod changes."""
    pods = [None if each is None else PodInfo.of(each) for each in (old, new)]
    return Event("Pod", f"d/{old['metadata']['name']}", old, new, *pods)


def test_the_page_has_a_row_for_each_change() -> None:
    page = (ROOT / "docs" / "plugins" / "kubernetes-defaults.md").read_text()
    assert [each.since for each in BehaviourChange] == [KUBERNETES_1_36] * len(BehaviourChange)
    rows = [f"| {each.plugins} | {each.before} | {each.after} |" for each in BehaviourChange]
    table = page.partition("| plugin | 1.35 | 1.36 |\n| --- | --- | --- |\n")[2].partition("\n\n")[0]
    assert table.splitlines() == rows
    assert {name for each in BehaviourChange for name in each.plugins.split(", ")} <= BY_NAME.keys()


def test_each_change_is_followed_by_a_plugin() -> None:
    texts = "".join(file.read_text() for file in (ROOT / "builtin_plugins" / "scheduler").rglob("*.py"))
    assert [each.name for each in BehaviourChange if f"Change.{each.name}.is_in(" not in texts] == []


@pytest.mark.parametrize(("kubernetes", "volumes"), [(KUBERNETES_1_35, 0), (KUBERNETES_1_36, 1)])
def test_images_of_volumes(kubernetes: Release, volumes: int) -> None:
    images = [{"names": [f"{name}:latest"], "sizeBytes": GIB // 4} for name in ("app", "data")]
    cluster = Cluster([{"kind": "Node", "metadata": {"name": "n"}, "status": {
        "allocatable": {"cpu": "1"}, "images": images,
    }}])
    item = pod("p")
    item["spec"] |= {"containers": [{"name": "c", "image": "app"}], "volumes": [
        {"name": "v", "image": {"reference": "data"}}, {"name": "w", "image": {}}, {"name": "e", "emptyDir": {}},
    ]}
    plugin, snapshot = made("ImageLocality", kubernetes), cluster.snapshot()
    scores = plugin.score(CycleState(), PodInfo.of(item), snapshot, np.arange(1)).values
    assert scores.tolist() == [100 * (GIB // 4 * (1 + volumes) - LEAST) // (MOST - LEAST)]


@pytest.mark.parametrize(("kubernetes", "helps"), [(KUBERNETES_1_35, False), (KUBERNETES_1_36, True)])
@pytest.mark.parametrize("name", ["PodTopologySpread", "InterPodAffinity"])
def test_changes_of_nominated_pods(name: str, kubernetes: Release, *, helps: bool) -> None:
    plugin, refused = made(name, kubernetes), PodInfo.of(pod("p"))
    for old, new in (({}, {"nominated": "n"}), ({"nominated": "n"}, {}), ({"nominated": "n"}, None)):
        changed = event(pod("x", **old), None if new is None else pod("x", **new))
        assert plugin.may_help(changed, refused) is helps
    assert plugin.may_help(event(pod("x"), pod("x", node="n")), refused)
    assert not plugin.may_help(event(pod("x"), pod("x", a="b")), refused)


@pytest.mark.parametrize(("name", "kubernetes", "helps"), [
    ("InterPodAffinity", KUBERNETES_1_35, False), ("InterPodAffinity", KUBERNETES_1_36, True),
    ("PodTopologySpread", KUBERNETES_1_35, True), ("PodTopologySpread", KUBERNETES_1_36, True),
])
def test_changes_of_the_pods_own_labels(name: str, kubernetes: Release, *, helps: bool) -> None:
    changed = event(pod("p"), pod("p", a="b"))
    assert made(name, kubernetes).may_help(changed, PodInfo.of(pod("p", a="b"))) is helps
