"""The console's schema and the front end's types are those of its models."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import jsonschema

PROJECT = Path(__file__).parents[2]
GENERATED = runpy.run_path(str(PROJECT / "tools" / "generate_console_types.py"))["FILES"]


def test_generated_files_are_those_of_the_models():
    assert {path.name: path.read_text(encoding="utf-8") for path in GENERATED} == {
        path.name: generate() for path, generate in GENERATED.items()}, "run tools/generate_console_types.py"


def test_the_schema_is_valid():
    [schema] = [path for path in GENERATED if path.suffix == ".json"]
    jsonschema.Draft202012Validator.check_schema(json.loads(schema.read_text(encoding="utf-8")))
