"""Refusals for several reasons at once, and their breakdown by reason and code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.framework.points import Code, Refusal


def refused_for(reasons: tuple[str, ...], code: Code = Code.UNSCHEDULABLE) -> Refusal:
    """Return a refusal for several reasons, which `reasons_of` returns again."""
    return Refusal("reservation", ", ".join(reasons), code, values=(("reasons", reasons),))


def reasons_of(refusal: Refusal) -> tuple[str, ...]:
    """Return the reasons of a refusal; its message where it has only one."""
    for name, value in refusal.values:
        if name == "reasons" and isinstance(value, tuple):
            return value
    return (refusal.message,)


def by_reason(refusals: Mapping[int, Refusal], rows: Rows) -> dict[str, Rows]:
    """Return the refused rows by reason; a row with several reasons is in each."""
    found: dict[str, list[int]] = {}
    for row in rows.tolist():
        for reason in reasons_of(refusals[row]):
            found.setdefault(reason, []).append(row)
    return {reason: np.array(sorted(set(these)), np.intp) for reason, these in found.items()}


def by_code(refusals: Mapping[int, Refusal], rows: Rows) -> dict[Code, Rows]:
    """Return the refused rows by code."""
    found: dict[Code, list[int]] = {}
    for row in rows.tolist():
        found.setdefault(refusals[row].code, []).append(row)
    return {code: np.array(these, np.intp) for code, these in found.items()}
