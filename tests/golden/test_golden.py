from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = os.environ.get("KOORD_POLICY_CASES", "")
PROJECT = Path(__file__).parents[2]


@pytest.mark.skipif(not CASES, reason="KOORD_POLICY_CASES names no directory of golden cases")
def test_every_golden_case_passes_or_is_listed_as_pending():
    done = subprocess.run(
        [sys.executable, "-m", "tests.golden", str(PROJECT / CASES)], cwd=PROJECT, capture_output=True, text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
