"""Drafts of the playground in a browser: one of each file, kept until somebody says otherwise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from koordpolicy.engine.console.guard import Guard, RateLimit
from koordpolicy.engine.console.past import Past
from tests.ports import reserved_port

from .browsing import MARKS, ROOT, altered, example_state, faults_of, serving, shown, watched

pytestmark = MARKS

FILE = "policies/scheduler/keep-off-hot-nodes.yaml"
OTHER = "policies/scheduler/prefer-zone.yaml"
PARAMS = "params: {cpuPercent: 65"
KEPT = "The draft stays in this browser."
DIFFERS = "This is your draft of the file"
CONFLICT = "Another tab has changed this draft."


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The example cluster with its recorded morning."""
    directory = tmp_path_factory.mktemp("morning") / "flight"
    subprocess.run([sys.executable, str(ROOT / "examples" / "record_morning.py"), str(directory)], check=True)
    with serving(example_state(ROOT / "policies" / "scheduler"), Guard(rate=RateLimit(1e9, 1e9)),
                 past=Past(directory)) as url:
        yield url


def opened(page: Page, url: str, file: str = FILE) -> None:
    """Open the playground for a file, or for the new draft, and wait until the draft is checked."""
    shown(page, f"{url}/#/playground?{f'file={file}&' if file else ''}pod=shop/web-101")
    page.wait_for_selector("[data-checked]")


def typed(page: Page, percent: int, before: str = PARAMS) -> None:
    """Change the watermark of the draft."""
    page.locator(".cm-line", has_text=before).click()
    page.keyboard.press("End")
    page.keyboard.press("Shift+Home")
    page.keyboard.insert_text(f"params: {{cpuPercent: {percent}, memoryPercent: 90}}")


def has(page: Page, percent: int) -> None:
    """Expect the watermark in the editor."""
    expect(page.locator(".cm-line", has_text=f"cpuPercent: {percent}")).to_have_count(1)


def test_an_edit_of_a_file_stays_whatever_is_opened_meanwhile(browser, console):
    with watched(browser) as page:
        opened(page, console)
        expect(page.get_by_text(f"{FILE} · as in the file")).to_be_visible()
        typed(page, 41)
        expect(page.get_by_text(f"{FILE} · {KEPT}")).to_be_visible()
        page.get_by_role("button", name="Change between light and dark").click()
        page.wait_for_selector("[data-checked]")
        has(page, 41)
        page.get_by_role("button", name="中文").click()
        has(page, 41)
        page.get_by_role("button", name="English").click()
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("Overview")
        page.go_back()
        has(page, 41)
        expect(page.get_by_text(DIFFERS)).to_be_visible()

        # Another file has another draft, and the new draft is none of a file.
        opened(page, console, OTHER)
        expect(page.get_by_text("as in the file")).to_be_visible()
        page.get_by_role("link", name="a new draft").click()
        expect(page.locator(".cm-line", has_text="name: keep-off-busy-nodes")).to_have_count(2)
        page.get_by_role("link", name=FILE).click()
        has(page, 41)
        assert faults_of(page) == []


def test_back_to_the_file_is_back_to_the_file_and_loses_no_edit_unasked(browser, console):
    with watched(browser) as page:
        opened(page, console)
        typed(page, 42)
        page.get_by_role("button", name="Back to the file").click()
        expect(page.get_by_text(f"Your draft of {FILE} would be lost.")).to_be_visible()
        page.get_by_role("button", name="Keep the draft").click()
        has(page, 42)
        page.get_by_role("button", name="Back to the file").click()
        page.get_by_role("button", name="Discard the draft").click()
        has(page, 65)
        expect(page.get_by_text(f"{FILE} · as in the file")).to_be_visible()
        page.reload()
        has(page, 65)
        expect(page).to_have_url(re.compile("file="))
        typed(page, 43)
        with page.expect_download() as download:
            page.get_by_role("button", name="Patch").click()
        patch = Path(download.value.path()).read_text(encoding="utf-8")
        changed = [line for line in patch.splitlines() if line[:1] in "+-"]
        assert changed == [f"--- a/{FILE}", f"+++ b/{FILE}", "-  params: {cpuPercent: 65, memoryPercent: 90}",
                           "+  params: {cpuPercent: 43, memoryPercent: 90}"]

        opened(page, console, "")
        page.locator(".cm-line", has_text="name: below-watermark").click()
        page.keyboard.press("End")
        page.keyboard.insert_text("s")
        page.get_by_role("button", name="Start again").click()
        expect(page.get_by_text("Your draft would be lost.")).to_be_visible()
        page.get_by_role("button", name="Discard the draft").click()
        expect(page.locator(".cm-line", has_text="name: below-watermarks")).to_have_count(0)


def test_a_draft_says_that_its_file_has_changed_or_is_gone(browser, console):
    with watched(browser) as page:
        opened(page, console)
        typed(page, 44)
        opened(page, console)
        expect(page.get_by_text(DIFFERS)).to_be_visible()
        expect(page.get_by_text("The file has changed since")).to_have_count(0)

        def change(body: Any) -> None:
            body["text"] = body["text"].replace("cpuPercent: 65", "cpuPercent: 66")

        altered(page, "file", change)
        opened(page, console)
        has(page, 44)
        expect(page.get_by_text("The file has changed since")).to_be_visible()
        page.get_by_role("button", name="Discard the draft").click()
        has(page, 66)
        opened(page, console)
        expect(page.get_by_text(f"{FILE} · as in the file")).to_be_visible()

        # A file that became what the draft was has no draft any more.
        typed(page, 77, "cpuPercent: 66")
        text = page.evaluate("JSON.parse(localStorage.getItem(Object.keys(localStorage).find((each) => "
                             "each.endsWith('.yaml')))).text")
        altered(page, "file", lambda body: body.update(text=text))
        opened(page, console)
        expect(page.get_by_text(f"{FILE} · as in the file")).to_be_visible()
        assert page.evaluate("Object.keys(localStorage).filter((each) => each.endsWith('.yaml'))") == []

        typed(page, 78, "cpuPercent: 77")
        altered(page, "file", lambda body: body.update(error="it is gone", status=404, faults=[]))
        opened(page, console)
        expect(page.get_by_text(f"There is no file {FILE} any more")).to_be_visible()
        has(page, 78)


def test_time_replays_the_draft_of_a_file(browser, console):
    with watched(browser) as page:
        opened(page, console)
        typed(page, 1)
        shown(page, f"{console}/#/time?start=2026-11-02T09:00:00Z&end=2026-11-02T09:10:00Z")
        replay = page.get_by_role("region", name="Replay")
        expect(replay.get_by_label("Under").locator("option")).to_have_text(
            ["the console's policies", "the new draft of the playground", f"the draft of {FILE}"])
        replay.get_by_label("Under").select_option(label=f"the draft of {FILE}")
        replay.get_by_role("button", name="Replay").click()
        expect(replay.get_by_text("The draft replaces keep-off-hot-nodes.")).to_be_visible()
        # What is discarded meanwhile is not replayed as if it were the console's policies.
        page.evaluate("localStorage.clear()")
        replay.get_by_role("button", name="Replay").click()
        expect(replay.get_by_text("The draft is gone")).to_be_visible()


def test_two_tabs_with_one_draft_say_so_and_each_text_is_kept_until_somebody_chooses(browser, console):
    with watched(browser) as one:
        other = one.context.new_page()
        opened(one, console)
        typed(one, 51)
        opened(other, console)
        has(other, 51)
        typed(other, 52, "cpuPercent: 51")
        expect(one.get_by_text(CONFLICT)).to_be_visible()
        assert faults_of(one) == []
        typed(one, 53, "cpuPercent: 51")
        opened(one, console)  # neither text is lost by a reload
        has(one, 53)
        expect(one.get_by_text(CONFLICT)).to_be_visible()
        opened(other, console)
        has(other, 52)
        expect(other.get_by_text(CONFLICT)).to_have_count(0)
        one.get_by_role("button", name="Keep this text").click()
        expect(one.get_by_text(CONFLICT)).to_have_count(0)
        expect(other.get_by_text(CONFLICT)).to_be_visible()
        other.get_by_role("button", name="Take the text of the other tab").click()
        has(other, 53)
        expect(other.get_by_text(CONFLICT)).to_have_count(0)
        expect(one.get_by_text(CONFLICT)).to_have_count(0)
        # One that discards its draft does not discard that of the other.
        one.get_by_role("button", name="Back to the file").click()
        one.get_by_role("button", name="Discard the draft").click()
        expect(other.get_by_text(CONFLICT)).to_be_visible()
        has(other, 53)


def test_a_tab_that_wrote_nothing_shows_what_another_one_writes(browser, console):
    with watched(browser) as one:
        other = one.context.new_page()
        opened(one, console)
        opened(other, console)
        typed(other, 54)
        has(one, 54)
        assert one.evaluate("sessionStorage.length") == 0
        typed(one, 55, "cpuPercent: 54")
        expect(one.get_by_text(CONFLICT)).to_have_count(0)
        expect(other.get_by_text(CONFLICT)).to_be_visible()


def test_a_browser_that_keeps_nothing_is_said_to(browser, console):
    with watched(browser) as page:
        page.add_init_script(
            "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }")
        opened(page, console)
        expect(page.get_by_text("has no place for the draft")).to_have_count(0)
        typed(page, 61)
        expect(page.get_by_text("has no place for the draft")).to_be_visible()
        has(page, 61)


def test_the_message_that_there_is_no_test_goes_when_there_is_one(browser, console):
    with watched(browser) as page:
        opened(page, console, "")
        line = page.locator(".cm-line", has_text="kind: PolicyTest")
        line.click()
        page.keyboard.press("Control+Home")
        page.keyboard.press("Control+f")
        page.keyboard.press("Escape")
        line.click()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Home")
        page.keyboard.press("Control+Shift+End")
        page.keyboard.press("Delete")
        expect(page.get_by_text("The draft has no PolicyTest.")).to_be_visible()
        page.keyboard.press("Control+z")
        expect(line).to_have_count(1)
        expect(page.get_by_text("The draft has no PolicyTest.")).to_have_count(0)
        page.get_by_role("button", name="Run tests").click()
        expect(page.get_by_text(re.compile("1 of 1 cases pass"))).to_be_visible()


def test_a_draft_is_checked_again_when_a_server_is_back(browser):
    state = example_state(ROOT / "policies" / "scheduler")
    with reserved_port() as port, watched(browser, permitted=r"net::ERR_\w+") as page:
        with serving(state, port=port) as url:
            opened(page, url, "")
            expect(page.get_by_text("26 of 32 nodes pass")).to_be_visible()
        page.locator(".cm-line", has_text="name: below-watermark").click()
        page.keyboard.press("End")
        page.keyboard.insert_text("x y: [")
        findings = page.locator("section", has=page.get_by_role("heading", name="Findings"))
        expect(findings).to_contain_text("The console does not answer.")
        page.evaluate("localStorage.setItem('koord-policy-language', 'zh')")
        page.keyboard.insert_text(" ")
        expect(page.locator("section.panel .error").first).to_contain_text("控制台没有响应。")
        with serving(state, port=port):
            expect(page.locator(".finding.error").first).to_be_visible()
            expect(page.locator("section.panel div.error[role=alert]")).to_have_count(0)
