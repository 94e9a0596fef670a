"""The constant patterns of a set of documents have a common bound, and what is beyond it is not compiled."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.engine.cel.check import patterns
from koordpolicy.engine.cel.library import regex
from koordpolicy.engine.cel.library.regex import PATTERNS, compile_pattern, program_size
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load
from koordpolicy.engine.reload.build import Builder
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source

DOCUMENT = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: SchedulerPlugin
metadata: {{name: p{number}}}
spec:
  filter:
  - name: f
    expression: node.metadata.name.matches('{pattern}')
"""


def sources(*given: str) -> list[Source]:
    """Return a file with a document per pattern."""
    return [Source(f"{number}.yaml", DOCUMENT.format(number=number, pattern=pattern))
            for number, pattern in enumerate(given)]


def large(number: int) -> str:
    """Return a pattern of a thousand states."""
    return f"{number:05}a{{494}}"


SIZE = program_size(large(0))


@pytest.fixture(autouse=True)
def _low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MOST_STATES_TOGETHER", 3 * SIZE)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the patterns that RE2 compiled since the test began."""
    found: list[str] = []
    before = regex._compile

    def compile_and_tell(pattern: str) -> Any:
        found.append(pattern)
        return before(pattern)

    monkeypatch.setattr(regex, "PATTERNS", regex._Patterns())
    monkeypatch.setattr(regex, "_compile", compile_and_tell)
    return found


def refused(given: list[Source]) -> tuple[Problem, ...]:
    with pytest.raises(PolicyError) as caught:
        compile_documents(load(given))
    return caught.value.problems


def test_a_set_up_to_the_bound_is_compiled() -> None:
    assert len(compile_documents(load(sources(*map(large, range(3)))))) == 3


def test_a_set_beyond_the_bound_is_refused_with_the_biggest_patterns(compiled: list[str]) -> None:
    given = sources("a", large(1), "b{700}", *map(large, range(2, 1000)))
    (problem,) = refused(given)
    total = program_size("a") + 2 * SIZE + program_size("b{700}")
    assert problem.code == "patterns-too-large"
    assert problem.message == (
        f"the patterns up to this one have {total:,} states together, and all patterns of a set may have {3 * SIZE:,}; "
        f"the biggest: {program_size('b{700}'):,} at 2.yaml:7:44, {SIZE:,} at 1.yaml:7:44, {SIZE:,} at 3.yaml:7:44"
    )
    assert str(problem.span) == "3.yaml:7:44"
    assert sorted(set(compiled)) == sorted({"a", large(1), large(2), "b{700}"})


def test_a_pattern_of_several_documents_counts_once() -> None:
    assert len(compile_documents(load(sources(*[large(1)] * 5)))) == 5


def test_patterns_of_one_expression_and_of_variables_count() -> None:
    text = DOCUMENT.format(number=0, pattern=large(0)).replace(
        "\n    expression: ", "\n    expression: variables.v && ",
    )
    variable = f"{{name: v, expression: \"['x'].all(e, e.matches('{large(1)}'))\"}}"
    text = text.replace("  filter:", f"  variables:\n  - {variable}\n  filter:")
    more = " && ".join(f"pod.metadata.name.matches('{large(number)}')" for number in (2, 3))
    (problem,) = refused([Source("one.yaml", text.rstrip("\n") + f" && {more}\n")])
    assert (problem.code, problem.span and problem.span.place[0]) == ("patterns-too-large", "one.yaml")
    assert compile_documents(load([Source("one.yaml", text)]))


def schema(name: str, *given: str, kind: str = "PolicyParams") -> Source:
    """Return a document whose schema has these patterns."""
    properties = ", ".join(f"p{number}: {{type: string, pattern: '{each}'}}" for number, each in enumerate(given))
    rest = "" if kind == "PolicyParams" else "  filter:\n  - {name: f, expression: nodeInfo.pods < 9}\n"
    return Source(f"{name}.yaml", (
        f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: {kind}\nmetadata: {{name: {name}}}\n"
        f"spec:\n  params: {{}}\n  paramsSchema: {{properties: {{{properties}}}}}\n{rest}"
    ))


@pytest.mark.parametrize("kind", ["PolicyParams", "SchedulerPlugin"])
def test_patterns_of_schemas_have_the_same_bound(kind: str, compiled: list[str]) -> None:
    within = [schema(f"s{number}", large(number), kind=kind) for number in range(3)]
    assert load(within).problems == ()
    beyond = load([*within, *(schema(f"s{number}", large(number), kind=kind) for number in range(3, 50))])
    (problem,) = beyond.problems
    assert (problem.code, str(problem.span)) == ("patterns-too-large", "s3.yaml:6:59")
    assert len(beyond.documents) == 3
    assert sorted(set(compiled)) == [large(number) for number in range(4)]


def test_patterns_of_schemas_and_of_expressions_count_together() -> None:
    given = [schema("a", large(0), large(1)), *sources(large(2), large(3))]
    (problem,) = refused(given)
    assert (problem.code, str(problem.span)) == ("patterns-too-large", "1.yaml:7:44")
    assert len(compile_documents(load([schema("a", large(2), large(1)), *sources(large(2), large(3))]))) == 2


@pytest.mark.parametrize("kind", ["PolicyParams", "SchedulerPlugin"])
def test_patterns_of_schemas_count_where_files_are_compiled_one_by_one(kind: str) -> None:
    build = Builder()
    given = [schema(f"s{number}", large(number), kind=kind) for number in range(4)]
    for _ in range(2):
        with pytest.raises(PolicyError) as caught:
            build([*given, *sources("a")])
        (problem,) = caught.value.problems
        assert (problem.code, str(problem.span)) == ("patterns-too-large", "s3.yaml:6:59")
    assert build([*given[:2], *sources("a")])


def test_files_that_are_compiled_one_by_one_have_the_same_bound(compiled: list[str]) -> None:
    build = Builder()
    within, beyond = sources(*map(large, range(3))), sources(*map(large, range(50)))
    assert len(build(within)) == 3
    for _ in range(2):  # what is cached counts
        with pytest.raises(PolicyError) as caught:
            build(beyond)
        (problem,) = caught.value.problems
        assert (str(problem.span), problem.code) == ("3.yaml:7:44", "patterns-too-large")
    assert len(build([*within[:2], beyond[3]])) == 3
    assert sorted(set(compiled)) == [large(number) for number in range(4)]


def test_a_document_before_the_bound_keeps_its_problems() -> None:
    given = sources("[", *map(large, range(9)))
    assert [each.code for each in refused(given)] == ["cel-type", "patterns-too-large"]


def test_problems_are_gathered_for_lint() -> None:
    problems = Problems()
    assert len(compile_documents(load(sources(*map(large, range(9)))), problems)) == 3
    assert [each.code for each in problems.found] == ["patterns-too-large"]


def test_patterns_that_are_made_by_expressions_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex, "MOST_STATES_TOGETHER", 3 * SIZE)
    cache = regex._Patterns()
    monkeypatch.setattr(regex, "PATTERNS", cache)
    for number in range(50):
        assert compile_pattern(large(number)).search(f"{number:05}" + "a" * 494)
        assert cache.states <= 3 * SIZE
    assert len(cache) == 3
    assert compile_pattern(large(49)) is compile_pattern(large(49))
    monkeypatch.setattr(regex, "_MOST_CACHED", 2)
    compile_pattern("b")
    assert len(cache) == 2


def test_a_budget_is_that_of_its_thread_and_its_set() -> None:
    with patterns.PatternBudget(10) as outer:
        with patterns.PatternBudget() as inner:
            patterns.charge("a", 4)
        assert outer.patterns == inner.patterns == (patterns.SizedPattern("a", 4, None),)
        patterns.charge("a", 4)
        patterns.charge("b", 6)
        with pytest.raises(patterns.TooManyStatesError, match="have 11 states together"):
            patterns.charge("c", 1)
    patterns.charge("d", 10**9)
    assert isinstance(PATTERNS, regex._Patterns)
