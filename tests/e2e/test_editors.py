"""A headless Neovim with the example's configuration and the real language server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
