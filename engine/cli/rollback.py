"""Activate an earlier generation of policies again, on every named server.

A rollback lasts until the directory changes: the version in the directory stays blocked, also after a restart with
`--state-dir`. So correct the directory next.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .endpoints import add_endpoints, caller_of, endpoints_of
from .exits import Exit
from .terminal import add_output, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy rollback --endpoint http://127.0.0.1:8888 --token-file token
  koord-policy rollback --to 3f9a1c22 --endpoints http://10.0.0.7:8888,http://10.0.0.8:8888 --token-file token
  koord-policy status --history

exit codes: 0 all servers rolled back, 2 usage (also: a wrong token), 5 a server could not
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--to", metavar="GENERATION|HASH", default="",
                        help="which of the last generations (`koord-policy status --history`); servers count for "
                             "themselves, so name a hash where there are several (default: the one before)")
    add_endpoints(parser, changes=True)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    answers = caller_of(options, seconds=70.0).ask_all(endpoints_of(options), "/rollback", {"to": options.to})
    if options.output == "json":
        write_json([{"endpoint": each.endpoint, "error": each.error or None, "result": each.data if each.ok else None}
                    for each in answers])
    else:
        for each in answers:
            write(f"{each.endpoint}: " + (
                f"generation {each.data['restored']} is active again, as generation {each.data['generation']} "
                f"({each.data['hash']}), until the directory changes" if each.ok else each.error))
    if any(each.code in (401, 403) for each in answers):
        return Exit.USAGE
    return Exit.OK if all(each.ok for each in answers) else Exit.IMPOSSIBLE
