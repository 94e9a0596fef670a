"""The console over a real control plane with a running scheduler: what it follows, and what survives restarts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ports import reserved_port

from .browsing import MARKS, SCREENSHOTS, shown, watched
from .control_plane import AdminClient, ControlPlane, NamedCluster
from .nodes import FakeKubelet, add_node, add_pod
from .processes import process
from .scheduler_process import SchedulerProcess

pytestmark = MARKS

NAME = "koord-policy-console"
AWAY = r"net::ERR_\w+|Failed to fetch"
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: small-nodes}}
spec:
  filter:
  - name: small
    expression: allocatable.cpu <= {most} * 1000
"""


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as found:
        yield found


def console(kubeconfig: Path, directory: Path, *options: str, port: int = 0) -> AbstractContextManager[str]:
    """The command; yields its address."""
    return process(directory / "console.log", "console", "--cluster", "kube", "--bind", f"127.0.0.1:{port}", *options,
                   KUBECONFIG=str(kubeconfig))


def test_the_overview_follows_a_running_scheduler_its_waiting_pods_and_its_restart(
    browser, cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, tmp_path: Path, port: int,
):
    nodes = [f"{namespace}-{letter}" for letter in "ab"]
    for node in nodes:
        add_node(admin, node, cpu="4", labels={"scene": namespace})
    selector = {"nodeSelector": {"scene": namespace}}
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "small.yaml").write_text(POLICY.format(most=16))
    options = ("--bind", f"127.0.0.1:{port}", "--policies", str(policies))
    try:
        with FakeKubelet(admin), SchedulerProcess(cluster.kubeconfig(), tmp_path, *options, name=NAME) as scheduler:
            scheduler.until_ready()
            with (
                console(cluster.kubeconfig(), tmp_path, "--policies", str(policies), "--endpoints",
                        f"http://127.0.0.1:{port}", "--endpoints-interval", "0.5") as url,
                watched(browser, color_scheme="light", viewport={"width": 1360, "height": 900}) as page,
                watched(browser, color_scheme="dark", viewport={"width": 420, "height": 900}) as other,
            ):
                shown(page, f"{url}/#/overview")
                row = page.locator("tr", has_text=f"127.0.0.1:{port}")
                expect(row).to_contain_text("healthy")
                expect(row).to_contain_text("leads")
                pods = page.locator("section", has=page.get_by_role("heading", name="Pods", exact=True))
                before = int(pods.locator(".big").first.inner_text())
                for number in range(10):
                    add_pod(admin, namespace, f"web-{number}", scheduler=NAME, **selector)
                expect(pods.locator(".big").first).to_have_text(str(before + 10))  # without a reload
                placed = page.locator("section", has=page.get_by_role("heading", name="Pods placed", exact=True))
                expect(placed.locator("canvas")).to_have_attribute(
                    "aria-label", re.compile(r"between .* and [1-9][\d.]* per second"))

                shown(other, f"{url}/#/policies?name=small-nodes")
                rate = other.get_by_role("row").filter(has_text="allocatable.cpu <= 16 * 1000").locator("td").last
                expect(rate).to_have_attribute("data-head", re.compile(r", \d+ min$"))
                expect(rate).to_have_text(re.compile(r"^[1-9][\d,]* / 0 / 0$"))  # each of the pods, on each node tried

                add_pod(admin, namespace, "too-large", scheduler=NAME, cpu="64", **selector)
                waiting = page.locator("tr", has_text=f"{namespace}/too-large").first
                expect(waiting).to_contain_text("unschedulable")
                expect(waiting).to_contain_text("Insufficient cpu")
                # Two people look at the same time, in two languages.
                shown(other, f"{url}/#/overview")
                other.get_by_role("button", name="中文").click()
                expect(other.locator("main")).to_contain_text("Insufficient cpu")
                expect(other.get_by_role("heading", level=1)).to_contain_text("概览")

                broken = POLICY.format(most=16).replace("allocatable.cpu", "allocatable.cpx")
                (policies / "small.yaml").write_text(broken)
                refused = page.locator("section", has=page.get_by_role("heading", name="Refused policies"))
                expect(refused).to_contain_text(re.compile(r"small\.yaml:7 .*cpx"))
                expect(row).to_contain_text("not healthy")
                card = page.locator("section", has=page.get_by_role("heading", name="Policies", exact=True))
                expect(card).to_contain_text(re.compile(r"1 error\b"))  # the console follows the same files
                for width in (1360, 420) if SCREENSHOTS else ():
                    for theme in ("light", "dark"):
                        page.set_viewport_size({"width": width, "height": 1500})
                        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
                        page.wait_for_timeout(1500)  # charts are painted with the next figures
                        page.screenshot(path=Path(SCREENSHOTS) / f"live-overview-{theme}-{width}.png", full_page=True)
                (policies / "small.yaml").write_text(POLICY.format(most=8))
                expect(card).to_contain_text("0 errors")
                expect(row).to_contain_text("✓ healthy")

                assert scheduler.stop() == 0
                expect(row).to_contain_text("away")
                expect(row).to_contain_text("cannot be reached: connection refused")
                scheduler.start()
                expect(row).to_contain_text("healthy")
                expect(row.locator("td").last).to_have_text("1")  # the restart was seen
                expect(waiting).to_contain_text("Insufficient cpu")
    finally:
        for node in nodes:
            admin.delete(f"/api/v1/nodes/{node}")


def test_a_page_goes_on_by_itself_when_the_console_was_restarted(
    browser, cluster: ControlPlane | NamedCluster, admin: AdminClient, namespace: str, tmp_path: Path, port: int,
):
    nodes = [f"{namespace}-{letter}" for letter in "abc"]
    add_node(admin, nodes[0])
    known = len(admin.get("/api/v1/nodes")["items"])
    try:
        with watched(browser, permitted=AWAY) as page:
            with console(cluster.kubeconfig(), tmp_path, port=port) as url:
                shown(page, f"{url}/#/map?group=none")
                expect(page.get_by_role("heading", level=1)).to_have_text(f"Cluster {known} nodes")
                add_node(admin, nodes[1])
                # Colours came with another layout than the map has.
                expect(page.get_by_role("heading", level=1)).to_have_text(f"Cluster {known + 1} nodes")
            expect(page.get_by_text("The console does not answer.")).to_be_visible()
            add_node(admin, nodes[2])
            with console(cluster.kubeconfig(), tmp_path, port=port):
                expect(page.get_by_text("The console does not answer.")).to_be_hidden()
                expect(page.get_by_role("heading", level=1)).to_have_text(f"Cluster {known + 2} nodes")
    finally:
        for node in {each["metadata"]["name"] for each in admin.get("/api/v1/nodes")["items"]} & set(nodes):
            admin.delete(f"/api/v1/nodes/{node}")
