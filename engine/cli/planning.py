"""The dry run of `promote` and `rollback`: what each server would change, in the words of the console."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from .terminal import write

if TYPE_CHECKING:
    from koordpolicy.engine.client.server_calls import EndpointAnswer
    from koordpolicy.engine.console.models.changes import ChangePlan, FileDiff, PlannedServer

_MARKS: Final = {"added": "+", "removed": "-", "same": " ", "place": ""}


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """Declare `--dry-run`."""
    parser.add_argument("--dry-run", action="store_true",
                        help="show what would change on each server, with the difference of each file, and change "
                             "nothing")


def planned(action: str, to: str, answers: Sequence[EndpointAnswer]) -> ChangePlan:
    """Return the effect of a change, from the answers to its dry run."""
    from koordpolicy.engine.console.change_plans import plan_of  # only with `--dry-run`

    return plan_of(action, to, answers)


def plan_json(server: PlannedServer) -> dict[str, Any]:
    """Return the effect on a server as plain data."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(server)
    return found


def show_plan(server: PlannedServer) -> None:
    """Write the effect on a server."""
    if server.state != "changes":
        write(f"{server.endpoint}: nothing would change: {server.message}")
        if server.files:
            write("  if the server took it, these files would change:")
    else:
        number = "" if server.generation is None else f", generation {server.generation}"
        where = f", written to `{server.path}`" if server.path else ""
        write(f"{server.endpoint}: {server.before} would be replaced by {server.after}{number}{where}")
        if not server.files:
            write("  no file differs")
    for each in server.files:
        _show_file(each)


def _show_file(found: FileDiff) -> None:
    write(f"  {found.file}: {found.state}" + (f" ({found.note})" if found.note else ""))
    for line in found.lines:
        write(f"    {_MARKS[line.kind]}{line.text}")
