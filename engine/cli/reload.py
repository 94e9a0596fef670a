"""Wait until servers run a version of policies, and report those that do not, with reasons.

Servers observe their directories every second; no command makes them reload.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.client.server_calls import EndpointAnswer

from .durations import seconds
from .endpoints import add_endpoints, caller_of, endpoints_of, hash_of, moment, short
from .exits import Exit, Stop
from .hash import hash_path
from .policy_sources import add_bundle_options, bundle_options, need_bundle
from .terminal import add_output, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy reload --wait 3f9a1c22 --timeout 60s --endpoints http://10.0.0.7:8888,http://10.0.0.8:8888
  koord-policy reload --wait-for policies/scheduler --endpoints dns+http://koord-policy-headless:8888

exit codes: 0 all of them run it, 2 usage, 6 the time is over and one does not
"""

_PAUSE: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--wait", metavar="HASH", type=hash_of, action="append", default=[],
                        help="the hash of a directory (`koord-policy hash`), or the `digest` of the active set in "
                             "/status; a prefix is enough. May be repeated if there are several directories")
    parser.add_argument("--wait-for", metavar="PATH", action="append", default=[],
                        help="wait for the hash of this directory, or of this bundle (`oci:REGISTRY/REPOSITORY:TAG`)")
    add_bundle_options(parser)
    parser.add_argument("--timeout", metavar="TIME", type=seconds, default=60.0,
                        help="how long to wait; 0 checks once (default: 60s)")
    add_endpoints(parser)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    bundles = bundle_options(options)
    need_bundle(options.wait_for, bundles)
    versions = [*options.wait, *(hash_path(path, bundles)[0] for path in options.wait_for)]
    if not versions:
        raise Stop("wait for what? name a hash with `--wait`, or a directory with `--wait-for`")
    endpoints, caller = endpoints_of(options, unresolved=Exit.EXCEEDED), caller_of(options)
    end = time.monotonic() + options.timeout
    pending, done = list(endpoints), dict[str, EndpointAnswer]()
    while True:
        for answer in caller.ask_all(pending, "/status"):
            done[answer.endpoint] = answer
        pending = [endpoint for endpoint in endpoints if why_not(done[endpoint], versions)]
        left = end - time.monotonic()
        if not pending or left <= 0:
            break
        time.sleep(min(_PAUSE, left))
    late = {endpoint: why_not(done[endpoint], versions) for endpoint in pending}
    if options.output == "json":
        write_json({"wanted": versions, "reached": not late, "endpoints": [
            {"endpoint": each, "reached": each not in late, "reason": late.get(each),
             "generation": (done[each].data.get("policies") or {}).get("generation")} for each in endpoints]})
    else:
        for endpoint, reason in late.items():
            write(f"{endpoint}: {reason}")
        write(f"{len(endpoints) - len(late)} of {len(endpoints)} run {', '.join(map(short, versions))}")
    return Exit.EXCEEDED if late else Exit.OK


def why_not(answer: EndpointAnswer, versions: Sequence[str]) -> str:
    """Return why a server does not run all of these hashes; empty if it does."""
    if not answer.ok:
        return answer.error
    if not answer.data.get("ready"):
        return "policies and cluster are not loaded yet"
    policies = answer.data["policies"]
    hashes = [policies["digest"], *(source["digest"] or "" for source in policies["sources"])]
    missing = [each for each in versions if not any(digest.startswith(each) for digest in hashes)]
    return "; ".join(_reason(policies, each) for each in missing)


def _reason(policies: dict[str, Any], version: str) -> str:
    sources = policies["sources"]
    for source in sources:
        if (source["newest"] or "").startswith(version):
            problems = "; ".join(_described(problem) for problem in source["problems"][:3])
            return f"`{source['path']}` holds {short(version)}, which is refused: {problems or 'it is just being read'}"
    runs = ", ".join(f"{short(source['digest'])} of `{source['path']}` since {moment(source['since'])}"
                     for source in sources)
    lost = [f"; `{source['path']}`: {_described(problem)}" for source in sources if source["unmounted"]
            for problem in source["problems"][:1]]
    return f"runs {runs or 'no directory'}, and {short(version)} is not in any{''.join(lost)}"


def _described(problem: dict[str, Any]) -> str:
    place = f"{problem['file']}:{problem['line']}:{problem['column']}: " if "file" in problem else ""
    return f"{place}{problem['message']}"
