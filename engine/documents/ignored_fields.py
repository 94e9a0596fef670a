"""Warnings about fields of component configurations that are allowed and have no effect here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koordpolicy.engine.source import Problem, Severity, did_you_mean

from .nodes import YamlNode

TYPE_FIELDS: Final = frozenset(("apiVersion", "kind"))
_STEP: Final = re.compile(r"[^.\[\]]+")


def ignored(node: YamlNode, why: Mapping[str, str], prefix: str = "") -> Iterator[Problem]:
    """Yield a warning for each field of a mapping that has no effect; `why` maps such fields to the reason.

    A name with dots and brackets is the path of a nested field (`a.b[0].c`). An empty field, or one that turns
    something off, is not reported.
    """
    found = ((name, value) for name in why if (value := node.at(*_steps(name))) is not None)
    for name, value in sorted(found, key=_where):
        if not _is_off(value):
            yield Problem(f"{prefix}{name} has no effect: {why[name]}", value.place, severity=Severity.WARNING,
                          code="configuration")


def unknown(node: YamlNode, known: Iterable[str], prefix: str = "", *, types: bool = True) -> Iterator[Problem]:
    """Yield a warning for each unknown field of a mapping; with `types`, `apiVersion` and `kind` are known."""
    names = {*known, *(TYPE_FIELDS if types else ())}
    for name, value in node.fields.items():
        if name not in names:
            yield Problem(f"{prefix}{name} has no effect: there is no such field", value.place,
                          did_you_mean(name, names), Severity.WARNING, code="configuration")


def _steps(path: str) -> Iterator[str | int]:
    return (int(step) if step.isdecimal() else step for step in _STEP.findall(path))


def _where(found: tuple[str, YamlNode]) -> int:
    return found[1].place.start


def _is_off(value: YamlNode) -> bool:
    elects = value.at("leaderElect")
    if elects is not None:
        return elects.scalar is False
    return not value.fields and not value.items and not value.scalar
