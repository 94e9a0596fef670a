"""One evaluation of a document's `filter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cel.vector.frame import Rows
from koordpolicy.engine.cel.vector.plan import evaluate
from koordpolicy.engine.cluster.snapshot import NodeFrame
from koordpolicy.engine.compile.programs import Rule
from koordpolicy.engine.framework.points import Answer, Code, Refusal

from .context import CONDITIONS, Booleans, EvaluationContext
from .evaluations import Evaluations
from .refusals import fixed_message, messages_of, refusal_of


@dataclass(slots=True)
class FilterEvaluation:
    """One evaluation of a filter: records the rule that refused each row, so that reasons are computed on demand."""

    rules: Sequence[Rule]
    evaluations: Mapping[int, Evaluations]
    ignores: bool
    """True if a failed expression is omitted."""
    context: EvaluationContext
    size: int

    def run(self, rows: Rows) -> Answer:
        """Return which of the rows pass every rule."""
        context, ignores = self.context, self.ignores
        passed: Booleans = np.ones(len(rows), np.bool_)
        remaining = rows if context.nodes is None else rows[context.nodes[rows]]
        refused_by: NDArray[np.int16] | None = None
        errors = context.errors(remaining)
        # An ignored error does not refuse the row; a later rule may.
        blamed: dict[int, EvaluationError] = {}
        for unknown in errors.values():
            failed = np.isin(remaining, list(unknown))
            passed[np.searchsorted(rows, remaining[failed])] = ignores
            remaining = remaining[~failed]
            if not ignores:
                blamed.update(unknown)
        rules, counters = self.rules, self.evaluations
        for number, rule in enumerate(rules):
            if not len(remaining):
                break
            counters[id(rule.program)].evaluated += len(remaining)
            column = evaluate(rule.program, context.frame, None if len(remaining) == self.size else remaining)
            good: Booleans = column.values.astype(np.bool_, copy=False)
            if column.errors:
                counters[id(rule.program)].failed += len(column.errors)
                good = good.copy()
                good[np.isin(remaining, list(column.errors))] = ignores
                errors[rule.name] = column.errors
                if not ignores:
                    blamed.update(column.errors)
            if np.logical_and.reduce(good):
                continue
            bad = remaining[~good]
            counters[id(rule.program)].refused += len(bad) - (0 if ignores else len(column.errors))
            passed[np.searchsorted(rows, bad)] = False
            if refused_by is None:
                refused_by = np.full(self.size, -1, np.int16)
            refused_by[bad] = number
            remaining = remaining[good]
        numbers, frame = refused_by, context.frame

        def explain(row: int) -> Refusal:
            number = -1 if numbers is None else int(numbers[row])
            if number < 0:
                error = blamed[row]
                return Refusal(CONDITIONS, error.message, Code.ERROR, error)
            return refusal_of(rules[number], frame, row, blamed.get(row))

        def ruled(refused: Rows) -> tuple[Rows, list[tuple[Rule, Rows]]]:
            """Return the failed rows, and the refused rows by rule."""
            failed = np.isin(refused, list(blamed)) if blamed else np.zeros(len(refused), np.bool_)
            places = np.full(len(refused), -1, np.int16) if numbers is None else numbers[refused]
            split = ((rule, refused[~failed & (places == number)]) for number, rule in enumerate(rules))
            return refused[failed], [(rule, mine) for rule, mine in split if len(mine)]

        def grouped(refused: Rows, words: Callable[[Rule, NodeFrame, Rows], Mapping[str, Rows]]) -> dict[str, Rows]:
            groups: dict[str, list[Rows]] = {}
            failed, split = ruled(refused)
            for row in failed.tolist():
                groups.setdefault(blamed[row].message, []).append(np.array([row], np.intp))
            for rule, mine in split:
                for text, found in words(rule, frame, mine).items():
                    groups.setdefault(text, []).append(found)
            return {text: found[0] if len(found) == 1 else np.sort(np.concatenate(found))
                    for text, found in groups.items()}

        def codes(refused: Rows) -> dict[Code, Rows]:
            failed, split = ruled(refused)
            groups: dict[Code, list[Rows]] = {Code.ERROR: [failed]} if len(failed) else {}
            for rule, mine in split:
                groups.setdefault(rule.code, []).append(mine)
            return {code: np.sort(np.concatenate(found)) for code, found in groups.items()}

        def names(refused: Rows) -> frozenset[str]:
            failed, split = ruled(refused)
            found = {rule.name for rule, _ in split}
            return frozenset(found | {CONDITIONS, *errors} if len(failed) else found)

        return Answer(passed, explain, errors, lambda refused: grouped(refused, messages_of), codes, names,
                      lambda refused: grouped(refused, fixed_message))
