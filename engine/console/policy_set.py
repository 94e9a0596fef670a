"""`PolicySet`: the documents that the console shows, and drafts beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from koordpolicy.engine.compile import Compiled, compile_documents
from koordpolicy.engine.documents import Document, Documents, Kind, load
from koordpolicy.engine.framework.discovery import DiscoveredPlugins
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source

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

    @staticmethod
    def of(loaded: Documents, sources: Sequence[Source], discovered: DiscoveredPlugins) -> PolicySet:
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
                        tuple(problems.found), registry, discovered)

    @cached_property
    def params_files(self) -> tuple[Source, ...]:
        """The files that hold nothing but PolicyParams, which drafts may use."""
        kinds: dict[str, set[Kind]] = {}
        for each in self.documents:
            kinds.setdefault(each.file, set()).add(each.kind)
        return tuple(source for name, source in self.sources.items() if kinds.get(name) == {Kind.PARAMS})

    def with_draft(self, draft: Sequence[Document]) -> tuple[Registry, tuple[str, ...]]:
        """Return the registry in which valid drafts replace the policies of their kind and name, and these names.

        Raises:
            PolicyError: the draft is invalid, or does not fit to the others.
        """
        given = {(each.kind, each.name) for each in draft if each.kind is not Kind.TEST}
        stay = [each for each in self.documents
                if (each.kind, each.name) not in given and each.kind is not Kind.TEST and not each.faulty]
        replaced = tuple(each.name for each in self.documents if (each.kind, each.name) in given)
        problems = Problems()
        plugins = compile_documents(
            (*stay, *(each for each in draft if each.kind is not Kind.TEST)), problems,
            extensions=self.discovered.functions,
        )
        problems.raise_errors()
        return Registry.of((*self.discovered.plugins, *plugins), generation=1), replaced


def draft_of(text: str) -> tuple[Source, Documents]:
    """Return the documents of a draft."""
    source = Source(DRAFT, text)
    return source, load([source])
