"""Decisions about objects with the fields that are declared as read are those about whole objects.

The declarations are `cluster.kinds.CLUSTER_READS` and the `reads` of the built-in plugins: a field that is read and not
declared would be absent in a live cluster only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.client.projection import Projection
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.kinds import IDENTITY, fields_read
from koordpolicy.engine.cluster.objects.pods import PodInfo

from . import kube_scheduler_runs, scheduler
from .result import Result

CASES = Path(os.environ.get("KOORD_POLICY_CASES") or "/nonexistent")
PROJECTIONS = {kind: Projection(None if read is None else read | IDENTITY)
               for kind, read in fields_read(read for plugin in PLUGINS for read in plugin.reads).items()}


def projected(item: Any) -> Any:
    if not isinstance(item, dict) or item.get("kind") not in PROJECTIONS:
        return item
    return PROJECTIONS[item["kind"]].decode(msgspec.json.encode(item))


def project_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clusters and decisions see nothing but projections."""
    upsert, upsert_all, of = Cluster.upsert, Cluster.upsert_all, PodInfo.of

    def one(cluster: Cluster, item: Any) -> None:
        upsert(cluster, projected(item))

    def many(cluster: Cluster, items: Iterable[Any]) -> Any:
        return upsert_all(cluster, map(projected, items))

    def pod_of(item: Any, *, is_sound: bool = False) -> PodInfo:
        return of(projected({"kind": "Pod", **item}) if isinstance(item, dict) else item, is_sound=is_sound)

    monkeypatch.setattr(Cluster, "upsert", one)
    monkeypatch.setattr(Cluster, "upsert_all", many)
    monkeypatch.setattr(PodInfo, "of", staticmethod(pod_of))


def agreeing(results: Iterable[Result]) -> list[tuple[str, bool, str]]:
    return [(each.id, each.passed, each.detail) for each in results]


@pytest.mark.skipif(not CASES.is_dir(), reason="needs KOORD_POLICY_CASES")
def test_recorded_decisions_come_out_alike(monkeypatch: pytest.MonkeyPatch):
    path = next(CASES.glob("kube_scheduler_runs*.json"))
    chosen = kube_scheduler_runs.parts(path)[::4]

    def decide() -> list[tuple[str, bool, str]]:
        return agreeing(result for part in chosen for result in kube_scheduler_runs.run_part(path, part))

    whole = decide()
    project_all(monkeypatch)
    assert decide() == whole
    assert len(whole) > 50


@pytest.mark.skipif(not CASES.is_dir(), reason="needs KOORD_POLICY_CASES")
def test_the_cases_of_single_plugins_come_out_alike(monkeypatch: pytest.MonkeyPatch):
    paths = sorted(CASES.glob("scheduler*.json"))

    def decide() -> list[tuple[str, bool, str]]:
        return agreeing(result for path in paths for result in scheduler.run(path))

    whole = decide()
    project_all(monkeypatch)
    assert decide() == whole
    assert len(whole) > 100
