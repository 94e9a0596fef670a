"""Unguarded reads of keys, optional fields and elements that may be absent, and the effect of the resulting errors.

In CEL, reading an absent key, field or element is an error, and `failurePolicy` determines its effect.
`false && error` is false and `true || error` is true in either order, so a guard may stand on either side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from koordpolicy.engine.cel.check.checked_ast import Checked
from koordpolicy.engine.compile import CompiledQoS
from koordpolicy.engine.documents import LabelSelector, Over, SelectorOperator

from .absence_reports import absence_of
from .subject import LintSubject, Violation
from .unguarded_reads import NOTHING, Absences, Key, UnguardedRead, is_field, is_measured

_IN_SEQUENCE: Final[Mapping[str, int]] = {
    role: number for number, role in enumerate(("preEnqueue", "preFilter", "filter", "score"), start=1)
}


def absent_keys(subject: LintSubject) -> Iterator[Violation]:
    """Find reads of keys that may be absent, with the effect of the error at their point."""
    if subject.compiled is None:
        return
    absences = Absences(subject, set(_matched(subject)))
    # A guard need not read anything that may be absent itself.
    placed_here = [each for each in subject.placed if each.role != "message"]
    if not any(absences.may_be_absent(each.checked) for each in placed_here):
        return
    conditions = [absences.of(each.checked) for each in placed_here if each.role == "condition"]
    guards = [each.facts(each.checked.root, truth=True) for each in conditions]
    ordered = sorted(placed_here, key=lambda each: _IN_SEQUENCE.get(each.role, 0))
    implied: set[tuple[Checked, int]] = set()
    for known in guards:
        absences.there |= known
    absences.there |= _grouped(subject, absences)
    number = 0
    for placed in ordered:
        reader = absences.of(placed.checked)
        if placed.role == "condition":
            others = frozenset[str]().union(*guards[:number], *guards[number + 1 :])
            own = guards[number] - others
            number += 1
            absences.there -= own
            reader.read(placed.checked.root, NOTHING)
            absences.there |= own
        else:
            reader.read(placed.checked.root, NOTHING)
        for access in _outermost(reader.found):
            if (access.checked, access.node.id) not in implied \
                    and not any(map(absences.is_there, (access.key, *access.or_keys))):
                implied.add((access.checked, access.node.id))
                yield absence_of(subject, placed, access)
        if placed.role in _IN_SEQUENCE and placed.role != "score":
            absences.there |= reader.facts(placed.checked.root, truth=True)


def _outermost(found: Iterable[UnguardedRead]) -> list[UnguardedRead]:
    """Return the reads, each key once, without those of fields that another one of them is read from."""
    distinct = {each.key: each for each in reversed(list(found))}
    holders: set[Key] = set()
    for each in distinct.values():
        if each.holder in distinct:
            holders.add(each.holder)
    return [each for each in reversed(distinct.values())
            if each.key not in holders or not is_field(each)]


def _matched(subject: LintSubject) -> Iterator[Key]:
    """Yield the labels of all pods and nodes that the document matches."""
    match = subject.spec.match
    for who, selector in (
        ("pod", match.pods.label_selector if match.pods is not None else None),
        ("node", match.nodes.label_selector if match.nodes is not None else None),
    ):
        for key in _required(selector) if selector is not None else ():
            yield f"{who}['metadata']['labels']"
            yield f"{who}['metadata']['labels'][{key!r}]"


def _required(selector: LabelSelector) -> Iterator[str]:
    yield from selector.match_labels
    for each in selector.match_expressions:
        if each.operator in (SelectorOperator.IN, SelectorOperator.EXISTS):
            yield each.key


def _grouped(subject: LintSubject, absences: Absences) -> set[Key]:
    """Return the groups that contain every row: of aggregates over the rows of the rules."""
    found: set[Key] = set()
    for each in subject.compiled.aggregates if subject.compiled is not None else ():
        if each.over is not Over.NODES or each.group_by is None or isinstance(subject.compiled, CompiledQoS):
            continue
        if is_measured(each):
            continue
        below = absences.of(each.group_by.checked)
        found.add(f"aggregates[{each.name!r}][{below.key_text(below.checked.root)}]")
    return found
