"""The command `koord-policy`: composes the engine and the built-in plugins."""

from __future__ import annotations

import atexit
import gc
import sys
from typing import TYPE_CHECKING

from koordpolicy.engine import cli

if TYPE_CHECKING:
    from collections.abc import Iterable

    from koordpolicy.engine.framework.registry import Plugin


def builtins() -> Iterable[Plugin]:
    """Return the Python plugins of all three frameworks."""
    from koordpolicy.builtin_plugins import descheduler, qos, scheduler  # noqa: PLC0415 - see cli.COMMANDS

    return (*scheduler.PLUGINS, *qos.PLUGINS, *descheduler.PLUGINS)


def main() -> int:
    """Run the command line and return the exit code."""
    # The process ends: collecting garbage would take a tenth of the time of a large `lint`.
    atexit.register(gc.freeze)
    return cli.main(builtins=builtins)


def kubectl_plugin() -> int:
    """Run the command line as `kubectl koord-policy`."""
    atexit.register(gc.freeze)
    return cli.main(builtins=builtins, prog="kubectl koord-policy")


def kubectl_completion() -> int:
    """Complete a command line of `kubectl koord-policy`, for kubectl."""
    from koordpolicy.engine.cli.completion import kubectl_lines  # noqa: PLC0415 - see cli.COMMANDS

    sys.stdout.write(kubectl_lines(sys.argv[1:]))
    return 0


if __name__ == "__main__":
    # Under its own name, so that objects sent to other processes can be found by their module.
    from koordpolicy.__main__ import main as named

    sys.exit(named())
