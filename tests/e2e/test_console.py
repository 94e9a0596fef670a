"""The console in a browser: each view, on small and large clusters, by mouse and keyboard, with hostile names.

`KOORD_POLICY_SCREENSHOTS=DIR` writes a picture of each view.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console.guard import Guard
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.console.users import UserTokens
from koordpolicy.engine.source import Source
from tests.ports import reserved_port

from .browsing import (
    LOOKS,
    MARKS,
    MARKUP,
    ROOT,
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

VIEWS = {
    "overview": "#/overview", "map": "#/map?expression=usage.cpu%20*%20100%20%2F%20allocatable.cpu",
    "node": "#/map?node=general-03", "pod": "#/pod?key=shop/web-101",
    "pod-node": "#/pod?key=shop/web-101&node=general-03", "policies": "#/policies?name=keep-off-hot-nodes",
    "playground": "#/playground?pod=shop/web-101",
}
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def example() -> ConsoleState:
    return example_state(ROOT / "policies")


@pytest.fixture(scope="module")
def console(example: ConsoleState) -> Iterator[str]:
    with serving(example) as url:
        yield url


def painted(page: Page, expression: str) -> None:
    """Wait until a map shows the colours of an expression."""
    expect(page.locator("main canvas[data-painted]").first).to_have_attribute("data-painted", expression)


@pytest.mark.parametrize(("theme", "width", "language"), LOOKS)
def test_each_view_is_complete_accessible_and_within_the_window(
    browser, console, theme: str, width: int, language: str,
):
    with watched(browser, locale=language, color_scheme=theme, viewport={"width": width, "height": 900}) as page:
        faults = []
        for name, address in VIEWS.items():
            shown(page, f"{console}/{address}")
            if name == "playground":
                page.wait_for_selector("[data-checked]")
            pictured(page, f"{name}-{theme}-{width}")
            assert page.evaluate("[document.documentElement.dataset.theme, document.documentElement.lang]") == [
                theme, {"en-US": "en"}.get(language, language)]
            assert wider(page) <= 0, name
            faults += [(name, *fault) for fault in faults_of(page)]
        assert faults == []


def test_the_map_shows_5000_nodes_and_takes_expressions_while_they_are_typed(browser):
    zones = ("eu-1a", "eu-1b", "eu-1c")
    cluster = Cluster()
    cluster.upsert_all({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": f"node-{number:04d}", "labels": {"topology.kubernetes.io/zone": zones[number % 3]}},
        "spec": {}, "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    } for number in range(5000))
    cluster.upsert_all({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"web-{number}", "namespace": "shop"},
        "spec": {"nodeName": f"node-{number % 4999:04d}",
                 "containers": [{"name": "web", "resources": {"requests": {"cpu": "1"}}}]},
    } for number in range(50_000))
    with serving(ConsoleState(cluster, policies_of(), now=0, name="large")) as url, watched(browser) as page:
        shown(page, url)
        painted(page, "requested.cpu * 100 / allocatable.cpu")
        expect(page.get_by_role("heading", level=1)).to_have_text("Cluster 5,000 nodes")
        page.get_by_role("textbox", name="Expression").fill("nodeInfo.pods > 10 ? 'many' : 'few'")
        painted(page, "nodeInfo.pods > 10 ? 'many' : 'few'")
        # 50,000 = 10 x 4,999 + 10: ten nodes have eleven pods, and one has none.
        expect(page.locator(".legend")).to_have_text("few (4,990)many (10)")
        page.get_by_role("textbox", name="Expression").fill("nodeInfo.podz")
        expect(page.locator("main [role=alert]")).to_contain_text("did you mean `pods`?")
        page.get_by_role("textbox", name="Expression").fill("nodeInfo.pods")
        painted(page, "nodeInfo.pods")
        expect(page.locator("main [role=alert]")).to_be_empty()
        page.reload()
        painted(page, "nodeInfo.pods")  # the address has the expression


def test_a_node_is_opened_by_mouse_and_keyboard_and_its_address_opens_it_again(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map?group=none")
        canvas = page.locator("main canvas[data-painted]")
        canvas.click(position={"x": 10, "y": 30})
        panel = page.locator("aside h2")
        expect(panel).to_have_text("batch-01")
        canvas.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        expect(panel).to_have_text("batch-02")
        page.reload()
        expect(panel).to_have_text("batch-02")
        expect(page.locator("aside")).to_contain_text("passes")
        page.keyboard.press("Escape")
        expect(page.locator("aside")).to_be_hidden()
        expect(page).not_to_have_url(re.compile("node="))


def test_the_matrix_says_who_refused_a_node_and_why(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/pod?key=shop/web-101")
        expect(page.locator("tr.chosen")).to_contain_text("general-08")
        expect(page.locator("tr[data-node=general-03]")).to_contain_text("keep-off-hot-nodes")
        page.get_by_role("button", name="general-03").click()
        why = page.get_by_role("region", name="Why").last
        expect(why).to_contain_text("cpu usage is 89%, the watermark is 65%")
        expect(why).to_contain_text("node general-03 used 3.811 cores less cpu")
        expect(page).to_have_url(re.compile("node=general-03$"))


def test_a_policy_is_written_checked_evaluated_tested_and_compared(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/playground?pod=shop/web-101")
        expect(page.get_by_text("26 of 32 nodes pass")).to_be_visible()
        editor = page.get_by_role("textbox", name="Policy and tests (YAML)")

        def line(text: str) -> None:
            page.locator(".cm-line", has_text="expression: variables.cpu").click()
            page.keyboard.press("End")
            page.keyboard.press("Shift+Home")
            page.keyboard.insert_text(text)

        line("expression: variables.cpu < params.cpuPercen")
        expect(page.locator(".finding.error")).to_contain_text("cpuPercen")
        line("expression: variables.cpu < params.cpuPercent - 50")
        expect(page.locator(".finding.error")).to_have_count(0)
        expect(page.get_by_text("line 11 · spec.filter[0].expression")).to_be_visible()
        expect(page.locator("section", has=page.get_by_role("heading", name="Verdicts"))).to_contain_text(
            re.compile(r"keep-off-busy-nodes/below-watermark \(\d+\)"))
        page.get_by_role("button", name="Run tests").click()
        expect(page.get_by_text(re.compile("0 of 1 cases pass"))).to_be_visible()
        page.get_by_label("at most moved").fill("0")
        page.get_by_role("button", name="Compare with the active policies").click()
        expect(page.get_by_text("The draft is added to the active policies.")).to_be_visible()
        expect(page.get_by_text(re.compile("over budget")).first).to_be_visible()
        line("expression: usage.me")
        editor.press("Control+Space")
        expect(page.locator(".cm-tooltip-autocomplete")).to_contain_text("memory")
        page.keyboard.press("Escape")
        page.reload()
        expect(page.locator(".cm-line", has_text="expression: usage.me")).to_have_count(1)  # the draft is not lost


def test_search_keys_theme_and_language(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/overview")
        page.keyboard.press("/")
        page.keyboard.type("web-101")
        page.keyboard.press("Enter")  # at once: results of a part of the text are not those that are meant
        expect(page.get_by_role("heading", level=1)).to_have_text("shop/web-101")
        search = page.get_by_role("combobox")
        search.fill("web-1")
        options = page.get_by_role("option")
        expect(options.first).to_have_attribute("aria-selected", "true")
        page.keyboard.press("ArrowDown")
        expect(options.nth(1)).to_have_attribute("aria-selected", "true")
        assert search.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")
        assert faults_of(page) == []
        name = options.nth(2).locator("span").inner_text()
        options.nth(2).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        expect(options).to_have_count(0)
        page.keyboard.press("g")
        page.keyboard.press("l")
        expect(page.get_by_role("heading", level=1)).to_have_text("Policies")
        before = page.evaluate("document.documentElement.dataset.theme")
        page.get_by_role("button", name="Change between light and dark").click()
        assert page.evaluate("document.documentElement.dataset.theme") != before
        page.get_by_role("button", name="中文").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("策略")
        assert page.evaluate("document.documentElement.lang") == "zh-CN"


def test_on_a_narrow_screen_a_node_of_the_matrix_says_why_where_it_is_seen(browser, console):
    with watched(browser, viewport={"width": 420, "height": 900}) as page:
        shown(page, f"{console}/#/pod?key=shop/web-101")
        for column in ("Scores by plugin / refused first by", "total"):
            box = page.get_by_role("columnheader", name=column).bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 420, column
        for name in ("NodeUnschedulable", "general-03"):
            lines = page.get_by_text(name, exact=True).first.evaluate("each => each.getClientRects().length")
            assert lines == 1, name
        node = page.get_by_role("button", name="general-03")
        node.click()
        why = page.get_by_role("heading", name="Why: general-03")
        expect(why).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(node).to_be_in_viewport()
        shown(page, f"{console}/#/pod?key=shop/web-101&node=general-15")
        expect(page.get_by_role("heading", name="Why: general-15")).to_be_in_viewport()

        shown(page, f"{console}/#/policies?name=keep-off-hot-nodes")
        rules = page.get_by_role("region", name="Rules")
        assert rules.evaluate("each => each.scrollWidth - each.clientWidth") <= 0


def test_in_chinese_the_page_says_nothing_of_its_own_in_english(browser, console):
    with watched(browser, locale="zh-CN") as page:
        shown(page, f"{console}/#/pod?key=shop/web-101&node=general-03")
        why = page.get_by_role("region", name="原因").last
        for text in ("general-03 被拒绝", "过滤", "通过", "拒绝", "满足以下条件即可在此运行"):
            expect(why.get_by_text(text, exact=True).first).to_be_visible()
        expect(why.get_by_text(re.compile("^(filters|passed|refused|it would run there if)$"))).to_have_count(0)
        page.keyboard.press("Escape")
        expect(page.get_by_text(re.compile("将运行在 general-08.32 个节点中 21 个通过"))).to_be_visible()
        page.locator("#search").fill("general-0")
        expect(page.get_by_role("option").first).to_have_text("节点general-01")
        page.locator("#search").fill("hot")  # kinds of documents are names in every language
        expect(page.get_by_role("option").first).to_have_text("DeschedulerPlugindrain-hot-nodes")
        shown(page, f"{console}/#/policies?name=keep-off-hot-nodes")
        expect(page.locator(".badge", has_text="强制执行")).to_be_visible()
        page.get_by_role("button", name="在集群上审计").click()
        expect(page.locator("nav li").filter(has_text="balanced-allocation")).to_contain_text("从不生效")
        shown(page, f"{console}/#/playground?pod=shop/web-101")
        expect(page.locator(".finding").first).to_contain_text("提示")


def test_each_pending_pod_is_decided_as_if_it_were_alone_and_is_said_to_be(browser, console):
    with watched(browser, viewport={"width": 1280, "height": 900}) as page:
        for view in ("overview", "pod"):
            shown(page, f"{console}/#/{view}")
            expect(page.get_by_text("Each pod as if it were alone")).to_be_visible()
            pod = page.get_by_role("link", name="ml/inference-101")
            assert pod.evaluate("each => each.getClientRects().length") == 1


def test_a_map_of_numbers_without_end_has_no_scale_and_says_why(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map")
        page.get_by_role("textbox", name="Expression").fill("1.0 / 0.0")
        painted(page, "1.0 / 0.0")
        expect(page.locator(".legend")).to_have_text(re.compile(r"^no value \(32\): .*infinite"))
        assert page.locator(".legend canvas").count() == 0


def test_names_that_are_markup_are_text(browser):
    cluster = Cluster()
    assert not cluster.upsert_all([
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{MARKUP}", "labels": {
            "topology.kubernetes.io/zone": MARKUP, "pool": MARKUP}},
         "spec": {"taints": [{"key": MARKUP, "effect": MARKUP}]},
         "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10", MARKUP: "1"}, "conditions": [
             {"type": MARKUP, "status": MARKUP, "reason": MARKUP}]}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{MARKUP}", "namespace": MARKUP},
         "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}},
    ])
    policy = f"""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: hostile, annotations: {{policy.koordinator.sh/description: '{MARKUP}'}}}}
spec:
  filter:
  - {{name: hostile, expression: "nodeInfo.pods > 5", message: '{MARKUP}'}}
"""
    state = ConsoleState(cluster, policies_of(Source(f"{MARKUP}.yaml", policy)), now=0, name=MARKUP)
    with serving(state) as url, watched(browser) as page:
        shown(page, f"{url}/#/overview")
        expect(page.locator("main")).to_contain_text(MARKUP)
        page.locator("main table a").first.click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{MARKUP}/p{MARKUP}")
        page.locator("tbody button").first.click()
        expect(page.locator("section").last).to_contain_text(MARKUP)
        page.locator("section a").last.click()
        expect(page.locator("aside h2")).to_have_text(f"n{MARKUP}")
        page.get_by_role("textbox", name="Expression").fill("nodeInfo.zone")
        painted(page, "nodeInfo.zone")
        expect(page.locator(".legend")).to_contain_text(MARKUP)
        shown(page, f"{url}/#/policies")
        expect(page.locator("main")).to_contain_text(MARKUP)
        page.locator("#search").fill("p")
        expect(page.get_by_role("option").first).to_be_visible()
        assert page.locator("img, svg, main script, header script").count() == 0


def test_two_people_see_what_each_of_them_chose(browser, console):
    with watched(browser) as one, watched(browser) as other:
        for page, expression in ((one, "nodeInfo.pods"), (other, "nodeInfo.zone")):
            shown(page, f"{console}/#/map")
            page.get_by_role("textbox", name="Expression").fill(expression)
        painted(one, "nodeInfo.pods")
        painted(other, "nodeInfo.zone")


def test_a_token_is_needed_once_and_a_restarted_server_goes_on(browser, example, tmp_path: Path):
    (tmp_path / "tokens.csv").write_text(f"{TOKEN},ana\n", encoding="utf-8")
    guard = Guard(users=UserTokens(tmp_path / "tokens.csv"))
    with reserved_port() as port, watched(browser, permitted=r"401|net::ERR_\w+|Failed to fetch") as page:
        with serving(example, guard, port=port) as url:
            shown(page, url)
            page.get_by_label("Token").fill("wrong-wrong-wrong-wrong")
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_text("a token is needed")).to_be_visible()
            page.get_by_label("Token").fill(TOKEN)
            page.keyboard.press("Enter")
            expect(page.get_by_role("heading", level=1)).to_have_text("Cluster 32 nodes")
        page.get_by_role("link", name="Overview").click()
        expect(page.locator("main [role=alert]")).to_contain_text("That did not work")
        with serving(example, guard, port=port):
            page.get_by_role("link", name="Policies").click()
            expect(page.get_by_role("heading", level=1)).to_have_text("Policies")


def test_the_command_prints_its_address_and_ends_at_a_signal(browser):
    command = [sys.executable, "-m", "koordpolicy", "console", "--cluster", "examples/cluster", "--policies",
               "policies/scheduler", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"the console is at (http://127\.0\.0\.1:\d+/)\n", line)
            with watched(browser) as page:
                shown(page, found[1])
                expect(page.get_by_role("heading", level=1)).to_have_text("Cluster 32 nodes")
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err
