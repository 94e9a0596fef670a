"""Time and Node of the console in a browser: moments, replays, zooming, recordings that grow, and hostile names.

`KOORD_POLICY_SCREENSHOTS=DIR` writes a picture of each view.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from koordpolicy.__main__ import builtins
from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.console.guard import Guard, RateLimit
from koordpolicy.engine.console.node_time import NodeTimes
from koordpolicy.engine.console.past import Past
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.flight_recorder.fields import Fields
from koordpolicy.engine.flight_recorder.recorder import FlightRecorder, RecorderSettings
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.source import Source

from .browsing import (
    LOOKS,
    MARKS,
    MARKUP,
    ROOT,
    altered,
    example_state,
    faults_of,
    pictured,
    policies_of,
    serving,
    shown,
    watched,
    wider,
)

pytestmark = MARKS

SECOND = 1_000_000_000
DRAFT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: nowhere}
spec:
  filter:
  - {name: nowhere, expression: "pod.metadata.namespace != 'media'", message: media stays outside}
"""


READING = {"sources": 1, "complete": False, "node": "batch-03", "nodes": [], "start": 0, "end": 0, "times": [],
           "width": 1, "cpu": [], "memory": [], "limit": [], "cpuAllocatable": None, "memoryAllocatable": None,
           "changes": [], "changesLeftOut": 0, "problems": []}
"""The view of a node while sources are read for the first time."""


def serving_past(state: ConsoleState, past: Past, *recordings: Path) -> AbstractContextManager[str]:
    return serving(state, Guard(rate=RateLimit(1e9, 1e9)), past=past, node_times=NodeTimes(recordings, (), Caller))


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The example cluster with its recorded morning, and two recorded nodes."""
    directory = tmp_path_factory.mktemp("morning") / "flight"
    examples = ROOT / "examples"
    subprocess.run([sys.executable, str(examples / "record_morning.py"), str(directory)], check=True)
    state = example_state(ROOT / "policies" / "scheduler", ROOT / "policies" / "qos")
    with serving_past(state, Past(directory), examples / "09-qos-replay" / "metrics.yaml",
                      examples / "18-node-agent" / "metrics.jsonl") as url:
        yield url


def complete(page: Page, address: str) -> None:
    """Open a view with a chart, and wait until it is that of all that was recorded."""
    shown(page, address)
    page.wait_for_selector(".timechart canvas[data-painted]")
    expect(page.locator("main [role=status]", has_text=re.compile("being read|读取"))).to_have_count(0)


@pytest.mark.parametrize(("theme", "width", "language"), LOOKS)
def test_time_and_node_are_complete_accessible_and_within_the_window(
    browser, console, theme: str, width: int, language: str,
):
    with watched(browser, locale=language, color_scheme=theme, viewport={"width": width, "height": 900}) as page:
        faults = []
        for name, address in (("time", "#/time?at=2026-11-02T09:40:00Z"), ("node-time", "#/node-time?name=worker-1"),
                              ("pod-then", "#/pod?key=shop/web-201&at=2026-11-02T09:40:00Z")):
            (shown if name == "pod-then" else complete)(page, f"{console}/{address}")
            if name == "time":
                page.locator("#replay button.primary").click()
                page.wait_for_selector(".compared")
            pictured(page, f"{name}-{theme}-{width}", full_page=True)
            assert wider(page) <= 0, name
            page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
            faults += [(name, *fault) for fault in faults_of(page)]
        assert faults == []


def test_a_moment_leads_to_the_cluster_then_and_back_to_now(browser, console):
    with watched(browser) as page:
        complete(page, f"{console}/#/time")
        page.get_by_label("Moment (UTC)").fill("2026-11-02T09:40:00Z")
        page.keyboard.press("Enter")
        moment = page.locator("#moment")
        expect(moment).to_contain_text("32 nodes, 180 pods on nodes, 2 waiting")
        expect(page).to_have_url(re.compile("at=2026-11-02T09%3A40%3A00Z"))
        moment.get_by_role("link", name="shop/ledger-201").first.click()
        expect(page.locator("#past")).to_contain_text("The cluster as recorded at 2026-11-02T09:40:00Z")
        expect(page.locator("#as-recorded")).to_contain_text("Insufficient cpu")
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("2026-11-02T09:40:00Z")
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_contain_text("2026-11-02T09:40:00Z")
        page.get_by_role("link", name="Back to now").click()
        expect(page.locator("#past")).to_have_count(0)
        expect(page.get_by_role("heading", level=1)).to_contain_text("2026-11-02T09:00:00Z")


def test_the_timeline_is_zoomed_by_mouse_and_keyboard_and_its_address_shows_it_again(browser, console):
    with watched(browser, viewport={"width": 1360, "height": 900}) as page:
        complete(page, f"{console}/#/time")
        expect(page.locator(".legend")).to_have_text(["pods on nodes\u2013 \u2013 waiting pods···· cpu\u2013 · memory"])
        canvas = page.locator(".timechart canvas").first
        whole = canvas.get_attribute("data-painted")
        box = canvas.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 400, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 800, box["y"] + 60, steps=4)
        page.mouse.up()
        page.wait_for_url(re.compile("start="))
        expect(canvas).not_to_have_attribute("data-painted", whole)
        zoomed = canvas.get_attribute("data-painted")
        page.reload()
        expect(canvas).to_have_attribute("data-painted", zoomed)
        canvas.focus()
        page.keyboard.press("0")
        expect(canvas).to_have_attribute("data-painted", whole)
        for key in ("Home", "Shift+ArrowRight", "+"):
            page.keyboard.press(key)
        expect(canvas).not_to_have_attribute("data-painted", whole)
        page.keyboard.press("ArrowRight")
        expect(page.locator(".said").first).to_contain_text("pods on nodes")
        page.keyboard.press("Enter")
        expect(page.locator("#moment")).to_contain_text("32 nodes")


def test_a_draft_is_replayed_and_compared_with_what_was_recorded(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/overview")
        page.evaluate("text => localStorage.setItem('koord-policy-draft', text)", DRAFT)
        complete(page, f"{console}/#/time?start=2026-11-02T09:10:00Z&end=2026-11-02T09:50:00Z")
        replay = page.locator("#replay")
        expect(replay.get_by_label("From (UTC)")).to_have_value("2026-11-02T09:10:00Z")
        replay.get_by_role("button", name="Replay", exact=True).click()
        expect(replay).to_contain_text("No pod differs.")
        # The recorded drain happens in the replay, too.
        expect(replay.get_by_role("row", name="Evictions by others, in both 7 7")).to_be_visible()
        expect(replay.get_by_role("row", name="Evictions by the scheduler 0 0")).to_be_visible()
        replay.get_by_label("Under").select_option("draft")
        replay.get_by_role("button", name="Replay", exact=True).click()
        expect(replay).to_contain_text(re.compile(r"\d+ never placed"))
        expect(replay).to_contain_text("media stays outside")
        replay.get_by_label("From (UTC)").fill("noon")
        replay.get_by_role("button", name="Replay", exact=True).click()
        expect(replay.get_by_role("alert")).to_contain_text("Write two times")


def test_a_node_shows_its_changes_at_a_time_and_their_files(browser, console):
    with watched(browser, viewport={"width": 1360, "height": 900}) as page:
        complete(page, f"{console}/#/node-time?name=worker-1")
        expect(page.locator(".legend")).to_have_text([
            "── whole node\u2013 \u2013 BE— — LS···· limit of best-effort pods"])
        changes = page.get_by_role("region", name="Changes").last
        expect(changes).to_contain_text("besteffort/cpuset.cpus: 0-15 → 0-4,8-11")
        canvas = page.locator(".timechart canvas").first
        canvas.focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
        expect(changes.locator("tr[aria-selected=true]")).to_have_count(1)
        expect(changes.locator("tr[aria-selected=true]")).to_contain_text("suppress-best-effort")
        expect(page).to_have_url(re.compile("time=2026-03-02T08%3A01%3A30Z"))
        page.locator("main select").select_option("node-a")
        expect(page.get_by_role("heading", level=1)).to_contain_text("Node node-a")
        expect(page.locator("main")).to_contain_text("No change in this time.")


_FOCUS = """() => {
    const at = document.activeElement, style = getComputedStyle(at);
    const seen = style.outlineStyle !== "none" || at.closest(".cm-editor, main:focus, dialog") !== null;
    return seen ? "" : at.outerHTML.slice(0, 200);
}"""


def tab_to(page: Page, target: Locator) -> None:
    """Press Tab until an element has the focus; each stop on the way is visible."""
    expect(target).to_be_attached()
    for _ in range(150):
        page.keyboard.press("Tab")
        assert page.evaluate(_FOCUS) == "", "the focus is not visible"
        if target.evaluate("element => element === document.activeElement"):
            return
    pytest.fail(f"no way to {target}")


def go(page: Page, key: str, heading: str) -> None:
    """Open a view by its keys."""
    page.keyboard.press("g")
    page.keyboard.press(key)
    expect(page.get_by_role("heading", level=1)).to_contain_text(heading)
    page.wait_for_selector("main:not([aria-busy]) h1")


def test_every_view_is_used_by_keyboard_alone(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/overview")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        tab_to(page, page.locator("main").get_by_role("link", name="shop/web-201"))
        page.keyboard.press("Enter")

        expect(page.get_by_role("heading", level=1)).to_have_text("shop/web-201")
        page.wait_for_selector("main:not([aria-busy]) h1")
        tab_to(page, page.locator("tr[data-node] button").first)
        name = page.locator("tr[data-node] button").first.inner_text()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name=f"Why: {name}")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("heading", name=f"Why: {name}")).to_have_count(0)

        go(page, "c", "Cluster")
        tab_to(page, page.locator("main canvas[data-painted]"))
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        chosen = page.locator(".tip:visible").inner_text().split()[0]
        page.keyboard.press("Enter")
        panel = page.locator("aside")
        expect(panel.get_by_role("heading", level=2)).to_have_text(chosen)
        tab_to(page, panel.get_by_role("button", name="Close"))
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        expect(page.locator("main canvas[data-painted]")).to_be_focused()

        go(page, "l", "Policies")
        tab_to(page, page.locator("main").get_by_role("link", name="keep-off-hot-nodes"))
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=2, name="keep-off-hot-nodes")).to_be_visible()
        page.wait_for_selector("main:not([aria-busy]) h1")
        tab_to(page, page.get_by_role("button", name="Audit over the cluster"))
        page.keyboard.press("Space")
        expect(page.get_by_text(re.compile(r"^32 nodes and \d+ pods, as they were at "))).to_be_visible()

        go(page, "y", "Playground")
        editor = page.get_by_role("textbox", name="Policy and tests (YAML)")
        page.wait_for_selector("[data-checked]")
        tab_to(page, editor)
        expect(page.locator(".cm-editor.cm-focused")).to_be_visible()  # it marks its focus a moment later
        page.keyboard.press("Tab")
        expect(editor).to_be_focused()  # it indents
        page.keyboard.press("Control+z")
        page.keyboard.press("Escape")
        page.keyboard.press("Tab")
        expect(editor).not_to_be_focused()
        tab_to(page, page.get_by_role("button", name="Run tests"))
        page.keyboard.press("Enter")
        expect(page.get_by_text("1 of 1 cases pass")).to_be_visible()

        go(page, "t", "Time")
        chart = page.get_by_role("application", name="Timeline of the recording")
        tab_to(page, chart)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(page.locator("#moment")).to_contain_text("pods on nodes")
        page.keyboard.press("+")
        expect(page).to_have_url(re.compile("start="))

        go(page, "n", "Node")
        tab_to(page, page.get_by_role("application", name="Usage of the node"))
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        page.keyboard.press("/")
        expect(page.get_by_role("combobox", name="Search nodes, pods and policies")).to_be_focused()
        page.keyboard.type("batch-03")
        page.keyboard.press("Enter")
        expect(panel.get_by_role("heading", level=2)).to_have_text("batch-03")


def test_a_recording_that_has_not_begun_is_said_to_be_empty(browser, tmp_path: Path):
    now = nanoseconds("2026-11-02T09:00:00Z", "now")
    state = ConsoleState(Cluster(), policies_of(Source("empty.yaml", "")), now=now, name="nothing")
    with serving_past(state, Past(tmp_path, pause=0.05)) as url, watched(browser) as page:
        shown(page, f"{url}/#/time")
        expect(page.get_by_text("Nothing is recorded yet.")).to_be_visible()
        expect(page.get_by_role("button", name="Replay", exact=True)).to_be_hidden()
        expect(page.locator(".timechart canvas").first).to_be_hidden()
        assert "1970" not in page.locator("main").inner_text()


def test_an_address_without_a_time_says_which_form_it_has(browser, console):
    with watched(browser) as page:
        complete(page, f"{console}/#/time?at=yesterday")
        expect(page.get_by_role("alert")).to_have_text(
            "“yesterday” is not a time: write it like 2026-01-31T12:00:00Z.")
        page.get_by_label("Moment (UTC)").fill("noon")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("“noon” is not a time")


def test_a_node_without_an_agent_says_so_and_names_those_that_have_one(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map?node=batch-03")
        page.locator("aside").get_by_role("link", name="What its agent changed").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Node batch-03")
        expect(page.locator("main [role=status]")).to_have_text(
            "No recording and no agent of this console is of node batch-03. There are timelines of:")
        expect(page.locator("main li")).to_have_text(["node-a", "worker-1"])
        assert faults_of(page) == []
        page.locator("main").get_by_role("link", name="worker-1").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Node worker-1 2026-")
        page.go_back()
        expect(page.get_by_role("heading", level=1)).to_have_text("Node batch-03")
        page.locator("main").get_by_role("link", name="batch-03").click()
        expect(page.locator("aside").get_by_role("heading", level=2)).to_have_text("batch-03")


def test_a_node_that_no_source_turns_out_to_have_is_said_to_be_unknown(browser, tmp_path: Path):
    """Once its sources are read: until then the view waits for them."""
    recording = ROOT / "examples" / "18-node-agent" / "metrics.jsonl"
    with serving_past(example_state(), Past(tmp_path), recording) as url, watched(browser) as page:
        reading = True

        def incomplete(view: dict[str, Any]) -> None:
            if reading:
                view.pop("error", None)
                view.update(READING)

        altered(page, "node-time", incomplete)
        shown(page, f"{url}/#/node-time?name=batch-03")
        expect(page.get_by_text("being read")).to_be_visible()
        reading = False
        expect(page.get_by_text("No recording and no agent of this console is of node batch-03.")).to_be_visible()
        expect(page.locator("main li")).to_have_count(1)


@pytest.mark.parametrize(("address", "text"), [
    ("time?at=2020-01-01T00:00:00Z", "Nothing was recorded at 2020-01-01 00:00:00 UTC"),
    ("time?at=2030-01-01T00:00:00Z", "Nothing was recorded at 2030-01-01 00:00:00 UTC"),
    ("pod?key=shop/web-201&at=2020-01-01T00:00:00Z", "nothing is recorded"),
    ("pod?key=shop/gone&at=2026-11-02T09:40:00Z", "there is no pod `shop/gone` in the cluster"),
    ("overview?at=2030-01-01T00:00:00Z", "the recording is of 2026-11-02T"),
    ("map?node=gone&at=2026-11-02T09:40:00Z", "there is no node `gone` in the cluster"),
    ("overview?at=yesterday", "“yesterday” is not a time"),
    ("node-time?name=worker-1&time=noon", "“noon” is not a time"),
    ("node-time?name=worker-1&start=noon&end=2026-03-02T08:01:30Z", "“noon” is not a time"),
    ("node-time?name=worker-1&start=2020-01-01T00:00:00Z&end=2020-01-02T00:00:00Z", "No change in this time."),
])
def test_a_time_that_is_none_or_was_not_recorded_is_said_so(browser, console, address: str, text: str):
    with watched(browser) as page:
        shown(page, f"{console}/#/{address}")
        expect(page.get_by_text(text).first).to_be_visible()


def test_a_recording_is_followed_and_names_that_are_markup_are_text(browser, tmp_path: Path):
    now = nanoseconds("2026-11-02T09:00:00Z", "now")
    live = Live(Registry.of(builtins(), generation=1))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{MARKUP}"}, "spec": {},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}}}
    cluster = Cluster([node])

    def recorded(name: str, cpu: str) -> None:
        about = RecorderSettings("test", Settings(), Fields.parse(["all"]))
        recorder = FlightRecorder(tmp_path / "flight", about, live, clock=lambda: now)
        loop = SchedulingLoop(cluster, live, Settings(), clock=lambda: now, cycle_observers=[recorder])
        recorder.start(cluster)
        cluster.upsert({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "uid": name},
                        "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": cpu}}}]}})
        list(loop.schedule_all())
        recorder.close()
        loop.close()

    recorded(f"p{MARKUP}", "1")
    sample = {"time": "2026-11-02T09:00:00Z", "node": f"n{MARKUP}", "canonical": True, "usage": {"cpu": 1}}
    (tmp_path / "agent.jsonl").write_text(f"{json.dumps(node)}\n{json.dumps(sample)}\n", encoding="utf-8")
    past = Past(tmp_path / "flight", pause=0.05)
    state = past.last_state(policies_of(Source("empty.yaml", "")))
    with serving_past(state, past, tmp_path / "agent.jsonl") as url, watched(browser) as page:
        complete(page, f"{url}/#/time?at=2026-11-02T09:00:00Z")
        expect(page.locator("#moment")).to_contain_text(f"p{MARKUP}")
        expect(page.locator("#moment")).to_contain_text(f"n{MARKUP}")
        now += 60 * SECOND
        recorded("second", "64")
        expect(page.get_by_role("heading", level=1)).to_contain_text("2026-11-02 09:01:00 UTC")
        page.get_by_label("Moment (UTC)").fill("2026-11-02T09:01:00Z")
        page.keyboard.press("Enter")
        expect(page.locator("#moment")).to_contain_text("shop/second")
        complete(page, f"{url}/#/node-time")
        expect(page.get_by_role("heading", level=1)).to_contain_text(f"n{MARKUP}")
        assert page.locator("img, svg, main script, header script").count() == 0
