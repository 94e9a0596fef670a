"""Suites: PolicyTests with their policies, loaded, compiled and observed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from koordpolicy.engine.cel.check.environment import Function
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import Case, Document, Kind, TestSpec, files_of, load_paths, place_of
from koordpolicy.engine.documents.loader import holds_policies, is_inside
from koordpolicy.engine.framework.points import Framework
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Problems, Severity, Source
from koordpolicy.engine.texts import quoted_list

from .fixtures import FixtureError, Worlds, unknown
from .instruments import observed_plugin, places

DEFAULT_PROFILE: Final = "default-scheduler"
_TEST: Final = ".test"


@dataclass(frozen=True, eq=False)
class Suite:
    """A PolicyTest with the policies that it tests. A mutant has other documents and shares the rest."""

    # Documents would make `repr` unreadable.
    document: Document = field(repr=False)
    documents: tuple[Document, ...] = field(repr=False)
    """The policies, and the PolicyParams that they share."""
    plugins: Mapping[tuple[Framework, str], Plugin] = field(repr=False)
    worlds: Worlds = field(repr=False)
    python_plugins: tuple[Plugin, ...] = field(default=(), repr=False)
    functions: tuple[Function, ...] = field(default=(), repr=False)
    """The expression functions of Python plugins."""
    cache: dict[object, Any] = field(default_factory=dict, repr=False)
    """Values that cases share."""

    @staticmethod
    def of(
        document: Document, documents: Sequence[Document], python_plugins: Sequence[Plugin] = (),
        functions: Sequence[Function] = (),
    ) -> Suite:
        """Return the suite of a PolicyTest; raise `PolicyError` if the policies are invalid."""
        spec = document.spec
        assert isinstance(spec, TestSpec)
        worlds = Worlds(spec.fixtures, Path(document.file).parent)
        plugins = compiled(documents, functions)
        return Suite(document, tuple(documents), plugins, worlds, tuple(python_plugins), tuple(functions))

    def over(self, documents: Sequence[Document]) -> Suite:
        """Return this suite over other versions of its policies; raise `PolicyError` if those are invalid."""
        plugins = compiled(documents, self.functions)
        return Suite(self.document, tuple(documents), plugins, self.worlds, self.python_plugins, self.functions)

    @property
    def name(self) -> str:
        """The name of the PolicyTest."""
        return self.document.name

    @property
    def spec(self) -> TestSpec:
        """Its spec."""
        assert isinstance(self.document.spec, TestSpec)
        return self.document.spec

    def plugin_of(self, case: Case) -> Plugin:
        """Return the plugin of a case; raise `FixtureError` if that is ambiguous."""
        name = case.plugin or self.spec.plugin
        by_name = {plugin.name: plugin for plugin in self.plugins.values()}
        if name is None:
            if len(by_name) == 1:
                return next(iter(by_name.values()))
            known = quoted_list(sorted(by_name)) or "none"
            raise FixtureError(f"which plugin is tested? there are {known}: name one with `plugin`")
        if name not in by_name:
            raise unknown("plugin", name, by_name)
        return by_name[name]

    def sources_of(self, plugin: Plugin) -> frozenset[Source]:
        """Return the texts of all expressions of a plugin's document."""
        key = ("sources", plugin.framework, plugin.name)
        if key not in self.cache:
            document = next(each for each in self.documents if each.name == plugin.name and each.span is plugin.span)
            self.cache[key] = frozenset(places(document))
        found: frozenset[Source] = self.cache[key]
        return found

    def registry(self, chosen: Iterable[Plugin], observer: Any) -> Registry:
        """Return a registry of plugins; those of documents are observed."""
        own = set(map(id, self.plugins.values()))
        return Registry.of(
            (observed_plugin(each, observer) if id(each) in own else each for each in chosen), generation=1,
        )


def compiled(
    documents: Iterable[Document], functions: Sequence[Function] = (),
) -> dict[tuple[Framework, str], Plugin]:
    """Return the plugins of documents by framework and name; raise `PolicyError` if they are invalid."""
    return {(plugin.framework, plugin.name): plugin
            for plugin in compile_documents(documents, extensions=tuple(functions))}


@dataclass(frozen=True, slots=True)
class LoadedSuites:
    """The suites of some paths, and the policy files there that no suite tests."""

    suites: tuple[Suite, ...]
    untested: tuple[Document, ...] = field(repr=False)


def load_suites(
    paths: Sequence[Path], python_plugins: Sequence[Plugin] = (), functions: Sequence[Function] = (),
) -> LoadedSuites:
    """Load all PolicyTests below paths, each with its policies.

    Raises: PolicyError: documents are invalid, a suite names unknown policies, or two suites share a name.
    """
    problems = Problems()
    by_file: dict[Path, tuple[Document, ...]] = {}

    def documents_of(path: Path) -> tuple[Document, ...]:
        key = path.resolve()
        if key not in by_file:
            loaded = load_paths([path])
            problems.extend(loaded.problems)
            by_file[key] = loaded.documents
        return by_file[key]

    found: list[Problem] = []
    files = {file.resolve(): file for path in paths for file in files_of(path, found)}
    problems.extend(found)
    suites: list[Suite] = []
    tested: set[Document] = set()
    named: dict[str, Document] = {}
    for file in files.values():
        for document in documents_of(file):
            if document.kind is not Kind.TEST:
                continue
            other = named.setdefault(document.name, document)
            if other is not document:
                problems.add(f"two suites are named `{document.name}`, also at {other.origin}", document.span,
                             help="rename one", code="duplicate-name")
            policies = _policies_of(document, file, files, documents_of, problems)
            if any(each.faulty for each in (document, *policies)):
                continue
            try:
                suites.append(Suite.of(document, policies, python_plugins, functions))
            except PolicyError as error:
                problems.extend(error.problems)
            tested.update(policies)
    problems.raise_errors()
    untested = [
        document for file in files for document in by_file[file]
        if document.kind not in (Kind.TEST, Kind.PARAMS) and document not in tested
    ]
    return LoadedSuites(tuple(suites), tuple(untested))


def _policies_of(
    document: Document, file: Path, checked: Collection[Path], documents_of: Any, problems: Problems,
) -> tuple[Document, ...]:
    """Return the policies of a suite: those that it names, else those next to it.

    `checked` are the resolved files that the user named. Of other files the suite may name those in its directory, and
    those that hold policies: it may come from a stranger, and name a file whose text a log must not show.
    """
    spec = document.spec
    assert isinstance(spec, TestSpec)
    found: dict[Document, None] = {}
    before = len(problems.found)

    def take(path: Path) -> None:
        found.update((each, None) for each in documents_of(path) if each.kind is not Kind.TEST)

    take(file)
    if spec.policies is not None:
        for number, name in enumerate(spec.policies):
            complaints: list[Problem] = []
            if _is_far(file.parent / name, file.parent):
                problems.add(f"the suite `{document.name}` names the directory `{name}`, which is neither below its "
                             "own nor below the working directory", place_of(document, "spec", "policies", number),
                             help="name the files in it", code="unreadable")
                continue
            for path in files_of(file.parent / name, complaints):
                if path.resolve() in checked or is_inside(path, file.parent) or holds_policies(path):
                    take(path)
                else:
                    problems.add(f"the suite `{document.name}` names `{path}`, which holds no policies",
                                 place_of(document, "spec", "policies", number), code="no-policies")
            if complaints:
                problems.add(f"the suite `{document.name}` names the policies `{name}`, which are not there",
                             place_of(document, "spec", "policies", number),
                             help="the path is relative to the suite's file", code="unreadable")
    else:
        beside = _beside(file)
        if beside is not None:
            take(beside)
    unread = any(each.severity is Severity.ERROR for each in problems.found[before:])  # they say why there is none
    if not any(each.kind is not Kind.PARAMS for each in found) and not _only_invalid(spec) and not unread:
        problems.add(f"the suite `{document.name}` tests no policy", document.span, code="no-policies",
                     help="name files with `policies`, or call the suite `NAME.test.yaml` beside `NAME.yaml`")
    return tuple(found)


def _is_far(path: Path, directory: Path) -> bool:
    """Return whether a path is a directory elsewhere, all of whose files nobody wants to have read."""
    return path.is_dir() and not any(path.resolve().is_relative_to(each.resolve()) for each in (directory, Path.cwd()))


def _only_invalid(spec: TestSpec) -> bool:
    return all(case.expect_invalid is not None for case in spec.cases)


def _beside(file: Path) -> Path | None:
    """Return the policy file of `NAME.test.yaml`: `NAME.yaml`."""
    if not file.stem.endswith(_TEST):
        return None
    path = file.with_name(file.stem.removesuffix(_TEST) + file.suffix)
    return path if path.is_file() else None


def cases_of(suites: Iterable[Suite]) -> Iterator[tuple[Suite, Case]]:
    """Yield all cases with their suites, in order."""
    for suite in suites:
        yield from ((suite, case) for case in suite.spec.cases)
