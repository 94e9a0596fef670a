"""Print the JSON Schema of a document kind, for editors and for CI, or of the JSON that a command prints.

Without a kind it is one schema for all kinds, which an editor can be given for every policy file. With `--output-of` it
is the schema of a command's output with `--output json`. Schemas are self-contained.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from koordpolicy.engine.documents import schema
from koordpolicy.engine.files import reason_of
from koordpolicy.engine.source import did_you_mean

from .exits import Exit, Stop
from .terminal import write, write_file, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy schema > .vscode/policy.schema.json
  koord-policy schema SchedulerPlugin
  koord-policy schema --all --out policies/.schemas
  koord-policy schema --list
  koord-policy schema --output-of explain

An editor with the YAML language server completes and checks a document that begins with
  # yaml-language-server: $schema=.schemas/SchedulerPlugin.json
as those of `koord-policy new` do. Keep the schemas in a folder with a dot: JSON beside policies is read as policies.

exit codes: 0 printed or written, 2 usage
"""

VERSIONS: Final = ("v1alpha2", "internal")
OUTPUT_VERSION: Final = "v1"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SHARED: Final = "definitions"
FAILURE: Final = "failure"
"""The schema of the output of a command that ends with an error instead of its result."""

# `schemas` is a sibling of `engine`, in the work tree as in a wheel.
_DIRECTORY: Final = Path(__file__).parents[2] / "schemas"
_OUTPUTS: Final = _DIRECTORY / "output" / OUTPUT_VERSION
_LOCAL: Final = "#/$defs/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("kind", metavar="KIND", nargs="?", help="one of those that `--list` prints")
    parser.add_argument("--version", choices=VERSIONS, default=VERSIONS[0],
                        help="the version that people write, or the one that the engine compiles (default: v1alpha2)")
    parser.add_argument("--list", action="store_true", help="print the kinds")
    parser.add_argument("--all", action="store_true", help="write one file per kind; needs `--out`")
    parser.add_argument("--out", metavar="DIR", type=Path, help="the directory that `--all` writes to; it is created"
                                                                " if it does not exist")
    parser.add_argument("--output-of", metavar="COMMAND",
                        help=f"print the schema of what this command prints with `--output json` ({OUTPUT_VERSION}); "
                             f"`{FAILURE}`: what each of them prints that ends with an error")


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given both
    """Run the command; see the module."""
    if options.output_of is not None:
        if options.list or options.all or options.out is not None or options.kind is not None:
            raise Stop("`--output-of` goes alone")
        if options.output_of not in (*outputs(), FAILURE):
            hint = did_you_mean(options.output_of, outputs()) or f"one of {', '.join(outputs())}"
            raise Stop(f"there is no JSON output of `{options.output_of}`: {hint}")
        write_json(of_output(options.output_of))
        return Exit.OK
    known = kinds(options.version)
    if options.list:
        if options.all or options.out is not None or options.kind is not None:
            raise Stop("`--list` goes alone")
        write("\n".join(known))
        return Exit.OK
    if options.all != (options.out is not None):
        raise Stop("`--all` and `--out DIR` belong together")
    if options.all:
        if options.kind is not None:
            raise Stop("name a kind, or say `--all`, but not both")
        _write_all(options.out, options.version, known)
        return Exit.OK
    if options.kind is None:
        write_json(any_kind(options.version))
        return Exit.OK
    if options.kind not in known:
        hint = did_you_mean(options.kind, known) or f"one of {', '.join(known)}"
        raise Stop(f"there is no schema of `{options.kind}` in {options.version}: {hint}")
    write_json(of_kind(options.kind, options.version))
    return Exit.OK


def kinds(version: str) -> tuple[str, ...]:
    """Return the kinds that have a schema of this version, sorted."""
    return tuple(sorted(path.stem for path in (_DIRECTORY / version).glob("*.json") if path.stem != _SHARED))


def of_kind(kind: str, version: str) -> dict[str, Any]:
    """Return the self-contained schema of a kind."""
    return {"$schema": _DIALECT, **schema(kind, version)}


def any_kind(version: str) -> dict[str, Any]:
    """Return one schema for documents of every kind; `kind` selects the applicable one."""
    known = kinds(version)
    return {
        "$schema": _DIALECT,
        "title": "koord-policy document",
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": list(known)}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": dict(schema(kind, version))}
            for kind in known
        ],
    }


def outputs() -> tuple[str, ...]:
    """Return the commands whose JSON output has a schema, sorted."""
    return tuple(sorted(path.stem for path in _OUTPUTS.glob("*.json") if path.stem not in (_SHARED, FAILURE)))


def of_output(command: str) -> dict[str, Any]:
    """Return the self-contained schema of a command's JSON output: referenced definitions are in its `$defs`.

    With `FAILURE` it is the schema of the output of a command that ends with an error. Raises `KeyError` if there is
    none.
    """
    if command not in (*outputs(), FAILURE):
        raise KeyError(command)
    shared: dict[str, Any] = json.loads((_OUTPUTS / f"{_SHARED}.json").read_bytes())["$defs"]
    whole: dict[str, Any] = _localized(json.loads((_OUTPUTS / f"{command}.json").read_bytes()))
    needed: dict[str, Any] = {}
    waiting = list(_references(whole))
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed[name] = shared[name]
            waiting.extend(_references(shared[name]))
    return {**whole, "$defs": dict(sorted(needed.items()))} if needed else whole


def _localized(part: Any) -> Any:
    """Return a schema with references to the shared file replaced by references to its own `$defs`."""
    if isinstance(part, list):
        return [_localized(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {key: value.removeprefix(f"{_SHARED}.json") if key == "$ref" else _localized(value)
            for key, value in part.items()}


def _references(part: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(part, list):
        for each in part:
            yield from _references(each)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                yield value.removeprefix(_LOCAL)
            else:
                yield from _references(value)


def _write_all(directory: Path, version: str, known: tuple[str, ...]) -> None:
    if directory.exists() and not directory.is_dir():
        raise Stop(f"`{directory}` is a file: `--out` names a directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Stop(f"cannot make `{directory}`: {reason_of(error)}") from None
    for kind in known:
        path = directory / f"{kind}.json"
        write_file(path, json.dumps(of_kind(kind, version), indent=2, ensure_ascii=False) + "\n")
        write(str(path))
