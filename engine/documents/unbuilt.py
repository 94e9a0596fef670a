"""Fields of component configurations that a file may have and that do nothing here: each is reported at its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..source import Problem, Severity, did_you_mean
from .nodes import Node

TYPE_FIELDS: Final = frozenset(("apiVersion", "kind"))


def ignored(node: Node, why: Mapping[str, str], prefix: str = "") -> Iterator[Problem]:
    """Yield a warning for each field of a mapping that has no effect; `why` maps such fields to the reason.

    A field that turns something off, or says nothing, is as it should be.
    """
    for name, value in node.fields.items():
        if name in why and not _is_off(value):
            yield Problem(f"{prefix}{name} has no effect: {why[name]}", value.place, severity=Severity.WARNING,
                          code="configuration")


def unknown(node: Node, known: Iterable[str], prefix: str = "") -> Iterator[Problem]:
    """Yield a warning for each field of a mapping that is not known."""
    names = {*known, *TYPE_FIELDS}
    for name, value in node.fields.items():
        if name not in names:
            yield Problem(f"{prefix}{name} has no effect: there is no such field", value.place,
                          did_you_mean(name, names), Severity.WARNING, code="configuration")


def _is_off(value: Node) -> bool:
    elects = value.at("leaderElect")
    if elects is not None:
        return elects.scalar is False
    return not value.fields and not value.items and not value.scalar
