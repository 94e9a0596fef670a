"""Show a cluster and running servers in the terminal, live: active policies, hot nodes, and pods that wait.

A dump is read again when it has changed. A live cluster is listed once, and then watched as servers do; with `--once`,
`--now` or `--output json` it is listed. Servers are called at each interval, at `/status` and `/metrics`. Without
either option it is the server at http://127.0.0.1:8888. `?` lists the keys.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.source import PolicyError

from .composition import add_cluster
from .endpoints import add_endpoints
from .exits import Exit, Stop
from .numbers import positive_seconds
from .terminal import add_output, write_json
from .top_frame import TopFrame, rendered
from .top_screen import ENDS, TopScreen
from .top_source import TopSource

if TYPE_CHECKING:
    from rich.console import Console

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy top
  koord-policy top --cluster kube --endpoints http://10.0.0.7:8888
  koord-policy top --cluster examples/cluster --once
  koord-policy top --cluster kube --output json

exit codes: 0 ended by q or Ctrl-C, or with --once and --output json, 2 usage, 3 the cluster cannot be read, 6 with
--once and --output json: a server does not respond
"""

_LONGEST_KEY: Final = 8
_KEY_S: Final = 0.05
"""The time within which the rest of a key arrives that is several characters."""
_KEY_ENDS: Final = b"ABCDEFGHPQRS~"
_PIPE_WIDTH: Final = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_cluster(parser, required=False)
    add_endpoints(parser)
    parser.add_argument("--interval", metavar="SECONDS", type=positive_seconds, default=5.0,
                        help="show the cluster and call the servers this often (default: 5)")
    parser.add_argument("--once", action="store_true", help="print one frame with all rows, and end")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    terminal = sys.stdout.isatty()
    once = options.once or options.output == "json"
    if not terminal and not once:
        raise Stop("standard output is not a terminal: print one frame with `--once`")
    with contextlib.closing(TopSource(options, watch=not once)) as source:
        return _run(options, source, terminal=terminal)


def _run(options: argparse.Namespace, source: TopSource, *, terminal: bool) -> Exit:
    if options.output == "json":
        frame = source.read()
        write_json(frame.to_json())
        return _outcome(frame)
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, width=None if terminal else _PIPE_WIDTH)
    if options.once:
        with console.capture() as captured:
            frame = source.read()
            console.print(rendered(frame, height=None, width=console.width, live=False))
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
        return _outcome(frame)
    with _keys() as key:
        show(source.read, console, key, options.interval)
    return Exit.OK


def _outcome(frame: TopFrame) -> Exit:
    """Return the exit code of one frame: that of `status` where a server gives no figures."""
    return Exit.OK if all(each.generation is not None for each in frame.servers) else Exit.EXCEEDED


def show(
    read: Callable[[], TopFrame], console: Console, key: Callable[[float], str], interval: float,
) -> None:
    """Show frames until a key ends it; `key` waits for a key for some seconds and returns it, or an empty string.

    Other keys choose what is shown of a frame (`TopScreen`).

    A frame that cannot be read leaves the last one, with the reason. The first one raises what `read` raises.
    """
    from rich.live import Live

    frame, screen = _quietly(read), TopScreen()
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        due = time.monotonic() + interval
        while True:
            live.update(rendered(frame, height=console.height, width=console.width, live=True, screen=screen),
                        refresh=True)
            pressed = key(max(0.0, due - time.monotonic()))
            if pressed in ENDS:
                return
            if pressed:
                screen.press(pressed)
                if time.monotonic() < due:
                    continue
            try:
                frame = _quietly(read)
            except (Stop, PolicyError, OSError) as error:
                frame = replace(frame, note=str(error))
            due = time.monotonic() + interval


def _quietly(read: Callable[[], TopFrame]) -> TopFrame:
    """Read a frame; what is reported on standard error meanwhile is its note, as it would disturb the screen."""
    with contextlib.redirect_stderr(io.StringIO()) as reported:
        frame = read()
    lines = reported.getvalue().splitlines()
    return replace(frame, note=lines[0] if lines else "")


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key; SIGTERM and Ctrl-C count as one that ends."""
    ended: list[str] = []
    reading, writing = os.pipe()

    def stop(_: int, __: Any) -> None:
        ended.append("q")
        os.write(writing, b"q")

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with _unbuffered(sys.stdin) as source:

            def key(seconds: float) -> str:
                until = time.monotonic() + seconds
                waited = [reading] if source is None else [reading, source]
                ready = _ready(waited, max(0.0, until - time.monotonic()))
                if ended or reading in ready:
                    return "q"
                return _key_from(source) if ready and source is not None else ""

            yield key
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(reading)
        os.close(writing)


def _key_from(source: int) -> str:
    """Read a key; arrows and the like are several characters, which arrive together."""
    found = os.read(source, 1)
    while found[:1] == b"\x1b" and len(found) < _LONGEST_KEY and not (len(found) > 2 and found[-1:] in _KEY_ENDS):
        if not _ready([source], _KEY_S):
            break
        found += os.read(source, 1)
    return found.decode("latin-1")


def _ready(sources: Sequence[int], seconds: float) -> list[int]:
    """Return the descriptors that can be read within some seconds, however large their numbers are."""
    with selectors.DefaultSelector() as selector:
        for each in sources:
            selector.register(each, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select(seconds)]


@contextlib.contextmanager
def _unbuffered(stream: Any) -> Iterator[int | None]:
    """Yield the descriptor of a terminal that delivers keys at once and does not echo them; None if it is none."""
    if not stream.isatty():
        yield None
        return
    import termios  # not on all systems
    import tty

    source = stream.fileno()
    before = termios.tcgetattr(source)
    try:
        tty.setcbreak(source)
        yield source
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
