"""Create a plugin: a policy document with its unit test or, with --python, a distribution with a Python plugin.

The files are a working example: their tests pass, and every part is meant to be changed.
"""

from __future__ import annotations

import argparse
import keyword
import os
import re
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.documents import Kind

from .exits import Exit, Stop
from .terminal import write

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy new scheduler keep-off-busy-nodes --out policies
  koord-policy new descheduler remove-failed-pods
  koord-policy new scheduler spread-owners --python

exit codes: 0 written, 2 usage, or one of the files exists already: nothing is written
"""

_TEMPLATES: Final = Path(__file__).parent / "templates"
_KINDS: Final = {"scheduler": Kind.SCHEDULER, "qos": Kind.QOS, "descheduler": Kind.DESCHEDULER}
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST: Final = 63
_NO_TEXTS: Final = frozenset(("null", "true", "false"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("framework", choices=tuple(_KINDS), help="the framework that runs the plugin")
    parser.add_argument("name", metavar="NAME", help="the plugin's name: small letters, digits and `-`")
    parser.add_argument("--python", action="store_true", help="a plugin in Python, as a distribution of its own")
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path(),
                        help="where to write (default: here); with --python a folder of the plugin's name in it")


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    name = options.name
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise Stop(f"`{name}` cannot be a plugin's name: write at most {_LONGEST} small letters, digits and `-`, such "
                   "as `keep-off-busy-nodes`")
    if options.python and not _is_free(options.framework, name):
        raise Stop(f"`{name}` cannot be the name of a Python module: begin with a letter, and use no reserved word and "
                   "no name of an installed module")
    called = _class_name(name.replace("-", "_"))
    if options.python and any(
            plugin.name == called and plugin.framework.value == options.framework for plugin in builtins()):
        raise Stop(f"`{called}` is a built-in plugin: choose another name")
    files = contents(options.framework, name, python=options.python)
    folder = options.out / name if options.python else options.out
    there = [folder / file for file in files if os.path.lexists(folder / file)]
    if there:
        raise Stop(f"`{there[0]}` exists already: choose another name, or another directory with `--out DIR`")
    for file, content in files.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(content, encoding="utf-8")
        except OSError as error:
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            why = "it is not a directory" if is_file else error.strerror
            raise Stop(f"nothing can be written to `{folder}`: {why}") from None
        write(str(folder / file))
    for line in _next_steps(folder, name, python=options.python):
        write(line)
    return Exit.OK


def _is_free(framework: str, name: str) -> bool:
    """Return whether a name is free for a module and its class, next to their imports."""
    module = name.replace("-", "_")
    template = (_TEMPLATES / f"python-{framework}" / "plugin.py.tmpl").read_text(encoding="utf-8")
    imported = {word for line in template.splitlines() if line.startswith(("from ", "import "))
                for word in re.findall(r"\w+", line)}
    words = (module, _class_name(module))
    return not (name[0].isdigit() or any(map(keyword.iskeyword, words)) or words[1] in imported
                or find_spec(module) is not None)


def _class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


def contents(framework: str, name: str, *, python: bool) -> dict[str, str]:
    """Return the files of a new plugin by name."""
    module = name.replace("-", "_")
    words = {
        "name": name, "module": module, "Class": _class_name(module),
        # Names that YAML would not read as strings (`123`, `null`) are quoted.
        "text": name if name[0].isalpha() and name not in _NO_TEXTS else f'"{name}"',
        "schema": f".schemas/{_KINDS[framework].value}.json",
    }
    renamed = {"plugin.py": f"{module}.py", "test_plugin.py": f"test_{module}.py", "policy.yaml": f"{name}.yaml",
               "policy.test.yaml": f"{name}.test.yaml"}
    found = {}
    for path in sorted((_TEMPLATES / (f"python-{framework}" if python else framework)).glob("*.tmpl")):
        file = path.name.removesuffix(".tmpl")
        found[renamed.get(file, file)] = Template(path.read_text(encoding="utf-8")).substitute(words)
    return found


def _next_steps(folder: Path, name: str, *, python: bool) -> tuple[str, ...]:
    if python:
        configured = (folder / "descheduler.yaml").is_file()
        return ("", f"next: pip install -e '{folder}[dev]' && pytest {folder}",
                f"once installed, it runs where a configuration names it, as {folder / 'descheduler.yaml'} does"
                if configured else "once installed, it is active in every command, until it is uninstalled")
    return (
        "", f"next: koord-policy lint {folder / name}.yaml && koord-policy test {folder / name}.test.yaml",
        f"completion in an editor: koord-policy schema --all --out {folder / '.schemas'}",
    )
