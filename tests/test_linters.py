"""Exceptions from the linters: each gives its reason, and a room that has one is exempt only where it must be."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
FOLDERS = ("engine", "builtin_plugins", "src", "tools", "examples", "tests")
MODULES = sorted(path for folder in FOLDERS for path in (PROJECT / folder).rglob("*.py") if path.is_file())
IGNORES = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]["per-file-ignores"]
ROOMS = ("builtin_plugins", "engine/testing", "examples")
"""The rooms of classes that implement protocols without inheriting them."""


def unused_of_private_methods(source: str) -> Iterator[str]:
    """Yield the parameters that a private method, which no protocol has, does not read."""
    for cls in ast.walk(ast.parse(source)):
        for each in cls.body if isinstance(cls, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef) and re.match("_[^_]", each.name):
                read = {node.id for part in each.body for node in ast.walk(part) if isinstance(node, ast.Name)}
                given = [*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]
                yield from (f"{cls.name}.{each.name}: {one.arg}" for one in given
                            if one.arg not in {"self", "cls", *read} and not one.arg.startswith("_"))


def bare_exceptions(source: str) -> Iterator[int]:
    """Yield the numbers of lines with an exception from the linter that gives no reason."""
    for number, line in enumerate(source.splitlines(), 1):
        if re.search(r"# noqa\b(?!: [A-Z0-9, ]+ - \S)", line):
            yield number


def test_an_exception_has_its_reason():
    bare = [f"{path.relative_to(PROJECT)}:{number}" for path in MODULES if path != Path(__file__)
            for number in bare_exceptions(path.read_text())]
    assert bare == []


def test_an_exception_without_a_reason_is_found():
    source = "a  # noqa: A002\nb  # noqa: A002, S311 - no secret\nc  # noqa\nd  # noqa: C901 -\ne = 'noqa'"
    assert list(bare_exceptions(source)) == [1, 3, 4]


def test_the_rooms_are_those_that_the_linter_exempts():
    exempt = {pattern.partition("/*")[0] for pattern, rules in IGNORES.items() if "ARG002" in rules}
    assert exempt == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_private_method_of_a_room_without_the_rule_uses_its_parameters(room: str):
    unused = [f"{path.relative_to(PROJECT)}: {each}" for path in sorted((PROJECT / room).rglob("*.py"))
              if not path.name.startswith("test_") for each in unused_of_private_methods(path.read_text())]
    assert unused == []


def test_a_parameter_that_nobody_reads_is_found():
    source = "class A:\n def _of(self, a, *, b, _c):\n  return a\n def of(self, a): ...\n def __init__(self, a): ..."
    assert list(unused_of_private_methods(source)) == ["A._of: b"]
