"""The console's page in the machine's Chromium: the first paint of the map, and another expression for its colours.

The cluster has 5,000 nodes and 50,000 pods. The page is opened with an empty cache each time. Both times are taken in
the page: from the start of the navigation, or from the event of the typed text, until the map has the colours.
`KOORD_POLICY_CONSOLE_PAGE_BENCH` chooses the extent, such as `nodes=1000 pods=10000 turns=3`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page

from ..e2e.browsing import chromium, launched, watched
from .figure import Figure, Missing
from .live_load import ROOT

_EXPRESSIONS: Final = (
    "nodeInfo.pods", "nodeInfo.pods > 10 ? 'many' : 'few'", "requested.memory * 100 / allocatable.memory",
    "node.metadata.labels['topology.kubernetes.io/zone']", "requested.cpu * 100 / allocatable.cpu",
)
_WATCH: Final = """
    window.painted = []; window.typed = 0;
    document.addEventListener('input', () => { window.typed = performance.now(); }, true);
    new MutationObserver((changes) => { for (const change of changes)
        if (change.target.dataset?.painted !== undefined)
            window.painted.push([change.target.dataset.painted, performance.now()]);
        else for (const added of change.addedNodes)
            for (const each of added.querySelectorAll?.('canvas[data-painted]') ?? [])
                window.painted.push([each.dataset.painted, performance.now()]);
    }).observe(document, {subtree: true, childList: true, attributes: true, attributeFilter: ['data-painted']});
"""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a run."""

    nodes: int = 5000
    pods: int = 50_000
    turns: int = 5

    @staticmethod
    def of(text: str) -> Extent:
        """Return the extent that a text of `name=value` words gives."""
        return Extent(**{name: int(value) for name, value in (word.split("=", 1) for word in text.split())})


def main() -> Iterator[Figure]:
    """Yield the medians and maxima of both times."""
    extent = Extent.of(os.environ.get("KOORD_POLICY_CONSOLE_PAGE_BENCH", ""))
    try:
        chromium()
    except pytest.skip.Exception as skipped:
        raise Missing(str(skipped)) from None
    with TemporaryDirectory() as folder, _serving(Path(folder), extent) as url, launched() as browser:
        first: list[float] = []
        changes: list[float] = []
        for _ in range(extent.turns):
            paint, recolourings = _visit(browser, url)
            first.append(paint)
            changes += recolourings
    name = f"console page, {extent.nodes:,} nodes"
    yield Figure(f"{name}: first paint, median", median(first), "ms", 1000)
    yield Figure(f"{name}: first paint, maximum", max(first), "ms")
    yield Figure(f"{name}: other colours, median", median(changes), "ms", 150)
    yield Figure(f"{name}: other colours, maximum", max(changes), "ms")


def _visit(browser: Browser, url: str) -> tuple[float, list[float]]:
    """Return the milliseconds until the first paint, and those of each change of the expression."""
    with watched(browser) as page:
        page.add_init_script(_WATCH)
        page.goto(f"{url}/#/map")
        paint = _painted(page, None)
        found = []
        box = page.get_by_role("textbox", name="Expression")
        for expression in _EXPRESSIONS:
            page.evaluate("window.painted = []")
            box.fill(expression)
            found.append(_painted(page, expression) - float(page.evaluate("window.typed")))
        return paint, found


def _painted(page: Page, expression: str | None) -> float:
    """Wait until the map has the colours of an expression, or any; return the page's time of that."""
    found = page.wait_for_function(
        "wanted => window.painted.find(([shown]) => wanted === null || shown === wanted)?.[1]", arg=expression)
    return float(found.json_value())


@contextmanager
def _serving(folder: Path, extent: Extent) -> Iterator[str]:
    dump = folder / "cluster.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(_objects(extent))}), encoding="utf-8")
    command = [sys.executable, "-m", "koordpolicy", "console", "--cluster", str(dump), "--policies",
               str(ROOT / "policies" / "scheduler"), "--bind", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as console:
        try:
            assert console.stdout is not None
            line = console.stdout.readline()
            found = re.search(r"http://\S+(?=/\n)", line)
            if found is None:
                raise RuntimeError(f"{command!r} printed {line!r}")
            yield found[0]
        finally:
            console.terminate()


def _objects(extent: Extent) -> Iterator[dict[str, Any]]:
    for number in range(extent.nodes):
        name = f"node-{number:05d}"
        yield {
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": f"eu-1{'abc'[number % 3]}"}},
            "spec": {}, "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
        }
    for number in range(extent.pods):
        yield {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"web-{number}", "namespace": "shop"},
            "spec": {"nodeName": f"node-{number * 7919 % extent.nodes:05d}", "containers": [
                {"name": "web", "resources": {"requests": {"cpu": f"{100 + number % 50 * 20}m", "memory": "1Gi"}}}]},
        }
