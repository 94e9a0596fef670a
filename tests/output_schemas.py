"""Holds what commands print with `--output json` against the schemas that `schema --output-of` publishes."""

from __future__ import annotations

import functools
import io
import itertools
import json
import sys
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from koordpolicy.engine import cli
from koordpolicy.engine.cli.schema import FAILURE, of_output


def read_output(command: str, text: str) -> Any:
    """Return the JSON that a command printed, which must match its schema."""
    data = json.loads(text)
    faults = faults_of(FAILURE if is_failure(data) else command, data)
    assert not faults, f"the output of `{command}` is not as its schema says:\n" + "\n".join(faults)
    return data


def is_failure(data: Any) -> bool:
    """Return whether an output is that of a command that ended with an error."""
    return isinstance(data, dict) and {"errors"} <= data.keys() <= {"errors", "warnings"}


def check_part(command: str, definition: str, data: Any) -> None:
    """Hold data against one of the definitions of a command's schema."""
    faults = faults_of(command, data, definition)
    assert not faults, f"this is not a `{definition}` of `{command}`:\n" + "\n".join(faults)


def faults_of(command: str, data: Any, definition: str = "") -> list[str]:
    """Return how an output, or a part of one, does not hold, with the most telling alternative of each."""
    return [_described(each) for each in _validator(command, definition).iter_errors(data)]


@functools.cache
def _validator(command: str, definition: str) -> jsonschema.Draft202012Validator:
    schema = of_output(command)
    if definition:
        schema = {"$ref": f"#/$defs/{definition}", "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _described(error: jsonschema.ValidationError) -> str:
    deepest = error
    while deepest.context:
        deepest = max(deepest.context, key=lambda each: (len(each.absolute_path), each.validator != "const"))
    return f"{deepest.json_path}: {deepest.message[:500]}"


class _Tee(io.TextIOBase):
    """Writes through to another stream, and keeps what was written."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.kept: list[str] = []

    def write(self, text: str) -> int:
        self.kept.append(text)
        return int(self.stream.write(text))

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return int(self.stream.fileno())

    def isatty(self) -> bool:
        return bool(self.stream.isatty())


def command_of(arguments: Sequence[str]) -> str | None:
    """Return the command of a command line whose output is JSON; None where it is not."""
    pairs = [*itertools.pairwise(arguments)]
    wanted = ("--output", "json") in pairs or ("-o", "json") in pairs or "--output=json" in arguments
    return arguments[0] if wanted and arguments[0] in cli.COMMANDS else None


@pytest.fixture(autouse=True)
def _outputs_are_as_their_schemas_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold every JSON output of a command that runs in this process against its schema."""
    before = cli.main

    def main(argv: Sequence[str] | None = None, *more: Any, **options: Any) -> int:
        command = command_of(sys.argv[1:] if argv is None else argv)
        if command is None:
            return before(argv, *more, **options)
        tee = _Tee(sys.stdout)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sys, "stdout", tee)
            code = before(argv, *more, **options)
        if tee.kept:
            read_output(command, "".join(tee.kept))
        return code

    monkeypatch.setattr(cli, "main", main)
