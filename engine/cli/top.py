"""Show a cluster and running servers in the terminal, live: active policies, hot nodes, and pods that wait.

The cluster is read again at each interval: a dump, or a live cluster by listing it. Of servers it is `/status`.
Without either option it is the server at http://127.0.0.1:8888.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.monitoring.figures import ServerFigures, server_figures
from koordpolicy.engine.source import PolicyError

from .cluster_loading import cluster_of, moment_of
from .composition import add_cluster
from .endpoints import add_endpoints, caller_of, endpoints_of
from .exits import Exit, Stop
from .numbers import positive_seconds
from .terminal import add_output, write_json
from .top_frame import TopFrame, cluster_figures, rendered

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

_ENDS: Final = ("q", "Q", "\x03", "\x04")
_PIPE_WIDTH: Final = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_cluster(parser, required=False)
    add_endpoints(parser)
    parser.add_argument("--interval", metavar="SECONDS", type=positive_seconds, default=5.0,
                        help="read cluster and servers this often (default: 5)")
    parser.add_argument("--once", action="store_true", help="print one frame with all rows, and end")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    if options.output == "json":
        frame = frame_of(options)
        write_json(frame.to_json())
        return _outcome(frame)
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(highlight=False, markup=False, emoji=False, width=None if terminal else _PIPE_WIDTH)
    if options.once:
        with console.capture() as captured:
            frame = frame_of(options)
            console.print(rendered(frame, height=None, width=console.width, live=False))
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
        return _outcome(frame)
    if not terminal:
        raise Stop("standard output is not a terminal: print one frame with `--once`")
    with _keys() as key:
        show(lambda: frame_of(options), console, key, options.interval)
    return Exit.OK


def _outcome(frame: TopFrame) -> Exit:
    """Return the exit code of one frame: that of `status` where a server gives no figures."""
    return Exit.OK if all(each.generation is not None for each in frame.servers) else Exit.EXCEEDED


def frame_of(options: argparse.Namespace) -> TopFrame:
    """Return the present figures of the cluster and the servers that the options name."""
    servers: tuple[ServerFigures, ...] = ()
    if options.endpoints or options.cluster is None:
        answers = caller_of(options).ask_all(endpoints_of(options, unresolved=Exit.EXCEEDED), "/status")
        servers = tuple(server_figures(each) for each in answers)
    if options.cluster is None:
        return TopFrame(servers)
    cluster = cluster_of(options.cluster)
    now = moment_of(options.now, options.cluster, cluster)
    return TopFrame(servers, cluster_figures(cluster, now, options.cluster))


def show(
    read: Callable[[], TopFrame], console: Console, key: Callable[[float], str], interval: float,
) -> None:
    """Show frames until a key ends it; `key` waits for a key for some seconds and returns it, or an empty string.

    A frame that cannot be read leaves the last one, with the reason. The first one raises what `read` raises.
    """
    from rich.live import Live

    frame = _quietly(read)
    with Live(console=console, screen=True, auto_refresh=False, redirect_stderr=False) as live:
        while True:
            live.update(rendered(frame, height=console.height, width=console.width, live=True), refresh=True)
            if key(interval) in _ENDS:
                return
            try:
                frame = _quietly(read)
            except (Stop, PolicyError, OSError) as error:
                frame = TopFrame(frame.servers, frame.cluster, str(error))


def _quietly(read: Callable[[], TopFrame]) -> TopFrame:
    """Read a frame; what is reported on standard error meanwhile is its note, as it would disturb the screen."""
    with contextlib.redirect_stderr(io.StringIO()) as reported:
        frame = read()
    lines = reported.getvalue().splitlines()
    return TopFrame(frame.servers, frame.cluster, lines[0] if lines else "")


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
                ready, _, _ = select.select(waited, [], [], max(0.0, until - time.monotonic()))
                if ended or reading in ready:
                    return "q"
                return os.read(source, 1).decode("latin-1") if ready and source is not None else ""

            yield key
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(reading)
        os.close(writing)


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
