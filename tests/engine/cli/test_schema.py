from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from koordpolicy.engine import cli
from koordpolicy.engine.cli import hash as hashing
from koordpolicy.engine.cli.schema import of_output, outputs
from tests.output_schemas import faults_of, read_output

from .conftest import Run

GOOD = {
    "apiVersion": "policy.koordinator.sh/v1alpha2", "kind": "PolicyParams", "metadata": {"name": "shared"},
    "spec": {"params": {"a": 1}},
}


def test_the_schema_of_a_kind_needs_nothing_else(run: Run):
    found = run("schema", "PolicyParams").json
    assert found["title"] == "PolicyParams"
    assert "$ref" not in json.dumps(found)
    jsonschema.Draft202012Validator(found).validate(GOOD)


def test_without_a_kind_one_schema_holds_for_all(run: Run):
    found = jsonschema.Draft202012Validator(run("schema").json)
    found.validate(GOOD)
    assert not found.is_valid({**GOOD, "spec": {}})
    assert not found.is_valid({**GOOD, "kind": "PolicyParms"})


@pytest.mark.parametrize("version", ["v1alpha2", "internal"])
def test_all_schemas_are_written(run: Run, tmp_path: Path, version: str):
    done = run("schema", "--all", "--out", tmp_path / "new", "--version", version)
    kinds = run("schema", "--list", "--version", version).out.split()
    assert done.out.splitlines() == [str(tmp_path / "new" / f"{kind}.json") for kind in kinds]
    for kind in kinds:
        schema = json.loads((tmp_path / "new" / f"{kind}.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)


def test_usage_errors_say_what_to_do(run: Run, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    assert [run("schema", *arguments).err for arguments in (
        ("PolicyParms",), ("--all",), ("PolicyParams", "--all", "--out", "x"), ("--all", "--out", file),
        ("--list", "--out", "x"),
        ("--all", "--out", file / "below"),
    )] == [
        "koord-policy: there is no schema of `PolicyParms` in v1alpha2: did you mean `PolicyParams`?\n",
        "koord-policy: `--all` and `--out DIR` belong together\n",
        "koord-policy: name a kind, or say `--all`, but not both\n",
        f"koord-policy: `{file}` is a file: `--out` names a directory\n",
        "koord-policy: `--list` goes alone\n",
        f"koord-policy: cannot make `{file / 'below'}`: not a directory\n",
    ]


# What commands print

OPEN = {"edits[]", "experiments[]", "$defs.findingOther"}
"""Places in outputs whose keys are named by plugins or by options."""


def commands_with_json() -> set[str]:
    """Return the commands whose option `--output` takes `json`."""
    found = set()
    for name in cli.COMMANDS:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"koordpolicy.engine.cli.{name}").add_arguments(parser)
        if any("--output" in action.option_strings and "json" in (action.choices or ()) for action in parser._actions):
            found.add(name)
    return found


def test_every_command_that_prints_json_has_a_schema_and_no_other_has_one():
    assert commands_with_json() == set(outputs())
    assert set(cli.COMMANDS) - commands_with_json() == {
        "agent", "completion", "console", "crd", "fmt", "lsp", "manager", "new", "schema"}


def parts_of(schema: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas within a schema, each with where it stands."""
    yield place, schema
    for keyword in ("properties", "$defs"):
        for name, part in schema.get(keyword, {}).items():
            yield from parts_of(part, f"$defs.{name}" if keyword == "$defs" else name)
    for keyword in ("anyOf", "allOf"):
        for part in schema.get(keyword, ()):
            yield from parts_of(part, place)
    for keyword, sign in (("items", "[]"), ("additionalProperties", "{}"), ("then", "")):
        if isinstance(schema.get(keyword), dict):
            yield from parts_of(schema[keyword], place + sign)


@pytest.mark.parametrize("command", outputs())
def test_a_published_schema_is_complete_in_itself_and_closed(run: Run, command: str):
    schema = run("schema", "--output-of", command).json
    jsonschema.Draft202012Validator.check_schema(schema)
    assert (schema["title"], bool(schema["description"])) == (f"koord-policy {command} --output json", True)
    definitions = schema.get("$defs", {})
    referred, faults = set(), []
    for place, part in parts_of(schema):
        reference = part.get("$ref")
        if reference is not None:
            assert reference.startswith("#/$defs/"), place
            referred.add(reference.removeprefix("#/$defs/"))
        for name, field in part.get("properties", {}).items():
            definition = definitions.get(field.get("$ref", "").removeprefix("#/$defs/"), {})
            if not (field.get("description") or definition.get("description")):
                faults.append(f"{place}.{name} has no description")
        if "properties" in part and place not in OPEN and part.get("additionalProperties") is not False:
            faults.append(f"{place} takes any key")
        faults += [f"{place}.{name} is required and not described" for name in part.get("required", ())
                   if "properties" in part and name not in part["properties"]]
    assert (faults, referred) == ([], set(definitions))


def test_what_a_schema_does_not_know_or_misses_is_a_fault():
    good = {"path": "p", "hash": "ab", "files": {"a.yaml": "cd"}}
    assert faults_of("hash", good) == []
    assert faults_of("hash", {**good, "more": 1}) == [
        "$: Additional properties are not allowed ('more' was unexpected)"]
    assert faults_of("hash", {"path": "p", "files": {}}) == ["$: 'hash' is a required property"]
    assert faults_of("hash", {**good, "files": {"a.yaml": None}}) == ["$.files['a.yaml']: None is not of type 'string'"]
    assert faults_of("explain", {"node": "n", "explanation": {"kind": "qos", "node": "n", "parts": [
        {"kind": "moment", "node": "n", "elapsedSeconds": 1, "more": 2}]}}) == [
            "$.explanation.parts[0]: Additional properties are not allowed ('more' was unexpected)"]
    with pytest.raises(KeyError):
        of_output("new")


def test_commands_that_run_in_tests_are_held_against_their_schemas(run: Run, tmp_path: Path, monkeypatch):
    file = tmp_path / "p.yaml"
    file.write_text("{}", encoding="utf-8")
    assert run("hash", file, "--output", "json").exit == 0
    monkeypatch.setattr(hashing, "write_json", lambda data: print(json.dumps({**data, "more": 1})))
    for option in (("--output", "json"), ("-o", "json"), ("--output=json",)):
        with pytest.raises(AssertionError, match="is not as its schema says"):
            run("hash", file, *option)
    with pytest.raises(AssertionError, match=r"'files' is a required property"):
        read_output("hash", '{"path": "p", "hash": "ab"}')


def test_usage_errors_of_output_schemas_say_what_to_do(run: Run):
    assert [run("schema", *arguments).err for arguments in (
        ("--output-of", "explian"), ("--output-of", "new"), ("--output-of", "explain", "--list"),
    )] == [
        "koord-policy: there is no JSON output of `explian`: did you mean `explain`?\n",
        f"koord-policy: there is no JSON output of `new`: one of {', '.join(outputs())}\n",
        "koord-policy: `--output-of` goes alone\n",
    ]
