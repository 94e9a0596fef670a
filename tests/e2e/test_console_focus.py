"""The console for somebody at a keyboard, while its pages are painted again: the focus stays where it was.

Answers are held back until the focus is where it could be lost; nothing depends on how fast anything is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from koordpolicy.engine.client.server_calls import Caller
from koordpolicy.engine.console.guard import Guard, RateLimit
from koordpolicy.engine.console.node_time import NodeTimes
from koordpolicy.engine.console.past import Past

from .browsing import MARKS, ROOT, altered, announced, example_state, held, serving, shown, watched

pytestmark = MARKS


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The example cluster with its recorded morning, and two recorded nodes."""
    directory = tmp_path_factory.mktemp("morning") / "flight"
    examples = ROOT / "examples"
    subprocess.run([sys.executable, str(examples / "record_morning.py"), str(directory)], check=True)
    nodes = NodeTimes((examples / "09-qos-replay" / "metrics.yaml",), (), Caller)
    with serving(example_state(ROOT / "policies"), Guard(rate=RateLimit(1e9, 1e9)), past=Past(directory),
                 node_times=nodes) as url:
        yield url


@contextmanager
def kept(focused: Locator) -> Iterator[None]:
    """Focus an element; it has the focus all the time until the end of the block."""
    expect(focused).to_be_visible()
    handle = focused.element_handle()
    handle.focus()
    handle.evaluate("element => { window.left = 0; element.addEventListener('blur', () => { window.left += 1; }); }")
    yield
    assert handle.evaluate("element => [element === document.activeElement, window.left]") == [True, 0]


def test_the_close_button_of_a_node_has_the_focus_before_and_after_the_answer(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map?group=none")
        canvas, panel = page.locator("main canvas[data-painted]"), page.locator("aside")
        release = held(page, "node")
        canvas.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        with kept(panel.get_by_role("button", name="Close")):
            release()
            expect(panel.get_by_role("heading", name="Pods")).to_be_visible()
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        expect(canvas).to_be_focused()


def test_a_link_that_goes_with_another_node_leaves_the_keys_in_the_panel(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map?group=none&node=general-03")
        canvas, panel = page.locator("main canvas[data-painted]"), page.locator("aside")
        page.locator("main details summary", has_text="Highest").click()
        other = page.locator(".split > div details tbody button").first
        panel.get_by_role("link", name="/", exact=False).first.focus()
        # Another node is opened while a link of the first one has the focus.
        other.evaluate("element => element.click()")
        expect(panel.get_by_role("heading", level=2)).to_have_text(other.inner_text())
        expect(panel.get_by_role("heading", name="Pods")).to_be_visible()
        assert panel.evaluate("element => element.contains(document.activeElement)")
        page.keyboard.press("Escape")
        expect(canvas).to_be_focused()


def test_a_node_of_the_ranking_has_the_focus_while_its_place_changes(browser, console):
    with watched(browser) as page:
        announce = announced(page)
        shown(page, f"{console}/#/map")
        page.locator("main details summary", has_text="Highest").click()
        rows = page.locator("main details tbody button")
        before = rows.all_inner_texts()

        def without_first(body: Any) -> None:
            body["numbers"][body["numbers"].index(max(each for each in body["numbers"] if each is not None))] = 0

        altered(page, "colour", without_first)
        with kept(rows.nth(3)):
            announce()
            expect(rows.nth(2)).to_have_text(before[3])
        expect(rows.nth(2)).to_be_focused()

        def without_any(body: Any) -> None:
            body["numbers"] = [None for _ in body["numbers"]]

        altered(page, "colour", without_any)
        announce()
        expect(rows).to_have_count(0)
        # What had the focus is gone: the keys go on from its place.
        assert page.evaluate("document.activeElement.closest('main').id") == "content"
        page.keyboard.press("Shift+Tab")
        expect(page.locator("main canvas[data-painted]")).to_be_focused()


def test_the_map_stays_in_use_when_nodes_come_and_go(browser, console):
    with watched(browser) as page:
        announce = announced(page)
        shown(page, f"{console}/#/map?group=none")

        def one_more(body: Any) -> None:
            body["layout"] += 1
            if "nodes" in body:
                body["nodes"].append("one-more")
                body["groupOf"].append(0)
                body["groups"][0]["nodes"] += 1
            else:
                body["numbers"].append(50.0)

        with kept(page.locator("main canvas[data-painted]")):
            page.keyboard.press("ArrowRight")
            page.keyboard.press("ArrowRight")
            expect(page.locator(".tip")).to_contain_text("batch-02")
            for view in ("map", "colour"):
                altered(page, view, one_more)
            announce()
            expect(page.get_by_role("heading", level=1)).to_have_text("Cluster 33 nodes")
            page.keyboard.press("ArrowRight")
            expect(page.locator(".tip")).to_contain_text("batch-03")


def test_the_overview_keeps_focus_and_selected_text_while_its_tables_change(browser, console):
    with watched(browser, viewport={"width": 1000, "height": 500}) as page:
        announce = announced(page)
        shown(page, f"{console}/#/overview")
        links = page.locator("table", has_text="shop/web-101").get_by_role("link", name="/", exact=False)
        page.get_by_text("measured").first.select_text()
        selected = page.evaluate("getSelection().toString()")
        assert "measured" in selected

        def earlier(body: Any) -> None:
            body["pending"] += 1
            body["waiting"].insert(0, body["waiting"][0] | {"pod": "aaa/first"})

        altered(page, "overview", earlier)
        link = page.locator("main").get_by_role("link", name="shop/web-102", exact=True)
        with kept(link):
            announce()
            expect(links.first).to_have_text("aaa/first")
        assert page.evaluate("getSelection().toString()") == selected


def test_the_reason_of_a_pod_is_closed_to_the_row_that_it_was_opened_from(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/pod?key=shop/web-101")
        row = page.get_by_role("button", name="general-03", exact=True)
        close = page.get_by_role("region", name="Why").get_by_role("button", name="Close")
        for leave in ("Enter", "Escape"):
            row.focus()
            page.keyboard.press("Enter")
            expect(close).to_be_visible()
            close.focus()
            page.keyboard.press(leave)
            expect(close).to_have_count(0)
            expect(row).to_be_focused()


def test_the_last_answer_is_that_of_the_node_that_was_chosen_last(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/pod?key=shop/web-101")
        release = held(page, "pod-node")
        page.get_by_role("button", name="general-03", exact=True).click()
        page.get_by_role("button", name="general-08", exact=True).click()
        page.keyboard.press("Escape")
        with (page.expect_response(re.compile("pod-node.*general-03")),
              page.expect_response(re.compile("pod-node.*general-08"))):
            release()
        page.evaluate("new Promise(requestAnimationFrame)")
        expect(page.get_by_role("heading", name="Why", exact=True)).to_be_visible()


def test_an_audit_takes_the_focus_neither_from_its_button_nor_from_the_rules_of_a_policy(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/policies?name=keep-off-hot-nodes")
        audit = page.get_by_role("button", name="Audit over the cluster")
        release = held(page, "audit/start")
        with kept(audit):
            page.keyboard.press("Enter")
            expect(audit).to_be_disabled()
            page.keyboard.press("Enter")  # it runs already
            release()
            expect(page.get_by_text(re.compile("^32 nodes and"))).to_be_visible()
            expect(audit).to_be_enabled()
        altered(page, "audit/start", _twice)
        release = held(page, "audit/start")
        audit.click()
        with kept(page.get_by_role("button", name="cpu-below-watermark", exact=True)):
            release()
            row = page.get_by_role("row").filter(has=page.get_by_role("button", name="cpu-below-watermark", exact=True))
            expect(row).to_contain_text("4,800 /")


def _twice(body: Any) -> None:
    for policy in body["audit"]["policies"]:
        for rule in policy["rules"]:
            rule["evaluated"] *= 2


def test_a_job_that_ends_gives_the_focus_of_its_bar_back_and_says_why_it_cannot_be_cancelled(browser, console):
    with watched(browser, permitted="503") as page:
        shown(page, f"{console}/#/policies?name=keep-off-hot-nodes")
        audit = page.get_by_role("button", name="Audit over the cluster")
        altered(page, "audit/start", lambda body: body.update(phase="analysing", audit=None))
        page.route(re.compile("analysis/cancel"), lambda route: route.fulfill(
            status=503, json={"error": "too many requests", "faults": []}))
        release = held(page, "analysis")
        audit.click()
        cancel = page.get_by_role("button", name="Cancel")
        with kept(cancel):
            page.keyboard.press("Enter")
            expect(page.locator(".job [role=alert]")).to_contain_text("too many requests")
        release()
        expect(page.get_by_text(re.compile("^32 nodes and"))).to_be_visible()
        expect(audit).to_be_focused()


def test_findings_of_a_draft_keep_the_focus_while_they_are_found_again(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/playground?pod=shop/web-101")
        page.wait_for_selector("[data-checked='1']")
        page.locator(".cm-line", has_text="expression: variables.cpu").click()
        page.keyboard.press("End")
        page.keyboard.insert_text("x")
        finding = page.locator(".finding.error")
        expect(finding).to_be_visible()
        checked = page.locator("[data-checked]").get_attribute("data-checked")
        release = held(page, "draft/check")
        page.keyboard.press("Home")
        page.keyboard.press("Home")
        page.keyboard.insert_text("  # before it\n")  # its line is another one now
        with kept(finding):
            release()
            expect(page.locator("[data-checked]")).not_to_have_attribute("data-checked", checked)
        page.keyboard.press("Enter")
        expect(page.locator(".cm-editor.cm-focused")).to_be_visible()


def test_a_recording_grows_under_the_focus(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/time")
        expect(page.locator("main [role=status]", has_text="being read")).to_have_count(0)
        page.locator("summary", has_text="As a table").click()
        row = page.locator("tbody tr", has=page.get_by_role("button")).nth(5)
        before = row.inner_text()
        altered(page, "timeline", lambda body: body["bound"].__setitem__(5, 4321))
        with kept(row.get_by_role("button")):
            expect(row).to_contain_text("4,321")
        assert row.inner_text() != before

        shown(page, f"{console}/#/node-time?name=worker-1")
        choice = page.locator("main select")
        with kept(choice):
            choice.evaluate("element => { element.options[0].first = true; }")
            altered(page, "node-time", lambda body: body["nodes"].append("worker-9"))
            page.get_by_role("button", name="Show the whole time").evaluate("element => element.click()")
            expect(choice.locator("option").last).to_have_text("worker-9")
        assert choice.evaluate("element => [element.value, element.options[0].first]") == ["worker-1", True]


def test_another_view_gets_the_focus_of_a_link_that_led_to_it(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/overview")
        page.locator("main").get_by_role("link", name="shop/web-101", exact=True).press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("shop/web-101")
        expect(page.get_by_role("heading", level=1)).to_be_focused()
        shown(page, f"{console}/#/policies")
        link = page.locator("nav.panel").get_by_role("link", name="keep-off-hot-nodes")
        link.press("Enter")
        expect(page.get_by_role("heading", level=2, name="keep-off-hot-nodes")).to_be_visible()
        page.wait_for_selector("main:not([aria-busy])")
        expect(link).to_be_focused()  # the list is shown again, and its next entry is one Tab away
        language = page.get_by_role("button", name="中文")
        language.press("Enter")
        expect(page.get_by_role("button", name="English")).to_be_focused()


def test_the_heading_of_a_view_has_the_focus_after_keys_and_a_search_opened_it(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/overview")
        heading = page.get_by_role("heading", level=1)
        for key, title in (("p", "Choose a pod"), ("l", "Policies"), ("c", "Cluster 32 nodes")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            expect(heading).to_have_text(title)
            expect(heading).to_be_focused()
        page.keyboard.press("/")
        page.keyboard.type("web-101")
        page.keyboard.press("Enter")
        expect(heading).to_have_text("shop/web-101")
        expect(heading).to_be_focused()
        group = page.get_by_label("Group by")
        page.keyboard.press("g")
        page.keyboard.press("c")
        expect(heading).to_contain_text("Cluster")
        group.focus()
        group.select_option("none")
        expect(page).to_have_url(re.compile("group=none"))
        page.wait_for_selector("main:not([aria-busy])")
        expect(group).to_be_focused()  # the same view goes on where it was
