"""Builds plugins from the files of all sources; only changed files are read and compiled again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from koordpolicy.engine.cel.check.patterns import PatternBudget, SizedPattern, TooManyStatesError
from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.compile import check_names, compile_documents
from koordpolicy.engine.documents import Document, Documents, Kind, load
from koordpolicy.engine.documents.specs import PluginSpec
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.source import Problem, Problems, Severity, Source

from .release import release

T = TypeVar("T")

Compile: TypeAlias = Callable[[Sequence[Document], Problems], Iterable[Plugin]]
"""Compiles one document, passed with the PolicyParams that it references, and collects its problems."""

_CACHED_BUILDS: Final = 8
_LARGE_S: Final = 0.01
"""A result that takes less time to make is freed in a fraction of a millisecond."""


def _no_pause() -> None:
    """Do nothing."""


@dataclass(slots=True)
class _Result:
    """A cached result, and the number of the build that it was last used by."""

    used: int
    value: Any
    large: bool
    """True if it is freed part by part, which would take longer for small ones."""


class _BuildCache:
    """A cache of the results of the last few builds by their inputs; `pause` is called after each computation."""

    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self._results: dict[Hashable, _Result] = {}
        self._build = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        value: T
        result = self._results.get(key)
        if result is None:
            began = time.thread_time()
            value = make()
            result = self._results[key] = _Result(self._build, value, time.thread_time() - began >= _LARGE_S)
            self._pause()
        else:
            value = result.value
        result.used = self._build
        return value

    def forget_others(self) -> None:
        """Drop the results that were not used since the last build."""
        self._forget(self._build)

    def next_build(self) -> None:
        # Several builds are cached: while a version is refused, builds with and without it alternate.
        self._build += 1
        self._forget(self._build - _CACHED_BUILDS + 1)

    def _forget(self, before: int) -> None:
        # One at a time: freeing thousands of documents at once would block decisions until all are freed.
        for key in [key for key, cached in self._results.items() if cached.used < before]:
            if self._results[key].large:
                release([self._results.pop(key).value], self._pause)
            else:
                del self._results[key]
                self._pause()


class Builder:
    """A `Build` for `Reloader`, which caches the results of a file until it or a PolicyParams that it references
    changes. `compile_document` receives a document followed by the PolicyParams that it references. `pause` is called
    after each document that is read, compiled or dropped, so that decisions can run (a `load_sources` that is passed
    reads without). A document whose expressions are not compiled within `seconds` gets a problem.
    """

    def __init__(
        self, compile_document: Compile = compile_documents,
        load_sources: Callable[[Iterable[Source]], Documents] | None = None, *,
        pause: Callable[[], None] = _no_pause, seconds: float = math.inf,
    ) -> None:
        self._compile = compile_document
        self._load = partial(load, pause=pause) if load_sources is None else load_sources
        self._seconds = seconds
        self._loaded = _BuildCache(pause)
        self._compiled = _BuildCache(pause)

    def __call__(self, sources: Sequence[Source]) -> list[Plugin]:
        """Return the plugins of all documents; raises `PolicyError` with the problems of all of them."""
        problems = Problems()
        loaded = self._read_all(sources, problems)
        check_names((document for each in loaded for document in each.documents), problems)
        plugins = self._compile_all(loaded, problems)
        self._loaded.next_build()
        self._compiled.next_build()
        # Warnings of a refused version are not reported.
        Problems([each for each in problems.found if each.severity is Severity.ERROR]).raise_errors()
        return plugins

    def warnings(self, sources: Sequence[Source]) -> tuple[Problem, ...]:
        """Return the warnings about active files, each with its position.

        Cached results of other files are dropped: a large set that was replaced must not stay in memory.
        """
        problems = Problems()
        self._compile_all(self._read_all(sources, problems), problems)
        self._loaded.forget_others()
        self._compiled.forget_others()
        return tuple(each for each in problems.found if each.severity is not Severity.ERROR)

    def _read_all(self, sources: Iterable[Source], problems: Problems) -> list[Documents]:
        """Return the documents of each source, and add the problems of reading them."""
        loaded = [self._read(source) for source in sources]
        for each in loaded:
            problems.extend(each.problems)
        return loaded

    def _compile_all(self, loaded: Sequence[Documents], problems: Problems) -> list[Plugin]:
        """Return the plugins of all documents, and add the problems of compiling them."""
        plugins: list[Plugin] = []
        shared: dict[str, Document] = {}
        for each in loaded:
            for document in each.of(Kind.PARAMS):
                shared.setdefault(document.name, document)
        patterns = PatternBudget()
        for document in (document for each in loaded for document in each.documents):
            sizes = document.patterns
            if isinstance(document.spec, PluginSpec):
                names = dict.fromkeys(reference.name for reference in document.spec.params_from)
                # The compiler reports a dangling reference, with hints from all names.
                known = names.keys() <= shared.keys()
                needed = (document, *(shared[name] for name in (names if known else shared)))
                # The documents are cached with the result, so that no other object can get their identity.
                _, made, faults, sizes = self._compiled.get(tuple(map(id, needed)), partial(self._try, needed))
                plugins += made
                problems.extend(faults)
            try:
                patterns.add(sizes)
            except TooManyStatesError as error:
                problems.extend((error.problem,))
                break
        return plugins

    def holds_policies(self, source: Source) -> bool:
        """Return whether a file holds more than unit tests and documents without content, valid or not."""
        loaded = self._read(source)
        return bool(loaded.problems) or any(document.kind is not Kind.TEST for document in loaded.documents)

    def groups(self, sources: Sequence[Source]) -> Iterator[frozenset[str]]:
        """Yield, for every document, the names of its file and of the files whose PolicyParams it references."""
        loaded = [(source.name, self._read(source)) for source in sources]
        where = {document.name: name for name, each in loaded for document in each.of(Kind.PARAMS)}
        for name, each in loaded:
            for document in each.documents:
                if isinstance(document.spec, PluginSpec):
                    needed = (where.get(reference.name) for reference in document.spec.params_from)
                    yield frozenset({name, *(file for file in needed if file is not None)})

    def _read(self, source: Source) -> Documents:
        return self._loaded.get((source.name, source.digest), lambda: self._load((source,)))

    def _try(
        self, documents: Sequence[Document],
    ) -> tuple[Sequence[Document], tuple[Plugin, ...], tuple[Problem, ...], tuple[SizedPattern, ...]]:
        problems = Problems()
        with Deadline(self._seconds), PatternBudget() as patterns:
            plugins = tuple(self._compile(documents, problems))
        return documents, () if problems.errors else plugins, tuple(problems.found), patterns.patterns
