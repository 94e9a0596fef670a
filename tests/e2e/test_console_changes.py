"""Changes through the console in a browser: from typing a policy to its promotion on a running extender, and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from koordpolicy.engine.client.server_calls import Caller

from .browsing import MARKS, MARKUP, ROOT, faults_of, pictured, shown, watched
from .control_plane import ControlPlane, NamedCluster
from .processes import process
from .roles import account_kubeconfig, bind, create_roles, user
from .scheduler_process import until
from .test_extender import call, passing

pytestmark = MARKS

ADMIN, ANA, BEN = (f"a-token-of-the-tests-{name}" for name in ("admin", "ana", "ben"))
CLUSTER = str(ROOT / "examples" / "cluster")
NODES = ("general-01", "general-02", "batch-01")
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata:
  name: not-in-batch
spec:
  filter:
  - name: pool
    expression: "true"
"""


@contextmanager
def extender(directory: Path, name: str) -> Iterator[str]:
    """A running extender with its own policies and those of `shadow`."""
    (directory / name).mkdir()
    (directory / name / "policy.yaml").write_text(POLICY)
    with process(directory / f"{name}.log", "scheduler", "--extender", "--bind", "127.0.0.1:0", "--cluster", CLUSTER,
                 "--policies", str(directory / name), "--shadow", str(directory / "shadow"), "--shadow-share", "1",
                 "--admin-token-file", str(directory / "token")) as url:
        until(lambda: Caller().ask(url, "/status").data.get("ready"))
        yield url


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "shadow").mkdir()
    (tmp_path / "token").write_text(ADMIN)
    (tmp_path / "tokens.csv").write_text(f"{ANA},ana,operator\n{BEN},ben\n")
    return tmp_path


@contextmanager
def console(directory: Path, servers: list[str], *users: str) -> Iterator[str]:
    with process(directory / "console.log", "console", "--cluster", CLUSTER, "--policies", str(directory / "one"),
                 "--bind", "127.0.0.1:0", "--allow-changes", "--endpoints", ",".join(servers),
                 "--admin-token-file", str(directory / "token"), "--audit-log", str(directory / "audit.log"),
                 *users) as url:
        yield url


def enter_token(page: Page, url: str, token: str, view: str) -> None:
    page.goto(f"{url}/#/{view}")
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def sign_in(page: Page, url: str, token: str, view: str) -> None:
    enter_token(page, url, token, view)
    expect(page.get_by_label("Token")).to_have_count(0)  # its heading is not that of the view
    page.wait_for_selector("main:not([aria-busy]) h1")


def opened(page: Page) -> Locator:
    """Open the panel of changes by the keyboard."""
    page.get_by_role("heading", name="Change running servers").locator("..").focus()
    page.keyboard.press("Enter")
    return page.get_by_role("region", name="Change running servers")


def typed(page: Page, text: str) -> None:
    """Write a policy into the editor of the playground, in place of what is there."""
    page.get_by_role("textbox", name="Policy and tests (YAML)").click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Backspace")  # over a selection Chromium would write with styles, which the page forbids
    page.keyboard.insert_text(text)


def usable(page: Page) -> None:
    """Check that a page is accessible, and no wider than its window."""
    assert faults_of(page) == []
    assert page.evaluate("""[...document.querySelectorAll("main *")]
        .filter((each) => each.getBoundingClientRect().right > innerWidth && !each.closest(".scroll, .editor"))
        .map((each) => each.outerHTML.slice(0, 100))""") == []


def entries(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.log").read_text().splitlines()]


def compared(url: str, count: int) -> None:
    """Let kube-scheduler's calls arrive until so many of them were compared with the shadow."""
    until(lambda: passing(url, NODES) and call(url, "/status")["shadow"]["decisions"] >= count)


def test_a_policy_is_typed_exported_promoted_on_running_extenders_and_rolled_back(browser, directory: Path):
    with extender(directory, "one") as one, extender(directory, "two") as two, (
            console(directory, [one, two], "--tokens", str(directory / "tokens.csv"))) as url, (
            watched(browser, permitted="401")) as page:
        sign_in(page, url, ANA, "playground")
        typed(page, f"# {MARKUP}\n" + POLICY.replace('"true"', "node.metadata.name.startsWith('general')"))
        page.wait_for_selector("[data-checked]")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download").click()
        download.value.save_as(directory / "next.yaml")
        (directory / "next.yaml").rename(directory / "shadow" / "policy.yaml")
        for server in (one, two):
            until(lambda server=server: call(server, "/status")["shadow"]["ready"])
            assert passing(server, NODES) == list(NODES)
            compared(server, 3)

        shown(page, f"{url}/#/policies")
        panel = opened(page)
        expect(panel.get_by_role("region", name="Servers and their versions").get_by_role("row")).to_have_count(3)
        panel.get_by_role("button", name="Show what a promotion would change").click()
        expect(panel.get_by_text(re.compile("decisions differ, and at most 0.1 % may")).first).to_be_visible()
        expect(panel.get_by_text("Nothing would be changed.")).to_be_visible()
        panel.get_by_label("compared at least").fill("3")
        panel.get_by_label("differ at most, in %").fill("100")
        panel.get_by_role("button", name="Show what a promotion would change").focus()
        page.keyboard.press("Enter")
        expect(panel.get_by_role("heading", name="A promotion would change")).to_be_focused()
        expect(panel.locator(".diff .removed").first).to_have_text(re.compile(r"^- +expression: \"true\"\n$"))
        expect(panel.locator(".diff .added").first).to_have_text(f"+# {MARKUP}\n")
        assert panel.locator("img").count() == 0
        pictured(panel, "changes")
        usable(page)
        assert not (directory / "audit.log").read_text()

        panel.get_by_role("button", name=re.compile(r"Promote on 2 of 2 servers: [0-9a-f]{12}")).click()
        result = page.get_by_role("status", name="Result of the change")
        expect(result.get_by_role("heading")).to_have_text("All servers were changed")
        for server in (one, two):
            assert call(server, "/status")["generation"] == 2
            assert passing(server, NODES) == ["general-01", "general-02"]
        begin, end = entries(directory)
        assert (begin["user"], begin["action"], begin["phase"], [each["endpoint"] for each in begin["servers"]]) == (
            "ana", "promote", "begin", [one, two])
        assert (end["outcome"], end["id"], end["confirm"]) == ("complete", begin["id"], begin["confirm"])

        history = panel.get_by_role("region", name="Generations")
        rows = history.locator("tbody tr")
        expect(rows).to_have_count(2)
        newest, oldest = rows.all()
        expect(newest).to_contain_text("ana, promotion")
        expect(newest).to_contain_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))
        expect(newest).to_contain_text("active")
        oldest.get_by_role("radio", name="Compare", exact=False).first.focus()
        page.keyboard.press("Space")
        panel.get_by_role("button", name="Show the difference").click()
        difference = panel.get_by_label("Difference of two generations")
        expect(difference.locator(".diff .removed").first).to_have_text(re.compile(r"^- +expression: \"true\"\n$"))
        pictured(panel, "generations")
        usable(page)
        page.set_viewport_size({"width": 420, "height": 900})
        usable(page)
        oldest.get_by_role("button", name="Roll back to").click()
        panel.get_by_role("button", name=re.compile("Roll back 2 of 2 servers")).click()
        expect(result.get_by_text("generation 3").first).to_be_visible()
        expect(panel.get_by_text("generation 1 was brought back, until the directory changes")).to_have_count(2)
        assert passing(one, NODES) == passing(two, NODES) == list(NODES)
        assert [each["action"] for each in entries(directory)] == ["promote"] * 2 + ["rollback"] * 2


def test_a_change_in_between_is_refused_and_a_viewer_sees_no_panel(browser, directory: Path):
    (directory / "shadow" / "policy.yaml").write_text(POLICY.replace('"true"', "nodeInfo.pods < 50"))
    with extender(directory, "one") as one, console(
            directory, [one], "--tokens", str(directory / "tokens.csv")) as url:
        compared(one, 1)
        with watched(browser, permitted="401", color_scheme="dark", viewport={"width": 420, "height": 900}) as page:
            sign_in(page, url, ANA, "policies")
            panel = opened(page)
            panel.get_by_label("compared at least").fill("1")
            panel.get_by_role("button", name="Show what a promotion would change").click()
            confirm = panel.get_by_role("button", name=re.compile("Promote on 1 of 1 servers"))
            expect(confirm).to_be_visible()
            usable(page)
            before = call(one, "/status")["shadow"]["hash"]
            (directory / "next.yaml").write_text(POLICY.replace('"true"', "nodeInfo.pods < 60"))
            (directory / "next.yaml").rename(directory / "shadow" / "policy.yaml")
            until(lambda: call(one, "/status")["shadow"]["hash"] != before)
            compared(one, 1)
            confirm.click()
            expect(panel.get_by_role("alert")).to_contain_text("are not as they were shown: nothing was changed")
        assert call(one, "/status")["generation"] == 1
        assert not (directory / "audit.log").read_text()
        with watched(browser, permitted="401|403") as page:
            sign_in(page, url, BEN, "policies")
            expect(page.get_by_role("heading", level=1)).to_have_text("Policies")
            expect(page.locator(".changes")).to_have_attribute("data-permitted", "false")
            expect(page.get_by_text("Change running servers")).to_have_count(0)
            page.get_by_role("heading", name="Running servers: generations and shadow").click()
            panel = page.get_by_role("region", name="Running servers: generations and shadow")
            expect(panel.get_by_role("cell", name=re.compile("decisions compared"))).to_have_count(1)
            expect(panel.get_by_role("button")).to_have_text(["Show the difference"])
            answer = page.evaluate("""async (token) => (await fetch("/api/v1/changes/plan", {method: "POST",
                headers: {"Content-Type": "application/json", Authorization: `Bearer ${token}`},
                body: '{"action": "rollback"}'})).status""", BEN)
            assert answer == 403


def test_the_roles_of_a_cluster_decide_what_its_users_see_and_change(
    browser, cluster: ControlPlane | NamedCluster, namespace: str, directory: Path,
):
    tokens = {name: user(cluster, namespace, name, role) for name, role in (
        ("ana", "koord-policy-console-operator"), ("ben", "koord-policy-console-viewer"), ("eve", None))}
    create_roles(cluster.admin, "console")
    own = account_kubeconfig(cluster, "koord-policy-console", directory)
    (directory / "shadow" / "policy.yaml").write_text(POLICY.replace('"true"', "nodeInfo.pods < 50"))
    with extender(directory, "one") as one, console(
            directory, [one], "--authentication-kubeconfig", str(own),
            "--authorization-webhook-cache-unauthorized-ttl", "0s") as url:
        compared(one, 1)
        with watched(browser, permitted="401") as page:
            enter_token(page, url, "not-a-token-of-this-cluster", "map")
            expect(page.get_by_role("alert")).to_contain_text("the API server does not accept the token")
            page.get_by_label("Token").fill(tokens["ana"])
            page.keyboard.press("Enter")
            page.get_by_role("link", name="Policies").click()
            panel = opened(page)
            panel.get_by_label("compared at least").fill("1")
            panel.get_by_role("button", name="Show what a promotion would change").click()
            panel.get_by_role("button", name=re.compile("Promote on 1 of 1 servers")).click()
            expect(page.get_by_role("status", name="Result of the change")).to_contain_text("All servers were changed")
        assert [(each["user"], each["phase"]) for each in entries(directory)] == [
            (f"system:serviceaccount:{namespace}:ana", "begin"), (f"system:serviceaccount:{namespace}:ana", "end")]
        assert f"system:serviceaccounts:{namespace}" in entries(directory)[0]["groups"]
        with watched(browser, permitted="401") as page:
            sign_in(page, url, tokens["ben"], "policies")
            expect(page.get_by_role("heading", name="not-in-batch")).to_be_visible()
            expect(page.locator(".changes")).to_have_attribute("data-permitted", "false")
            expect(page.get_by_text("Change running servers")).to_have_count(0)
        assert asked(url, "changes/plan", tokens["ben"], {"action": "rollback"}) == (403, (
            f"user `system:serviceaccount:{namespace}:ben` cannot update schedulerplugins.policy.koordinator.sh in all "
            "namespaces"))
        assert asked(url, "map", tokens["eve"]) == (
            403, f"user `system:serviceaccount:{namespace}:eve` cannot list nodes in all namespaces")
        bind(cluster, namespace, "eve", "koord-policy-console-viewer")
        until(lambda: asked(url, "map", tokens["eve"])[0] == 200)
        assert call(one, "/status")["generation"] == 2


def asked(url: str, path: str, token: str, body: Any = None) -> tuple[int, str]:
    """The status of a request with a token, and why it was refused."""
    answer = Caller(token).ask(url, f"/api/v1/{path}", body)
    return answer.code, answer.error
