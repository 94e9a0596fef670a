"""Policies, the playground, nodes and pods of the console in a browser, beyond their first sight."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.source import Source

from .browsing import MARKS, MARKUP, ROOT, example_state, faults_of, policies_of, serving, shown, watched, wider

pytestmark = MARKS

HOT = ROOT / "policies" / "scheduler" / "keep-off-hot-nodes.yaml"
NAMES = (MARKUP, "\u202egpj.exe\u2066\u2069\u200b", "x" * 253,
         "a\x00b\x1b[31m\nc\td", "&lt;b&gt;%3Cimg%3E`${1}`", "{{nonce}}")
"""Names that API servers refuse, but dumps and other sources may hold."""


@pytest.fixture(scope="module")
def console() -> Iterator[str]:
    with serving(example_state(ROOT / "policies")) as url:
        yield url


@pytest.mark.parametrize("width", [1360, 420])
def test_a_policy_says_who_reads_what_and_the_audit_which_rules_have_no_effect(browser, console, width: int):
    with watched(browser, viewport={"width": width, "height": 900}) as page:
        shown(page, f"{console}/#/policies?name=keep-off-hot-nodes")
        page.get_by_role("button", name="usage.cpu", exact=True).click()
        expect(page.get_by_role("heading", name="usage.cpu is read by")).to_be_visible()
        expect(page.get_by_role("listitem").filter(has_text="drain-hot-nodes").last).to_contain_text("source")
        page.get_by_role("button", name="Audit over the cluster").click()
        expect(page.get_by_text("it refuses none of 2,400 pairs of a pod and a node")).to_be_visible()
        row = page.get_by_role("row").filter(has=page.get_by_role("button", name="cpu-below-watermark", exact=True))
        expect(row).to_contain_text("2,400 / 300 / 0")
        expect(page.locator("nav li").filter(has_text="balanced-allocation")).to_contain_text("never-active")
        assert (wider(page), faults_of(page)) == (0, [])


def test_a_descheduling_policy_says_what_it_would_evict_and_a_pod_why_it_stays(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/policies?name=drain-hot-nodes")
        page.get_by_text("What it would evict now").click()
        expect(page.get_by_text("0 pods would be evicted")).to_be_visible()
        shown(page, f"{console}/#/pod?key=shop/web-16")
        page.get_by_text("Would it be evicted?").click()
        expect(page.get_by_text("it stays", exact=True)).to_be_visible()
        expect(page.get_by_text("drain-hot-nodes: general-03 is a source in 1 of 5 cycles in a row")).to_be_visible()
        assert faults_of(page) == []


def test_a_node_has_its_devices_and_what_each_policy_says_of_it(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map?node=gpu-01&group=node.koordinator.sh%2Fpool")
        panel = page.locator("aside")
        expect(panel.get_by_text("Devices (4) NVIDIA-A10")).to_be_visible()
        expect(panel.get_by_role("row").filter(has_text="gpu 0")).to_contain_text("ml/inference-1")
        panel.get_by_text("What each policy says of this node").click()
        expect(panel.get_by_role("row").filter(has_text="TaintToleration").first).to_contain_text(
            "refuses 23 of 30 pending pods")
        expect(panel).to_contain_text("suppress-best-effort did nothing")
        assert faults_of(page) == []


@pytest.mark.parametrize(("address", "text", "target"), [
    ("policies?name=keep-of-hot-nodes", "There is no policy keep-of-hot-nodes.", "#/policies?name=keep-off-hot-nodes"),
    ("polices", "Did you mean", "#/policies"),
    ("pod?key=shop/web-199", "there is no pod `shop/web-199` in the cluster", "#/pod?key=shop%2Fweb-101"),
    ("map?node=gpu-99&group=none", "there is no node `gpu-99` in the cluster", None),
    ("map?group=nothing", "nodes cannot be grouped by `nothing`", None),
    ("map?colour=zzz", "This view knows nothing of colour=zzz.", None),
    ("playground?policy=zzz&pod=shop/web-101", "This view knows nothing of policy=zzz.", None),
    ("map?pod=shop/gone&expression=pod.spec.priority", "there is no pod `shop/gone` in the cluster", None),
    ("pod?key=shop/web-101&node=gone", "there is no node `gone` in the cluster", None),
    ("playground?file=gone.yaml", "`gone.yaml` is not one of the", None),
    ("playground?pod=shop/gone", "there is no pod `shop/gone` in the cluster", None),
    ("overview?at=2026-11-02T09:00:00Z", "the console shows no flight recording", None),
    ("pod?key=shop/web-101&at=noon", "“noon” is not a time", "#/pod?key=shop%2Fweb-101"),
])
def test_an_address_of_nothing_says_so_and_suggests_what_there_is(browser, console, address, text, target):
    with watched(browser) as page:
        shown(page, f"{console}/#/overview")
        page.goto(f"{console}/#/{address}")
        expect(page.get_by_text(text).first).to_be_visible()
        if target is not None:
            expect(page.locator(f'main a[href="{target}"]').first).to_be_visible()
        assert faults_of(page) == []


def test_a_part_of_an_address_that_means_nothing_leaves_a_way_on(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/map?group=nothing&node=general-03")
        expect(page.get_by_text("They are grouped by zone.")).to_be_visible()
        expect(page.locator("main canvas[data-painted]")).to_be_visible()
        page.get_by_label("Group by").select_option("none")
        expect(page.get_by_text("They are grouped by")).to_have_count(0)
        shown(page, f"{console}/#/map?colour=zzz&group=none")
        page.get_by_role("link", name="Go on without").click()
        expect(page.locator("#unknown")).to_have_count(0)
        expect(page).to_have_url(re.compile(r"#/map\?group=none$"))
        page.get_by_role("link", name="Overview").click()
        expect(page.locator("#unknown")).to_have_count(0)


def test_policies_are_grouped_by_kind_and_found_by_a_part_of_their_name(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/policies")
        groups = page.locator("nav.panel h2:visible")
        entries = page.locator("nav.panel li:visible")
        count = entries.count()
        heads = [each.split() for each in groups.all_inner_texts()]
        assert [kind for kind, _ in heads] == ["SchedulerPlugin", "QoSPlugin", "DeschedulerPlugin", "PolicyParams"]
        assert sum(int(number) for _, number in heads) == count
        find = page.get_by_role("searchbox", name=f"Find one of {count} policies")
        find.fill("HOT")
        expect(entries).to_have_text(["keep-off-hot-nodes", "drain-hot-nodes"])
        expect(groups.first).to_have_text(f"SchedulerPlugin 1 of {heads[0][1]}")
        page.get_by_role("link", name="drain-hot-nodes").click()
        expect(page.get_by_role("heading", level=2, name="drain-hot-nodes")).to_be_visible()
        expect(entries).to_have_count(2)  # the next one may be wanted, too
        find.fill("no such policy")
        expect(page.locator("nav.panel").get_by_text("nothing found")).to_be_visible()
        # A policy that an address names is in the list.
        page.evaluate("location.hash = '#/policies?name=prefer-zone'")
        expect(page.get_by_role("heading", level=2, name="prefer-zone")).to_be_visible()
        expect(entries).to_have_count(count)
        assert faults_of(page) == []


def test_tests_run_on_save_with_coverage_in_the_margin_and_names_are_renamed(browser, console):
    with watched(browser) as page:
        shown(page, f"{console}/#/playground?pod=shop/web-101")
        editor = page.get_by_role("textbox", name="Policy and tests (YAML)")
        page.wait_for_selector("[data-checked]")
        page.locator(".cm-line", has_text="name: cpu, expression").click()
        page.keyboard.press("Control+s")
        expect(page.get_by_text(re.compile("1 of 1 cases pass"))).to_be_visible()
        expect(page.locator(".cm-coverage .good").first).to_be_visible()
        expect(page.locator(".cm-coverage .bad")).to_have_count(1)  # no case has shown a score
        page.keyboard.press("Home")
        for _ in range("  - {name: c".__len__()):
            page.keyboard.press("ArrowRight")
        editor.press("F2")
        page.get_by_label("New name").fill("load")
        page.keyboard.press("Enter")
        expect(page.locator(".cm-line", has_text="name: load, expression: usage.cpu")).to_have_count(1)
        expect(page.locator(".cm-line", has_text="variables.load")).to_have_count(3)
        expect(page.locator(".finding.error")).to_have_count(0)
        page.keyboard.press("Control+z")
        expect(page.locator(".cm-line", has_text="variables.load")).to_have_count(0)
        assert faults_of(page) == []


def test_a_patch_of_a_draft_applies_to_the_file_that_it_was_opened_from(browser, console, tmp_path: Path):
    with watched(browser) as page:
        shown(page, f"{console}/#/policies?name=keep-off-hot-nodes")
        page.get_by_role("link", name="Try it in the playground").click()
        page.wait_for_selector("[data-checked]")
        page.locator(".cm-line", has_text="params: {cpuPercent: 65").click()
        page.keyboard.press("End")
        page.keyboard.press("Shift+Home")
        page.keyboard.insert_text("params: {cpuPercent: 60, memoryPercent: 90}")
        with page.expect_download() as download:
            page.get_by_role("button", name="Patch").click()
        patch = tmp_path / download.value.suggested_filename
        download.value.save_as(patch)
    copy = tmp_path / HOT.relative_to(ROOT)
    copy.parent.mkdir(parents=True)
    copy.write_text(HOT.read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    assert patch.name == "keep-off-hot-nodes.patch"
    changed = HOT.read_text(encoding="utf-8").replace("cpuPercent: 65", "cpuPercent: 60")
    assert copy.read_text(encoding="utf-8") == changed


def hostile() -> ConsoleState:
    """A cluster and a policy whose names are markup, control characters, and as long as they can be."""
    cluster = Cluster()
    for number, name in enumerate(NAMES):
        cluster.upsert_all([
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{name}", "labels": {
                "topology.kubernetes.io/zone": name, name: name}},
             "spec": {"taints": [{"key": name, "effect": "NoSchedule"}] if number == 0 else []},
             "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10", "nvidia.com/gpu": "1"},
                        "conditions": [{"type": name, "status": name, "reason": name}]}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{name}", "namespace": name}, "spec": {
                "schedulingGates": [{"name": name}],
                "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"q{name}", "namespace": name}, "spec": {
                "nodeName": f"n{name}", "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]}},
        ])
    policy = f"""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: hostile, annotations: {{policy.koordinator.sh/description: '{MARKUP}'}}}}
spec:
  params: {{words: ['{MARKUP}']}}
  filter:
  - {{name: hostile, expression: "nodeInfo.pods > 5 && params.words[0] != ''", message: '{MARKUP}'}}
"""
    return ConsoleState(cluster, policies_of(Source(f"{MARKUP}.yaml", policy)), now=0, name=MARKUP)


_HIDDEN = r"""
    const hidden = /[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]/;
    window.written = [];
    const fill = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.written.push(text);
        fill.call(this, text, ...rest);
    };
    const names = ["title", "aria-label", "data-head"];
    const attributes = () => [...document.querySelectorAll(names.map((name) => `[${name}]`).join())].flatMap((each) =>
        names.map((name) => each.getAttribute(name) ?? ""));
    window.hiddenTexts = () => [...window.written, document.body.innerText, ...attributes()].filter(
        (each) => hidden.test(each));
"""
"""A script that finds texts of a page, on canvases, too, with characters that hide or turn the direction."""


@pytest.mark.parametrize("width", [1360, 420])
def test_hostile_names_are_text_in_every_view(browser, width: int):
    with serving(hostile()) as url, watched(browser, viewport={"width": width, "height": 900}) as page:
        page.add_init_script(_HIDDEN)
        for name in NAMES:
            query = {"node": f"n{name}", "key": f"{name}/p{name}", "on": f"{name}/q{name}"}
            of = {key: page.evaluate("encodeURIComponent", value) for key, value in query.items()}
            for address, wait in (
                (f"map?node={of['node']}", "What each policy says of this node"), ("overview", "Pending pods"),
                (f"pod?key={of['key']}&node={of['node']}", "Why:"), (f"pod?key={of['on']}", "Would it be evicted?"),
                (f"policies?name={of['node']}", "Choose a policy."), ("policies?name=hostile", "Params"),
                (f"playground?pod={of['key']}", "At the cursor"), (f"{of['node']}", "There is no view"),
            ):
                page.goto(f"{url}/#/{address}")
                expect(page.locator("main:not([aria-busy])").get_by_text(wait).first).to_be_visible()
                if wait in ("What each policy says of this node", "Would it be evicted?"):
                    page.get_by_text(wait).click()
                    expect(page.get_by_text(re.compile("QoS of this node|it stays")).first).to_be_visible()
                assert page.locator("img, svg:not(.cm-editor svg), main script, header script").count() == 0, address
                assert wider(page) <= 0, (name, address)
                assert page.evaluate("hiddenTexts()") == [], address
        page.locator("#search").fill("p")
        expect(page.get_by_role("option").first).to_be_visible()
        assert page.locator("img").count() == 0
        assert page.evaluate("hiddenTexts()") == []
        shown(page, f"{url}/#/map")
        expect(page.locator("main canvas[data-painted]")).to_be_visible()
        assert any("gpj.exe" in text for text in page.evaluate("written"))
        page.locator("main canvas[data-painted]").focus()
        for _ in NAMES:
            page.keyboard.press("ArrowDown")
            assert page.evaluate("hiddenTexts()") == []
        shown(page, f"{url}/#/playground")
        page.wait_for_selector("[data-checked]")
        page.locator(".cm-line").first.click()
        page.keyboard.insert_text("# \u202eback\u2069 ")
        expect(page.locator(".cm-specialChar")).to_have_count(2)
        assert page.evaluate("hiddenTexts()") == []


def test_a_draft_that_is_wrong_endless_or_huge_leaves_the_page_alive(browser, console):
    # Chromium gives text that replaces all the style of what it replaces, which the page's policy forbids.
    with watched(browser, permitted="Applying inline style") as page:
        shown(page, f"{console}/#/playground?pod=shop/web-101")
        page.wait_for_selector("[data-checked]")

        def draft(text: str) -> None:
            page.get_by_role("textbox", name="Policy and tests (YAML)").focus()
            page.keyboard.press("Control+a")
            page.keyboard.insert_text(text)

        expression = ".".join(["[0,1,2,3,4,5,6,7,8,9]", *["map(a, [0,1,2,3,4,5,6,7,8,9].map(b, a * b))"] * 3])
        head = ("apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\nmetadata: {name: draft}\nspec:\n"
                "  filter:\n  - name: draft\n    expression: >-\n      ")
        draft(f"{head}1 +")
        expect(page.locator(".finding.error").first).to_be_visible()
        draft(head + "[0,1,2,3,4,5,6,7,8,9].all(a, " * 9 + "true" + ")" * 9)
        expect(page.locator(".finding.error").first).to_contain_text(re.compile("cost|nested"))
        draft("kind: [" * 2000 + expression)
        expect(page.locator(".finding.error").first).to_be_visible()
        draft("# " + "x" * 600_000)
        expect(page.get_by_role("alert").first).to_be_visible()
        draft(f"{head}nodeInfo.pods < 100")
        expect(page.get_by_text("32 of 32 nodes pass")).to_be_visible()
