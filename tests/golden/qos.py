"""Golden cases of the QoS manager: one function per plugin and point, by name in one table.

A point that has no entry in the table is not built, and each of its cases says so. A runner returns what came out in
the shape of the case's `expect`; only keys that the case expects are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from koordpolicy.engine.agent.metric_cache.series import last, percentile

from . import qos_burst, qos_executor, qos_resctrl, qos_slo, qos_suppression
from .qos_evictions import EVICTIONS
from .result import Result
from .suites import read_cases

Case = Mapping[str, Any]


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of each case of the file."""
    for case in read_cases(path):
        yield _result(case)


def _result(case: Case) -> Result:
    runner = RUNNERS.get(str(case.get("point")))
    if runner is None:
        return Result(
            "qos", case["id"], False, f"point `{case.get('point')}` of `{case.get('plugin')}` is not built yet",
        )
    try:
        found = runner(case)
    except Exception as error:
        return Result("qos", case["id"], False, f"stopped by {type(error).__name__}: {error}")
    differences = [
        f"{key}: expected {wanted!r}, got {found.get(key)!r}"
        for key, wanted in case["expect"].items() if not _same(found.get(key), wanted)
    ]
    return Result("qos", case["id"], not differences, "; ".join(differences))


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float) and isinstance(found, (int, float)):
        return abs(found - wanted) < 1e-9
    return found == wanted


def _metric_percentile(case: Case) -> dict[str, Any]:
    try:
        return {"value": percentile(case["inputs"]["values"], case["inputs"]["percentile"]), "error": False}
    except ValueError:
        return {"value": None, "error": True}


def _metric_last(case: Case) -> dict[str, Any]:
    try:
        return {"value": last([(time, value) for time, value in case["inputs"]["samples"]]), "error": False}
    except ValueError:
        return {"value": None, "error": True}


RUNNERS: Mapping[str, Callable[[Case], dict[str, Any]]] = {
    **qos_suppression.RUNNERS,
    **qos_resctrl.RUNNERS,
    "metric_percentile": _metric_percentile,
    "metric_last": _metric_last,
    **qos_slo.RUNNERS,
    **EVICTIONS,
    **qos_executor.RUNNERS,
    **qos_burst.RUNNERS,
}
