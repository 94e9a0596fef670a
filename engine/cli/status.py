"""Report the status of servers: the active version of each source, its time, problems of a newer one, and costs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.client.server_calls import EndpointAnswer
from koordpolicy.engine.monitoring.figures import is_healthy

from .endpoints import add_endpoints, caller_of, endpoints_of, moment, short
from .exits import Exit
from .terminal import add_output, heading, table, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy status
  koord-policy status --endpoints http://10.0.0.7:8888,http://10.0.0.8:8888 --expressions
  koord-policy status --endpoints dns+http://koord-policy-headless:8888 --output json

exit codes: 0 all of them decide, run what their directories hold and know their cluster as it is, 2 usage, 6 one does
not, or does not answer
"""


_LONG_S: Final = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_endpoints(parser)
    parser.add_argument("--expressions", action="store_true",
                        help="list the evaluations, the failures and the estimated cost of each expression")
    parser.add_argument("--history", action="store_true", help="list the last generations")
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    answers = caller_of(options).ask_all(endpoints_of(options, unresolved=Exit.EXCEEDED), "/status")
    if options.output == "json":
        write_json([{"endpoint": each.endpoint, "error": each.error or None, "status": each.data or None}
                    for each in answers])
    else:
        for each in answers:
            _show(each, expressions=options.expressions, history=options.history)
    return Exit.OK if all(is_healthy(each) for each in answers) else Exit.EXCEEDED


def _show(answer: EndpointAnswer, *, expressions: bool, history: bool) -> None:
    heading(answer.endpoint)
    if not answer.ok or "policies" not in answer.data:
        write(answer.error or "policies and cluster are not loaded yet")
        return
    policies = answer.data["policies"]
    if answer.data.get("overdue"):
        write(f"NOT READY: {answer.data['overdue']['message']}")
    if policies.get("reloadSeconds", 0) > _LONG_S:
        write(f"  ! reloading has been under way for {policies['reloadSeconds']:.0f} s")
    state = "healthy" if is_healthy(answer) else "NOT HEALTHY"
    write(f"generation {policies['generation']}, hash {policies['digest']}, {state}")
    if policies.get("restored"):
        write(f"generation {policies['restored']} was brought back, until the directory changes")
    write(f"last reload {moment(policies['lastSuccess'])} ({policies['successes']} so far), "
          f"last refused {moment(policies['lastFailure'])} ({policies['failures']})")
    for source in policies["sources"]:
        _show_source(source)
    _show_cluster(answer.data.get("cluster") or {})
    for text in (*policies["warnings"], *(answer.data["fault"] or ()), *answer.data["trouble"]):
        write(f"  ! {text}")
    if answer.data.get("shadow"):
        _show_comparison("shadow", answer.data["shadow"])
    for audit in answer.data.get("audits") or ():
        _show_comparison(f"{audit['enforcement']} of {audit['plugin']} at {audit['verb']}", audit)
    if history:
        table(["generation", "hash", "active since", "note"], [
            [past["generation"], past["digest"], moment(past["since"]), past.get("failed") or (
                f"brought back {past['restored']}" if past.get("restored") else "")] for past in policies["history"]])
    if expressions:
        table(["plugin", "point", "rule", "evaluations", "errors", "cost at most"], [
            [each["plugin"], each["point"], each["rule"], each["evaluations"], each["errors"], each["cost"]]
            for each in answer.data["expressions"]])


def _show_cluster(cluster: Mapping[str, Any]) -> None:
    kinds = {kind: view for kind, view in (cluster.get("kinds") or {}).items() if view["age"] is not None}
    if not kinds:
        return
    fresh = [view["age"] for view in kinds.values() if not view["fault"]]
    ages = f", heard of {max(fresh):.0f} s ago" if fresh else ""
    write(f"cluster {cluster['source']}: {cluster['nodes']} nodes{ages}")
    for kind, view in kinds.items():
        if view["fault"]:
            write(f"  ! {kind} is known as of {view['age']:.0f} s ago: {view['fault']}")


def _show_source(source: Mapping[str, Any]) -> None:
    write(f"{source['path']}: {short(source['digest'])} since {moment(source['since'])}")
    if source.get("bundle"):
        write(f"  bundle {source['bundle']}")
    if source["newest"] != source["digest"] and source["newest"]:
        write(f"  {short(source['newest'])} is not active:")
    _show_problems({"sources": [source]})
    for text in source["warnings"]:
        write(f"  ! {text}")


def _show_problems(policies: Mapping[str, Any]) -> None:
    for problem in (problem for source in policies["sources"] for problem in source["problems"]):
        for line in str(problem["rendered"]).splitlines():
            write(f"  {line}")


def _show_comparison(what: str, found: Mapping[str, Any]) -> None:
    if not found.get("ready", True):
        write(f"{what}: NOT VALID, nothing is compared")
        _show_problems(found["policies"])
        return
    part = f" ({found['differs'] / found['decisions']:.3%})" if found["decisions"] else ""
    which = f" {found['hash']}" if "hash" in found else ""
    write(f"{what}{which}: {found['differs']} of {found['decisions']} decisions differ{part}, {found['error']} "
          f"failed, {found['skipped']} skipped")
    _show_problems(found.get("policies") or {"sources": ()})
    for example in found["examples"][:3]:
        write(f"  {describe(example)}")


def describe(example: Mapping[str, Any]) -> str:
    """Return one difference of decisions in a line."""
    pod, count = example["pod"], example["nodes"]
    nodes = f"{count} node{'' if count == 1 else 's'}"
    why = f": {'; '.join(example['why'])}" if example["why"] else ""
    if example["verb"] == "prioritize":
        return (f"{pod}: {nodes} with another priority, best {', '.join(example['lost'])}, would be "
                f"{', '.join(example['gained'])}{why}")
    changes = [f"{sign}{', '.join(example[key])}" for key, sign in (("lost", "-"), ("gained", "+")) if example[key]]
    return f"{pod}: {nodes} filtered otherwise, {' '.join(changes)}{why}"
