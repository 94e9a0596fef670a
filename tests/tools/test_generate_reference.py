from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generator", PROJECT / "tools" / "generate_reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["fields.md", "points.md", "functions.md"])
def test_the_committed_page_is_what_the_tables_say(generator, name):
    committed = (PROJECT / "docs" / name).read_text(encoding="utf-8")
    assert generator.PAGES[name]() == committed, "run tools/generate_reference.py"


def test_every_field_has_a_meaning(generator):
    empty = [line for line in generator.write_fields().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert empty == []
