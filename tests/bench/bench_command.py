"""The command from a cold start: `--help`, and `lint` of 200 and of 1,000 documents, each in a process of its own."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from .bench_reload import _NAME, texts
from .figure import Figure

RUNS = 7
MANY = 1_000


def main() -> Iterator[Figure]:
    """Yield the medians of a few runs each."""
    yield Figure("command: --help, cold", seconds("--help") * 1000, "ms", 150)
    with tempfile.TemporaryDirectory() as directory:
        for number, text in enumerate(texts()):
            (Path(directory) / f"{number:03}.yaml").write_text(text)
        yield Figure("command: lint of 200 documents, cold", seconds("lint", directory), "s", 1)
        for number, text in enumerate(islice(cycle(texts()), 200, MANY)):
            (Path(directory) / f"more-{number:03}.yaml").write_text(_NAME.sub(rf"\g<1>\g<2>-{number}", text))
        yield Figure("command: lint of 1,000 documents, cold", seconds("lint", directory), "s", 3)


def seconds(*arguments: str) -> float:
    """Return the median time of the command with these arguments, from start to end of its process."""
    taken = []
    for _ in range(RUNS):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "koordpolicy", *arguments], stdout=subprocess.DEVNULL, check=True)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
