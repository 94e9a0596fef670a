"""Look for expressions that break the engine: `python -m tests.fuzz [--seconds N]`, from the project's root.

What breaks is made small, printed, and kept in `found/` as a case that the tests replay from then on. The exit code is
1 if anything was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from koordpolicy.engine.cel.values.types import BOOL

from .examination import Broken, Case, compiled, examine, place
from .expressions import Grammar, hostile, shapes, soups, spoilt
from .inputs import rows_for

FOUND = Path(__file__).parent / "found"
ROWS = 28
"""More than columns answer row by row."""
_LONG = 2_000
_BATCH = 300
_PLACES = ("plain", "filter", "score")
_GUIDED_SHARE = 0.2
"""Of the time, for the search that watches which lines run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is the result."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    guided = importlib.util.find_spec("atheris") is not None
    share = _GUIDED_SHARE if guided else 0.0
    found: list[Path] = []
    counts: Counter[str] = Counter()
    number = options.seed
    while time.monotonic() - began < options.seconds * (1 - share):
        for name, run in _searches(counts).items():
            left = options.seconds * (1 - share) - (time.monotonic() - began)
            if left <= 0:
                break
            case = _search(run, number)
            if case is not None:
                path = keep(name, *case)
                print(f"{name}: {case[1]}\n  {case[0].text[:300]!r}\n  kept as {path}", flush=True)
                found.append(path)
        number += 1
        if number % 10 == 0:
            print(f"{time.monotonic() - began:,.0f} s: {dict(counts)}", flush=True)
    if guided:
        found += _guided(options.seconds * share)
    else:
        print("not searched by coverage: atheris is not installed (pip install -e '.[fuzz]')")
    print(f"{sum(counts.values()):,} cases in {time.monotonic() - began:,.0f} s: {dict(counts)}; {len(found)} found")
    return 1 if found else 0


def keep(name: str, case: Case, reason: str, folder: Path = FOUND) -> Path:
    """Write a case that broke something where the tests find it."""
    content = {"reason": reason, **asdict(case)}
    text = json.dumps(content, indent=1) + "\n"
    path = folder / f"{name}-{sha256(case.text.encode('utf-8', 'surrogatepass')).hexdigest()[:10]}.json"
    folder.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(path: Path) -> Case:
    """Read a case that was kept."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return Case(content["text"], content["place"], content["rows"], content["values"])


def case_of(text: str, name: str, number: int) -> Case:
    """Return a case with rows for what the text reads, random but the same for the same number."""
    program = compiled(text, name)
    if program is None:
        return Case(text, name)
    # What is long takes its time in every row, as it may.
    rows, values = rows_for(program.checked, Random(number), ROWS if len(text) < _LONG else 2)
    return Case(text, name, rows, values)


_Run = Callable[[Callable[[Case], None], int], None]


def _searches(counts: Counter[str]) -> Mapping[str, _Run]:
    """Return the subjects of the search, each with a strategy of texts."""
    grammars = {name: Grammar(place(name)) for name in _PLACES}
    typed = {name: grammar.expressions() for name, grammar in grammars.items()}
    rules = {name: grammar.of(BOOL, 4) for name, grammar in grammars.items()}
    texts: dict[str, tuple[Sequence[str], Mapping[str, st.SearchStrategy[str]]]] = {
        "typed": (_PLACES, typed), "rules": (_PLACES, rules),
        "spoilt": (_PLACES, {name: spoilt(each) for name, each in typed.items()}),
        "soup": (("plain",), {"plain": soups()}), "shape": (("plain",), {"plain": shapes()}),
        "hostile": (("plain", "filter"), {"plain": hostile(), "filter": hostile()}),
    }

    def search(name: str) -> _Run:
        names, strategies = texts[name]
        cases = st.sampled_from(names).flatmap(
            lambda each: st.tuples(strategies[each], st.just(each), st.integers(0, 2**32)),
        )

        def run(note: Callable[[Case], None], number: int) -> None:
            @seed(number)
            @settings(
                max_examples=_BATCH if name != "shape" else _BATCH // 10, database=None, deadline=None,
                verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink),
            )
            @given(cases)
            def look(each: tuple[str, str, int]) -> None:
                case = Case(each[0], each[1])
                note(case)
                case = case_of(*each)
                note(case)
                counts[f"{name} {examine(case)}"] += 1

            look()

        return run

    return {name: search(name) for name in texts}


def _search(run: _Run, number: int) -> tuple[Case, str] | None:
    """Run one batch; return the smallest case that broke, and why."""
    last: list[Case] = []

    def note(case: Case) -> None:
        last[:] = [case]

    try:
        run(note, number)
    except Broken as broken:
        return last[0], str(broken)
    except BaseExceptionGroup as several:
        return last[0], str(several.exceptions[0])
    return None


def _guided(seconds: float) -> list[Path]:
    """Search with atheris in a process of its own, for it never returns."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "tests.fuzz.guided", f"-max_total_time={max(1, int(seconds))}",
            f"-artifact_prefix={folder}/", "-timeout=20",
            "-rss_limit_mb=4096", "-verbosity=0", "-print_final_stats=1",
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        print(
            "\n".join(
                line for line in done.stderr.splitlines() if line.startswith(("stat::", "==", "Broken", "tests."))
            ),
        )
        paths = []
        for path in Path(folder).iterdir():
            text = path.read_bytes().decode("utf-8", "surrogateescape")
            paths.append(keep("guided", Case(text), done.stderr.strip().splitlines()[-1][:200]))
            print(f"guided: {text!r}\n  kept as {paths[-1]}")
        return paths


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Look for expressions that break the engine.",
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long to look (600)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="where to begin (the time)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
