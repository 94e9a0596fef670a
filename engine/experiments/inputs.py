"""Inputs of an experiment, as sent to its process: policies as texts, plugins by name, a packed trace."""

from __future__ import annotations

import hashlib
import pickle
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import files_of, load, read_file
from koordpolicy.engine.framework.discovery import DiscoveredPlugins, discover_beside
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source

from .axes import Axis, Point, Value, show
from .params import params_of, vary

if TYPE_CHECKING:
    from koordpolicy.engine.framework.registry import Plugin

Builtins: TypeAlias = "Callable[[], Iterable[Plugin]]"

_NOTHING_TOLD: Callable[[Problem], None] = lambda _: None  # noqa: E731 - modules that cannot be loaded were reported at the start


@dataclass(frozen=True, slots=True)
class Texts:
    """Policy files, as (name, text): their content does not change while experiments run."""

    files: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(cls, paths: Iterable[Path | str]) -> Texts:
        """Read policy files and directories, as `documents.load_paths` does.

        Raises:
            PolicyError: a path does not exist or cannot be read.
        """
        problems: list[Problem] = []
        sources = [read_file(file) for path in paths for file in files_of(Path(path), problems)]
        if problems:
            raise PolicyError(problems)
        return cls(tuple((source.name, source.text) for source in sources))

    def __add__(self, other: Texts) -> Texts:
        # A file that is named twice counts once.
        return Texts(tuple(dict((*self.files, *other.files)).items()))

    @property
    def digest(self) -> str:
        """A fingerprint of the texts."""
        return hashlib.sha256(repr(self.files).encode()).hexdigest()


NO_TEXTS: Final = Texts()
POLICY: Final = "policy"
"""The name of the axis of policies."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A value that many experiments share, small enough to be sent with each of them."""

    content: bytes
    digest: str
    """A fingerprint of the value, the same in every process; the content may differ (sets, for example)."""

    @classmethod
    def of(cls, value: object, text: str) -> Packed:
        """Pack a value; `text` differs if the value differs."""
        return cls(zlib.compress(pickle.dumps(value), 1), hashlib.sha256(text.encode()).hexdigest())

    def value(self) -> Any:
        """Return the value, read-only; the last two are cached."""
        return _unpacked(self.content)


@lru_cache(maxsize=2)
def _unpacked(content: bytes) -> Any:
    return pickle.loads(zlib.decompress(content))  # noqa: S301 - packed by the process that started this run


def registry_of(texts: Texts, builtins: Builtins, params: Sequence[tuple[str, Value]] = ()) -> Registry:
    """Return the registry of policies with some of their params replaced; see `params.vary`.

    Raises:
        PolicyError: documents are invalid, also with such params.
        ValueError: no document has such a param.
    """
    return _registry(texts, builtins, tuple(params))


class PolicyTexts:
    """The policies of each point: those of all, and those at the path on the axis `policy`."""

    def __init__(self, axes: Sequence[Axis], policies: Iterable[str], builtins: Builtins) -> None:
        """Read all of them; raises `PolicyError` if one cannot be read."""
        self.builtins = builtins
        every = Texts.read(policies)
        by_path = next((axis.values for axis in axes if axis.name == POLICY), (None,))
        self._texts = {path: every if path is None else every + Texts.read([show(path)]) for path in by_path}

    def at(self, point: Point) -> Texts:
        """Return the policies of a point."""
        return self._texts[point.get(POLICY)]

    def check(self, points: Iterable[Point]) -> None:
        """Compile the policies of all points; raises what `registry_of` raises."""
        check_all(((self.at(point), tuple(params_of(point).items())) for point in points), self.builtins)


def check_all(runs: Iterable[tuple[Texts, tuple[tuple[str, Value], ...]]], builtins: Builtins) -> None:
    """Make each of these registries once, as `registry_of` does; raises what it raises."""
    seen: set[object] = set()
    for texts, params in runs:
        # In Python 1, 1.0 and True are equal; for a param they are different.
        key = texts, tuple((name, value.__class__, value) for name, value in params)
        if key not in seen:
            seen.add(key)
            registry_of(texts, builtins, params)


@lru_cache(maxsize=16)
def _registry(texts: Texts, builtins: Builtins, params: tuple[tuple[str, Value], ...]) -> Registry:
    discovered = _discovered(builtins)
    loaded = load([Source(name, text) for name, text in texts.files])
    problems = Problems(list(loaded.problems))
    documents = vary(loaded.documents, dict(params)) if params and not problems.errors else loaded.documents
    compiled = compile_documents(documents, problems, extensions=discovered.functions)
    problems.raise_errors()
    return Registry.of((*discovered.plugins, *compiled), generation=1)


@lru_cache(maxsize=1)
def _discovered(builtins: Builtins) -> DiscoveredPlugins:
    return discover_beside(builtins(), _NOTHING_TOLD)
