"""Refused nodes with their reasons, in the form of the response and for the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.framework.border import describe, must_be_survived
from koordpolicy.engine.framework.points import Code, Enforcement

from ..verdict.verdict import Filtered, Verdict
from .decision_record import LONGEST_MESSAGE, REASONS_SHOWN, ShownRefusal
from .results import Texts, json_text

MOST_WORDED: Final = 100
"""The maximum number of refused nodes per filter with computed messages; the others get the rule's fixed words."""
_NAMES_SHOWN: Final = 5


@dataclass(slots=True)
class RefusalPieces:
    """Refused nodes in the form of the response."""

    quoted: Texts
    """The nodes' names by row, as JSON."""
    failed: list[bytes] = field(default_factory=list)
    """Pieces of the members of `FailedNodes`, a comma after each member."""
    unresolvable: list[bytes] = field(default_factory=list)

    def add(self, plugin: str, reason: str, code: Code, rows: Rows) -> None:
        """Add nodes that were refused for one reason."""
        if len(rows):
            # Joined by the message, which is written once per reason and not once per node: 5,000 may be refused.
            message = b":" + json_text(_message(plugin, reason, code))
            into = self.unresolvable if code is Code.UNRESOLVABLE else self.failed
            into += (b"%b," % message).join(self.quoted[rows].tolist()), message, b","


def add_refusals(verdict: Verdict, rows: Rows, refused: RefusalPieces) -> tuple[tuple[ShownRefusal, ...], int]:
    """Add each refused node with `plugin: reason`; return the commonest reasons, and the number of the others."""
    if verdict.refusal is not None:
        plugin, _, refusal = verdict.refusal
        refused.add(plugin, refusal.message, refusal.code, rows)
        return (_shown(plugin, refusal.message, rows, verdict.names, Enforcement.ENFORCE),), 0
    shown: list[ShownRefusal] = []
    rest = 0
    for step in verdict.filters:
        if not len(step.refused):
            continue
        try:
            reasons, codes = _explained(step)
        except BaseException as error:  # the border between framework and plugin: a refusal is valid without its reason
            must_be_survived(error)
            reasons = {f"why is not known: {describe(error)}": step.refused}
            codes = {Code.ERROR: step.refused}
        ordered = sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))
        shown += (_shown(step.plugin, reason, found, verdict.names, step.enforcement)
                 for reason, found in ordered[:REASONS_SHOWN])
        rest += len(ordered[REASONS_SHOWN:])
        if step.enforcement is Enforcement.ENFORCE:
            joined = _joined(reasons, len(step.refused))
            for code, coded in codes.items():
                is_coded = np.zeros(len(verdict.names), np.bool_)
                is_coded[coded] = True
                for reason, found in joined.items():
                    refused.add(step.plugin, reason, code, found[is_coded[found]])
    return tuple(shown), rest


def _shown(plugin: str, reason: str, rows: Rows, names: Sequence[str], enforcement: Enforcement) -> ShownRefusal:
    first = tuple(str(names[int(row)]) for row in rows[:_NAMES_SHOWN])
    return ShownRefusal(plugin, reason[:LONGEST_MESSAGE], len(rows), first, enforcement)


def _joined(reasons: Mapping[str, Rows], count: int) -> Mapping[str, Rows]:
    """Return one reason for each of `count` rows: several reasons of a row are joined by commas."""
    if sum(map(len, reasons.values())) == count:
        return reasons
    texts: dict[int, str] = {}
    for reason, rows in reasons.items():
        for row in rows.tolist():
            texts[row] = f"{texts[row]}, {reason}" if row in texts else reason
    groups: dict[str, list[int]] = {}
    for row, text in texts.items():
        groups.setdefault(text, []).append(row)
    return {text: np.array(rows, np.intp) for text, rows in groups.items()}


def _explained(step: Filtered) -> tuple[Mapping[str, Rows], Mapping[Code, Rows]]:
    """Return the refused rows by reason and by code: in one pass if the plugin supports it, else row by row.

    Messages are computed for the first `MOST_WORDED` nodes; the others get the rule's fixed words.
    """
    answer, refused = step.answer, step.refused
    if answer.reasons is not None and answer.codes is not None:
        if answer.brief is None or len(refused) <= MOST_WORDED:
            return answer.reasons(refused), answer.codes(refused)
        reasons = dict(answer.reasons(refused[:MOST_WORDED]))
        for reason, rows in answer.brief(refused[MOST_WORDED:]).items():
            reasons[reason] = np.concatenate((reasons[reason], rows)) if reason in reasons else rows
        return reasons, answer.codes(refused)
    texts: dict[str, list[int]] = {}
    codes: dict[Code, list[int]] = {}
    for row in refused.tolist():
        refusal = answer.explain(row)
        texts.setdefault(refusal.message or refusal.rule, []).append(row)
        codes.setdefault(refusal.code, []).append(row)
    return ({text: np.array(rows, np.intp) for text, rows in texts.items()},
            {code: np.array(rows, np.intp) for code, rows in codes.items()})


def _message(plugin: str, reason: str, code: Code) -> str:
    mark = f"{code.value}: " if code is Code.ERROR else ""
    return f"{plugin}: {mark}{reason}"[:LONGEST_MESSAGE]
