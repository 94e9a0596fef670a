"""`PolicySet`: the documents that the console shows, and drafts beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.compile import Compiled, compile_documents
from koordpolicy.engine.documents import Document, Documents, Kind, load
from koordpolicy.engine.framework.discovery import DiscoveredPlugins
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source

if TYPE_CHECKING:
    from koordpolicy.engine.lint import LintConfiguration, Whole

DRAFT: Final = "draft.yaml"
"""The file name of drafts in problems."""


@dataclass(frozen=True)
class PolicySet:
    """A set of policy documents: those that are valid are compiled, the others have problems."""

    sources: Mapping[str, Source]
    """The files by name."""
    documents: tuple[Document, ...]
    compiled: Mapping[int, Compiled] = field(repr=False)
    """The programs of the valid documents by the identity of the document."""
    plugins: tuple[Plugin, ...]
    problems: tuple[Problem, ...]
    registry: Registry
    discovered: DiscoveredPlugins = field(repr=False)
    settings: LintConfiguration | None = field(default=None, repr=False)
    """The linter's settings; None means its defaults."""

    @staticmethod
    def of(
        loaded: Documents, sources: Sequence[Source], discovered: DiscoveredPlugins,
        settings: LintConfiguration | None = None,
    ) -> PolicySet:
        """Compile documents; without those that have problems. `discovered` are the plugins in Python."""
        problems = Problems(list(loaded.problems))
        compiled: dict[int, Compiled] = {}
        plugins = compile_documents(
            loaded.documents, problems, extensions=discovered.functions,
            observe=lambda found: compiled.update({id(found.document): found}),
        )
        try:
            registry = Registry.of((*discovered.plugins, *plugins), generation=1)
        except PolicyError as error:
            problems.extend(error.problems)
            registry = Registry.of(discovered.plugins, generation=1)
        return PolicySet({each.name: each for each in sources}, loaded.documents, compiled, plugins,
                        tuple(problems.found), registry, discovered, settings)

    @cached_property
    def params_files(self) -> tuple[Source, ...]:
        """The files that hold nothing but PolicyParams, which drafts may use."""
        kinds: dict[str, set[Kind]] = {}
        for each in self.documents:
            kinds.setdefault(each.file, set()).add(each.kind)
        return tuple(source for name, source in self.sources.items() if kinds.get(name) == {Kind.PARAMS})

    @cached_property
    def whole(self) -> Whole:
        """The input of the linter's rules."""
        from koordpolicy.engine.lint import whole_of  # noqa: PLC0415 - late: the first page does not wait for it

        return whole_of(self.documents, self.compiled.values(), (*self.discovered.plugins, *self.plugins))

    def beside(self, draft: Sequence[Document], file: str = "") -> tuple[Document, ...]:
        """Return the documents that stay beside a draft: it replaces those of its kinds and names, and all of `file`,
        the file that it was opened from.
        """
        given = {(each.kind, each.name) for each in draft}
        return tuple(each for each in self.documents if (each.kind, each.name) not in given and each.file != file)

    def with_draft(self, draft: Sequence[Document], file: str = "") -> tuple[Registry, tuple[str, ...]]:
        """Return the registry with a draft beside the policies that it does not replace, and the names of the others.

        Raises:
            PolicyError: the draft is invalid, or does not fit to the others.
        """
        stay = self.beside(draft, file)
        staying = {id(each) for each in stay}
        replaced = tuple(each.name for each in self.documents
                         if id(each) not in staying and each.kind is not Kind.TEST)
        problems = Problems()
        plugins = compile_documents(
            (*(each for each in stay if each.kind is not Kind.TEST and not each.faulty),
             *(each for each in draft if each.kind is not Kind.TEST)), problems,
            extensions=self.discovered.functions,
        )
        problems.raise_errors()
        return Registry.of((*self.discovered.plugins, *plugins), generation=1), replaced


def draft_of(text: str, file: str = "") -> tuple[Source, Documents]:
    """Return the documents of a draft; `file` is the policy file that it was opened from."""
    source = Source(file or DRAFT, text)
    return source, load([source])
