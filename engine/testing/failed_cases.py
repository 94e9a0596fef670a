"""Results of tests at their places in files, for code hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from koordpolicy.engine.annotations import TextPlace, file_place, fingerprint, github_command, sarif, sarif_result
from koordpolicy.engine.source import Problem, Severity, Span

from .mutation import MutationOutcome
from .results import CaseResult, failed, lines_of

_RULES: Final = {
    "failed-case": "An expectation of a case is not met.",
    "surviving-mutant": "No case notices this change of the policy.",
    "requirement": "The tests as a whole do not meet a requirement of the command line.",
    "invalid-document": "A document is invalid, so that nothing was tested.",
}


@dataclass(frozen=True, slots=True)
class TestFault:
    """A fault that a run of tests found: `rule` is a key of the rules, `title` names case or policy."""

    __test__ = False

    rule: str
    title: str
    text: str
    place: TextPlace | None
    span: Span | None = None


def faults_of(
    results: Sequence[CaseResult], mutation: MutationOutcome | None, complaints: Sequence[str],
) -> Iterator[TestFault]:
    """Yield a fault per expectation that is not met, per mutant that survives, and per other reason of failure."""
    for case in failed(results):
        for each in case.mismatches:
            place = TextPlace(case.file, case.line, 1, case.line, 1) if each.span is None else file_place(each.span)
            yield TestFault("failed-case", case.full_name, "\n".join(lines_of(each)), place, each.span)
    for fate in mutation.survivors if mutation is not None else ():
        mutant = fate.mutant
        text = f"{mutant.at}: {mutant.change}: no case notices it"
        yield TestFault("surviving-mutant", mutant.original.name, text, file_place(mutant.span), mutant.span)
    for complaint in complaints:
        yield TestFault("requirement", "koord-policy test", complaint, None)


def invalid_documents(problems: Iterable[Problem]) -> Iterator[TestFault]:
    """Yield a fault per error of documents; warnings and notes are left out."""
    for each in problems:
        if each.severity is Severity.ERROR:
            text = each.message + (f" ({each.help})" if each.help else "")
            yield TestFault("invalid-document", each.code or "invalid", text,
                            None if each.span is None else file_place(each.span), each.span)


def to_github(faults: Sequence[TestFault]) -> str:
    """Return workflow commands, which GitHub shows at the lines of a pull request."""
    return "".join(github_command("error", each.title, each.text, each.place) for each in faults)


def to_sarif(faults: Sequence[TestFault], version: str) -> dict[str, Any]:
    """Return the faults as SARIF 2.1.0, all of them errors."""
    rules = [{"id": rule, "name": rule, "shortDescription": {"text": text},
              "defaultConfiguration": {"level": "error"}} for rule, text in _RULES.items()]
    return sarif(version, rules, [
        sarif_result(
            each.rule, "error", f"{each.title}: {each.text}", each.place,
            mark=fingerprint(each.rule, each.place.file if each.place else "", f"{each.title}\0{each.text}", each.span),
        ) for each in faults
    ])
