"""Activate an earlier generation of policies again, on every named server.

A rollback lasts until the directory changes: the version in the directory stays blocked, also after a restart with
`--state-dir`. So correct the directory next.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .endpoints import add_endpoints, caller_of, endpoints_of, generation_of
from .exits import Exit
from .planning import add_dry_run, plan_json, planned, show_plan
from .terminal import add_output, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy rollback --endpoint http://127.0.0.1:8888 --token-file token
  koord-policy rollback --to 3f9a1c22 --endpoints http://10.0.0.7:8888,http://10.0.0.8:8888 --token-file token
  koord-policy rollback --dry-run --token-file token
  koord-policy status --history

exit codes: 0 all servers rolled back (with --dry-run: could), 2 usage (also: a wrong token), 5 a server could not
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--to", metavar="GENERATION|HASH", type=generation_of, default=None,
                        help="which of the last generations (`koord-policy status --history`); servers count for "
                             "themselves, so name a hash where there are several (default: the one before)")
    add_dry_run(parser)
    add_endpoints(parser, changes=True)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    to = options.to or ""
    wish = {"to": to, **({"dryRun": True} if options.dry_run else {})}
    endpoints = endpoints_of(options, unresolved=Exit.IMPOSSIBLE)
    answers = caller_of(options, seconds=70.0).ask_all(endpoints, "/rollback", wish)
    if options.dry_run:
        plan = planned("rollback", to, answers)
        if options.output == "json":
            write_json([{"endpoint": answer.endpoint, "error": answer.error or None, "result": None,
                         "plan": plan_json(each)} for answer, each in zip(answers, plan.servers, strict=True)])
        else:
            for each in plan.servers:
                show_plan(each)
    elif options.output == "json":
        write_json([{"endpoint": answer.endpoint, "error": answer.error or None,
                     "result": answer.data if answer.ok else None} for answer in answers])
    else:
        for answer in answers:
            write(f"{answer.endpoint}: " + (
                f"generation {answer.data['restored']} is active again, as generation {answer.data['generation']} "
                f"({answer.data['hash']}), until the directory changes" if answer.ok else answer.error))
    if any(answer.code in (401, 403) for answer in answers):
        return Exit.USAGE
    return Exit.OK if all(answer.ok for answer in answers) else Exit.IMPOSSIBLE
