from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = os.environ.get("KOORD_POLICY_CASES", "")
PROJECT = Path(__file__).parents[2]


@pytest.mark.skipif(not CASES, reason="KOORD_POLICY_CASES names no directory of golden cases")
def test_golden_cases_pass_or_are_listed_as_pending():
    # The other replays of openb take more time than all else here: `make golden` has them.
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", str(PROJECT / CASES), "--sample"], cwd=PROJECT, capture_output=True,
        text=True, check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
