"""Run every golden case of a directory: `python -m tests.golden DIRECTORY`, from the project's root.

Prints cases, passed, failed and pending per suite, and the failures. The exit code is 0 where every case passed or is
listed as pending, 1 where another one failed or a listed one passed, 2 where the directory holds no cases.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import pending
from .result import Result
from .suites import SUITES, UNFINISHED, agreement, count, failures, plan, run

_COLUMNS = ("cases", "passed", "failed", "pending")
_SHOWN_FAILURES = 200
_DETAIL_WIDTH = 300


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is the result."""
    options = _parser().parse_args(arguments)
    pieces = plan(options.directory, full=options.full, sample=options.sample, only=options.suite)
    if not pieces:
        print(f"no golden cases in `{options.directory}`: expected files such as {SUITES[0].pattern}", file=sys.stderr)
        return 2
    results = run(pieces, processes=options.processes, kept=options.resume,
                  told=lambda line: print(line, file=sys.stderr, flush=True))
    suites = [suite.name for suite in SUITES if any(result.suite == suite.name for result in results)]
    if options.write_pending is not None:
        for suite in suites:
            finished = (each for each in results if each.suite == suite and not each.id.endswith(UNFINISHED))
            listed = pending.write(suite, finished, options.write_pending)
            print(f"{suite}: {listed} pending")
    lists = {suite: pending.read(suite) for suite in suites}
    counts, failed = count(results, lists), failures(results, lists)
    print(table(counts))
    print(parts_table(agreement(results)), end="")
    print(listing(failed), end="")
    if options.json:
        options.json.write_text(json.dumps(as_json(counts, failed, results, lists), indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


def table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Return the counts per suite and their sum as a table."""
    total = {column: sum(row[column] for row in counts.values()) for column in _COLUMNS}
    lines = [f"{'suite':<18}" + "".join(f"{column:>9}" for column in _COLUMNS)]
    for suite, row in (*counts.items(), ("all", total)):
        lines.append(f"{suite:<18}" + "".join(f"{row[column]:>9,}" for column in _COLUMNS))
    return "\n".join(lines)


def parts_table(agreements: Mapping[str, Mapping[str, tuple[int, int]]]) -> str:
    """Return per suite with parts how many values of each part agree; empty where no suite has any."""
    lines = []
    for suite, parts in agreements.items():
        lines.append(f"\n{suite + ': agreeing':<36}{'of':>9}")
        lines += (f"  {part:<16}{agreeing:>18,}{compared:>9,}" for part, (agreeing, compared) in parts.items())
    return "".join(f"{line}\n" for line in lines)


def listing(failed: Sequence[Result]) -> str:
    """Return the failures, one per line, at most two hundred of them."""
    if not failed:
        return ""
    lines = [f"\n{len(failed):,} failed:"]
    for result in failed[:_SHOWN_FAILURES]:
        detail = " ".join(result.detail.split())
        detail = detail if len(detail) <= _DETAIL_WIDTH else detail[:_DETAIL_WIDTH] + "..."
        lines.append(f"  {result.suite}  {pending.as_line(result.id)}: {detail}")
    if len(failed) > _SHOWN_FAILURES:
        lines.append(f"  ... and {len(failed) - _SHOWN_FAILURES:,} more (all of them with --json)")
    return "\n".join(lines) + "\n"


def as_json(
    counts: Mapping[str, Mapping[str, int]], failed: Iterable[Result], results: Iterable[Result],
    lists: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Return the whole outcome as plain data."""
    results = list(results)
    waiting = [result for result in results if not result.passed and result.id in lists.get(result.suite, {})]
    return {
        "suites": counts,
        "agreement": agreement(results),
        "failed": [{"suite": each.suite, "id": each.id, "detail": each.detail} for each in failed],
        "pending": [
            {"suite": each.suite, "id": each.id, "reason": lists[each.suite][each.id], "detail": each.detail}
            for each in waiting
        ],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description="Run every golden case of a directory and compare with the pending lists.",
    )
    parser.add_argument(
        "directory", type=_directory, help="where scheduler*.json, qos*.json, cel_conformance/ and so on are",
    )
    parser.add_argument(
        "--full", action="store_true", help="the long form of suites that have a short one (all seeds of openb)",
    )
    parser.add_argument(
        "--sample", action="store_true", help="of openb each trace under one policy only",
    )
    parser.add_argument(
        "--suite", action="append", default=[], choices=[suite.name for suite in SUITES],
        help="only this suite; may be repeated",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome there too")
    parser.add_argument("--resume", type=Path, metavar="FILE",
                        help="keep what is finished in this file, and do not run again what has passed there")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="how many at a time (default: 2)")
    parser.add_argument(
        "--write-pending", metavar="REASON",
        help="rewrite the pending lists of the suites that ran: what fails is listed, with the reason it has, else "
             "REASON, "
        "else (with an empty REASON) what the result says; what passes is taken off",
    )
    return parser


def _directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"`{text}` is not a directory")
    return Path(text)


if __name__ == "__main__":
    sys.exit(main())
