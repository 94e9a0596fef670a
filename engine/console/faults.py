"""Problems of policies and findings of the linter, as models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from koordpolicy.engine.source import Problem, first_problems, in_order

from .models.model import Fault
from .policy_set import PolicySet

_MOST_FAULTS: Final = 500


def faults_of(policies: PolicySet) -> list[Fault]:
    """Return the problems of a set, and the findings of the linter's rules, by place, as `koord-policy lint`."""
    from koordpolicy.engine.lint import LintConfiguration, check  # noqa: PLC0415 - late

    found = check(policies.whole, tuple(policies.sources.values()), policies.settings or LintConfiguration())
    return faults((*policies.problems, *(each.problem for each in found)))


def faults(problems: Iterable[Problem]) -> list[Fault]:
    """Return problems as models, by place; of many the last one says that there are more."""
    return [fault(each) for each in first_problems(in_order(dict.fromkeys(problems)), _MOST_FAULTS)]


def fault(problem: Problem) -> Fault:
    """Return a problem as a model."""
    place = ("", 0, 0, 0, 0)
    if problem.span is not None:
        root = problem.span.root()
        place = (*problem.span.place, *root.source.position(root.end))
    file, line, column, end_line, end_column = place
    return Fault(severity=problem.severity.name.lower(), code=problem.code, message=problem.message, help=problem.help,
                 file=file, line=line, column=column, end_line=end_line, end_column=end_column)
