"""The configuration file `koord-policy.yaml`: severities of rules, and the paths that they ignore."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from koordpolicy.engine.documents import YamlNode, read, read_file, validate
from koordpolicy.engine.source import PolicyError, Problem, Problems, Severity, Source, did_you_mean

from .rules import RULES, LintRule, find

FILE: Final = "koord-policy.yaml"
SCHEMA: Final = ("koord-policy", "configuration")

_LEVELS: Final = {"off": None, "note": Severity.NOTE, "warning": Severity.WARNING, "error": Severity.ERROR}


@dataclass(frozen=True, slots=True)
class _Silence:
    """Paths, relative to the file, that rules ignore; no rules means all."""

    paths: tuple[re.Pattern[str], ...]
    rules: frozenset[str]


@dataclass(frozen=True, slots=True)
class LintConfiguration:
    """The content of a `koord-policy.yaml`; by default every rule has its own severity everywhere."""

    levels: Mapping[str, Severity | None] = field(default_factory=dict)
    silences: tuple[_Silence, ...] = ()
    directory: Path = Path()
    """The directory of the file: paths in it are relative to that."""

    def level(self, rule: LintRule) -> Severity | None:
        """Return the severity of a rule; None if it is off."""
        return self.levels.get(rule.id, rule.severity)

    def ignores(self, rule: LintRule, file: str) -> bool:
        """Return whether a rule ignores a file."""
        if not self.silences:
            return False
        path = Path(file).absolute()
        try:
            shown = PurePath(path.relative_to(self.directory.absolute())).as_posix()
        except ValueError:
            shown = path.as_posix()
        return any(
            (not each.rules or rule.id in each.rules) and any(pattern.fullmatch(shown) for pattern in each.paths)
            for each in self.silences
        )


def nearest(directory: Path) -> Path | None:
    """Return the `koord-policy.yaml` of a directory or the nearest one above it, up to the repository's root."""
    for each in (directory, *directory.parents):
        if (each / FILE).is_file():
            return each / FILE
        if (each / ".git").exists():
            break
    return None


def load(path: Path, *, found: bool = False) -> LintConfiguration:
    """Read a configuration; raises `PolicyError` with all of its problems.

    If one that was `found` and not named is a link that leads outside of its directory, no text of the file is shown:
    a stranger may have chosen it.
    """
    elsewhere = found and not path.resolve().is_relative_to(path.parent.resolve())
    try:
        return parse(read_file(path), path.parent)
    except PolicyError as error:
        if not elsewhere:
            raise
        codes = ", ".join(sorted({each.code for each in error.problems}))
        raise PolicyError([Problem(
            f"`{path}` is a link that leads outside of its directory, to a file that holds no valid settings ({codes})",
            code="unreadable", help="name the file itself with `--settings`")]) from None


def parse(source: Source, directory: Path) -> LintConfiguration:
    """Return the configuration of a text; raises `PolicyError` with all of its problems."""
    problems = Problems()
    nodes = read(source, problems)
    if len(nodes) > 1:
        problems.add("a configuration is one document", nodes[1].span, help="remove the `---`", code="invalid-value")
    if not nodes:
        problems.raise_errors()
        return LintConfiguration(directory=directory)
    node = nodes[0]
    problems.extend(validate(node, *SCHEMA))
    problems.raise_errors()
    levels: dict[str, Severity | None] = {}
    held = node.at("lint", "rules")
    for word, value in (held.fields if held is not None else {}).items():
        rule = find(word)
        if rule is None:
            problems.extend([_unknown(word, value)])
        else:
            levels[rule.id] = _LEVELS[value.text]
    ignores = node.at("lint", "ignores")
    silences = tuple(_silence(each, problems) for each in (ignores.items if ignores is not None else ()))
    problems.raise_errors()
    return LintConfiguration(levels, silences, directory)


def _unknown(word: str, node: YamlNode) -> Problem:
    hint = did_you_mean(word, [*RULES, *(rule.name for rule in RULES.values())])
    return Problem(f"there is no rule `{word}`", node.place, hint or "`koord-policy lint --rules` lists them",
                   code="unknown-rule")


def _silence(node: YamlNode, problems: Problems) -> _Silence:
    found: set[str] = set()
    for each in _items(node, "rules"):
        rule = find(each.text)
        if rule is None:
            problems.extend([_unknown(each.text, each)])
        else:
            found.add(rule.id)
    return _Silence(tuple(pattern(each.text) for each in _items(node, "paths")), frozenset(found))


def _items(node: YamlNode, name: str) -> Iterator[YamlNode]:
    below = node.at(name)
    yield from below.items if below is not None else ()


def pattern(glob: str) -> re.Pattern[str]:
    """Return a path pattern: `*` and `?` stand for anything but `/`, `**` for any number of folders.

    A pattern that ends with `/`, or names a folder, covers all below it.
    """
    text = ""
    for part in re.split(r"(\*\*/|\*\*|\*|\?)", glob.removeprefix("./").rstrip("/")):
        text += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(part, re.escape(part))
    return re.compile(f"{text}(?:/.*)?")
