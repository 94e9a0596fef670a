"""The language server: requests of the protocol to functions of `engine/authoring`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lsprotocol import converters, types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path

from koordpolicy import __version__
from koordpolicy.engine.authoring.hover import described
from koordpolicy.engine.authoring.policy_text import PolicyText
from koordpolicy.engine.authoring.positions import offset_of, range_of
from koordpolicy.engine.authoring.proposals import proposals
from koordpolicy.engine.authoring.symbols import Symbol, declaration, name_at, occurrences, outline, renamed
from koordpolicy.engine.cel.check.environment import Function
from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.documents import YamlNode
from koordpolicy.engine.documents.nodes import read_file
from koordpolicy.engine.formatting import format_source
from koordpolicy.engine.source import PolicyError, Source, Span

from .lsp_linter import Linter, neighbours

_LARGEST: Final = 250_000
"""Texts with more characters are linted only."""
_SECONDS: Final = 1.0
"""The maximum time in which the expressions of a request are checked."""
_KINDS: Final = {
    "field": types.CompletionItemKind.Field, "value": types.CompletionItemKind.EnumMember,
    "variable": types.CompletionItemKind.Variable, "function": types.CompletionItemKind.Function,
    "keyword": types.CompletionItemKind.Keyword,
}


class PolicyLanguageServer(LanguageServer):
    """A language server for policy files.

    `debounce` are the seconds without a change before a directory is linted, `extensions` the functions of Python
    plugins.
    """

    def __init__(self, linter: Linter, debounce: float, extensions: tuple[Function, ...] = ()) -> None:
        super().__init__("koord-policy", __version__, types.TextDocumentSyncKind.Full)
        self.linter = linter
        self.debounce = debounce
        self.extensions = extensions
        self.waiting: dict[Path, asyncio.Task[None]] = {}
        """Linting by directory: delayed, or running."""
        self.published: dict[Path, set[str]] = {}
        """URIs of the files with diagnostics, by directory."""
        self.texts: dict[str, PolicyText] = {}
        """The texts of the open files, read once per version."""
        _register(self)

    def text(self, uri: str) -> PolicyText:
        """Return the text of a file as it is in the editor; of one that is not open there, an empty text."""
        document = self.workspace.text_documents.get(uri)
        if document is None:
            return PolicyText(Source(to_fs_path(uri) or uri, ""))
        found = self.texts.get(uri)
        if found is None or found.source.text != document.source:
            found = PolicyText(Source(to_fs_path(uri) or uri, document.source))
            if len(document.source) > _LARGEST:
                found = PolicyText(Source(found.source.name, ""))
            self.texts[uri] = found
        return found

    def shared(self, uri: str) -> dict[str, YamlNode]:
        """Return the PolicyParams documents of the file's directory, by name."""
        found: dict[str, YamlNode] = {}
        for text in (*self._beside(uri), self.text(uri)):
            for each in text.documents:
                kind, name = each.at("kind"), each.at("metadata", "name")
                if kind is not None and kind.text == "PolicyParams" and name is not None:
                    found[name.text] = each
        return found

    def _beside(self, uri: str) -> Iterable[PolicyText]:
        path = to_fs_path(uri)
        for each in neighbours(Path(path)) if path else ():
            other = from_fs_path(str(each))
            if other in self.workspace.text_documents and other is not None:
                yield self.text(other)
            elif str(each) != path and each.is_file() and each.stat().st_size <= _LARGEST:
                with contextlib.suppress(PolicyError):
                    source = read_file(each)
                    if "PolicyParams" in source.text or "PolicyTest" in source.text:
                        yield PolicyText(source)

    def suites(self, uri: str) -> list[YamlNode]:
        """Return the documents of the file, and of the file with its tests beside it."""
        found = list(self.text(uri).documents)
        path = to_fs_path(uri)
        if path:
            beside = Path(path).with_suffix(".test.yaml")
            found += [each for text in self._beside(uri) if Path(text.source.name) == beside for each in text.documents]
        return found

    def schedule(self, uri: str) -> None:
        """Lint the directory of a file once nothing has changed for a while."""
        path = to_fs_path(uri)
        if not path:
            return
        directory = Path(path).parent
        if (task := self.waiting.pop(directory, None)) is not None:
            task.cancel()
        self.waiting[directory] = asyncio.get_running_loop().create_task(self._lint(directory))

    async def _lint(self, directory: Path) -> None:
        await asyncio.sleep(self.debounce)
        texts = {path: document.source for document in self.workspace.text_documents.values()
                 if (path := to_fs_path(document.uri)) and Path(path).parent == directory}
        if not texts:
            return
        # A newer request cancels the wait for this result, but not the linting itself, which is bounded.
        reports = await asyncio.to_thread(self.linter.lint, texts)
        open_uris = {from_fs_path(path): path for path in texts}
        for report in reports:
            if report["uri"] in open_uris:
                self.text_document_publish_diagnostics(
                    converters.get_converter().structure(report, types.PublishDiagnosticsParams))

    def end(self) -> None:
        """End what was started beside the server."""
        for task in self.waiting.values():
            task.cancel()
        self.linter.close()


def _lsp_range(span: Span) -> types.Range:
    start, end = range_of(span)
    return types.Range(types.Position(*start), types.Position(*end))


def _symbol(symbol: Symbol) -> types.DocumentSymbol:
    kind = types.SymbolKind.Class if symbol.below else types.SymbolKind.Field
    return types.DocumentSymbol(
        symbol.name or "?", kind, _lsp_range(symbol.whole), _lsp_range(symbol.span), symbol.kind,
        children=[_symbol(each) for each in symbol.below],
    )


def _register(server: PolicyLanguageServer) -> None:
    def at(params: Any) -> tuple[PolicyText, int]:
        text = server.text(params.text_document.uri)
        return text, offset_of(text.source, params.position.line, params.position.character)

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.schedule(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        server.schedule(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.texts.pop(params.text_document.uri, None)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["."]))
    def complete(params: types.CompletionParams) -> types.CompletionList:
        text, offset = at(params)
        with Deadline(_SECONDS):
            found = proposals(text, offset, server.shared(params.text_document.uri), server.extensions)
        return types.CompletionList(is_incomplete=False, items=[
            types.CompletionItem(each.label, kind=_KINDS[each.kind], detail=each.detail or None,
                                 documentation=each.doc or None) for each in found
        ])

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        text, offset = at(params)
        with Deadline(_SECONDS):
            found = described(text, offset, server.shared(params.text_document.uri), server.extensions)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, found)) if found else None

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def define(params: types.DefinitionParams) -> types.Location | None:
        found = name_at(*at(params))
        place = declaration(found, server.shared(params.text_document.uri)) if found is not None else None
        return None if place is None else _location(place)

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        found = name_at(*at(params))
        return [_location(each) for each in occurrences(found)] if found is not None else []

    @server.feature(types.TEXT_DOCUMENT_RENAME)
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        found = name_at(*at(params))
        if found is None:
            return None
        try:
            spans = renamed(found, params.new_name, server.suites(params.text_document.uri))
        except PolicyError as error:
            raise JsonRpcInvalidParams("; ".join(f"{each.message}: {each.help}" for each in error.problems)) from None
        changes: dict[str, list[types.TextEdit]] = {}
        for each in spans:
            changes.setdefault(_location(each).uri, []).append(types.TextEdit(_lsp_range(each), params.new_name))
        return types.WorkspaceEdit(changes=changes)

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        return [_symbol(each) for each in outline(server.text(params.text_document.uri))]

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        source = server.text(params.text_document.uri).source
        try:
            after = format_source(source)
        except PolicyError:
            return []  # the diagnostics say why
        return [] if after == source.text else [types.TextEdit(_lsp_range(source.whole()), after)]

    @server.feature(types.SHUTDOWN)
    def ended(_: None) -> None:
        server.end()


def _location(span: Span) -> types.Location:
    return types.Location(from_fs_path(span.root().source.name) or "", _lsp_range(span))
