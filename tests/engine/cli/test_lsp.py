"""The language server, driven over pipes with the protocol's messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli.lsp_linter import DirectLinter, LinterProcess
from koordpolicy.engine.cli.lsp_server import PolicyLanguageServer

from .conftest import SPREAD


class Editor:
    """Writes requests and reads until their responses; notifications are gathered."""

    def __init__(self, to_server: BinaryIO, from_server: BinaryIO) -> None:
        self.to_server, self.from_server = to_server, from_server
        self.notifications: list[dict[str, Any]] = []
        self.last = 0

    def send(self, method: str, params: Any, **more: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.to_server.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.to_server.flush()

    def read(self) -> dict[str, Any]:
        length = 0
        while (line := self.from_server.readline().strip()):
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return json.loads(self.from_server.read(length))

    def call(self, method: str, params: Any) -> Any:
        self.last += 1
        self.send(method, params, id=self.last)
        while (message := self.read()).get("id") != self.last:
            self.notifications.append(message)
        return message["error"]["message"] if "error" in message else message["result"]

    def diagnostics(self) -> dict[str, Any]:
        """Return the next diagnostics."""
        while True:
            message = self.notifications.pop(0) if self.notifications else self.read()
            if message.get("method") == "textDocument/publishDiagnostics":
                return message["params"]


@pytest.fixture
def editor() -> Iterator[Editor]:
    ours, theirs = os.pipe(), os.pipe()
    server = PolicyLanguageServer(DirectLinter(builtins), 0.0)
    files = [os.fdopen(ours[0], "rb"), os.fdopen(theirs[1], "wb")]
    thread = threading.Thread(target=server.start_io, args=files)
    thread.start()
    editor = Editor(os.fdopen(ours[1], "wb"), os.fdopen(theirs[0], "rb"))
    editor.call("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
    editor.send("initialized", {})
    yield editor
    editor.call("shutdown", None)
    editor.send("exit", None)
    thread.join()
    for each in (editor.to_server, editor.from_server, *files):
        each.close()


def at(path: Path, text: str, word: str, *, end: bool = False) -> dict[str, Any]:
    """Return the parameters for the first occurrence of a word, or its end."""
    offset = text.index(word) + (len(word) if end else 0)
    before = text[:offset]
    position = {"line": before.count("\n"), "character": len(before) - before.rfind("\n") - 1}
    return {"textDocument": {"uri": path.as_uri()}, "position": position}


def opened(editor: Editor, path: Path, text: str) -> dict[str, Any]:
    editor.send("textDocument/didOpen", {"textDocument": {
        "uri": path.as_uri(), "languageId": "yaml", "version": 1, "text": text,
    }})
    return editor.diagnostics()


def test_findings_appear_and_go_while_typing(editor: Editor, policies: Path):
    path = policies / "hot.yaml"
    bad = SPREAD.replace("variables.cpu < 65", "variables.cpu < 65 && usage.cpi > 1")
    (found,) = opened(editor, path, bad)["diagnostics"]
    assert (found["severity"], found["source"], found["range"]["start"]) == (
        1, "koord-policy", {"line": 10, "character": 43})
    assert found["message"].startswith("no such field `cpi` in `Usage`")
    editor.send("textDocument/didChange", {
        "textDocument": {"uri": path.as_uri(), "version": 2}, "contentChanges": [{"text": SPREAD}],
    })
    assert editor.diagnostics() == {"uri": path.as_uri(), "diagnostics": []}


def test_files_of_a_directory_are_linted_together(editor: Editor, policies: Path):
    (found,) = opened(editor, policies / "too.yaml", SPREAD)["diagnostics"]
    assert found["message"].startswith("the SchedulerPlugin `keep-off-hot-nodes` is declared twice")


def test_fields_values_and_names_are_completed(editor: Editor, policies: Path):
    path = policies / "hot.yaml"

    def labels(text: str, word: str) -> list[str]:
        opened(editor, path, text)
        found = editor.call("textDocument/completion", at(path, text, word, end=True))
        return [each["label"] for each in found["items"]]

    assert labels(SPREAD.replace("variables.cpu < 65", "usage.c"), "expression: usage.c\n") == []
    assert labels(SPREAD.replace("variables.cpu < 65", "usage.c"), "expression: usage.c") == ["cpu"]
    assert labels(SPREAD.replace("variables.cpu < 65", "variables."), "expression: variables.") == ["cpu"]
    assert labels(f"{SPREAD}  preF", "  preF") == ["preFilter"]
    assert labels(f"{SPREAD}  failurePolicy: ", "Policy: ") == ["Fail", "Ignore"]


def test_hover_definition_references_and_rename(editor: Editor, policies: Path):
    path = policies / "hot.yaml"
    test = policies / "hot.test.yaml"
    test.write_text(
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyTest\nmetadata: {name: t}\nspec:\n  cases: []\n"
        "  survivors:\n  - {at: variables.cpu, change: x, because: y}\n")
    opened(editor, path, SPREAD)
    use = at(path, SPREAD, "cpu < 65")
    assert editor.call("textDocument/hover", use)["contents"]["value"] == (
        "```\nvariables.cpu: int\n```\n\n`usage.cpu * 100 / allocatable.cpu`")
    assert editor.call("textDocument/definition", use) == {
        "uri": path.as_uri(), "range": {"start": {"line": 7, "character": 11}, "end": {"line": 7, "character": 14}}}
    places = editor.call("textDocument/references", {**use, "context": {"includeDeclaration": True}})
    assert [each["range"]["start"]["line"] for each in places] == [7, 10, 11, 13]
    assert editor.call("textDocument/rename", {**use, "newName": "not a name"}).startswith("`not a name` is not a name")
    changes = editor.call("textDocument/rename", {**use, "newName": "busy"})["changes"]
    assert {uri: [each["range"]["start"] for each in edits] for uri, edits in changes.items()} == {
        path.as_uri(): [
            {"line": 7, "character": 11}, {"line": 10, "character": 26}, {"line": 11, "character": 53},
            {"line": 13, "character": 72},
        ],
        test.as_uri(): [{"line": 6, "character": 19}],
    }
    assert {each["newText"] for edits in changes.values() for each in edits} == {"busy"}


def test_symbols_and_formatting(editor: Editor, policies: Path):
    path = policies / "hot.yaml"
    text = SPREAD.replace("  filter:", "  filter:   ")
    opened(editor, path, text)
    (document,) = editor.call("textDocument/documentSymbol", {"textDocument": {"uri": path.as_uri()}})
    assert (document["name"], [(each["name"], each["detail"]) for each in document["children"]]) == (
        "keep-off-hot-nodes", [("cpu", "variables"), ("below-watermark", "filter"), ("coolest-first", "score")])
    options = {"tabSize": 2, "insertSpaces": True}
    (edit,) = editor.call("textDocument/formatting", {"textDocument": {"uri": path.as_uri()}, "options": options})
    assert edit["newText"] == SPREAD
    opened(editor, path, "a: [")
    assert editor.call("textDocument/formatting", {
        "textDocument": {"uri": path.as_uri()}, "options": options}) == []


def test_hostile_texts_are_answered(editor: Editor, policies: Path):
    path = policies / "hot.yaml"
    head = SPREAD.partition("spec:")[0]
    for text in ("[" * 5000, f"{head}spec: {{filter: [{{name: a, expression: '{'(' * 3000}'}}]}}",
                 f"{head}spec: {{filter: [{{name: a, expression: '{'a.all(x, ' * 500}x.'}}]}}", "\x00", "a: &a [*a]\n"):
        assert opened(editor, path, text)["diagnostics"] != []
        place = {"textDocument": {"uri": path.as_uri()}, "position": {"line": 4, "character": len(text)}}
        assert editor.call("textDocument/completion", place) is not None
        editor.call("textDocument/hover", place)
        editor.call("textDocument/documentSymbol", {"textDocument": {"uri": path.as_uri()}})


def test_nothing_is_said_of_a_file_that_is_not_open(editor: Editor, tmp_path: Path):
    (tmp_path / "there.yaml").write_text(SPREAD)
    for uri in (*((tmp_path / name).as_uri() for name in ("there.yaml", "gone.yaml", ".")), "http://host/policy.yaml"):
        where = {"textDocument": {"uri": uri}, "position": {"line": 2, "character": 3}}
        assert [editor.call(f"textDocument/{method}", where | more) for method, more in (
            ("hover", {}), ("definition", {}), ("references", {"context": {"includeDeclaration": True}}),
            ("rename", {"newName": "x"}), ("documentSymbol", {}),
            ("formatting", {"options": {"tabSize": 2, "insertSpaces": True}}),
        )] == [None, None, [], None, [], []]


def test_linting_that_takes_too_long_is_ended_and_reported(policies: Path):
    linter = LinterProcess(builtins, 0.001)
    path = policies / "hot.yaml"
    (found,) = linter.lint({str(path): SPREAD})
    linter.close()
    assert (found["uri"], found["diagnostics"][0]["message"]) == (
        path.as_uri(), "linting took longer than 0.001 s: make the policies smaller or simpler")


def test_a_message_that_is_too_long_ends_the_command():
    done = subprocess.run([sys.executable, "-m", "koordpolicy", "lsp"], input=b"Content-Length: 99999999999\r\n\r\n{",
                          capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (
        0, b"", "a message of 99,999,999,999 bytes has more than the 67,108,864 that are read\n")


def test_the_command_ends_with_0_when_the_editor_ends_it():
    with subprocess.Popen([sys.executable, "-m", "koordpolicy", "lsp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        editor = Editor(process.stdin, process.stdout)
        editor.call("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
        editor.call("shutdown", None)
        editor.send("exit", None)
        assert (process.wait(60), process.stderr.read()) == (0, b"")
