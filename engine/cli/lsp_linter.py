"""Linting for editors: the findings of a directory's files, in a process that can be ended."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from koordpolicy.engine.documents import is_policy_file
from koordpolicy.engine.documents.nodes import LARGEST_FILE

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from . import Builtins

Texts = Mapping[str, str]
"""Texts of open files by path."""
_MOST_FILES: Final = 500
"""The maximum number of files of a directory that are linted together."""


class Linter(Protocol):
    """Finds problems of files."""

    def lint(self, texts: Texts) -> Sequence[Mapping[str, Any]]:
        """Return parameters of `textDocument/publishDiagnostics` for files of one directory, with its other files.

        The other files are read from the disk, and reported on too.
        """
        ...

    def close(self) -> None:
        """End whatever it has started."""
        ...


def neighbours(path: Path) -> list[Path]:
    """Return the policy files in the directory of a file, sorted; itself also if it is new."""
    try:
        found = [each for each in path.parent.iterdir() if is_policy_file(each.name) and each.is_file()]
    except OSError:
        found = []
    return sorted({path, *found})[:_MOST_FILES] if len(found) <= _MOST_FILES else [path]


class DirectLinter:
    """Lints in this process."""

    def __init__(self, builtins: Builtins) -> None:
        self._builtins = builtins

    def lint(self, texts: Texts) -> Sequence[Mapping[str, Any]]:
        """Return the diagnostics; see `Linter`."""
        from .lint import lsp_report  # the process of the server does not need it

        unread: dict[str, bytes] = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
        for name in tuple(texts):
            for path in neighbours(Path(name)):
                if str(path) not in unread:
                    try:
                        with path.open("rb") as file:
                            unread[str(path)] = file.read(LARGEST_FILE + 1)
                    except OSError:
                        continue  # it went away meanwhile
        return lsp_report(dict(sorted(unread.items())), self._builtins)

    def close(self) -> None:
        """Do nothing."""


class LinterProcess:
    """Lints in a process of its own, which is made again after it was ended for taking too long.

    Its methods may be called from any thread, one call at a time.
    """

    def __init__(self, builtins: Builtins, timeout: float) -> None:
        """`timeout` is in seconds."""
        self._builtins = builtins
        self._timeout = timeout
        self._lock = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None

    def lint(self, texts: Texts) -> Sequence[Mapping[str, Any]]:
        """Return the diagnostics; see `Linter`. Of files that take too long it is one that says so."""
        with self._lock:
            connection = self._connected()
            try:
                connection.send(dict(texts))
                if connection.poll(self._timeout):
                    found: Sequence[Mapping[str, Any]] = connection.recv()
                    return found
                why = f"linting took longer than {self._timeout:g} s: make the policies smaller or simpler"
            except (EOFError, OSError):
                why = "linting ended by itself: is the file too large?"
            self._end()
            return [_only(name, why) for name in texts]

    def _connected(self) -> Connection:
        if self._connection is None:
            # Spawned: the server has threads, whose locks a fork would copy.
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs, self._builtins), daemon=True)
            self._process.start()
            theirs.close()
        return self._connection

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._connection = self._process = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()


def _only(name: str, why: str) -> dict[str, Any]:
    start = {"line": 0, "character": 0}
    return {"uri": Path(name).absolute().as_uri(), "diagnostics": [
        {"range": {"start": start, "end": start}, "severity": 1, "source": "koord-policy", "message": why},
    ]}


def _serve(connection: Connection, builtins: Builtins) -> None:
    os.dup2(2, 1)  # standard output is the protocol's
    linter = DirectLinter(builtins)
    while True:
        try:
            texts = connection.recv()
        except EOFError:
            return
        connection.send(list(linter.lint(texts)))
