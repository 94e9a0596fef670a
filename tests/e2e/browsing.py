"""The console in the machine's Chromium: pages that are watched for errors, what they are checked for, and servers.

`KOORD_POLICY_SCREENSHOTS=DIR` writes pictures of views. `KOORD_POLICY_SLOW_BROWSER=SEED` looks for races: pages have a
sixth of the processor, and each answer arrives later, by a time that the seed decides.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, Route, expect, sync_playwright

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.sources import files
from koordpolicy.engine.console.guard import Guard
from koordpolicy.engine.console.policy_set import PolicySet
from koordpolicy.engine.console.server import ConsoleServer, Static
from koordpolicy.engine.console.state import ConsoleState
from koordpolicy.engine.documents import files_of, load, read_file
from koordpolicy.engine.framework.discovery import DiscoveredPlugins
from koordpolicy.engine.reload.vet import Vetter
from koordpolicy.engine.serving.listeners import ListenerThread
from koordpolicy.engine.source import Source

# A browser may connect while a server ends: such a connection is nobody's, and closed by the collector of garbage.
MARKS = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
"""The `pytestmark` of a module whose tests run in the browser."""
ROOT = Path(__file__).parents[2]
SCREENSHOTS = os.environ.get("KOORD_POLICY_SCREENSHOTS")
SLOW = os.environ.get("KOORD_POLICY_SLOW_BROWSER")
PATIENCE_MS = 240_000 if SLOW else 60_000
MARKUP = '"><img src=x onerror=alert(1)><svg onload=alert(2)>'
LOOKS = (("light", 1360, "en-US"), ("dark", 1360, "zh-CN"), ("light", 420, "zh-CN"), ("dark", 420, "en-US"))
"""Theme, width and language of views: each language meets both themes and both widths."""
_AXE = ROOT / "build" / "web" / "node_modules" / "axe-core" / "axe.min.js"
_LATE = """
    const [fetched, seed] = [window.fetch, SEED];
    let number = 0;
    window.fetch = async (...request) => {
        const random = Math.abs(Math.sin((seed + 1) * 12.9898 + 78.233 * ++number) * 43758.5453) % 1;
        const answer = await fetched(...request);
        await new Promise((resolve) => setTimeout(resolve, 700 * random ** 2));
        return answer;
    };
"""
_OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking",
            "--disable-component-update", "--disable-sync")


def chromium() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no Chromium: `apt-get install chromium`")
    return found


@contextmanager
def launched() -> Iterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=list(_OPTIONS))
        yield opened
        opened.close()


@contextmanager
def watched(browser: Browser, *, permitted: str = "$^", **options: Any) -> Iterator[Page]:
    """A page of a new context; nothing but what is permitted may be in its console."""
    context: BrowserContext = browser.new_context(**{"locale": "en-US", **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    if SLOW:
        context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 6})
        page.add_init_script(_LATE.replace("SEED", str(int(SLOW))))
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("dialog", lambda dialog: (found.append(f"dialog {dialog.message}"), dialog.dismiss()))
    try:
        yield page
    finally:
        page.unroute_all(behavior="ignoreErrors")  # an answer may be on its way
        context.close()
    assert [each for each in found if not re.search(permitted, each)] == []


def shown(page: Page, address: str) -> None:
    """Open an address, and wait until its view is complete."""
    page.goto(address)
    page.reload()  # an address that differs after the `#` only is no new page
    page.wait_for_selector("main:not([aria-busy]) h1")


def pictured(what: Page | Locator, name: str, **options: Any) -> None:
    """Write a picture, if somebody wants pictures."""
    if SCREENSHOTS:
        what.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", **options)


def _of(view: str) -> re.Pattern[str]:
    return re.compile(rf"/api/v1/{view}(\?|$)")


def held(page: Page, view: str) -> Callable[[], None]:
    """Hold back the answers of a view, until the function that is returned is called."""
    waiting: list[Route] = []
    released = False

    def hold(route: Route) -> None:
        if released:
            route.fallback()
        else:
            waiting.append(route)

    def release() -> None:
        nonlocal released
        released = True
        for each in waiting:
            each.fallback()

    page.route(_of(view), hold)
    return release


def altered(page: Page, view: str, change: Callable[[Any], None]) -> None:
    """Change the answers of a view from now on, on their way to the page."""
    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.json()
        change(body)
        route.fulfill(response=response, json=body)

    page.route(_of(view), answer)


def announced(page: Page) -> Callable[[], None]:
    """Let a page hear of changes of the cluster only when the function that is returned is called."""
    waiting: list[Route] = []
    versions: dict[str, Any] = {"boot": "one", "cluster": 1, "servers": 1}

    def answer(route: Route) -> None:
        if f"cluster={versions['cluster']}" in route.request.url:
            waiting.append(route)
        else:
            route.fulfill(json=versions)

    page.route(_of("versions"), answer)

    def announce() -> None:
        versions["cluster"] += 1
        while waiting:
            waiting.pop().fulfill(json=versions)

    return announce


def faults_of(page: Page) -> list[tuple[str, object, str]]:
    """The serious violations that axe finds: the rule, the element, and what to do."""
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(each["id"], node["target"], node["failureSummary"]) for each in found
            if each["impact"] in ("serious", "critical") for node in each["nodes"]]


def wider(page: Page) -> int:
    """The pixels by which the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def policies_of(*sources: Source) -> PolicySet:
    return PolicySet.of(load(sources, source_name="policies"), sources, DiscoveredPlugins(tuple(builtins()), ()))


def sources_of(*directories: Path) -> list[Source]:
    """The policies of directories of the repository, named by their paths in it."""
    found = [read_file(file) for each in directories for file in files_of(each, [])]
    return [Source(str(Path(each.name).relative_to(ROOT)), each.text) for each in found]


def example_state(*directories: Path) -> ConsoleState:
    """The example cluster under the policies of directories of the repository."""
    cluster = Cluster()
    cluster.upsert_all(files.load(ROOT / "examples" / "cluster"))
    return ConsoleState(cluster, policies_of(*sources_of(*directories)),
                        now=nanoseconds("2026-11-02T09:00:00Z", "now"), name="examples/cluster")


@contextmanager
def serving(state: ConsoleState, guard: Guard | None = None, *, port: int = 0, **parts: Any) -> Iterator[str]:
    """A console in this process; `parts` are further ones of `ConsoleServer`."""
    console = ConsoleServer(state, guard or Guard(), Static(), vetter=Vetter(), seconds=60, **parts)
    listener = ListenerThread(console.application(), "127.0.0.1", port)
    url = listener.start()
    console.start()
    try:
        yield url
    finally:
        listener.close()
        console.close()
        gc.collect()  # here, and not in a later test of another module
