"""Suites of golden cases: the files of a case directory, their adapters, and the runner.

A file is found by its name alone, so that other files of the same shape are run too.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from .result import Result

NOT_BUILT = "not built yet"
UNFINISHED = "unfinished"
"""Suffix of the id of a result for all cases that an adapter did not reach; no pending list may have it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A family of case files with one shape; its adapter is the module of the same name in `package`."""

    name: str
    pattern: str
    """The files of the case directory, as a glob."""
    skipped: frozenset[str] = frozenset()
    """Names that match the pattern and hold no cases."""
    package: str = __package__
    """The package of the adapter."""

    def files(self, directory: Path) -> tuple[Path, ...]:
        """Return the files of this suite, by name."""
        return tuple(sorted(path for path in directory.glob(self.pattern) if path.name not in self.skipped))


SUITES = (
    Suite("scheduler", "scheduler*.json"),
    Suite("qos", "qos*.json"),
    Suite("descheduler", "descheduler*.json"),
    Suite("k8s_cel", "k8s_cel.json"),
    Suite("parse_trees", "cel_parse_trees.json"),
    Suite("cel_conformance", "cel_conformance/*.json", frozenset({"COUNTS.json"})),
    Suite("kube_scheduler_runs", "kube_scheduler_runs*.json"),
    Suite("k8s_descheduler_runs", "k8s_descheduler_runs*.json"),
    Suite("openb", "openb_expected*.json"),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of work for one process: a file, or a part of it where the adapter names parts."""

    suite: Suite
    path: Path
    part: str | None
    full: bool

    @property
    def name(self) -> str:
        """The key that distinguishes it from all other pieces of a run."""
        return "/".join(filter(None, (self.path.name, self.part, "full" if self.full else None)))


def read_cases(path: Path) -> list[dict[str, Any]]:
    """Return the cases of a file: a bare array, or an object whose `cases` is one.

    Raises:
        ValueError: the file is not JSON or has another shape.
    """
    content = json.loads(path.read_bytes())
    cases = content.get("cases") if isinstance(content, dict) else content
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise ValueError(f"`{path.name}` is neither a list of cases nor an object with `cases`")
    return cases


def name_cases(path: Path) -> list[str]:
    """Return the name of each case of any known shape, in order: for suites that nobody can run yet."""
    content = json.loads(path.read_bytes())
    if isinstance(content, dict) and "traces" in content:
        return [f"{trace}/{policy}" for trace, of in content["traces"].items() for policy in of["policies"]]
    return [
        str(case.get("id") or "/".join(str(case[key]) for key in ("suite", "section", "group", "name") if key in case))
        or f"{path.stem}/{number}"
        for number, case in enumerate(read_cases(path), start=1)
    ]


def plan(
    directory: Path, *, full: bool = False, sample: bool = False, only: Sequence[str] = (),
    suites: Sequence[Suite] = SUITES,
) -> list[Piece]:
    """Return the work that a case directory holds, in the order of the suites, of the files, of the parts.

    With `sample` it has, of suites that take long, the parts that their adapter's `sample` chooses.
    """
    pieces = []
    for suite in suites:
        if not only or suite.name in only:
            for path in suite.files(directory):
                parts = _parts(suite, path, full)
                if sample and None not in parts and hasattr(adapter := _adapter(suite), "sample"):
                    parts = adapter.sample(parts)
                pieces += [Piece(suite, path, part, full) for part in parts]
    return pieces


def run(
    pieces: Iterable[Piece], *, processes: int = 2, kept: Path | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Run the pieces and return their results in the order of the pieces, every id once per suite.

    An id that a suite yields again gets `#2`, `#3`, ... appended: no case hides another. With `kept`, the results of
    each finished piece are written to that file at once, and pieces that have passed there are not run again; `told` is
    then told each of them.
    """
    pieces = list(pieces)
    found = {} if kept is None else _read_kept(kept)
    missing = [piece for piece in pieces if piece.name not in found]
    for piece, results in zip(missing, _run_all(missing, processes), strict=True):
        found[piece.name] = results
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"piece": piece.name, "results": [asdict(each) for each in results]}) + "\n")
            told(f"{piece.name}: {sum(each.passed for each in results)} of {len(results)} passed")
    return list(_told_apart(result for piece in pieces for result in found[piece.name]))


def _run_all(pieces: Sequence[Piece], processes: int) -> Iterator[list[Result]]:
    if processes > 1 and len(pieces) > 1:
        # Spawned, not forked: a fork would hand each process whatever state the first adapters left behind.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            yield from pool.map(run_piece, pieces)
    else:
        yield from map(run_piece, pieces)


def _read_kept(path: Path) -> dict[str, list[Result]]:
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            content = json.loads(line)
        except ValueError:
            continue  # the run was ended in the middle of this line
        results = [Result(**each) for each in content["results"]]
        if all(each.passed for each in results):  # what failed is looked at again: it may have been mended
            found[content["piece"]] = results
    return found


def run_piece(piece: Piece) -> list[Result]:
    """Return the results of one piece; what the adapter raises is a failed result of its own beside those before."""
    results: list[Result] = []
    try:
        adapter = _adapter(piece.suite)
        if adapter is None:
            results += (Result(piece.suite.name, name, False, NOT_BUILT) for name in name_cases(piece.path))
        elif piece.part is None:
            results.extend(adapter.run(piece.path, full=piece.full))
        else:
            results.extend(adapter.run_part(piece.path, piece.part, full=piece.full))
    except Exception as error:  # one broken file must not hide the results of the others
        name = "/".join(filter(None, (piece.path.name, piece.part, UNFINISHED)))
        results.append(Result(piece.suite.name, name, False, f"stopped by {type(error).__name__}: {error}"))
    return results


def _parts(suite: Suite, path: Path, full: bool) -> Sequence[str | None]:
    try:
        adapter = _adapter(suite)
        return adapter.parts(path, full=full) if hasattr(adapter, "parts") else [None]
    # the file is run in one piece then, and what is wrong with it or its adapter is that piece's result
    except Exception:
        return [None]


def _adapter(suite: Suite) -> Any:
    name = f"{suite.package}.{suite.name}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def _told_apart(results: Iterable[Result]) -> Iterator[Result]:
    seen: dict[tuple[str, str], int] = {}
    for result in results:
        times = seen[result.suite, result.id] = seen.get((result.suite, result.id), 0) + 1
        yield result if times == 1 else replace(result, id=f"{result.id}#{times}")


def count(results: Iterable[Result], pending: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Return cases, passed, failed and pending per suite; a listed case that passes counts as failed."""
    counts: dict[str, dict[str, int]] = {}
    for result in results:
        row = counts.setdefault(result.suite, {"cases": 0, "passed": 0, "failed": 0, "pending": 0})
        row["cases"] += 1
        if result.passed == (result.id in pending.get(result.suite, {})):
            row["failed"] += 1
        else:
            row["passed" if result.passed else "pending"] += 1
    return counts


def agreement(results: Iterable[Result]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return per suite and part of its cases how many values agree, and of how many; only suites that have parts."""
    sums: dict[str, dict[str, tuple[int, int]]] = {}
    for result in results:
        for part, (agreeing, compared) in result.agreement.items():
            before = sums.setdefault(result.suite, {}).get(part, (0, 0))
            sums[result.suite][part] = before[0] + agreeing, before[1] + compared
    return sums


def failures(results: Iterable[Result], pending: Mapping[str, Mapping[str, str]]) -> list[Result]:
    """Return the unexpected results: cases that failed and are not listed, and listed ones that passed."""
    found = []
    for result in results:
        listed = result.id in pending.get(result.suite, {})
        if result.passed and listed:
            found.append(replace(result, passed=False, detail="passes now: take it off the pending list"))
        elif not result.passed and not listed:
            found.append(result)
    return found
