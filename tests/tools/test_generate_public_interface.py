from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PUBLIC = {"koordpolicy.plugin", "koordpolicy.testing"}


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("interface", PROJECT / "tools" / "generate_public_interface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_the_committed_interface_is_that_of_the_module(name: str, tool):
    assert (PROJECT / "docs" / "api" / f"{name}.txt").read_text(encoding="utf-8") == tool.listing(
        importlib.import_module(name),
    ), "the public interface changed: run tools/generate_public_interface.py, and say so in CHANGELOG.md"


def test_a_changed_signature_changes_the_listing(tool, monkeypatch: pytest.MonkeyPatch):
    module = importlib.import_module("koordpolicy.plugin")
    before = tool.listing(module)
    monkeypatch.setattr(module, "python_plugin", lambda name, framework: None)
    assert tool.listing(module) != before


def test_what_authors_are_shown_imports_the_public_modules_only():
    shown = [
        *(PROJECT / "engine" / "cli" / "templates").rglob("*.py.tmpl"),
        *(each for each in (PROJECT / "examples").glob("*/*.py") if not each.name.startswith("test_")),
        PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md"),
    ]
    imported = [
        (str(each.relative_to(PROJECT)), module) for each in shown
        for module in re.findall(r"(?m)^\s*(?:from|import) (koordpolicy[\w.]*)", each.read_text(encoding="utf-8"))
    ]
    assert {module for _, module in imported} == PUBLIC
    assert len({page for page, _ in imported}) > 5
