"""Real editors with the setups of the example and the real language server: a headless Neovim, and VS Code.

VS Code is code-server, which serves it to the machine's Chromium. It is not among the tools of this repository: `npm
install code-server` yields it. `KOORD_POLICY_SCREENSHOTS=DIR` writes its pictures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.ports import reserved_port
from tests.waiting import until

from .browsing import pictured

ROOT = Path(__file__).parents[2]
POLICY = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: a, annotations: {policy.koordinator.sh/description: A.}}
spec:
  filter:
  - {name: small, expression: usage.cpi < 1}
"""
SESSION = """
local function finish(result)
  io.stdout:write(vim.json.encode(result))
  vim.cmd("qall!")
end
vim.cmd("edit policies/a.yaml")
if not vim.wait(60000, function() return #vim.diagnostic.get(0) > 0 end, 20) then
  return finish("no diagnostics came")
end
local found = vim.diagnostic.get(0)[1]
vim.fn.setline(6, "  - {name: small, expression: usage.cpu < 1}")
if not vim.wait(60000, function() return #vim.diagnostic.get(0) == 0 end, 20) then
  return finish("the diagnostics stayed")
end
local place = { textDocument = { uri = vim.uri_from_bufnr(0) }, position = { line = 5, character = 39 } }
local answers = vim.lsp.buf_request_sync(0, "textDocument/hover", place, 60000)
local _, answer = next(answers)
finish({ lnum = found.lnum, col = found.col, message = found.message, hover = answer.result.contents.value })
"""


@pytest.mark.skipif(shutil.which("nvim") is None, reason="there is no nvim on this machine")
def test_neovim_shows_findings_and_types(tmp_path: Path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "a.yaml").write_text(POLICY)
    (tmp_path / "session.lua").write_text(SESSION)
    done = subprocess.run(
        ["nvim", "--headless", "--clean", "-u", ROOT / "examples" / "19-editors" / "nvim.lua",
         "-c", "filetype on", "-c", "luafile session.lua"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )
    assert json.loads(done.stdout) == {
        "lnum": 5, "col": 35, "hover": "```\nusage.cpu: int\n```\n\nIn milli-cores.",
        "message": "no such field `cpi` in `Usage` (did you mean `cpu`? (any other name is written in full and in "
                   'quotes, as in `["nvidia.com/gpu"]`))',
    }


PATIENCE_MS = 240_000
CODE_SERVER, NPM = shutil.which("code-server") or "", shutil.which("npm") or ""
WITH_VARIABLE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {name: a, annotations: {policy.koordinator.sh/description: A.}}
spec:
  variables:
  - {name: load, expression: usage.cpi * 100 / allocatable.cpu}
  filter:
  - {name: small, expression: variables.load < 80}
"""
SETTINGS = {
    "koordPolicy.command": str(Path(sys.executable).parent / "koord-policy"), "chat.disableAIFeatures": True,
    "extensions.autoCheckUpdates": False, "telemetry.telemetryLevel": "off", "workbench.startupEditor": "none",
    "workbench.secondarySideBar.defaultVisibility": "hidden", "editor.hover.delay": 100,
}


@contextmanager
def code_server(folder: Path) -> Iterator[str]:
    """VS Code with the example's extension; yields the address of a folder in it."""
    extension = folder / "extensions" / "local.koord-policy-0.1.0"
    shutil.copytree(ROOT / "examples" / "19-editors" / "vscode", extension)
    subprocess.run([NPM, "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=extension, check=True,
                   capture_output=True)
    (folder / "data" / "User").mkdir(parents=True)
    (folder / "data" / "User" / "settings.json").write_text(json.dumps(SETTINGS), encoding="utf-8")
    with reserved_port() as port, (folder / "log").open("w") as log:
        command = [
            CODE_SERVER, "--config", folder / "code-server.yaml", "--user-data-dir", folder / "data",
            "--extensions-dir", folder / "extensions", "--auth", "none", "--bind-addr", f"127.0.0.1:{port}",
            "--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
        with subprocess.Popen(command, stdout=log, stderr=log) as running:
            try:
                until_reachable(f"http://127.0.0.1:{port}/healthz", running)
                yield f"http://127.0.0.1:{port}/?folder={folder / 'work'}"
            finally:
                running.terminate()


def until_reachable(url: str, running: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    for _ in range(600):
        assert running.poll() is None, "code-server has ended"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("code-server does not answer")


def go_to(page: Page, text: str, characters: int) -> None:
    """Place the cursor so many characters after the begin of a text of the policy."""
    start = WITH_VARIABLE.index(text) + characters
    line, column = WITH_VARIABLE.count("\n", 0, start) + 1, start - WITH_VARIABLE.rfind("\n", 0, start)
    page.keyboard.press("Control+g")
    page.locator(".quick-input-widget input:visible").fill(f":{line}:{column}")
    page.keyboard.press("Enter")
    expect(page.get_by_text(f"Ln {line}, Col {column}", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator(".monaco-editor.focused")).to_have_count(1, timeout=PATIENCE_MS)


def hover(page: Page, text: str) -> None:
    """Show what is at the cursor; an editor that is busy may close it before it has an answer."""
    for _ in range(20):
        page.keyboard.press("Control+k")
        page.keyboard.press("Control+i")
        try:
            expect(page.locator(".monaco-hover:visible")).to_contain_text(text, timeout=PATIENCE_MS / 20)
        except AssertionError:
            page.keyboard.press("Escape")
        else:
            return
    pytest.fail(f"no `{text}` at the cursor")


@pytest.mark.browser
@pytest.mark.skipif(not (CODE_SERVER and NPM), reason="there is no code-server, or no npm, on this machine")
def test_vs_code_loads_the_extension_and_shows_findings_types_and_words_and_renames(browser: Browser, tmp_path: Path):
    policy = tmp_path / "work" / "policies" / "a.yaml"
    policy.parent.mkdir(parents=True)
    policy.write_text(WITH_VARIABLE, encoding="utf-8")
    with code_server(tmp_path) as url:
        page: Page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(url)
        page.get_by_role("treeitem", name="policies").click()
        page.get_by_role("treeitem", name="a.yaml").dblclick()
        line = page.locator(".view-line", has_text="name: load")
        faults = page.locator(".squiggly-error")
        expect(faults).to_have_count(1, timeout=PATIENCE_MS)
        go_to(page, "cpi", 2)
        hover(page, "no such field `cpi` in `Usage` (did you mean `cpu`?")
        pictured(page, "vscode-finding")
        page.keyboard.press("Escape")
        page.keyboard.press("Delete")
        page.keyboard.press("Control+Space")
        expect(page.locator(".suggest-widget.visible")).to_contain_text("cpu", timeout=PATIENCE_MS)
        pictured(page, "vscode-words")
        page.keyboard.press("Enter")
        expect(line).to_contain_text("usage.cpu * 100 / allocatable.cpu}")
        expect(faults).to_have_count(0, timeout=PATIENCE_MS)
        go_to(page, "load < 80", 0)
        hover(page, "variables.load: ")
        page.keyboard.press("Escape")
        page.keyboard.press("F2")
        page.locator(".rename-box input").fill("busy")
        page.keyboard.press("Enter")
        expect(page.locator(".view-line", has_text="name: small")).to_contain_text(
            "variables.busy < 80", timeout=PATIENCE_MS)
        page.keyboard.press("Control+s")
        wanted = WITH_VARIABLE.replace("cpi", "cpu").replace("load", "busy")
        until(lambda: policy.read_text(encoding="utf-8") == wanted)
        page.context.close()
