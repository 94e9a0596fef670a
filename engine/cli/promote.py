"""Activate the shadow policies of a server, if their decisions agree well enough with those of the active ones.

The server writes its shadow into the directory of `--policies`. A mounted ConfigMap can only be changed through
Kubernetes: then the commands for that are printed.
"""

from __future__ import annotations

import argparse
import shlex
import time
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.client.server_calls import EndpointAnswer

from .composition import count
from .durations import seconds
from .endpoints import add_endpoints, caller_of, configmap_of, endpoints_of, hash_of, share
from .exits import Exit, Stop
from .planning import add_dry_run, plan_json, planned, show_plan
from .status import describe
from .terminal import add_output, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy promote --endpoint http://127.0.0.1:8888 --token-file token
  koord-policy promote --decisions 10000 --max-differences 0.1% --timeout 30m --token-file token
  koord-policy promote --dry-run --token-file token
  koord-policy promote --endpoint https://10.0.0.7:8888 --ca ca.crt --token-file token --configmap shop/policies

exit codes: 0 the policies are active (with --dry-run: could be), 2 usage (also: a wrong token), 5 not possible (no
valid shadow, a directory that cannot be written, no answer), 6 too many decisions differ, or too few were compared
"""

_PAUSE: Final = 2.0
_WRITE: Final = frozenset({"read-only", "not-publishable"})
_UNSURE: Final = frozenset({"differs", "not-enough"})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--decisions", metavar="N", type=count, default=1000,
                        help="how many decisions must have been compared (default: 1000)")
    parser.add_argument("--max-differences", metavar="PART", type=share, default=0.001,
                        help="the largest share of them that may differ (default: 0.1%%)")
    parser.add_argument("--hash", metavar="HASH", type=hash_of,
                        help="promote only this version: `koord-policy hash` of the shadow's directory")
    parser.add_argument("--timeout", metavar="TIME", type=seconds, default=0.0,
                        help="how long to wait for enough decisions (default: 0, which checks once)")
    parser.add_argument("--configmap", metavar="[NAMESPACE/]NAME", type=configmap_of,
                        help="the ConfigMap of the active policies, for the commands that are printed")
    add_dry_run(parser)
    add_endpoints(parser, changes=True)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    endpoint, *others = endpoints_of(options, unresolved=Exit.IMPOSSIBLE)
    if others:
        raise Stop("name one server: the others follow the directory that is written")
    caller, end = caller_of(options, seconds=70.0), time.monotonic() + options.timeout
    wish = {"decisions": options.decisions, "maxDifferences": options.max_differences, "hash": options.hash or "",
            **({"dryRun": True} if options.dry_run else {})}
    while True:
        answer = caller.ask(endpoint, "/promote", wish)
        left = end - time.monotonic()
        if answer.data.get("code") != "not-enough" or left <= 0:
            break
        time.sleep(min(_PAUSE, left))
    if answer.code in (400, 401, 403):
        raise Stop(answer.error)
    in_force = answer.data.get("code") == "in-force"
    commands = _commands(answer.data, options.configmap) if answer.data.get("code") in _WRITE else []
    if options.dry_run:
        [server] = planned("promote", "", [answer]).servers
        if options.output == "json":
            write_json({"endpoint": endpoint, "promoted": False, "inForce": in_force, "error": answer.error or None,
                        "answer": None, "commands": commands, "plan": plan_json(server)})
        else:
            show_plan(server)
    elif options.output == "json":
        write_json({"endpoint": endpoint, "promoted": answer.ok, "inForce": answer.ok or in_force,
                    "error": answer.error or None, "answer": answer.data or None, "commands": commands})
    else:
        _show(endpoint, answer, commands)
    if answer.ok or in_force:
        return Exit.OK
    return Exit.EXCEEDED if answer.data.get("code") in _UNSURE else Exit.IMPOSSIBLE


def _show(endpoint: str, answer: EndpointAnswer, commands: list[str]) -> None:
    if answer.ok:
        write(f"{answer.data['hash']} is active, as generation {answer.data['generation']}: written to "
              f"`{answer.data['path']}`")
        return
    write("not promoted: " + ("" if answer.code else f"{endpoint}: ") + answer.error)
    for example in (answer.data.get("comparison") or {}).get("examples", ()):
        write(f"  {describe(example)}")
    if commands:
        write("publish the policies at the source of the directory; for a ConfigMap, with the shadow's files in DIR:")
        for each in commands:
            write(f"  {each}")


def _commands(data: dict[str, Any], configmap: str | None) -> list[str]:
    """Return the commands to run if the server cannot write the directory."""
    namespace, _, name = (configmap or "NAME").rpartition("/")
    where = f" --namespace {shlex.quote(namespace)}" if namespace else ""
    digest = data.get("directoryHash", "HASH")
    return [
        f"koord-policy hash DIR  # must print {digest}",
        (f"kubectl create configmap {shlex.quote(name)}{where} --from-file=DIR --dry-run=client --output yaml"
         f" | kubectl replace{where} --filename -"),
        f"koord-policy reload --wait {digest} --timeout 3m",
    ]
