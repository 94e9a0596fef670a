"""Compare two checkouts: `python -m tests.bench.paired OTHER NAME ... [--pairs N]`, from the project's root.

The benchmarks of both run in turns, each checkout's own, in processes of their own. A figure that both have is shown as
the median of its paired ratios (this checkout / OTHER) with the interval between the lowest and the highest of them.
That interval holds the true median with a probability of 1 - 2^(1-N): 94 % for five pairs, 98 % for seven. It takes no
assumption about how times are distributed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

_HERE = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 1 where a benchmark broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.paired", description=__doc__.partition("\n")[0])
    parser.add_argument("other", metavar="OTHER", type=Path, help="a checkout to compare with, such as a git worktree")
    parser.add_argument("name", nargs="+", metavar="NAME", help="benchmarks, as `python -m tests.bench` names them")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="how often each runs (default: 5)")
    options = parser.parse_args(arguments)
    here: list[dict[str, float]] = []
    other: list[dict[str, float]] = []
    for number in range(options.pairs):
        # The order changes from pair to pair: neither is always the one that finds the machine warm.
        turns = [(_HERE, here), (options.other.resolve(), other)]
        for checkout, found in turns if number % 2 == 0 else reversed(turns):
            figures = measured(checkout, options.name)
            if figures is None:
                return 1
            found.append(figures)
    for line in compared(here, other):
        print(line)
    return 0


def measured(checkout: Path, names: Sequence[str]) -> dict[str, float] | None:
    """Return the figures of one run in a checkout, by name; None where it broke, which is printed."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench", *names, "--json", str(file)], cwd=checkout, check=False,
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        )
        if done.returncode:
            print(f"{checkout}:\n{done.stdout}{done.stderr}", file=sys.stderr)
            return None
        # Some names are those of a figure before them, with more to say.
        figures: dict[str, float] = {}
        of = ""
        for figure in json.loads(file.read_text())["figures"]:
            name = figure["name"]
            of = of if name.startswith(" ") else name
            figures[name if name == of else f"{of} |{name}"] = figure["value"]
        return figures


def compared(here: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> list[str]:
    """Return a line for each figure that all runs have: the median of the paired ratios, the lowest, the highest."""
    common = [name for name in here[0] if all(run.get(name) for run in (*here, *other))]
    width = max(map(len, common), default=0)
    lines = []
    for name in common:
        ratios = [ours[name] / theirs[name] for ours, theirs in zip(here, other, strict=True)]
        lines.append(f"{name:<{width}}  {statistics.median(ratios):6.3f}  [{min(ratios):.3f}, {max(ratios):.3f}]")
    return lines


if __name__ == "__main__":
    sys.exit(main())
