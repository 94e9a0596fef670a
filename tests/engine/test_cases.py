"""Whole outputs of `lint` about policy files; see tests/cases/README.md."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load, read_file
from koordpolicy.engine.source import PolicyError

CASES = Path(__file__).parents[1] / "cases"


def outcome(directory: Path) -> str:
    documents = load([read_file(path, name=path.name) for path in sorted(directory.glob("*.yaml"))])
    try:
        plugins = compile_documents(documents)
    except PolicyError as error:
        return f"{error}\n"
    lines = [
        f"{plugin.framework.value} plugin `{plugin.name}` of {plugin.origin}: "
        f"{', '.join(p.value for p in plugin.points)}"
        for plugin in plugins
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_what_is_told_about_policy_files_is_what_the_case_wants(name: str) -> None:
    told = outcome(CASES / name)
    wanted = CASES / name / "want.txt"
    if os.environ.get("KOORD_POLICY_REWRITE_CASES"):
        wanted.write_text(told)
    assert told == wanted.read_text()
