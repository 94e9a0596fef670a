"""Each field that a document may have is converted, and what it is converted to is read: none is ignored in silence."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordpolicy import engine
from koordpolicy.engine.documents import Kind, specs, suites
from koordpolicy.engine.documents.validation import schema
from koordpolicy.engine.testing import fixtures

ROOT = Path(engine.__file__).parent
CONVERSIONS = sorted((ROOT / "documents").glob("*conversion.py"))
READERS = "".join(each.read_text() for each in (*CONVERSIONS, Path(fixtures.__file__)))


def fields(given: Any) -> Iterator[str]:
    """Yield the names of all fields that a schema declares."""
    if isinstance(given, dict):
        properties = given.get("properties")
        yield from properties if isinstance(properties, dict) else ()
        for value in given.values():
            yield from fields(value)
    elif isinstance(given, list):
        for value in given:
            yield from fields(value)


def attributes_read() -> frozenset[str]:
    """Return the attributes that the engine reads, but for the conversion of documents."""
    files = (file for file in ROOT.rglob("*.py") if file.parent.name != "documents" or file.parent.parent != ROOT)
    return frozenset(
        node.attr for file in files for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


INTERNAL = [each for module in (specs, suites) for each in vars(module).values()
            if dataclasses.is_dataclass(each) and isinstance(each, type) and each.__module__ == module.__name__]


@pytest.mark.parametrize("kind", [*(each.value for each in Kind), "definitions"])
def test_every_field_of_a_schema_is_converted(kind: str) -> None:
    assert [name for name in sorted(set(fields(schema(kind)))) if f'"{name}"' not in READERS] == []


def test_every_field_of_the_internal_form_is_read() -> None:
    read = attributes_read()
    assert [f"{form.__name__}.{each.name}" for form in INTERNAL
            for each in dataclasses.fields(form) if each.name not in read] == []
