"""The playground: a draft of policies is checked, evaluated, compared with the active policies, and tested.

Texts are vetted before they get here (see `reload.vet`), and the caller sets a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from koordpolicy.engine.cel.scalar.program import Program
from koordpolicy.engine.cel.values.deadline import Deadline
from koordpolicy.engine.cel.values.values import Timestamp
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.comparison.difference import BUDGETS, ChangeBudget, difference, spend
from koordpolicy.engine.comparison.outcome import Outcome, outcome
from koordpolicy.engine.compile import Compiled, compile_documents
from koordpolicy.engine.compile.programs import CompiledScheduler
from koordpolicy.engine.documents import Document, Documents, Expression, Kind, place_of
from koordpolicy.engine.documents.suites import TestSpec
from koordpolicy.engine.framework.registry import Plugin, Registry
from koordpolicy.engine.framework.scheduler import CycleState
from koordpolicy.engine.lint import LintConfiguration, check, whole_of
from koordpolicy.engine.scheduler.documents.plugin import DocumentScheduler
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.coverage import EVALUATED, ExpressionCoverage, Goal, percent
from koordpolicy.engine.testing.instruments import places, programs_of
from koordpolicy.engine.testing.results import CaseResult
from koordpolicy.engine.testing.suites import Suite, cases_of

from .colours import coloured
from .faults import faults
from .models.playground import (
    BudgetView,
    CaseView,
    CheckView,
    CoverageLine,
    EffectView,
    EvaluationView,
    Miss,
    TestsView,
    Verdicts,
)
from .policy_set import PolicySet, draft_of
from .state import ConsoleState, settings_for

_NODE_SLOTS: Final = frozenset(("source", "target", "until"))
_WHOLE_POD: Final = "the pod"


def check_draft(policies: PolicySet, text: str, file: str = "") -> CheckView:
    """Return the findings of compiler and linter in a draft, beside the policies that it does not replace.

    `file` is the policy file that it was opened from, and that it replaces; empty for a new one.
    """
    source, loaded = draft_of(text, file)
    problems = Problems(list(loaded.problems))
    compiled: list[Compiled] = []
    plugins = compile_documents(loaded.documents, problems, shared=_shared(policies, loaded, file),
                                observe=compiled.append, extensions=policies.discovered.functions)
    beside = policies.beside(loaded.documents, file)
    everything = (*policies.discovered.plugins, *_plugins_of(policies, beside), *plugins)
    try:
        Registry.of(everything, generation=1)
    except PolicyError as error:
        problems.extend(each for each in error.problems if each.span is not None and each.span.name == source.name)
    whole = whole_of(loaded.documents, compiled, everything)
    staying = {id(each) for each in beside}
    others = policies.whole
    if any(each.kind is Kind.PARAMS for each in loaded.documents):  # others may read these params
        others = whole_of(beside, policies.compiled.values(), everything)
    whole.subjects = (*(each for each in others.subjects if id(each.document) in staying), *whole.subjects)
    whole.files = frozenset((source.name,))
    found = [each.problem for each in check(whole, (source,), policies.settings or LintConfiguration())
             if each.found.span is not None]  # problems without a place are not of the draft
    return CheckView(
        faults=faults((*problems.found, *found)),
        policies=[each.name for each in loaded.documents if each.kind is not Kind.TEST],
        tests=sum(each.kind is Kind.TEST for each in loaded.documents))


def evaluate_draft(state: ConsoleState, text: str, key: str, offset: int, file: str = "") -> EvaluationView:
    """Return the value of the expression at an offset (in code points) on all nodes, and the draft's verdicts.

    Raises:
        PolicyError: the draft is not valid.
        UnknownNameError: there is no such pod.
    """
    pod = state.pod(key).unbound()
    loaded, compiled = _compiled(state.policies, text, file)
    at = _expression_at(loaded, compiled, offset)
    verdicts = _verdicts(state, pod, [each for each in compiled if isinstance(each, CompiledScheduler)])
    if at is None:
        return EvaluationView(expression="", field="", line=0, colours=None, verdicts=verdicts)
    shown = EvaluationView(expression=at.expression.text, field=at.expression.field, line=at.expression.span.place[1],
                           colours=None, verdicts=verdicts)
    if isinstance(at.compiled, CompiledScheduler):
        plugin = DocumentScheduler(at.compiled)
        frame = plugin.frame(CycleState(), pod, state.snapshot)
    elif at.expression.field.rpartition(".")[2] in _NODE_SLOTS:
        params: Mapping[str, Any] = at.compiled.params
        frame = state.snapshot.frame({"now": Timestamp.of(state.now), "params": params})
    else:
        return replace(shown, failure="this expression has no value per node")
    try:
        return replace(shown, colours=coloured(at.program, frame))
    except KeyError as error:  # a variable that nodes do not have, as in an aggregate over pods
        return replace(shown, failure=f"this expression reads {error}, which no node has")


def check_effect(state: ConsoleState, text: str, budgets: Mapping[str, str], file: str = "") -> None:
    """Raise what `effect_of` raises about a draft and its budgets, without computing anything."""
    _limits(budgets)
    _registry_with(state, text, file)


def effect_of(state: ConsoleState, text: str, budgets: Mapping[str, str], file: str = "", *,
              progress: Callable[[float], None] = lambda _: None) -> EffectView:
    """Return the changes that a draft would make in the cluster.

    `budgets` are texts such as `1%` by the names of `comparison.difference.BUDGETS`. `progress` is called with the part
    that is done, from 0 to 1.

    Raises:
        PolicyError: the draft is not valid.
        ValueError: a budget is not one.
    """
    limits = _limits(budgets)
    registry, replaced = _registry_with(state, text, file)

    def result(of: Registry, earlier: Outcome | None, progress: Callable[[float], None]) -> Outcome:
        return outcome(of, state.cluster, now=state.now, settings=state.settings, before=earlier, progress=progress)

    before = state.derived("outcome", lambda: result(
        state.policies.registry, None, lambda part: progress(part / 2)))
    after = result(registry, before, lambda part: progress((1 + part) / 2))
    found = difference(before, after)
    spent = [BudgetView(name=each.name, budget=str(each.budget), count=each.count, of=each.whole, within=each.within)
             for each in spend(found, limits)]
    return EffectView(difference=found.to_json(), budgets=spent, replaced=list(replaced))


def _limits(budgets: Mapping[str, str]) -> dict[str, ChangeBudget]:
    return {name: ChangeBudget.parse(each) for name, each in budgets.items() if name in BUDGETS}


def _registry_with(state: ConsoleState, text: str, file: str) -> tuple[Registry, tuple[str, ...]]:
    """Return the active policies with a draft, and the policies that it replaces."""
    _, loaded = draft_of(text, file)
    Problems(list(loaded.problems)).raise_errors()
    registry, replaced = state.policies.with_draft(loaded.documents, file)
    if not {each.name for each in state.settings.profiles} >= {
            each.name for each in settings_for(registry).profiles}:
        raise PolicyError([Problem("the draft names a profile that no active policy has", code="profile",
                                   help="start the console with a configuration that has it")])
    return registry, tuple(replaced)


def run_tests(policies: PolicySet, text: str, file: str = "") -> TestsView:
    """Run the PolicyTests of a draft over its policies.

    Raises:
        PolicyError: a document is not valid, or a test names files, which a draft cannot read.
        OverdueError: the deadline of the thread passed.
    """
    loaded, _ = _compiled(policies, text, file)
    tests = [each for each in loaded.documents if isinstance(each.spec, TestSpec)]
    own = [each for each in loaded.documents if each.kind is not Kind.TEST]
    documents = (*_shared(policies, loaded, file), *own)
    Problems(list(_foreign_files(tests))).raise_errors()
    found = [Suite.of(each, documents, policies.discovered.plugins, policies.discovered.functions) for each in tests]
    coverage = ExpressionCoverage()
    results: list[CaseResult] = []
    for suite, case in cases_of(found):
        Deadline.poll()
        results.append(run_case(suite, case, coverage))
    reports = [each for each in coverage.reports(found, []) if each.document in own]
    lines: dict[int, list[Goal]] = {}
    for report in reports:
        for covered in report.expressions:
            for goal in covered.goals:
                lines.setdefault(goal.span.place[1], []).append(goal)
    return TestsView(
        cases=[CaseView(suite=each.suite, name=each.name, line=each.line, passed=each.passed, misses=[
            Miss(about=miss.about, expected=miss.expected, got=miss.got,
                 line=miss.span.place[1] if miss.span is not None else 0) for miss in each.mismatches])
            for each in results],
        lines=[CoverageLine(line=line, seen=sum(goal.seen for goal in goals), goals=len(goals),
                            missed=[_missed(goal) for goal in goals if not goal.seen])
               for line, goals in sorted(lines.items())],
        coverage=percent(reports) if reports else 100.0)


def _missed(goal: Goal) -> str:
    return f"not evaluated: {goal.text}" if goal.outcome == EVALUATED else f"never {goal.outcome}: {goal.text}"


@dataclass(frozen=True)
class _At:
    """The expression at the cursor."""

    expression: Expression
    program: Program
    compiled: Any


def _compiled(policies: PolicySet, text: str, file: str) -> tuple[Documents, list[Compiled]]:
    _, loaded = draft_of(text, file)
    problems = Problems(list(loaded.problems))
    compiled: list[Compiled] = []
    compile_documents(loaded.documents, problems, shared=_shared(policies, loaded, file), observe=compiled.append,
                      extensions=policies.discovered.functions)
    problems.raise_errors()
    return loaded, compiled


def _plugins_of(policies: PolicySet, documents: Iterable[Document]) -> list[Plugin]:
    spans = {id(each.span) for each in documents}
    return [each for each in policies.plugins if id(each.span) in spans]


def _shared(policies: PolicySet, loaded: Documents, file: str) -> list[Document]:
    """Return the PolicyParams of the other policies that the draft does not replace."""
    return [each for each in policies.beside(loaded.documents, file)
            if each.kind is Kind.PARAMS and not each.faulty]


def _expression_at(loaded: Documents, compiled: Sequence[Compiled], offset: int) -> _At | None:
    by_document = {id(each.document): each for each in compiled}
    for document in loaded.documents:
        program_holder = by_document.get(id(document))
        if program_holder is None:
            continue
        for place in places(document).values():
            span = place.expression.span.root()
            if span.start <= offset <= span.end:
                program = _program_of(program_holder, place.expression.source)
                return None if program is None else _At(place.expression, program, program_holder)
    return None


def _program_of(compiled: Compiled, source: Source) -> Program | None:
    """Return the program of an expression. A variable is checked in the scope of the first expression that reads it."""
    for program in programs_of(compiled):
        if program.source is source:
            return program
        for each in program.checked.definitions.values():
            if each.source is source:
                return Program.of(each)
    return None


def _verdicts(state: ConsoleState, pod: PodInfo, compiled: Sequence[CompiledScheduler]) -> Verdicts | None:
    """Return the result of the draft's SchedulerPlugins for a pod; None if there are none."""
    if not compiled:
        return None
    snapshot, cycle_state = state.snapshot, CycleState()
    size = snapshot.size
    rules: list[str] = []
    refused = np.full(size, -1, np.int64)
    totals = np.zeros(size, np.int64)
    for each in compiled:
        plugin = DocumentScheduler(each)
        rejection = plugin.pre_filter(cycle_state, pod, snapshot)
        if rejection is not None:
            rules.append(f"{each.document.name}/{rejection.rule or _WHOLE_POD}")
            refused[refused < 0] = len(rules) - 1
            continue
        if each.filter:
            answer = plugin.filter(cycle_state, pod, snapshot, np.arange(size, dtype=np.intp)).spread(
                np.arange(size, dtype=np.intp), size)
            for row in np.flatnonzero(~answer.passed & (refused < 0)).tolist():
                Deadline.poll()
                name = f"{each.document.name}/{answer.explain(row).rule}"
                if name not in rules:
                    rules.append(name)
                refused[row] = rules.index(name)
    rows = np.flatnonzero(refused < 0)
    for each in compiled:
        if each.score and len(rows):
            totals[rows] += DocumentScheduler(each).score(cycle_state, pod, snapshot, rows).values * each.spec.weight
    return Verdicts(refused_by=refused.tolist(), rules=rules, totals=totals.tolist(), passed=len(rows))


def _foreign_files(tests: Iterable[Document]) -> Iterator[Problem]:
    for test in tests:
        assert isinstance(test.spec, TestSpec)
        named = (("policies", test.spec.policies), ("fixtures", test.spec.fixtures.files))
        for field, files in named:
            if files:
                yield Problem("a test of the playground cannot name files", place_of(test, "spec", field),
                              "write policies and fixtures into the draft", code="files")
