"""Write nodes.csv and pods.csv: a small trace in the shape of the openb trace, with a fixed seed.

Forty nodes with and without GPUs of three models, and four hundred tasks: most ask for a part of one GPU, some for
several whole ones, some for none. They come over four hours and stay for one on average. Run it again after editing:

    python examples/08-replay-a-trace/generate.py
"""

from __future__ import annotations

import csv
import random
from io import StringIO
from pathlib import Path

HERE = Path(__file__).parent
POOLS = (  # how many, milli-cores, MiB, GPUs, model
    (8, 64_000, 262_144, 0, ""),
    (14, 96_000, 393_216, 8, "G2"),
    (10, 64_000, 262_144, 4, "T4"),
    (8, 96_000, 524_288, 2, "P100"),
)
TASKS = (  # weight, milli-cores, MiB, GPUs, thousandths of each
    (24, 4_000, 12_288, 1, 250),
    (18, 6_000, 16_384, 1, 500),
    (14, 8_000, 30_720, 1, 700),
    (18, 8_000, 30_720, 1, 1000),
    (6, 16_000, 65_536, 2, 1000),
    (5, 32_000, 131_072, 4, 1000),
    (3, 64_000, 262_144, 8, 1000),
    (12, 8_000, 16_384, 0, 0),
)
COUNT = 400
SEED = 8
SECONDS = 4 * 3600
STAY = 3600


def nodes() -> list[tuple[str, int, int, int, str]]:
    rows = [pool[1:] for pool in POOLS for _ in range(pool[0])]
    return [(f"node-{number:04}", *row) for number, row in enumerate(rows)]


def pods() -> list[tuple[str, int, int, int, int, str, int, int]]:
    chance, times = random.Random(SEED), random.Random(SEED + 1)
    came = sorted(times.randrange(SECONDS) for _ in range(COUNT))
    rows = []
    for number in range(COUNT):
        _weight, cpu, memory, gpus, milli = chance.choices(TASKS, [task[0] for task in TASKS])[0]
        # A few can use one model only, as tasks that were tuned for it.
        model = chance.choice(("G2", "T4")) if gpus == 1 and chance.random() < 0.1 else ""
        left = came[number] + 60 + int(times.expovariate(1 / STAY))
        rows.append((f"pod-{number:04}", cpu * chance.choice((2, 3, 4)) // 4, memory, gpus, milli, model,
                     came[number], left))
    return rows


def text(columns: tuple[str, ...], rows: list[tuple]) -> str:
    """Return a list as CSV."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()


def files() -> dict[str, str]:
    """Return the contents of the files, by name."""
    return {
        "nodes.csv": text(("sn", "cpu_milli", "memory_mib", "gpu", "model"), nodes()),
        "pods.csv": text((
            "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "creation_time", "deletion_time",
        ), pods()),
    }


if __name__ == "__main__":
    for name, content in files().items():
        (HERE / name).write_text(content)
