from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

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
