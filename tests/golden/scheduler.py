"""Golden cases of the scheduler's plugins: one function per plugin and point, by name in one table.

A plugin that has no entry in the table is not built, and each of its cases says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .result import Result
from .suites import read_cases

Case = Mapping[str, Any]

RUNNERS: Mapping[tuple[str, str], Callable[[Case], str]] = {}
"""By (plugin, point): returns what differs from `expect`, an empty text where nothing does."""


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of each case of the file."""
    for case in read_cases(path):
        yield _result(case)


def _result(case: Case) -> Result:
    plugin, point = str(case.get("plugin")), str(case.get("point"))
    runner = RUNNERS.get((plugin, point))
    if runner is None:
        known = any(each == plugin for each, _ in RUNNERS)
        missing = f"point `{point}` of plugin `{plugin}`" if known else f"plugin `{plugin}`"
        return Result("scheduler", case["id"], False, f"{missing} is not built yet")
    try:
        difference = runner(case)
    except Exception as error:
        difference = f"stopped by {type(error).__name__}: {error}"
    return Result("scheduler", case["id"], not difference, difference)
