from __future__ import annotations

import importlib.util
from pathlib import Path

PROJECT = Path(__file__).parents[2]


def test_the_committed_page_is_what_the_table_of_rules_yields():
    spec = importlib.util.spec_from_file_location("page", PROJECT / "tools" / "generate_lint_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (PROJECT / "docs" / "lint.md").read_text(encoding="utf-8") == module.page()
