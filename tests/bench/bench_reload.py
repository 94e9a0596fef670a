"""One edited file among 200: the delay until it is active, and the cost of reloads for concurrent decisions.

As in the extender, a worker process compiles each edit first. Delays are over the median of a decision; those without
reloads are what the machine does by itself.

`python -m tests.bench.bench_reload --seconds 60` reloads once per second for a whole minute.
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.reload import Builder, Reloader
from koordpolicy.engine.reload.low_latency_gc import LowLatencyGc
from koordpolicy.engine.reload.vet import VettedBuild, Vetter

from .figure import Figure

POLICIES = Path(__file__).parents[2] / "policies"
FILES = 200
EDITS = 20
NODES = 5_000
BREAK_S = 0.001
AFTER_S = 0.1
_NAME = re.compile(r"(metadata:\s*(?:\{\s*)?name:\s*)([-\w]+)")


class Told(Live):
    """Records when a set was activated."""

    def __init__(self) -> None:
        super().__init__()
        self.swapped = threading.Event()

    def activate(self, registry, stage=None) -> Registry:
        registry = super().activate(registry, stage)
        self.swapped.set()
        return registry


def texts() -> list[str]:
    """Return 200 documents: the shipped scheduling policies, each several times under other names."""
    shipped = [path.read_text() for path in sorted((POLICIES / "scheduler").rglob("*.yaml"))]
    shipped = [text for text in shipped if "kind: SchedulerPlugin" in text and "paramsFrom" not in text]
    return [_NAME.sub(rf"\g<1>\g<2>-{number}", text) for number, text in enumerate(islice(cycle(shipped), FILES))]


def save(path: Path, text: str) -> None:
    """Write as editors do: beside, then renamed."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    beside.rename(path)


@contextmanager
def running() -> Iterator[tuple[Told, Reloader, list[Path]]]:
    """Run a reloader over 200 files."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"policy-{number:03}.yaml") for number in range(FILES)]
        for file, text in zip(files, texts(), strict=True):
            file.write_text(text)
        live = Told()
        vetter, low_latency = Vetter(), LowLatencyGc()
        reloader = Reloader(live, [folder], VettedBuild(Builder(pause=low_latency.pause), vetter),
                            state_dir=Path(folder, ".state"), low_latency=low_latency)
        reloader.start()
        try:
            while not reloader.status().events:
                time.sleep(0.01)
            yield live, reloader, files
        finally:
            vetter.close()
            reloader.close()


def edit(live: Told, file: Path, number: int) -> float:
    """Change one document and return the milliseconds until it is active."""
    text = _NAME.sub(rf"\g<1>edited-{number}", file.read_text())
    live.swapped.clear()
    start = time.perf_counter()
    save(file, text)
    assert live.swapped.wait(30), "the edit never became active"
    return (time.perf_counter() - start) * 1e3


def decide(live: Live, columns: np.ndarray) -> tuple[Plugin, ...]:
    """Stand for a decision: about a millisecond of comparisons over all nodes and of plain Python."""
    registry = live.registry
    passed = np.ones(NODES, dtype=bool)
    for column in columns:
        passed &= column > 0.2
        np.maximum(column * 100, 0).astype(np.int64).sum()
    sum(index * index for index in range(5_000))
    return tuple(registry.plugins.values())


class Decisions(threading.Thread):
    """Decides a millisecond after each decision, until it is stopped, and keeps when each was done after that, in ms.

    The break is that of a server which waits for the next call, and who wants to go on then waits for the interpreter.
    """

    def __init__(self, live: Live) -> None:
        super().__init__()
        self.took: list[float] = []
        self.ended: list[float] = []
        self.enough = threading.Event()
        self._decide = functools.partial(decide, live, np.random.default_rng(1).random((10, NODES)))

    def run(self) -> None:
        while not self.enough.is_set():
            start = time.perf_counter() + BREAK_S
            self.enough.wait(BREAK_S)
            self._decide()
            end = time.perf_counter()
            self.ended.append(end)
            self.took.append((end - start) * 1e3)

    def within(self, spans: list[tuple[float, float]]) -> list[float]:
        """Return the durations of the decisions that ended within some spans of time, in milliseconds."""
        return [took for took, ended in zip(self.took, self.ended, strict=True)
                if any(first <= ended <= last for first, last in spans)]


def p99(took: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(took)[len(took) * 99 // 100]


def main(seconds: float = 10) -> Iterable[Figure]:
    """Measure; `seconds` is how long decisions are watched, with one reload per second."""
    with running() as (live, _, files):
        latencies = [edit(live, files[number * 7 % FILES], number) for number in range(EDITS)]
        yield Figure("reload: one of 200 files active, median", statistics.median(latencies), "ms")
        yield Figure("reload: one of 200 files active, worst", max(latencies), "ms", bound=200)

        quiet = Decisions(live)
        quiet.start()
        quiet.join(min(seconds, 5))
        quiet.enough.set()
        quiet.join()
        usual = statistics.median(quiet.took)
        yield Figure("reload: a decision without reloads, median", usual, "ms")
        yield Figure("reload: delay of a decision without reloads, p99", p99(quiet.took) - usual, "ms")
        yield Figure("reload: delay of a decision without reloads, largest", max(quiet.took) - usual, "ms")

        busy = Decisions(live)
        busy.start()
        latencies, reloads = [], []
        for number in range(int(seconds)):
            start = time.perf_counter()
            latencies.append(edit(live, files[number * 11 % FILES], EDITS + number))
            # What comes after it is part of it: the last good set is written, and what was replaced is freed.
            reloads.append((start, time.perf_counter() + AFTER_S))
            time.sleep(max(0.0, 1 - (time.perf_counter() - start)))
        busy.enough.set()
        busy.join()
        during = busy.within(reloads)
        yield Figure("reload: delay of a decision during a reload, p99", p99(during) - usual, "ms")
        yield Figure("reload: delay of a decision during a reload, largest", max(during) - usual, "ms", bound=10)
        yield Figure("reload: one of 200 files active beside decisions, worst", max(latencies), "ms", bound=200)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10)
    for figure in main(parser.parse_args().seconds):
        print(f"{figure.name:<66} {figure.value:>10.3f} {figure.unit}{'' if figure.kept else '  NOT KEPT'}")
