"""Serve editors by the Language Server Protocol over standard input and output.

Findings of `lint` appear while typing; fields, values, variables, params and functions are completed, described,
found and renamed; `fmt` formats. The files of a directory are linted together, as `koord-policy lint DIRECTORY` does,
in a process of its own, which is ended if it takes too long. Needs the extra `lsp`.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from .exits import Exit, Stop
from .numbers import positive_seconds
from .terminal import warn

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy lsp
  koord-policy lsp --timeout 5

exit codes: 0 the editor ended it or went away, 2 usage, or the extra `lsp` is not installed
"""
_LARGEST_MESSAGE: Final = 64 * 1024 * 1024
_LONGEST_HEADER: Final = 8192


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--timeout", metavar="SECONDS", type=positive_seconds, default=10.0,
                        help="end linting that takes longer, and say so in the editor (default: 10)")
    parser.add_argument("--debounce", metavar="SECONDS", type=positive_seconds, default=0.15,
                        help="lint when nothing was typed for this time (default: 0.15)")


class _BoundedInput:
    """The messages of an editor. One that is too long ends them, as an editor that went away does."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def readline(self) -> bytes:
        """Return the next line of a header."""
        return self._stream.readline(_LONGEST_HEADER)

    def read(self, size: int) -> bytes:
        """Return the next bytes; none if a message has too many."""
        if size > _LARGEST_MESSAGE:
            warn(f"a message of {size:,} bytes has more than the {_LARGEST_MESSAGE:,} that are read")
            return b""
        return self._stream.read(size)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    try:
        from .lsp_server import PolicyLanguageServer
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise Stop("the language server needs pygls: pip install 'koord-policy[lsp]'") from None
    from .composition import python_functions
    from .lsp_linter import LinterProcess

    linter = LinterProcess(builtins, options.timeout)
    server = PolicyLanguageServer(linter, options.debounce, python_functions())
    # A stream of its own, as the server closes it when the editor ends it.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    try:
        server.start_io(cast("BinaryIO", _BoundedInput(sys.stdin.buffer)), output)
    finally:  # also if the editor went away
        linter.close()
    return Exit.OK
