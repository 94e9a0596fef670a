"""Run the benchmarks: `python -m tests.bench [NAME ...]`, from the project's root.

A benchmark is a module `bench_<name>.py` in this folder with `main() -> Iterable[Figure]`. One without its
data raises `Missing` with what to do; that is printed and is not a failure. A figure that misses its bound is
marked; the exit code is 1 if a benchmark raised or, with `--strict`, if a bound was missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from .figure import Figure, Missing

_FOLDER = Path(__file__).parent


def main(arguments: Sequence[str] | None = None, folder: Path = _FOLDER, package: str | None = __package__) -> int:
    """Run the command line; the exit code is the result."""
    names = sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py"))
    options = _parser(names).parse_args(arguments)
    figures: list[Figure] = []
    broken = False
    print(f"{'benchmark':<44} {'measured':>14} {'unit':<10} bound")
    for name in options.name or names:
        try:
            # Shown as they come: a long benchmark has something to say before it ends.
            for figure in importlib.import_module(f"{package}.bench_{name}").main():
                figures.append(figure)
                print(row(figure), flush=True)
        except Missing as missing:
            print(f"{name:<44} not measured: {missing}")
        except Exception:  # one broken benchmark must not hide the figures of the others
            broken = True
            print(f"{name:<44} broken:\n{traceback.format_exc()}")
    if options.json:
        content = {"machine": machine(), "figures": [figure.to_json() for figure in figures]}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 1 if broken or (options.strict and not all(figure.kept for figure in figures)) else 0


def row(figure: Figure) -> str:
    """Return the figure as a line of the table."""
    bound = ""
    if figure.bound is not None:
        bound = (
            f"{'at least' if figure.more_is_better else 'at most'} "
            f"{figure.bound:,g}{'' if figure.kept else '  NOT KEPT'}"
        )
    return f"{figure.name:<44} {figure.value:>14,.4g} {figure.unit:<10} {bound}".rstrip()


def machine() -> dict[str, object]:
    """Return the facts of the machine that the figures depend on, as far as the interpreter knows."""
    return {"python": platform.python_version(), "system": platform.platform(), "processors": os.cpu_count()}


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Run the benchmarks and print their figures.",
    )
    parser.add_argument(
        "name", nargs="*", metavar="NAME", help=f"only these: {', '.join(names) or 'there are none yet'}",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a bound was not kept")
    return parser


if __name__ == "__main__":
    sys.exit(main())
