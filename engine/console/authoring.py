"""Help while a draft is written: completion, descriptions of what is at a place, and renaming."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from koordpolicy.engine.authoring.hover import described
from koordpolicy.engine.authoring.policy_text import PolicyText
from koordpolicy.engine.authoring.proposals import proposals
from koordpolicy.engine.authoring.symbols import name_at, renamed
from koordpolicy.engine.documents import Kind, YamlNode, node_of
from koordpolicy.engine.source import Source
from koordpolicy.engine.texts import first_of

from .models.playground import Completion, CompletionView, DescriptionView, RenameView, TextRange
from .policy_set import DRAFT, PolicySet

_WORD: Final = re.compile(r"\w*\Z")
_MOST: Final = 200


def complete(policies: PolicySet, text: str, offset: int) -> CompletionView:
    """Return the words that may follow at an offset (in code points) of a draft."""
    word = _WORD.search(text[max(0, offset - 100):offset])
    found = proposals(_text(text), offset, _shared(policies), policies.discovered.functions)
    shown, left_out = first_of(found, _MOST)
    return CompletionView(
        start=offset - len(word[0] if word is not None else ""),
        items=[Completion(label=each.label, kind=each.kind, detail=each.detail, doc=each.doc)
               for each in shown],
        left_out=left_out)


def describe(policies: PolicySet, text: str, offset: int) -> DescriptionView:
    """Return the description of what is at an offset (in code points) of a draft: a field, or a part of an expression
    with its type.
    """
    return DescriptionView(markdown=described(_text(text), offset, _shared(policies), policies.discovered.functions))


def rename(text: str, offset: int, name: str) -> RenameView:
    """Return the places at which the variable, aggregate or param at an offset of a draft gets another name.

    Raises:
        PolicyError: `name` cannot be a name or is declared already, or the old one is declared in another document.
    """
    found = name_at(_text(text), offset)
    if found is None:
        return RenameView(old="", places=[])
    spans = renamed(found, name, _text(text).documents)
    return RenameView(old=found.name, places=[TextRange(start=each.start, end=each.end) for each in spans])


def _text(text: str) -> PolicyText:
    return PolicyText(Source(DRAFT, text))


def _shared(policies: PolicySet) -> Mapping[str, YamlNode]:
    """Return the PolicyParams of the active policies, which a draft may use."""
    found = {each.name: node_of(each) for each in policies.documents if each.kind is Kind.PARAMS}
    return {name: node for name, node in found.items() if node is not None}
