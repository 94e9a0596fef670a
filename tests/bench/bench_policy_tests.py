"""A thousand unit tests of a policy, with loading: the wait after saving a file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from koordpolicy.__main__ import builtins
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.coverage import ExpressionCoverage
from koordpolicy.engine.testing.suites import cases_of, load_suites

from .figure import Figure

CASES = 1000
RUNS = 3
POLICY = Path(__file__).parents[2] / "policies" / "scheduler" / "keep-off-hot-nodes.yaml"


def main() -> Iterator[Figure]:
    """Yield the seconds from files to results, without and with coverage."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "hot.yaml").write_text(POLICY.read_text(encoding="utf-8"), encoding="utf-8")
        (Path(directory) / "hot.test.yaml").write_text(suite(), encoding="utf-8")
        yield Figure(f"policy tests: {CASES} cases, loading included", least(Path(directory), None), "s", 2)
        yield Figure(f"policy tests: {CASES} cases with coverage", least(Path(directory), ExpressionCoverage()), "s")


def least(directory: Path, coverage: ExpressionCoverage | None) -> float:
    """Return the least of a few runs: what else the machine does only adds to it."""
    return min(seconds(directory, coverage) for _ in range(RUNS))


def suite() -> str:
    """Return a suite in which every case has an overlay of its own, so that none can use another's cluster."""
    cases = "".join(
        f"""\
  - name: case {number}
    pod: {{cpu: 1, priorityClass: koord-prod}}
    with: {{nodes: {{hot: {{usage: {{cpu: {6500 + number}m}}}}, cool: {{usage: {{cpu: {number % 6500}m}}}}}}}}
    filter: {{cool: pass, hot: {{fail: cpu-below-watermark}}}}
    score: {{cool: {100 - number % 6500 * 100 // 10_000}}}
"""
        for number in range(CASES)
    )
    return f"""\
apiVersion: policy.koordinator.sh/v1alpha2
kind: PolicyTest
metadata: {{name: hot}}
spec:
  fixtures:
    nodes:
      cool: {{cpu: 10, memory: 10Gi, usage: {{cpu: 1, memory: 1Gi}}}}
      hot: {{from: cool, usage: {{cpu: 7}}}}
      warm: {{from: cool, usage: {{cpu: 5}}}}
  cases:
{cases}"""


def seconds(directory: Path, coverage: ExpressionCoverage | None) -> float:
    """Return how long loading and running takes; every case must pass."""
    start = time.perf_counter()
    loaded = load_suites([directory], tuple(builtins()))
    results = [run_case(each, case, coverage) for each, case in cases_of(loaded.suites)]
    taken = time.perf_counter() - start
    failing = [each.name for each in results if not each.passed]
    if failing or len(results) != CASES:
        raise AssertionError(f"{len(failing)} of {len(results)} cases fail, first `{failing[:1]}`")
    return taken
