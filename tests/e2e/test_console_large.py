"""Each view of the console on 5,000 nodes with 50,000 pods: complete, accessible, within the window, and never frozen.

`KOORD_POLICY_SCREENSHOTS=DIR` writes a picture of each view, and the times of each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from koordpolicy.__main__ import builtins
from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.flight_recorder.fields import Fields
from koordpolicy.engine.flight_recorder.recorder import FlightRecorder, RecorderSettings
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings

from .browsing import (
    MARKS,
    ROOT,
    SCREENSHOTS,
    faults_of,
    pictured,
    watched,
    wider,
)
from .processes import process

pytestmark = MARKS

NODES, PODS, PENDING, APPLICATIONS = 5_000, 50_000, 500, 300
MEASURED = 40
NOW = "2026-11-02T09:00:00Z"
SECOND = 1_000_000_000


def _node(number: int) -> dict[str, Any]:
    name = f"node-{number:04d}"
    resources = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name, "labels": {
        "topology.kubernetes.io/zone": f"eu-1{'abc'[number % 3]}", "kubernetes.io/hostname": name,
        "pool": f"pool-{number % 40:02d}"}}, "spec": {},
        "status": {"allocatable": resources, "capacity": resources}}


def _pod(name: str, random: Random, node: str | None = None) -> dict[str, Any]:
    application, best_effort = f"app-{random.randrange(APPLICATIONS):03d}", random.random() < 0.3
    owner = {"kind": "ReplicaSet", "name": application, "uid": application, "controller": True}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": name, "namespace": "shop", "uid": name, "ownerReferences": [owner],
        "labels": {"app": application, "koordinator.sh/qosClass": "BE" if best_effort else "LS"}},
        "spec": {**({"nodeName": node} if node else {}), "priority": 5500 if best_effort else 9500,
                 "priorityClassName": "koord-batch" if best_effort else "koord-prod", "containers": [
                     {"name": "main", "resources": {
                         "requests": {"cpu": f"{random.randrange(1, 30) * 100}m", "memory": "2Gi"}}}]},
        "status": {"phase": "Running" if node else "Pending"}}


def objects() -> Iterator[dict[str, Any]]:
    """Yield nodes with pods and metrics, of which a third is hot, and pending pods, of which some fit nowhere."""
    random = Random(1)
    for number in range(NODES):
        node = _node(number)
        name = node["metadata"]["name"]
        yield node
        used = []
        for place in range(PODS // NODES):
            yield _pod(f"web-{number:04d}-{place}", random, name)
            usage = {"cpu": f"{random.randrange(100, 3000)}m", "memory": "1Gi"}
            used.append({"namespace": "shop", "name": f"web-{number:04d}-{place}", "podUsage": {"resources": usage}})
        usage = {"cpu": f"{random.randrange(2_000, 30_000)}m", "memory": f"{random.randrange(20, 120)}Gi"}
        yield {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeMetric", "metadata": {"name": name},
               "status": {"updateTime": NOW, "nodeMetric": {"nodeUsage": {"resources": usage}}, "podsMetric": used}}
    for number in range(PENDING):
        pod = _pod(f"new-{number:03d}", random)
        if number % 50 == 7:
            pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "48"
        yield pod


def record(directory: Path, cluster: Cluster, now: int) -> None:
    """Record decisions about the pending pods of a cluster, over ten minutes."""
    time_of = now - 600 * SECOND
    live = Live(Registry.of(builtins(), generation=1))
    recorder = FlightRecorder(directory, RecorderSettings("large", Settings(), Fields.parse(["all"])), live,
                              clock=lambda: time_of, capacity=10_000_000)
    loop = SchedulingLoop(cluster, live, Settings(), clock=lambda: time_of, cycle_observers=[recorder])
    recorder.start(cluster)
    for _ in loop.schedule_all():
        time_of += SECOND
    recorder.close()
    loop.close()


def record_usage(path: Path) -> None:
    """Write a minute of usage of some nodes, as an agent of each records it: its changes are found by a replay."""
    random = Random(2)
    with path.open("w", encoding="utf-8") as file:
        for number in range(MEASURED):
            print(json.dumps(_node(number)), file=file)
        for sample in range(6):
            at = f"2026-11-02T08:59:{sample * 10:02d}Z"
            for number in range(MEASURED):
                usage = {"cpu": random.randrange(2_000, 30_000), "memory": random.randrange(20, 120) * 2**30}
                name = f"node-{number:04d}"
                print(json.dumps({"time": at, "node": name, "canonical": True, "usage": usage}), file=file)


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The command over a dump, with all shipped policies, ten minutes of decisions, and a minute of usage."""
    folder = tmp_path_factory.mktemp("large")
    items = list(objects())
    dump = {"apiVersion": "v1", "kind": "List", "items": items}
    (folder / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    cluster = Cluster()
    assert cluster.upsert_all(items) == []
    record(folder / "flight", cluster, nanoseconds(NOW, "now"))
    record_usage(folder / "usage.jsonl")
    with process(folder / "console.log", "console", "--cluster", str(folder / "dump.json"), "--now", NOW, "--policies",
                 str(ROOT / "policies"), "--recorded", str(folder / "flight"), "--agent-recording",
                 str(folder / "usage.jsonl"), "--bind", "127.0.0.1:0") as url:
        yield url


VIEWS = {
    "overview": ("overview", "Pending pods (500)"),
    "map": ("map", "5,000 nodes"),
    "node": ("map?node=node-0003&expression=usage.cpu*100/allocatable.cpu", "Pods on this node (10)"),
    "pod": ("pod?key=shop/new-000", "of 5,000 nodes pass"),
    "pod-nowhere": ("pod?key=shop/new-007&node=node-0003", "Why: node-0003"),
    "policies": ("policies?name=keep-off-hot-nodes", "Try it in the playground"),
    "playground": ("playground?pod=shop/new-000", "of 5,000 nodes pass"),
    "time": (f"time?at={NOW.replace('09:00', '08:55')}", "5,000 nodes, "),
    "node-time": ("node-time?name=node-0003", "Changes"),
}
PATIENCE_MS = 240_000
"""The time for a view on a busy machine."""
LONGEST_TASK = 40.0
"""The longest time that a page may not answer, in times of a loop that takes about 25 ms on an idle machine."""
_TASKS = """
    window.tasks = [];
    new PerformanceObserver((list) => { for (const each of list.getEntries()) tasks.push(each.duration); })
        .observe({type: 'longtask', buffered: true});
"""
_LOOP = """() => {
    const times = [];
    for (let turn = 0; turn < 5; turn += 1) {
        const started = performance.now();
        let sum = 0;
        for (let number = 0; number < 2e7; number += 1) sum += number % 7;
        times.push(performance.now() - started + 0 * sum);
    }
    return times.sort((a, b) => a - b)[2];
}"""


def opened(page: Page, url: str, view: str) -> dict[str, float]:
    """Open a view in a fresh page, and wait until it is complete; return its times in milliseconds."""
    address, text = VIEWS[view]
    page.goto("about:blank")
    started = time.monotonic()
    page.goto(f"{url}/#/{address}")
    page.wait_for_selector("main:not([aria-busy]) h1")
    expect(page.locator("main").get_by_text(text).first).to_be_visible(timeout=PATIENCE_MS)
    if view == "time":
        expect(page.locator("main [role=status]", has_text="being read")).to_have_count(0, timeout=PATIENCE_MS)
    took = 1000 * (time.monotonic() - started)
    tasks = page.evaluate("window.tasks")
    return {"complete": round(took), "longest task": round(max(tasks, default=0)), "loop": round(page.evaluate(_LOOP))}


@pytest.mark.parametrize("path", [
    "evictions", "eviction?key=shop/web-0003-1", "node-policies?name=node-0003", "overview", "policies"])
def test_views_of_whole_cycles_are_answered_within_the_default_time(console, path: str):
    answer = Caller(seconds=PATIENCE_MS / 1000).ask(console, f"/api/v1/{path}")
    assert (answer.code, answer.data.get("error")) == (200, None)


LOOKS = [("light", 1280), ("dark", 420), *([("dark", 1280), ("light", 420)] if SCREENSHOTS else [])]


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_each_view_of_a_large_cluster_is_complete_accessible_and_never_frozen(browser, console, theme: str, width: int):
    with watched(browser, color_scheme=theme, viewport={"width": width, "height": 900}) as page:
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(_TASKS)
        times, faults = {}, []
        for view in VIEWS:
            times[view] = opened(page, console, view)
            pictured(page, f"large-{view}-{theme}-{width}", full_page=True)
            assert wider(page) <= 0, view
            faults += [(view, *fault) for fault in faults_of(page)]
        if SCREENSHOTS:
            file = Path(SCREENSHOTS) / f"large-{theme}-{width}.json"
            file.write_text(json.dumps(times, indent=1), encoding="utf-8")
        assert faults == []
        assert {view: each for view, each in times.items()
                if each["longest task"] > LONGEST_TASK * each["loop"]} == {}
